"""`async_stream` when a micro-batch is executed again: every execution gives the rows of the first."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pillarbox.aio.options import Options
from pillarbox.spark import async_stream
from pillarbox.spark.arrow_io import from_ipc
from pillarbox.spark.keeping import BATCH, QUERY
from pillarbox.spark.stream import calls, processor
from pillarbox.spark.stream.pack import BUCKET, KEY, NUMBER, PART, ROWS, Pack
from pillarbox.spark.stream.plan import StreamPlan
from pillarbox.spark.stream.processor import ExecutionError, _StreamTask
from pillarbox.spark.work import Work
from tests.spark.streams import LONGEST, read_input, rocksdb, until, write_input

pytestmark = pytest.mark.timeout(200)


class Context:
    """Of a task, what Spark tells about it."""

    def __init__(self, stage: int, batch: str | None = "7", run: str = "a run") -> None:
        self._stage = stage
        self._properties = {BATCH: batch, QUERY: "a query", processor.JOB_GROUP: run}

    def stageId(self) -> int:
        return self._stage

    def partitionId(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties[name]


class Partition:
    """One bucket of a micro-batch, executed in this process; the rows from 100 wait for the gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._monkeypatch = monkeypatch
        self.gate = threading.Event()
        self.called: Counter[int] = Counter()
        gate, called = self.gate, self.called

        async def call(record: Any) -> int:
            called[record.id] += 1
            while record.id >= 100 and not gate.is_set():
                await asyncio.sleep(0.005)
            return int(record.id)

        result = T.StructType().add("result", T.LongType())
        work = Work(call, name, Options(ordered=False))
        self._plan = StreamPlan(
            name=name,
            work=work,
            schema=result,
            kept=(),
            columns=(("id", pa.int64()),),
            output=result.simpleString(),
            ordered=False,
            max_wait=0.2,
            buckets=1,
        )
        rows = pa.RecordBatch.from_pydict({"id": [1, 2, 100, 101], KEY: [1, 2, 3, 4]})
        (packed,) = Pack(1).run(iter([rows]))
        columns = packed.to_pydict()
        assert columns[BUCKET] == [0]
        self._parts = list(zip(columns[PART], columns[NUMBER], columns[ROWS], strict=True))

    def execute(self, context: Context, state: bytes | None = None) -> tuple[list[int], bytes | None]:
        """The rows that leave, and the state."""
        self._monkeypatch.setattr(processor.TaskContext, "get", lambda: context)
        # The time of a stage, which a retry shares with the attempt before it, begins anew.
        self._monkeypatch.setattr(processor, "_deadlines", processor._Deadlines())
        task = _StreamTask(self._plan)
        task.open(0, state, self._parts)
        entries = task._buckets[0].entries if 0 in task._buckets else []
        until(lambda: all(each.done for each in entries if self.gate.is_set() or each.record.id < 100))
        flushed = task.flush(0)
        rows = [
            each for blob in task.blobs(flushed) for batch in from_ipc(blob) for each in batch[0].to_pylist()
        ]
        task.close()
        return rows, flushed.state


@pytest.fixture
def partition(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Partition]:
    monkeypatch.setattr("pillarbox.spark.stream.share.tempfile.gettempdir", lambda: "/tmp")
    made = Partition(monkeypatch, f"{tmp_path}")
    yield made
    made.gate.set()
    calls._engines.pop(f"a query {tmp_path}", None)


@pytest.mark.contract
def test_a_second_execution_in_one_process_gives_the_rows_and_the_state_of_the_first(
    partition: Partition,
) -> None:
    rows, state = partition.execute(Context(1))
    assert sorted(rows) == [1, 2]
    assert state is not None
    partition.gate.set()
    assert partition.execute(Context(2)) == (rows, state)
    assert partition.execute(Context(3)) == (rows, state)
    assert partition.called == Counter([1, 2, 100, 101])


def test_a_replay_by_another_run_of_the_query_gives_the_rows_of_the_first_execution(
    partition: Partition,
) -> None:
    rows, state = partition.execute(Context(1))
    partition.gate.set()
    assert partition.execute(Context(5, run="the next run")) == (rows, state)
    assert partition.called == Counter([1, 2, 100, 101])


@pytest.mark.contract
def test_a_retry_of_a_failed_task_is_no_second_execution(partition: Partition) -> None:
    rows, _ = partition.execute(Context(1))
    assert sorted(rows) == [1, 2]
    partition.gate.set()
    # The output of the attempt before is thrown away.
    again, state = partition.execute(Context(1))
    assert sorted(again) == [1, 2, 100, 101]
    assert state is None
    # What counts from here on is what the retry gave.
    assert partition.execute(Context(2)) == (again, None)


def test_the_next_micro_batch_is_no_second_execution(partition: Partition) -> None:
    _, state = partition.execute(Context(1))
    partition.gate.set()
    partition._parts = []
    rows, left = partition.execute(Context(2, batch="8"), state)
    assert (sorted(rows), left) == ([100, 101], None)


@pytest.mark.contract
def test_a_second_execution_where_the_first_is_not_known_fails_and_names_persist(
    partition: Partition,
) -> None:
    partition.execute(Context(1))
    # Another process has another engine.
    (name,) = [each for each in calls._engines if each == f"a query {partition._plan.name}"]
    del calls._engines[name]
    with pytest.raises(ExecutionError, match=r"micro-batch 7 is executed a second time.*df\.persist\(\)"):
        partition.execute(Context(2))
    # A retry of the failed task fails too; the replay by a new run of the query does not.
    with pytest.raises(ExecutionError, match=r"df\.persist\(\)"):
        partition.execute(Context(2))
    partition.gate.set()
    assert sorted(partition.execute(Context(3, run="the next run"))[0]) == [1, 2, 100, 101]


def test_an_action_that_knows_no_micro_batch_fails_and_says_how_to_begin_its_thread(
    partition: Partition,
) -> None:
    with pytest.raises(ExecutionError, match=r"pyspark\.InheritableThread, or call df\.persist\(\)"):
        partition.execute(Context(1, batch=None))


async def _slow_for_some(row: Any) -> int:
    await asyncio.sleep(1.0 if row.id % 4 == 0 else 0.0)
    return int(row.id)


def _executed(
    spark: SparkSession, tmp_path: Path, each_batch: Callable[[Any], list[list[int]]]
) -> tuple[dict[int, list[list[int]]], str]:
    """What the actions of each micro-batch found, and what the query failed with."""
    write_input(spark, tmp_path / "in", "id long", [[(n + 30 * k,) for n in range(30)] for k in range(3)])
    stream = read_input(spark, tmp_path / "in", "id long")
    out = async_stream(stream, _slow_for_some, schema="id long", max_wait=0.2, ordered=False, buckets=4)
    found: dict[int, list[list[int]]] = {}

    def write(df: Any, batch: int) -> None:
        found[batch] = each_batch(df)

    writer = out.writeStream.foreachBatch(write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    said = ""
    try:
        query.awaitTermination(LONGEST)
    except Exception as error:
        said = str(error)
    finally:
        query.stop()
    return found, said


def _ids(df: Any) -> list[int]:
    return sorted(row.id for row in df.collect())


@pytest.mark.slow
@pytest.mark.contract
def test_two_writes_in_foreach_batch_agree_or_the_query_says_persist(
    spark: SparkSession, tmp_path: Path
) -> None:
    with rocksdb(spark):
        found, said = _executed(spark, tmp_path, lambda df: [_ids(df), _ids(df)])
    for first, second in found.values():
        assert first == second
    if said:
        assert "df.persist()" in said
    else:
        assert sorted(each for rows, _ in found.values() for each in rows) == list(range(90))


@pytest.mark.slow
@pytest.mark.contract
def test_two_writes_behind_persist_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def twice(df: Any) -> list[list[int]]:
        df.persist()
        try:
            return [_ids(df), _ids(df)]
        finally:
            df.unpersist()

    with rocksdb(spark):
        found, said = _executed(spark, tmp_path, twice)
    assert said == ""
    for first, second in found.values():
        assert first == second
    assert sorted(each for rows, _ in found.values() for each in rows) == list(range(90))
