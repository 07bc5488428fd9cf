"""The files of a query with nothing pending: none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox.spark import async_stream
from pillarbox.spark.stream.call_client import private_folder
from pillarbox.spark.stream.clock import UNTOLD_INTERVAL_S, offset_of, report_path
from tests.spark.streams import (
    Collected,
    read_input,
    rocksdb,
    until,
    write_input,
)
from tests.spark.test_stream_life import start
from tests.versions import needs_async_stream

pytestmark = [needs_async_stream]


@pytest.fixture(autouse=True)
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    with rocksdb(spark):
        yield


@pytest.mark.contract
def test_a_query_with_nothing_pending_makes_no_micro_batches_and_no_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def call(row: Any) -> int:
        return int(row.id)

    write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(10)]])
    sink = Collected()
    stream = read_input(spark, tmp_path / "in", "id long")
    query = start(async_stream(stream, call, schema="id long"), sink, tmp_path / "checkpoint")

    def files() -> set[Path]:
        return {path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()}

    def rests() -> bool:
        """The clock has been told that nothing is pending behind its last movement."""
        folder = private_folder()
        assert folder is not None
        for source in query.lastProgress["sources"]:
            offset = offset_of(json.loads(source["endOffset"]))
            report = Path(report_path(folder, offset["clock"])) if offset is not None else None
            if offset is not None and report is not None and report.exists():
                told = json.loads(report.read_text())
                return told["tick"] == offset["tick"] and not told["busy"]
        return False

    try:
        until(lambda: len(sink.rows) == 10, query)
        until(rests, query)
        # Where it is not told, it moves sooner.
        until(lambda: query.status["message"] == "Waiting for data to arrive", query)
        quiet = files()
        assert not query.awaitTermination(UNTOLD_INTERVAL_S + 2.0)
        assert files() == quiet
        write_input(spark, tmp_path / "in", "id long", [[(n,) for n in range(10, 20)]])
        until(lambda: len(sink.rows) == 20, query)
    finally:
        query.stop()
