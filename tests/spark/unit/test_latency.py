"""`latency="low"`: a result leaves its task before the next row is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox import Options
from pillarbox.spark import async_map, async_udf
from pillarbox.spark.operator_plan import LOW_LATENCY, knows_pipelined

RunScript = Callable[..., list[str]]

# A task of three Python workers: a source, the operator, a sink. Spark looks one row ahead before it sends a
# row to a worker, so the sink sees row n when row n + 1 has left the operator, which reads row n + 1 when the
# source has given row n + 2. The source waits there: a row that is held back anywhere else is never seen.
SCRIPT = """
from pillarbox import Options
import os, select, sys
import pyarrow as pa
from pillarbox.spark import async_map, async_udf
fifo, kind = sys.argv[1:]

def source(batches):
    # Both ends open, so that neither opening nor reading meets an end.
    seen = os.open(fifo, os.O_RDWR)
    while select.select([seen], [], [], 0.0)[0]:
        os.read(seen, 1)  # the last rows of the micro-batch before
    for batch in batches:
        for n in range(20):
            yield pa.RecordBatch.from_pydict({"id": pa.array([n], pa.int64())})
            if n < 2:
                continue
            ready, _, _ = select.select([seen], [], [], 30.0)
            if not ready:
                raise TimeoutError(f"row {n - 2} was not seen before row {n} was read")
            assert os.read(seen, 1) == b"%c" % (n - 2 + 65)

def sink(batches):
    seen = os.open(fifo, os.O_RDWR)
    for batch in batches:
        for n in batch.column("n").to_pylist():
            os.write(seen, b"%c" % (n + 65))
        yield batch

async def call(row):
    return row.id

@async_udf("long", options=Options(latency="low"))
async def column(n):
    return n

if kind == "stream":
    df = (spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
        .load())
else:
    df = spark.range(0, 1, 1, 1)
df = df.mapInArrow(source, "id long")
if kind == "udf":
    df = df.select(column("id").alias("n"))
else:
    df = async_map(df, call, schema="n long", ordered=kind == "map", options=Options(latency="low"))
df = df.mapInArrow(sink, "n long")
if kind == "stream":
    query = df.writeStream.format("noop").option("checkpointLocation", "checkpoint").start()
    while query.lastProgress is None or query.lastProgress["batchId"] < 1:
        if not query.isActive:
            raise query.exception()
        query.awaitTermination(0.2)
    query.stop()
    print("seen")
else:
    print([row.n for row in df.collect()] == list(range(20)))
"""


needs_pipelined = pytest.mark.skipif(not knows_pipelined(), reason="this PySpark cannot deliver promptly")


@pytest.mark.slow
@pytest.mark.contract('With latency="low" a row is seen downstream before the next is read.')
@needs_pipelined
@pytest.mark.parametrize("kind", ["map", "udf", "stream"])
def test_a_row_is_seen_downstream_before_the_next_is_read(
    run_script: RunScript, tmp_path: Path, kind: str
) -> None:
    os.mkfifo(tmp_path / "seen")
    lines = run_script(SCRIPT, str(tmp_path / "seen"), kind, settings=LOW_LATENCY)
    assert lines == ["seen" if kind == "stream" else "True"]


async def nothing(row: Any) -> None:
    return None


@needs_pipelined
def test_a_session_that_holds_rows_back_is_refused_with_what_it_needs(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="latency='low': the session needs") as caught:
        async_map(spark.range(1), nothing, schema="n long", options=Options(latency="low"))
    text = str(caught.value)
    for setting in LOW_LATENCY:
        assert setting in text
    assert "SparkSession.builder.config(map=pillarbox.spark.operator_plan.LOW_LATENCY)" in text
    call = async_udf("long", options=Options(latency="low"))(nothing)
    with pytest.raises(ValueError, match="latency='low': the session needs"):
        call("id")


@needs_pipelined
def test_only_what_is_missing_is_asked_for(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.execution.pandas.udf.buffer.size", "1024")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    with pytest.raises(ValueError, match="latency='low': the session needs") as caught:
        async_map(session.range(1), nothing, schema="n long", options=Options(latency="low"))
    assert "spark.python.udf.pipelined.enabled=true (read when Spark starts);" in str(caught.value)


@pytest.mark.skipif(knows_pipelined(), reason="this PySpark can deliver promptly")
def test_a_pyspark_that_cannot_deliver_promptly_says_so(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="latency='low': needs a PySpark that knows spark.python.udf.pip"):
        async_map(spark.range(1), nothing, schema="n long", options=Options(latency="low"))


def test_another_latency_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="latency='fast': must be one of 'normal', 'low'"):
        async_map(spark.range(1), nothing, schema="n long", options=Options(latency="fast"))
