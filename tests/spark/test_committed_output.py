"""What leaves with a micro-batch follows from what the one before it has committed."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pillarbox.spark import async_stream
from tests.spark.streams import LONGEST, note, noted, read_input, rocksdb, write_input
from tests.versions import needs_async_stream

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, needs_async_stream]

FILES, ROWS_IN_A_FILE = 3, 20
IDS = list(range(FILES * ROWS_IN_A_FILE))


async def called(path: str, row: Any) -> tuple[int, str]:
    """Each call has another result, and some outlast several micro-batches."""
    note(path, row.id)
    await asyncio.sleep(3.0 if row.id % 5 == 0 else 0.0)
    return row.id, uuid.uuid4().hex


def stream_of(spark: SparkSession, folder: Path, *, ordered: bool) -> DataFrame:
    df = read_input(spark, folder / "in", "id long, key long")
    fn = partial(called, str(folder / "calls"))
    return async_stream(df, fn, schema="id long, call string", key="key", max_wait=0.2, ordered=ordered)


class Query:
    """Queries over one checkpoint, one after the other, until all rows have come to the sink."""

    def __init__(self, spark: SparkSession, folder: Path, *, ordered: bool = False) -> None:
        files = [
            [(number, number % 3) for number in IDS[start : start + ROWS_IN_A_FILE]]
            for start in range(0, len(IDS), ROWS_IN_A_FILE)
        ]
        write_input(spark, folder / "in", "id long, key long", files)
        self.spark, self.folder, self.ordered = spark, folder, ordered
        self.sink: dict[int, list[Any]] = {}
        self.calls = folder / "calls"

    def run(self, each_batch: Callable[[DataFrame, int], list[Any]]) -> str | None:
        """Put what `each_batch` gives into the sink, by batch number; returns the error of the query."""
        done = threading.Event()

        def write(df: DataFrame, batch: int) -> None:
            rows = each_batch(df, batch)
            self.sink.setdefault(batch, rows)
            if sum(map(len, self.sink.values())) >= len(IDS):
                done.set()

        out = stream_of(self.spark, self.folder, ordered=self.ordered)
        writer = out.writeStream.foreachBatch(write).option("checkpointLocation", str(self.folder / "state"))
        query = writer.start()
        try:
            while not done.wait(0.1) and query.isActive:
                pass
            error = query.exception()
        finally:
            query.stop()
        return None if error is None else str(error)

    def check(self) -> None:
        rows = [row for _, rows in sorted(self.sink.items()) for row in rows]
        assert sorted(row.id for row in rows) == IDS
        assert len({row.call for row in rows}) == len(IDS)
        if self.ordered:
            for key in range(3):
                of_key = [row.id for row in rows if row.id % 3 == key]
                assert of_key == sorted(of_key)


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [False, True])
def test_every_action_on_a_micro_batch_has_the_same_rows_and_no_call_is_made_again(
    spark: SparkSession, tmp_path: Path, ordered: bool
) -> None:
    def three_times(df: DataFrame, batch: int) -> list[Any]:
        rows = df.collect()
        found: list[list[Any]] = []
        # Spark tells the tasks of such a thread neither query nor micro-batch.
        thread = threading.Thread(target=lambda: found.append(df.collect()))
        thread.start()
        thread.join(LONGEST)
        assert found == [rows]
        assert df.take(1) == rows[:1]
        return list(rows)

    with rocksdb(spark):
        query = Query(spark, tmp_path, ordered=ordered)
        assert query.run(three_times) is None
    query.check()
    assert Counter(map(int, noted(query.calls))) == Counter(IDS)


@pytest.mark.contract
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_replay_has_the_rows_that_the_sink_has_already(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    replayed: list[tuple[list[Any], list[Any]]] = []
    failing = {3, 5}

    def write(df: DataFrame, batch: int) -> list[Any]:
        rows = list(df.collect())
        if batch in query.sink:
            replayed.append((query.sink[batch], rows))
        if batch in failing:
            failing.remove(batch)
            # The sink has it, and Spark does not know.
            query.sink[batch] = rows
            raise RuntimeError("the driver dies here")
        return rows

    with rocksdb(spark):
        spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", version)
        try:
            query = Query(spark, tmp_path)
            failures = 0
            while (error := query.run(write)) is not None:
                assert "the driver dies here" in error
                failures += 1
        finally:
            spark.conf.unset("spark.sql.streaming.stateStore.checkpointFormatVersion")
    assert failures == 2
    assert len(replayed) == 2
    for before, after in replayed:
        assert after == before
    query.check()
