"""Structured Streaming: rate, files and foreachBatch, each with a first attempt that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., list[str]]

HEAD = """
import asyncio, json, os, pathlib, sys
from pillarbox.spark import async_map, async_udf
tmp = pathlib.Path(sys.argv[1])

def first_time(name):
    try:
        (tmp / f"failed-{name}").touch(exist_ok=False)
        return True
    except FileExistsError:
        return False
"""


@pytest.mark.slow
@pytest.mark.contract
def test_a_file_stream_yields_each_row_once_although_an_attempt_fails(
    run_script: RunScript, tmp_path: Path
) -> None:
    lines = run_script(
        HEAD
        + """
for part in range(3):
    (tmp / "in").mkdir(exist_ok=True)
    with open(tmp / "in" / f"{part}.json", "w") as file:
        file.writelines(json.dumps({"id": part * 100 + i}) + "\\n" for i in range(100))

async def call(row):
    await asyncio.sleep(row.id % 5 / 1000)
    if row.id == 142 and first_time("row"):
        raise ConnectionError("first attempt")
    return row.id * 2

df = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(tmp / "in"))
out = async_map(df, call, schema="twice long", keep="*", ordered=False, capacity=16)
query = (out.writeStream.format("parquet").option("path", str(tmp / "out"))
    .option("checkpointLocation", str(tmp / "checkpoint")).trigger(availableNow=True).start())
query.awaitTermination(3600)
rows = sorted(tuple(row) for row in spark.read.parquet(str(tmp / "out")).collect())
print(rows == [(i, 2 * i) for i in range(300)], (tmp / "failed-row").exists())
""",
        str(tmp_path),
        master="local[4,9]",
    )
    assert lines == ["True True"]


@pytest.mark.slow
def test_a_rate_stream_goes_through_a_column_although_an_attempt_fails(
    run_script: RunScript, tmp_path: Path
) -> None:
    lines = run_script(
        HEAD
        + """
@async_udf("bigint", capacity=16)
async def call(n):
    await asyncio.sleep(0.001)
    if n == 50 and first_time("row"):
        raise ConnectionError("first attempt")
    return -n

df = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 40).option("numPartitions", 2).load()
out = df.select("value", call("value").alias("minus"))
query = (out.writeStream.format("parquet").option("path", str(tmp / "out"))
    .option("checkpointLocation", str(tmp / "checkpoint")).start())
while query.lastProgress is None or query.lastProgress["batchId"] < 4:
    if not query.isActive:
        raise query.exception()
    query.awaitTermination(0.2)
query.stop()
rows = sorted(tuple(row) for row in spark.read.parquet(str(tmp / "out")).collect())
print(len(rows) >= 160, rows == [(i, -i) for i in range(len(rows))], (tmp / "failed-row").exists())
""",
        str(tmp_path),
        master="local[4,9]",
    )
    assert lines == ["True True True"]


def test_foreach_batch_may_call_although_an_attempt_fails(run_script: RunScript, tmp_path: Path) -> None:
    lines = run_script(
        HEAD
        + """
async def call(row):
    if row.value == 30 and first_time("row"):
        raise ConnectionError("first attempt")
    return row.value

seen = []
def batch(df, number):
    rows = async_map(df, call, schema="value long").collect()
    seen.extend(row.value for row in rows)

df = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).option("numPartitions", 2).load()
query = df.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp / "checkpoint")).start()
while query.lastProgress is None or query.lastProgress["batchId"] < 3:
    if not query.isActive:
        raise query.exception()
    query.awaitTermination(0.2)
query.stop()
query.awaitTermination(30)
whole = len(seen) // 20 * 20
print(whole >= 60, sorted(seen) == list(range(len(seen))), (tmp / "failed-row").exists())
""",
        str(tmp_path),
        master="local[4,9]",
    )
    assert lines == ["True True True"]
