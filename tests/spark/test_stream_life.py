"""`async_stream` over the life of a query: idle, stopped and started again, chained, over Connect."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox.spark import async_stream
from tests.spark import queries
from tests.spark.state_store import PROVIDER, ROCKSDB
from tests.spark.streams import (
    END_TIMEOUT_S,
    Collected,
    note,
    noted,
    read_input,
    rocksdb,
    until,
    write_input,
)
from tests.versions import needs_async_stream

pytestmark = [needs_async_stream]

RunScript = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    with rocksdb(spark):
        yield


def start(df: Any, sink: Any, checkpoint: Path, **trigger: Any) -> Any:
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return queries.start(writer.trigger(**trigger) if trigger else writer)


@pytest.mark.contract
def test_a_query_that_is_started_again_gives_what_was_pending_without_input_and_keeps_its_capacity(
    spark: SparkSession, tmp_path: Path
) -> None:
    calls, gate, running = str(tmp_path / "calls"), tmp_path / "open", str(tmp_path / "running")

    async def call(row: Any) -> int:
        note(calls, row.id)
        note(running, "+1")
        try:
            while not gate.exists():
                await asyncio.sleep(0.02)
        finally:
            note(running, "-1")
        return int(row.id)

    write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(12)]])
    stream = read_input(spark, tmp_path / "in", "id long")
    sink = Collected()

    def begin(**trigger: Any) -> Any:
        out = async_stream(stream, call, schema="id long", capacity=4, max_wait=0.1)
        return start(out, sink, tmp_path / "checkpoint", **trigger)

    for _ in range(2):
        query = begin()
        before = len(noted(Path(calls)))
        until(lambda before=before: len(noted(Path(calls))) >= before + 4, query)  # type: ignore[misc]
        seen = query.lastProgress
        until(lambda seen=seen, query=query: query.lastProgress != seen, query)  # type: ignore[misc]
        query.stop()
    assert sink.rows == []
    query = begin(availableNow=True)
    until(lambda: len(noted(Path(calls))) >= 12, query)
    gate.touch()
    assert query.awaitTermination(END_TIMEOUT_S)
    assert sorted(row.id for row in sink.rows) == list(range(12))
    at_once, most = 0, 0
    for step in noted(Path(running)):
        at_once += int(step)
        most = max(most, at_once)
    assert most == 4


def test_two_operators_in_one_query_and_two_queries_over_one_dataframe_each_give_every_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def one(row: Any) -> int:
        await asyncio.sleep(1.5 if row.id % 7 == 0 else 0.0)
        return int(row.id) + 1

    async def two(row: Any) -> int:
        await asyncio.sleep(1.5 if row.more % 5 == 0 else 0.0)
        return int(row.more) * 2

    write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(30)]])
    stream = read_input(spark, tmp_path / "in", "id long")
    first = async_stream(stream, one, schema="more long", max_wait=0.2, ordered=False)
    both = async_stream(first, two, schema="result long", max_wait=0.2, ordered=False)
    sinks = [Collected(), Collected()]
    queries = [
        start(both, sink, tmp_path / f"checkpoint-{n}", availableNow=True) for n, sink in enumerate(sinks)
    ]
    for query, sink in zip(queries, sinks, strict=True):
        assert query.awaitTermination(END_TIMEOUT_S)
        assert sorted(row.result for row in sink.rows) == [2 * (n + 1) for n in range(30)]


@pytest.mark.slow
@pytest.mark.contract
def test_windows_behind_a_stream_count_rows_that_left_late_until_their_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    noon = datetime.datetime(2026, 11, 21, 12, 0)

    async def call(row: Any) -> int:
        await asyncio.sleep(2.0 if row.n == 0 else 0.0)
        return int(row.n)

    files = [
        [(n, noon + datetime.timedelta(minutes=10 * n)) for n in range(12)],
        [(100, noon + datetime.timedelta(hours=8))],
        [(101, noon + datetime.timedelta(hours=16))],
    ]
    write_input(spark, tmp_path / "in", "n int, at timestamp", files)
    out = async_stream(
        read_input(spark, tmp_path / "in", "n int, at timestamp"),
        call,
        schema="id int",
        keep=["at"],
        max_wait=0.2,
        ordered=False,
    )
    counted = out.withWatermark("at", "24 hours").groupBy(F.window("at", "1 hour")).agg(F.collect_list("id"))
    sink = Collected()
    query = queries.start(
        counted.writeStream.outputMode("update")
        .foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert query.awaitTermination(END_TIMEOUT_S)
    assert query.exception() is None
    windows = {row[0].start: sorted(row[1]) for row in sink.rows}
    hours = [windows[noon + datetime.timedelta(hours=hour)] for hour in (0, 1, 8, 16)]
    assert hours == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [100], [101]]


@pytest.mark.slow
@pytest.mark.contract
def test_a_stream_over_connect_gives_every_row_and_ends_with_available_now(
    run_script: RunScript, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    lines = run_script(
        """
import asyncio
from pillarbox.spark import async_stream
from tests.spark import queries

folder = sys.argv[1]
spark.conf.set(sys.argv[2], sys.argv[3])
spark.range(20).write.parquet(folder + "/in")

async def call(row):
    await asyncio.sleep(1.5 if row.id % 5 == 0 else 0.0)
    return row.id

stream = spark.readStream.schema("id long").parquet(folder + "/in")
out = async_stream(stream, call, schema="id long", max_wait=0.2)
writer = out.writeStream.format("parquet").option("path", folder + "/out")
writer = writer.option("checkpointLocation", folder + "/c").trigger(availableNow=True)
query = queries.start(writer)
print(query.awaitTermination(3600), query.exception())
print(sorted(row.id for row in spark.read.parquet(folder + "/out").collect()) == list(range(20)))
""",
        str(tmp_path),
        PROVIDER,
        ROCKSDB,
        remote="local[2]",
        timeout=180,
    )
    assert lines == ["True None", "True"]
