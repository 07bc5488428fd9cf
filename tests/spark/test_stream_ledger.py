"""A stream with a ledger on Spark: its rows leave once, with what they had, and are called once."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pillarbox import Errors, Ledger
from pillarbox.spark import async_stream, failed_rows
from tests.spark import queries
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
from tests.spark.test_committed_output import IDS, Query, format_of_checkpoints
from tests.versions import needs_async_stream

pytestmark = [pytest.mark.slow, needs_async_stream]

WIDTH = 500


async def sized(path: str, row: Any) -> tuple[int, str]:
    """Each call has another result, and some outlast several micro-batches."""
    note(path, row.id)
    await asyncio.sleep(3.0 if row.id % 5 == 0 else 0.0)
    return len(row.text), uuid.uuid4().hex


class LedgerQuery(Query):
    """Queries with a ledger, whose rows leave with two of their columns."""

    def stream(self, tasks: int) -> DataFrame:
        source = read_input(self.spark, self.folder / "in", "id long, key long")
        if tasks > 1:
            source = source.repartition(tasks)
        return async_stream(
            source.withColumn("text", F.repeat(F.format_string("%04d.", "id"), WIDTH)),
            partial(sized, str(self.calls)),
            schema="size long, call string",
            keep=["text", "id"],
            key="key",
            max_wait=0.2,
            ordered=self.ordered,
            ledger=Ledger(str(self.folder / "ledger"), uid="sized"),
        )

    def check(self) -> None:
        super().check()
        for rows in self.sink.values():
            for row in rows:
                assert row.text == f"{row.id:04d}." * WIDTH
                assert row.size == len(row.text)


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [False, True])
def test_every_action_has_the_same_rows_with_a_ledger_and_no_call_is_made_again(
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
        query = LedgerQuery(spark, tmp_path, ordered=ordered)
        assert query.run(three_times) is None
    query.check()
    assert Counter(map(int, noted(query.calls))) == Counter(IDS)


NAMES = "home string, work string, owed double"


async def names_of(path: str, row: Any) -> str:
    note(path, shown(row.home, row.work, row.owed))
    return shown(row.home, row.work, row.owed)


def shown(*row: Any) -> str:
    return "-".join(map(repr, row))


def turned(path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows forwards, and at the next execution backwards."""
    rows = pa.Table.from_batches(batches)
    note(path, len(rows))
    if len(noted(Path(path))) % 2 == 0:
        rows = rows.take(pa.array(range(len(rows) - 1, -1, -1)))
    yield from rows.combine_chunks().to_batches()


@pytest.mark.contract(
    "Rows of a stream whose nulls stand in other columns keep their own answers, in whichever order a replay "
    "reads them."
)
def test_rows_that_differ_in_where_their_nulls_are_keep_their_answers_in_a_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [(None, "1", 0.0), ("1", None, 0.0), ("1", None, -0.0), ("1", "", None), ("", "1", None)]
    rows += [(None, None, 1.0), (None, None, 1.0000000000000002), ("1", "1", None), ("1", "1", None)]
    write_input(spark, tmp_path / "in", NAMES, [rows])
    calls, executions = str(tmp_path / "calls"), str(tmp_path / "executions")
    kept: list[Any] = []

    def write(df: DataFrame, batch: int) -> None:
        found = df.collect()
        if not kept:
            kept.append(None)
            raise RuntimeError("the sink fails once")
        kept.extend(found)

    def run() -> None:
        source = read_input(spark, tmp_path / "in", NAMES).mapInArrow(partial(turned, executions), NAMES)
        stream = async_stream(
            source,
            partial(names_of, calls),
            schema="told string",
            keep="*",
            max_wait=END_TIMEOUT_S,
            ledger=Ledger(str(tmp_path / "ledger"), uid="names"),
        )
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = queries.start(writer.foreachBatch(write).trigger(availableNow=True))
        query.awaitTermination()

    with rocksdb(spark):
        with pytest.raises(StreamingQueryException, match="the sink fails once"):
            run()
        run()
    found = [(shown(row.home, row.work, row.owed), row.told) for row in kept[1:]]
    assert Counter(found) == Counter((shown(*row), shown(*row)) for row in rows)
    assert Counter(noted(Path(calls))) == Counter(shown(*row) for row in rows)
    assert len(noted(Path(executions))) >= 2


@pytest.mark.contract
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_replay_and_a_restart_find_the_rows_that_are_pending_whichever_tasks_read_the_input(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    failing = {1, 3}

    def write(df: DataFrame, batch: int) -> list[Any]:
        rows = list(df.collect())
        if batch in query.sink:
            assert rows == query.sink[batch]
        if batch in failing:
            failing.remove(batch)
            # The sink has it, and Spark does not know.
            query.sink[batch] = rows
            raise RuntimeError("the driver dies here")
        return rows

    with format_of_checkpoints(spark, version):
        query = LedgerQuery(spark, tmp_path)
        while (error := query.run(write, tasks=3 - len(failing))) is not None:
            assert "the driver dies here" in error
    assert not failing
    query.check()


@pytest.mark.contract
def test_two_streams_of_a_query_keep_their_rows_apart(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        if row.id == 3:
            raise ConnectionError("no answer")
        return 2 * int(row.id)

    def stream(df: DataFrame, uid: str, result: str) -> DataFrame:
        return async_stream(
            df,
            call,
            schema=f"{result} long",
            keep="*",
            errors=Errors("drop", dead_letter=str(tmp_path / "letters")),
            ledger=Ledger(str(tmp_path / "ledger"), uid=uid),
        )

    def run(first: str, second: str) -> Any:
        out = stream(stream(read_input(spark, tmp_path / "in", "id long"), first, "one"), second, "two")
        writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / second))
        query = queries.start(writer.trigger(availableNow=True))
        try:
            until(lambda: not query.isActive)
        finally:
            query.stop()
        return query.exception()

    sink = Collected()
    write_input(spark, tmp_path / "in", "id long", [[(number,) for number in range(6)]])
    with rocksdb(spark):
        assert run("first", "second") is None
        found = sorted((row.id, row.one, row.two) for row in sink.rows)
        assert found == [(number, 2 * number, 2 * number) for number in (0, 1, 2, 4, 5)]
        (letter,) = failed_rows(spark.read.parquet(str(tmp_path / "letters"))).collect()
        assert (letter.id, letter["_error"].type) == (3, "ConnectionError")
