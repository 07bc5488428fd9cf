"""The buckets of a task: what one reads and leaves, over the process that makes its calls, without Spark."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Buffer
from tests.versions import needs_async_stream

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet
from pyspark import TaskContext
from pyspark.sql import types as T

from pillarbox import Options
from pillarbox.spark.dead_letters import dead_letter_of
from pillarbox.spark.ledger_plan import QUERY
from pillarbox.spark.operator_plan import OperatorPlan
from pillarbox.spark.records import to_ipc
from pillarbox.spark.stream import call_client
from pillarbox.spark.stream.bucket_state import (
    MAX_OUTPUT_BYTES,
    StreamPlan,
    StreamStateError,
    decode,
    with_columns,
)
from pillarbox.spark.stream.buckets import (
    DIGEST,
    JOB_GROUP,
    KEY,
    NUMBER,
    PART,
    ROWS,
    TIME,
    BucketProcessor,
    unpack,
)
from pillarbox.spark.stream.row_digests import row_digests

pytestmark = [
    needs_async_stream,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the /proc of Linux"),
]

COLUMNS = (("n", pa.int64()),)
RESULTS = T.StructType().add("same", T.LongType())
OUTPUT = "struct<n:bigint,same:bigint>"
TICK = None
"""The piece of the clock."""


async def same(row: Any) -> int:
    """The number of the row; one of 0 never ends, negative ones fail."""
    if not row.n:
        await asyncio.Event().wait()
    if row.n < 0:
        raise ValueError("no such row")
    return int(row.n)


async def noted(calls: Path, row: Any) -> int:
    """As `same`, and writes down that it was called."""
    with calls.open("a") as file:
        file.write(f"{row.n} ")
    return await same(row)


class State:
    """The state of a bucket, committed by each micro-batch."""

    blob: bytes | None = None

    def get(self) -> tuple[bytes] | None:
        return None if self.blob is None else (self.blob,)

    def update(self, value: tuple[bytes]) -> None:
        (self.blob,) = value

    def clear(self) -> None:
        self.blob = None


class Task:
    """Tasks of a stream, one after the other, as Spark runs them. They know no query."""

    def __init__(self, **given: Any) -> None:
        dead_letters, max_wait = given.pop("dead_letters", None), given.pop("max_wait", 480.0)
        fn = given.pop("fn", same)
        self.max_output_bytes = given.pop("max_output_bytes", MAX_OUTPUT_BYTES)
        options = Options(ordered=False, **given)
        operator = OperatorPlan(fn, "token", options, dead_letters=dead_letters)
        self.plan = StreamPlan(uuid.uuid4().hex, operator, RESULTS, ("n",), COLUMNS, OUTPUT, True, max_wait)
        self.states: dict[int, State] = {}

    def run(self, bucket: int, time_ms: int, *pieces: tuple[int, int, Sequence[int]] | None) -> list[int]:
        """Run a task for a bucket of a micro-batch; returns the numbers that leave.

        pieces: partition, place and numbers of each, all with one key; `TICK` for the clock's.
        """
        processor = BucketProcessor(self.plan, max_output_bytes=self.max_output_bytes)
        processor._state = self.states.setdefault(bucket, State())
        frame = pd.DataFrame(
            [
                (time_ms, None, None, None) if each is None else (time_ms, *each[:2], self._piece(each[2]))
                for each in pieces
            ],
            columns=[TIME, PART, NUMBER, ROWS],
        )
        left = [*processor.handleInputRows((bucket,), iter([frame]), None)]  # type: ignore[arg-type]
        processor.close()
        blobs = (pa.RecordBatch.from_pydict({ROWS: [*each[ROWS]]}) for each in left)
        return [n for batch in unpack(blobs) for n in batch.column(batch.schema.names.index("n")).to_pylist()]

    def _piece(self, numbers: Sequence[int]) -> bytes:
        values = np.array(numbers, np.int64)
        # As Spark gives a column that has no nulls by its plan.
        schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
        rows = pa.RecordBatch.from_arrays([pa.array(values)], schema=schema)
        own = {DIGEST: row_digests(rows.columns, rows.num_rows), KEY: pa.array(np.zeros_like(values))}
        return to_ipc(with_columns(rows, own))


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A task of an executor, whose Java process another one stands for."""
    # Restored to what it was before: the constructor itself sets it, and with one left no session can begin.
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext()
    context._localProperties = {}
    context._partitionId = context._stageId = context._attemptNumber = 0
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as executor:
        monkeypatch.setattr(call_client, "executor_pid", lambda: executor.pid)
        yield
        executor.kill()


@pytest.mark.contract(convicts=["partitions_not_in_order"])
def test_pieces_of_a_bucket_are_read_in_the_order_of_their_rows_however_spark_brings_them() -> None:
    task = Task()
    assert task.run(12, 1, (1, 3, [7]), (0, 10, [5, 6]), (1, 2, [8]), (0, 9, [3, 4]), (0, 1, [1, 2])) == []
    assert task.run(12, 2, TICK) == [1, 2, 3, 4, 5, 6, 8, 7]
    assert task.states[12].blob is None


@pytest.mark.contract
def test_micro_batches_with_input_for_other_buckets_alone_end_no_calls(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    task = Task(max_wait=4.8, fn=partial(noted, calls))
    task.run(12, 1, (0, 0, [0]))
    for time_ms in (2, 3, 4):
        task.run(16, time_ms, (0, 0, [time_ms]))
    task.run(12, 5, TICK)
    assert calls.read_text().split().count("0") == 1


@pytest.mark.contract
def test_all_dead_letters_of_a_state_are_put_aside_however_many_blobs_they_fill(tmp_path: Path) -> None:
    letter = dead_letter_of(str(tmp_path), ["n"])
    assert letter is not None
    task = Task(errors="drop", dead_letters=letter, max_output_bytes=1)
    assert task.run(12, 1, (0, 0, [-1, 4, -2, -3])) == []
    assert not [*tmp_path.iterdir()]
    assert task.run(12, 2, TICK) == [4]
    (path,) = tmp_path.iterdir()
    assert parquet.read_table(path).column("n").to_pylist() == [-1, -2, -3]
    assert task.states[12].blob is None


@pytest.mark.contract(convicts=["last_rows_not_released"])
def test_a_row_that_has_left_its_bucket_makes_room_for_those_of_others() -> None:
    # One row has room at a time.
    task = Task(buffer=Buffer(max_bytes=1))
    task.run(12, 1, (0, 0, [5]))
    assert task.run(12, 2, TICK) == [5]
    task.run(16, 3, (0, 0, [6]))
    assert task.run(16, 4, TICK) == [6]


@pytest.mark.contract(convicts=["types_as_spark_says"])
def test_rows_come_to_those_that_wait_whatever_spark_says_of_their_columns() -> None:
    task = Task(max_wait=4.8)
    task.run(12, 1, (0, 0, [0]))
    task.run(12, 2, (0, 0, [0]), TICK)
    waiting = decode(task.states[12].blob, COLUMNS, OUTPUT)[0].waiting
    assert waiting is not None
    assert waiting.column("n").to_pylist() == [0, 0]


def test_dead_letters_of_a_state_are_not_lost_where_there_is_no_place_for_them_any_more(
    tmp_path: Path,
) -> None:
    letter = dead_letter_of(str(tmp_path), ["n"])
    assert letter is not None
    task = Task(errors="drop", dead_letters=letter)
    task.run(12, 1, (0, 0, [-1]))
    task.plan = replace(task.plan, operator=replace(task.plan.operator, dead_letters=None))
    with pytest.raises(StreamStateError, match="it has dead letters, and async_stream has no dead_letter="):
        task.run(12, 2, TICK)


@pytest.mark.contract(convicts=["group_is_run"])
def test_a_sink_may_set_job_groups_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    task, run = Task(), str(uuid.uuid4())
    context = TaskContext.get()
    assert context is not None
    for time_ms, group in enumerate([run, "write a", "write b", "write a", run], 1):
        properties = {QUERY: "query", JOB_GROUP: group}
        monkeypatch.setattr(context, "_localProperties", properties)
        task.run(12, time_ms, (0, 0, [time_ms]), TICK)
    assert task.run(12, 6, TICK) == [5]
