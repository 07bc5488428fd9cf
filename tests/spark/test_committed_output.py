"""The output of a micro-batch follows from the commit of the one before it."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pillarbox.spark import async_stream
from tests.spark import queries
from tests.spark.streams import END_TIMEOUT_S, note, noted, read_input, rocksdb, write_input
from tests.versions import needs_async_stream

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, needs_async_stream]

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
# A micro-batch for each file, at least: sinks fail in the sixth, whatever the machine's speed.
FILES, ROWS_IN_A_FILE = 6, 10
IDS = list(range(FILES * ROWS_IN_A_FILE))


async def called(path: str, row: Any) -> tuple[int, str]:
    """Each call has another result, and some outlast several micro-batches."""
    note(path, row.id)
    await asyncio.sleep(3.0 if row.id % 5 == 0 else 0.0)
    return row.id, uuid.uuid4().hex


def stream_of(spark: SparkSession, folder: Path, *, ordered: bool, tasks: int) -> DataFrame:
    df = read_input(spark, folder / "in", "id long, key long")
    if tasks > 1:
        df = df.repartition(tasks)
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

    def run(self, each_batch: Callable[[DataFrame, int], list[Any]], tasks: int = 1) -> str | None:
        """Put what `each_batch` gives into the sink, by batch number; returns the error of the query.

        tasks: by so many the input is read.
        """
        done = threading.Event()

        def write(df: DataFrame, batch: int) -> None:
            rows = each_batch(df, batch)
            self.sink.setdefault(batch, rows)
            if sum(map(len, self.sink.values())) >= len(IDS):
                done.set()

        writer = self.stream(tasks).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.folder / "state"))
        query = queries.start(writer)
        try:
            while not done.wait(0.1) and query.isActive:
                pass
            error = query.exception()
        finally:
            query.stop()
        return None if error is None else str(error)

    def stream(self, tasks: int) -> DataFrame:
        return stream_of(self.spark, self.folder, ordered=self.ordered, tasks=tasks)

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
        thread.join(END_TIMEOUT_S)
        assert found == [rows]
        assert df.take(1) == rows[:1]
        return list(rows)

    with rocksdb(spark):
        query = Query(spark, tmp_path, ordered=ordered)
        assert query.run(three_times) is None
    query.check()
    assert Counter(map(int, noted(query.calls))) == Counter(IDS)


@contextmanager
def format_of_checkpoints(spark: SparkSession, version: str) -> Iterator[None]:
    with rocksdb(spark):
        spark.conf.set(FORMAT, version)
        try:
            yield
        finally:
            spark.conf.unset(FORMAT)


@pytest.mark.contract
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_replay_has_the_rows_that_the_sink_has_already_whichever_tasks_read_the_input(
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

    with format_of_checkpoints(spark, version):
        query = Query(spark, tmp_path)
        failures = 0
        while (error := query.run(write, tasks=1 + failures)) is not None:
            assert "the driver dies here" in error
            failures += 1
    assert failures == 2
    assert len(replayed) == 2
    for before, after in replayed:
        assert after == before
    query.check()


@pytest.mark.contract
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_sink_that_skips_a_replay_and_counts_its_rows_loses_and_doubles_none(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    failing = {2, 4}
    counted: list[tuple[int, int]] = []

    def write(df: DataFrame, batch: int) -> list[Any]:
        if batch in query.sink:
            counted.append((df.count(), len(query.sink[batch])))
            return []
        query.sink[batch] = list(df.collect())
        if batch in failing:
            failing.remove(batch)
            raise RuntimeError("the driver dies here")
        return []

    with format_of_checkpoints(spark, version):
        query = Query(spark, tmp_path)
        while (error := query.run(write)) is not None:
            assert "the driver dies here" in error
    assert len(counted) == 2
    assert all(count == expected for count, expected in counted)
    query.check()


@pytest.mark.contract
def test_each_of_three_sinks_has_every_row_once_where_one_of_them_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    sinks: list[dict[int, list[Any]]] = [{}, {}]
    failing = {2, 3, 5}

    def write(df: DataFrame, batch: int) -> list[Any]:
        for sink in sinks:
            # The one writes over what it has, the other one keeps it.
            rows = list(df.collect())
            sink[batch] = rows if sink is sinks[0] else sink.get(batch, rows)
            if batch in failing:
                failing.remove(batch)
                raise RuntimeError("this sink is not there")
        return list(df.collect())

    with rocksdb(spark):
        query = Query(spark, tmp_path)
        while (error := query.run(write)) is not None:
            assert "this sink is not there" in error
    query.check()
    assert not failing
    assert sinks == [query.sink, query.sink]


@pytest.mark.contract
@pytest.mark.parametrize("version", ["1", "2"])
def test_spark_refuses_a_sink_that_does_not_look_at_a_replay_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    failing, looks = {2}, False

    def write(df: DataFrame, batch: int) -> list[Any]:
        if batch in query.sink and not looks:
            return []
        rows = query.sink.setdefault(batch, list(df.collect()))
        if batch in failing:
            failing.remove(batch)
            raise RuntimeError("the driver dies here")
        return rows

    with format_of_checkpoints(spark, version):
        query = Query(spark, tmp_path)
        errors = [query.run(write) for _ in range(3)]
        looks = True
        last = query.run(write) if version == "2" else errors.pop()
    told = {"1": ["Exception thrown in awaitResult"], "2": ["CheckpointInfo length: 0"] * 2}
    for error, words in zip(errors, ["the driver dies here", *told[version]], strict=True):
        assert error is not None
        assert words in error
    assert last is None
    query.check()
