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
from pillarbox.redaction import Redact
from pillarbox.spark.dead_letters import DeadLetter, dead_letter_of
from pillarbox.spark.ledger_plan import QUERY
from pillarbox.spark.operator_plan import OperatorPlan
from pillarbox.spark.records import concat_rows, from_ipc, to_ipc
from pillarbox.spark.stream import call_client
from pillarbox.spark.stream.bad_state import BadRow, bad_state_folder, remedy_of
from pillarbox.spark.stream.bucket_state import (
    MAX_OUTPUT_BYTES,
    BucketState,
    StreamPlan,
    StreamStateError,
    decode,
    encode,
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


# -- what nothing can go on from -------------------------------------------------------------------

GARBAGE = b"no Arrow at all"
LEAVES = (pa.field("n", pa.int64()), pa.field("same", pa.int64(), nullable=False))


def outputs(
    numbers: Sequence[int], wrong: int | None = None, kind: pa.DataType | None = None
) -> pa.RecordBatch:
    """Outputs of rows, of which one has null where there may be none, or, as text, bytes that are none."""
    if kind is None:
        same = pa.array([None if n == wrong else n for n in numbers], pa.int64())
    else:
        texts = [b"\xff" if n == wrong else str(n).encode() for n in numbers]
        same = pa.array(texts, pa.binary()).view(pa.string())
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), same], ["n", "same"])


def changed(state: BucketState, part: str) -> BucketState:
    """The state with something wrong in a part of it: two rows leave, two are blocked, and one waits."""
    assert state.blocked is not None
    assert state.waiting is not None
    if part == "null that leaves":
        return replace(state, leaving=[to_ipc(outputs([1, 2], 2))])
    if part == "text that leaves":
        return replace(state, leaving=[to_ipc(outputs([1, 2], 2, pa.string()))], blocked=None)
    if part == "bytes that leave":
        return replace(state, leaving=[to_ipc(outputs([1])), GARBAGE])
    if part == "null that is blocked":
        same = outputs([3, 4], 4).column(1)
        return replace(state, blocked=state.blocked.set_column(1, "same", same))
    if part == "null that waits":
        both = concat_rows([state.waiting, state.waiting])
        return replace(state, waiting=both.set_column(0, "n", pa.array([0, None], pa.int64())))
    return replace(state, dead_letters=[GARBAGE])


@pytest.mark.contract(
    "What is wrong in a part of a stream's state is put aside once for all executions, and nothing else is.",
    convicts=[
        "bad_rows_of_state_pass",
        "bad_row_aside_for_each_execution",
        "bad_row_dropped_unseen",
        "good_rows_dropped_with_bad_one",
        "text_of_state_not_looked_at",
    ],
)
@pytest.mark.parametrize(
    ("part", "place", "left", "blocked"),
    [
        ("null that leaves", "leaving", [1], [3, 4]),
        ("text that leaves", "leaving", [1], []),
        ("bytes that leave", "leaving", [1], [3, 4]),
        ("null that is blocked", "blocked", [1, 2], [3]),
        ("null that waits", "waiting", [1, 2], [3, 4]),
        ("bytes of a letter", "dead_letters", [1, 2], [3, 4]),
    ],
)
def test_what_nothing_can_go_on_from_is_put_aside_and_all_else_goes_on(
    tmp_path: Path, part: str, place: str, left: list[int], blocked: list[int]
) -> None:
    is_text = part.startswith("text")
    leaves = (LEAVES[0], pa.field("same", pa.string())) if is_text else LEAVES
    letters = tmp_path / "letters"
    task = Task(max_wait=4.8, fn=partial(noted, tmp_path / "calls"))
    task.run(12, 1, (0, 0, [1, 2, 0, 3, 4]))
    called = (tmp_path / "calls").read_text()
    state, bad = decode(task.states[12].blob, COLUMNS, OUTPUT)
    assert not bad
    before = task.states[12].blob = encode(changed(state, part), OUTPUT)
    task.plan = replace(task.plan, leaves=leaves, required=("n",))
    with pytest.raises(StreamStateError, match=r"bucket 12, the micro-batch of 2 ms: .*bad_state='<folder>'"):
        task.run(12, 2, TICK)
    assert task.states[12].blob == before
    task.plan = replace(task.plan, bad_state=bad_state_folder(letters, None))
    # Two executions of one micro-batch, as of two actions, or of its replay.
    for _ in range(2):
        task.states[12].blob = before
        assert task.run(12, 2, TICK) == left
    state, bad = decode(task.states[12].blob, COLUMNS, OUTPUT, ("n",), leaves, ["same"])
    assert not bad
    assert state.waiting is not None
    assert state.waiting.column(0).to_pylist() == [0]
    kept = [] if state.blocked is None else state.blocked.column(0).to_pylist()
    assert kept == blocked
    assert (tmp_path / "calls").read_text() == called
    (letter,) = parquet.read_table(letters).to_pylist()
    assert (letter["bucket"], letter["batch"], letter["part"]) == (12, None, place)
    assert letter["_error"]["type"] == "StreamStateError"
    if not part.startswith("bytes"):
        assert next(from_ipc(letter["raw"])).num_rows == 1
    else:
        assert letter["raw"] == GARBAGE


@pytest.mark.contract
def test_a_state_of_which_nothing_can_be_read_is_put_aside_as_its_bytes_and_new_rows_are_called(
    tmp_path: Path,
) -> None:
    task = Task()
    task.run(12, 1, (0, 0, [1]))
    task.states[12].blob = GARBAGE
    with pytest.raises(StreamStateError, match=r"the state of the bucket, 15 bytes: it is damaged"):
        task.run(12, 2, (0, 0, [2]))
    task.plan = replace(task.plan, bad_state=bad_state_folder(tmp_path / "letters", None))
    assert task.run(12, 2, (0, 0, [2])) == []
    assert task.run(12, 3, TICK) == [2]
    (letter,) = parquet.read_table(tmp_path / "letters").to_pylist()
    assert (letter["part"], letter["raw"]) == ("state", GARBAGE)


def test_what_is_said_of_a_bad_row_has_no_key_in_it_and_is_bounded(tmp_path: Path) -> None:
    row = pa.RecordBatch.from_pydict(
        {"key": ["Bearer sk-abcdefghijklmnopqrstuvwxyz012345"], "text": ["x" * 10_000]}
    )
    bad = BadRow("leaving", "v is null", to_ipc(row), row)
    for said in (remedy_of([bad], Redact()), bad.shown(Redact()) or ""):
        assert "abcdefghijkl" not in said
        assert len(said) < 1000
    assert bad.shown(Redact(rows=True)) is None
    assert "text" not in remedy_of([bad], Redact(rows=True))


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (5, TypeError, "bad_state=5: must be a path or a .*DeadLetter, or None to end the query"),
        (DeadLetter("letters", keep=["n"]), ValueError, "keep must be '\\*'"),
        ("same", ValueError, "must be another folder than dead_letter"),
    ],
)
def test_a_folder_that_bad_state_cannot_have_is_refused(given: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        bad_state_folder(given, DeadLetter("same"))
