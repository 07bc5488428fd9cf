"""The input of a task on Spark, and its rows in a snapshot. Without a session, but for the last test."""

from __future__ import annotations

import contextvars
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T

from pillarbox.aio.calls import Call
from pillarbox.aio.row_fields import as_fields
from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.aio.states import OutputState
from pillarbox.spark.records import ArrowInput, arguments_of, rows_of, sliced
from pillarbox.spark.results import ALLOWED_IN_SNAPSHOTS, RowEncoder
from pillarbox.spark.writer import RowWriter
from pillarbox.task import InputStatus
from pillarbox.task.checkpoint import CheckpointBarrier, OperatorSnapshot, TaskSnapshot
from pillarbox.task.protocols import RowBatch
from pillarbox.testing.operator_trace import read_life
from pillarbox.testing.test_io import CollectedOutput
from spec.operator_runs import are_behaviours

CODEC = SnapshotCodec(ALLOWED_IN_SNAPSHOTS)

RunScript = Callable[..., list[str]]

DECODING = """
import datetime, decimal, sys
import pyarrow as pa
from pillarbox.spark.records import arguments_of
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.worker import worker
from pyspark.sql import types as T

names = "b i l d s t n e a m r x".split()
now = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
values = [True, 1, 2, 1.5, "s", now, now.replace(tzinfo=None), now.date(), [1, None],
          {"k": 1}, [("a", 1)], b"x"]
kinds = [pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.timestamp("us", "America/Lima"),
         pa.timestamp("us"), pa.date32(), pa.list_(pa.int32()), pa.struct([("k", pa.int64())]),
         pa.map_(pa.string(), pa.int64()), pa.binary()]
rows = pa.RecordBatch.from_arrays([pa.array([v, v], k) for v, k in zip(values, kinds)], names)
fields = [T.StructField("l", T.LongType()), T.StructField("z", T.DecimalType(4, 2)),
          T.StructField("t", T.TimestampType()), T.StructField("a", T.ArrayType(T.FloatType()))]
encoder = RowEncoder(T.StructType(fields), datetime.timezone.utc)
here = worker()

async def on_the_loop():
    before = set(sys.modules)
    arguments_of(rows)
    encoder.convert({"l": 1.0, "z": 1, "t": now, "a": (1, 2)})
    encoder.convert((2, decimal.Decimal(1), now.replace(tzinfo=None), [1.0]))
    return sorted(set(sys.modules) - before)

print(here.loop_thread.submit(on_the_loop()).result(60))
"""


@pytest.mark.contract("A worker imports what rows and results need before its event loop opens.")
def test_no_value_is_the_first_to_import_what_it_needs_on_the_loop() -> None:
    ran = subprocess.run([sys.executable, "-c", DECODING], capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[]", ran.stderr[-2000:]


def batches_of(rows: int, batch_rows: int) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict({"id": ids, "text": [f"row {each}" for each in ids]})
        for ids in (list(range(start, min(start + batch_rows, rows))) for start in range(0, rows, batch_rows))
    ]


class Collected:
    """The rows of what an input has emitted."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def collect(self, batch: RowBatch) -> None:
        self.ids += [row[0] for row in batch.rows]


def emit(input: ArrowInput, output: Collected, slices: int | None = None) -> None:
    """Have it emit so many slices, or all."""
    while slices is None or slices > 0:
        status = input.emit_next(output)  # type: ignore[arg-type]
        if status is InputStatus.END_OF_INPUT:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            available = input.available()
            if available is not None:
                available.result()
        elif slices is not None:
            slices -= 1


def started(input: ArrowInput) -> ArrowInput:
    input.start(contextvars.copy_context())
    return input


@pytest.mark.contract("A restored Arrow input emits what was not emitted, however the slices are cut now.")
@pytest.mark.parametrize("unpack", [rows_of, arguments_of])
@pytest.mark.parametrize("emitted", [0, 1, 3])
@pytest.mark.parametrize("cut_again", [700, 1000, 4000])
def test_a_restored_arrow_input_emits_what_was_not_emitted_however_the_slices_are_cut(
    unpack: Callable[[Any], RowBatch], emitted: int, cut_again: int
) -> None:
    rows = 4000

    def made(batch_rows: int) -> ArrowInput:
        return ArrowInput(sliced(batches_of(rows, batch_rows)), unpack)

    first = started(made(1000))
    before, after = Collected(), Collected()
    emit(first, before, emitted)
    state = first.snapshot_state()
    assert state == len(before.ids)
    first.stop()
    first.join(3600.0)
    second = made(cut_again)
    read = CODEC.decode(CODEC.encode(TaskSnapshot(CheckpointBarrier(1, 0.0), state, {})))
    second.restore_state(read.input)
    emit(started(second), after)
    second.join(3600.0)
    assert before.ids + after.ids == list(range(rows))


def test_a_restored_arrow_input_that_ends_before_its_position_is_an_error() -> None:
    again = ArrowInput([pa.RecordBatch.from_pydict({"id": [0, 1, 2]})])
    again.restore_state(5)
    started(again).join(3600.0)
    output = CollectedOutput()
    assert again.emit_next(output) is InputStatus.MORE_AVAILABLE and not output.records
    with pytest.raises(ValueError, match="ended 2 rows before the position"):
        again.emit_next(output)


@given(st.lists(st.integers(0, 29), max_size=40))
def test_records_in_a_snapshot_are_those_rows_in_their_order_and_keep_no_whole_slice(
    picked: list[int],
) -> None:
    rows = [row for batch in map(rows_of, sliced(batches_of(30, 7))) for row in batch.rows]
    some = [rows[each] for each in picked]
    snapshot = TaskSnapshot(CheckpointBarrier(1, 0.0), None, {"a": OperatorSnapshot(some, ())})
    read = CODEC.decode(CODEC.encode(snapshot)).operators["a"].state
    assert [tuple(row) for row in read] == [tuple(row) for row in some]
    assert [row.text for row in read] == [row.text for row in some]
    kept = {id(row.__columns__): row.__columns__.batch.num_rows for row in read}
    assert sum(kept.values()) == len(set(picked))


@pytest.mark.contract("A record gives each column by its name as an attribute, whatever that name is.")
def test_a_record_gives_columns_of_any_name_as_attributes() -> None:
    (plain,) = rows_of(pa.RecordBatch.from_pydict({"n": [1]})).rows
    own = [name for name in dir(plain) if not name.startswith("__") and name != "n"]
    names = [
        "_index",
        "_columns",
        "_id",
        "is_view",
        "count",
        "index",
        "asDict",
        "mro",
        "_fields",
        "a b",
        *own,
    ]
    names = [*dict.fromkeys(names)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([f"{name} {row}" for row in (0, 1)]) for name in names], names
    )
    for place, record in enumerate(rows_of(batch).rows):
        values = {name: f"{name} {place}" for name in names}
        assert {name: getattr(record, name) for name in names} == values
        assert {name: record[name] for name in names} == values
        assert tuple(record) == tuple(values.values())
        assert as_fields(record) == values
        assert dict(zip(names, pickle.loads(pickle.dumps(record)), strict=True)) == values
        assert (
            RowWriter(names, T.StructType().add("n", "long"), None).write([(Call(record, 1), 1)]).num_rows
            == 1
        )


def test_a_writer_in_order_finds_the_rows_of_a_restored_snapshot() -> None:
    """Entries and rows of the output come in other batches than those they were read in."""
    rows = [row for batch in map(rows_of, sliced(batches_of(20, 6))) for row in batch.rows]
    schema = T.StructType().add("answer", "long")
    writer = RowWriter(["id"], schema, None)
    pairs = tuple((Call(row, 1), {"answer": 2 * row.id}) for row in rows[:9])
    snapshot = TaskSnapshot(CheckpointBarrier(1, 0.0), None, {}, OutputState(3, pairs, False))
    read = CODEC.decode(CODEC.encode(snapshot)).output
    written = writer.write(list(read.rows))
    assert written.to_pydict() == {"id": list(range(9)), "answer": [2 * each for each in range(9)]}


def test_rows_of_a_link_are_kept_from_the_position_of_their_batch_on() -> None:
    (batch,) = map(rows_of, sliced(batches_of(10, 10)))
    batch.take(4)
    snapshot = TaskSnapshot(CheckpointBarrier(1, 0.0), None, {"a": OperatorSnapshot(None, (batch.rest(),))})
    ((read,),) = [each.pending for each in CODEC.decode(CODEC.encode(snapshot)).operators.values()]
    assert [row.id for row in read.take(99)] == list(range(4, 10)) and read.row_bytes == batch.row_bytes


def test_results_that_are_rows_of_a_block_are_kept_without_the_block() -> None:
    schema = T.StructType().add("vector", T.ArrayType(T.FloatType()))
    encoder = RowEncoder(schema, None)
    blocks: Any = encoder.rows_of(pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())))
    pairs = ((Call(1, 0), blocks[1]),)
    read = CODEC.decode(
        CODEC.encode(TaskSnapshot(CheckpointBarrier(1, 0.0), None, {}, OutputState(0, pairs, False)))
    )
    row = read.output.rows[0][1]
    (array,), _ = encoder.encode([row])
    assert array.to_pylist() == [[3.0, 4.0]] and len(row.block[0]) == 1


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3.0),
        np.zeros((2, 2), "f4")[:, 1],
        np.array(["text", None], object),
        np.int64(7),
        Row(name="a", inner=Row(x=1)),
    ],
    ids=["vector", "column of a matrix", "objects", "number", "Row"],
)
def test_the_values_of_numpy_and_spark_that_a_function_may_give_have_a_place_in_a_snapshot(
    value: Any,
) -> None:
    output = OutputState(0, ((Call(1, 0), value),), False)
    read = CODEC.decode(CODEC.encode(TaskSnapshot(CheckpointBarrier(1, 0.0), None, {}, output)))
    again = read.output.rows[0][1]
    assert type(again) is type(value) and repr(again) == repr(value)


def times_of(zone: str, *moments: int | None) -> dict[str, list[Any]]:
    """The times, in microseconds since 1970, as a function gets them in a session of this zone.

    Alone, and inside of each type that may have some.
    """
    at = pa.array(moments, pa.timestamp("us", zone))
    places = pa.array(range(len(at) + 1), pa.int32())
    columns = {
        "alone": at,
        "struct": pa.StructArray.from_arrays([at], ["at"]),
        "array": pa.ListArray.from_arrays(places, at),
        "map": pa.MapArray.from_arrays(places, pa.array(["at"] * len(at)), at),
    }
    rows = rows_of(pa.RecordBatch.from_pydict(columns)).rows
    return {
        "alone": [row.alone for row in rows],
        "struct": [row.struct.at for row in rows],
        "array": [row.array[0] for row in rows],
        "map": [row.map["at"] for row in rows],
    }


@pytest.mark.contract
@pytest.mark.parametrize(
    ("zone", "seconds", "wall", "offset"),
    [
        ("America/Los_Angeles", 253402300799 + 28800, "9999-12-31 23:59:59", -28800),
        ("-08:00", 253402300799 + 28800, "9999-12-31 23:59:59", -28800),
        ("-08", 253402300799 + 28800, "9999-12-31 23:59:59", -28800),
        ("Europe/Berlin", -62135596800 - 3208, "0001-01-01 00:00:00", 3208),
        ("America/Los_Angeles", -62135596800, "0001-01-01 00:00:00", 0),
        ("Asia/Tokyo", 253402300799, "9999-12-31 23:59:59", 0),
    ],
)
def test_a_time_at_the_edge_of_the_years_is_given_as_it_stands_and_costs_no_other_row(
    zone: str, seconds: int, wall: str, offset: int
) -> None:
    for edge, epoch, null in times_of(zone, seconds * 10**6, 0, None).values():
        assert str(edge.replace(tzinfo=None)) == wall and edge.utcoffset().total_seconds() == offset
        assert epoch.timestamp() == 0 and null is None


@pytest.mark.contract
@pytest.mark.parametrize(
    ("zone", "hours"), [("-08", -8), ("Z", 0), ("UTC+1", 1), ("GMT-2", -2), ("PST", 0), ("-13:33:33", 0)]
)
def test_a_time_is_its_instant_in_each_zone_that_a_session_may_have(zone: str, hours: int) -> None:
    for (at,) in times_of(zone, 5_000_001).values():
        assert at.timestamp() == 5.000001
        assert at.utcoffset().total_seconds() == hours * 3600


SCRIPT = """
from pillarbox import Buffer
import asyncio, os, pathlib, signal, sys
from pyspark import TaskContext
from pyspark.sql import types as T
tmp, ordered = pathlib.Path(sys.argv[1]), sys.argv[2] == "ordered"
ROWS = 3000

def attempt(batches):
    from pillarbox.aio.stages import Stage
    from pillarbox.aio.options import Options
    from pillarbox.aio.snapshots import SnapshotCodec
    from pillarbox.aio.task_run import ResultStream
    from pillarbox.ledger.local_folder import LocalFolder
    from pillarbox.spark.records import ArrowInput, from_ipc, sliced, to_ipc
    from pillarbox.spark.results import ALLOWED_IN_SNAPSHOTS
    from pillarbox.spark.worker import worker
    from pillarbox.spark.writer import RowWriter

    is_first = TaskContext.get().attemptNumber() == 0
    calls = os.open(tmp / "calls", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    stuck = set()

    async def call(row):
        os.write(calls, f"{row.id} ".encode())
        # From row 2,000 on each third call has no end in the first attempt.
        if is_first and row.id >= 2000 and row.id % 3 == 0:
            stuck.add(row.id)
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return {"answer": f"answer {row.id}"}

    schema = T.StructType().add("answer", "string")
    options = Options(capacity=40, buffer=Buffer(200), ordered=ordered)
    writer = RowWriter(["id"], schema, None, ordered=ordered)
    codec = SnapshotCodec(ALLOWED_IN_SNAPSHOTS)
    kept = tmp / "snapshot"
    assert kept.exists() is not is_first
    snapshot = None if is_first else codec.decode(kept.read_bytes())
    # Spark drops what a failed attempt has given out, so an attempt keeps that beside its snapshots.
    output = LocalFolder(str(tmp / "output"))
    output.make()
    taken = 0 if snapshot is None else snapshot.output.taken
    for name in sorted(output.names()):
        if int(name) < taken:
            yield from from_ipc((tmp / "output" / name).read_bytes())
    job = ResultStream(
        [Stage(call, options, convert=writer.encoder)], ArrowInput(sliced(batches)),
        loop_thread=worker().loop_thread, chunk_rows=64, snapshot=snapshot,
    )
    try:
        while True:
            if is_first and len(stuck) == 40:
                kept.write_bytes(codec.encode(job.checkpoint(1).result()))
                os.kill(os.getpid(), signal.SIGKILL)
            chunk = [] if is_first and taken >= 2000 else job.take()
            if chunk is None:
                return
            if chunk:
                batch = writer.write(chunk)
                output.put(f"{taken:08}", to_ipc(batch))
                taken += len(chunk)
                yield batch
    finally:
        job.close()

def run(batches):
    from pillarbox.testing.operator_trace import recording

    with recording(tmp / "trace"):
        yield from attempt(batches)

out = spark.range(0, ROWS, 1, 1).mapInArrow(run, "id long, answer string").collect()
rows = [tuple(row) for row in out]
expected = [(i, f"answer {i}") for i in range(ROWS)]
calls = list(map(int, (tmp / "calls").read_text().split()))
twice = {i for i in calls if calls.count(i) > 1}
print((rows if ordered else sorted(rows)) == expected)
print(set(calls) == set(range(ROWS)), len(calls) - ROWS, all(i >= 2000 and i % 3 == 0 for i in twice))
"""


@pytest.mark.contract(
    "On Spark a worker that is killed with calls in flight is followed by an attempt that goes on from its "
    "snapshot: nothing is lost, nothing comes twice, and no row is called again that has its result there."
)
@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_an_attempt_goes_on_from_the_snapshot_of_a_worker_that_was_killed(
    run_script: RunScript, tmp_path: Path, order: str
) -> None:
    lines = run_script(SCRIPT, str(tmp_path), order, master="local[2,4]")
    assert lines == ["True", "True 40 True"]
    first, second = (read_life(path) for path in sorted((tmp_path / "trace").iterdir()))
    # What the task did between its snapshot and its death is lost with it.
    while first[-1].name != "snapshot":
        first.pop()
    assert (second[1].name, second[-1].name) == ("restore", "close")
    assert are_behaviours([*first, *second])
