"""Old functions and formats as sources: in a task, in micro-batches, after restarts."""

from __future__ import annotations

import base64
import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pillarbox.sources import (
    Boundedness,
    DataclassSerializer,
    ReadFailed,
    ReadLimit,
    Source,
    SourceCoordinator,
    SourceInput,
    WatermarkStrategy,
)
from pillarbox.sources.legacy import FromFolder, FromInputFormat, FromSourceFunction, FunctionSplit
from pillarbox.sources.serializer import PickleSerializer, register_serializer
from pillarbox.task import (
    InputFormat,
    InputStatistics,
    Operator,
    ParallelSourceFunction,
    ReplicatingInputFormat,
    RichInputFormat,
    SourceContext,
    SourceFunction,
    StreamTask,
)
from pillarbox.testing import SourceHarness
from tests.sources.number_source import LONG
from tests.task.sources import TaskOutput
from tests.threads import begun


class Counting(SourceFunction):
    """Emits 0, 1, 2 and so on, `section` of them at a time, up to `end`; then waits for its cancel."""

    def __init__(self, end: int, section: int = 1, ends: bool = True) -> None:
        self.next, self.end, self.section, self.ends = 0, end, section, ends
        self.stop = threading.Event()

    @property
    def atomic_sections(self) -> bool:  # type: ignore[override]
        return self.section > 1

    def run(self, context: SourceContext) -> None:
        while self.next < self.end and not self.stop.is_set():
            with context.checkpoint_lock:
                for number in range(self.next, min(self.next + self.section, self.end)):
                    self.emit(context, number)
                self.next = min(self.next + self.section, self.end)
        if not self.ends:
            assert self.stop.wait(LONG)

    def emit(self, context: SourceContext, number: int) -> None:
        context.collect(number)

    def cancel(self) -> None:
        self.stop.set()

    def snapshot_state(self) -> int:
        return self.next

    def restore_state(self, state: int) -> None:
        self.next = state


class Timed(Counting):
    def emit(self, context: SourceContext, number: int) -> None:
        context.collect_with_timestamp(number, 100.0 + number)


class Marked(Counting):
    def emit(self, context: SourceContext, number: int) -> None:
        context.collect(number)
        context.emit_watermark(number - 5.0)


class Broken(Counting):
    def emit(self, context: SourceContext, number: int) -> None:
        if number == 30:
            raise OSError("no more")
        super().emit(context, number)


class Forgetful(SourceFunction):
    def run(self, context: SourceContext) -> None:
        context.collect(1)

    def cancel(self) -> None:
        pass


def no_thread_is_left() -> bool:
    return not begun()


def make(kind: type[Counting] = Counting, *args: Any) -> Callable[[], SourceFunction]:
    return partial(kind, *args)


@pytest.mark.parametrize("section", [1, 7])
def test_a_function_is_read_to_its_end(section: int) -> None:
    source = FromSourceFunction(make(Counting, 500, section), bounded=True, capacity=20)
    assert source.boundedness is Boundedness.BOUNDED
    with SourceHarness(source, readers=2) as harness:
        assert harness.read_all() == list(range(500))
    assert no_thread_is_left()


@pytest.mark.contract
@pytest.mark.parametrize("section", [1, 7])
def test_a_function_goes_on_from_a_checkpoint_without_a_gap(section: int) -> None:
    source = FromSourceFunction(make(Counting, 10**9, section), capacity=10)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    rows: list[int] = []
    snapshot = None
    for _ in range(4):
        with SourceHarness(source, snapshot=snapshot) as harness:
            rows += harness.read(50)
            harness.restart_reader()
            rows += harness.read(50)
            snapshot = harness.snapshot()
    assert rows == list(range(len(rows))) and len(rows) >= 400


@pytest.mark.parametrize("section", [1, 7])
@pytest.mark.parametrize("limit", [1, 10, 33])
def test_a_micro_batch_reads_as_many_rows_as_it_may_and_the_same_each_time(section: int, limit: int) -> None:
    source = FromSourceFunction(make(Counting, 50, section, False), capacity=20)
    rows: list[int] = []
    with SourceHarness(source) as harness:
        while len(rows) < 50:
            (piece,) = harness.plan(ReadLimit(rows=limit))
            batch = harness.read_split(piece)
            assert 1 <= len(batch) <= limit
            assert piece.rows == len(batch)
            assert harness.read_split(piece) == batch
            rows += batch
        assert harness.plan(ReadLimit(rows=limit)) == []
    assert rows == list(range(50))
    assert no_thread_is_left()


def test_micro_batches_go_on_after_a_restart_of_the_driver() -> None:
    source = FromSourceFunction(make(Counting, 10**9, 7), capacity=20)
    rows: list[int] = []
    snapshot = None
    for limit in (3, 50, 10, 1):
        with SourceHarness(source, snapshot=snapshot) as harness:
            rows += harness.micro_batch(ReadLimit(rows=limit))
            rows += harness.micro_batch(ReadLimit(rows=limit))
            snapshot = harness.snapshot()
    assert rows == list(range(len(rows))) and len(rows) > 20


def test_the_end_of_a_function_ends_its_split() -> None:
    source = FromSourceFunction(make(Counting, 40), capacity=10)
    with SourceHarness(source) as harness:
        rows = []
        while pieces := harness.plan(ReadLimit(rows=25)):
            rows += [row for piece in pieces for row in harness.read_split(piece)]
        assert rows == list(range(40))
        assert harness.plan() == []
        assert harness.snapshot()["splits"] == []


def test_micro_batches_share_one_run_ahead_of_the_tasks() -> None:
    made = []

    def counted() -> SourceFunction:
        made.append(1)
        return Counting(10**9)

    with SourceHarness(FromSourceFunction(counted, capacity=10)) as harness:
        before = len(made)
        for _ in range(5):
            assert len(harness.plan(ReadLimit(rows=10))) == 1
    assert len(made) == before + 1


def test_a_silent_function_is_ended_at_once() -> None:
    source = FromSourceFunction(make(Counting, 3, 1, False), grace=LONG)
    with SourceHarness(source) as harness:
        assert harness.read(3) == [0, 1, 2]
        before = time.monotonic()
    assert time.monotonic() - before < LONG / 2
    assert no_thread_is_left()


def test_a_function_that_emits_less_from_a_state_than_before_is_an_error() -> None:
    source = FromSourceFunction(make(Counting, 40), bounded=True)
    too_far = FunctionSplit("function", None, {"count": 50, "base": 50, "state": None})
    with (
        SourceHarness(source) as harness,
        pytest.raises(ReadFailed, match="Counting has emitted 10 rows less"),
    ):
        harness.read_split(too_far)


@pytest.mark.parametrize(("kind", "latest"), [(Timed, 139.0), (Marked, 34.0), (Counting, None)])
def test_the_times_of_a_function_are_its_event_time(kind: type[Counting], latest: float | None) -> None:
    with SourceHarness(FromSourceFunction(make(kind, 40), bounded=True)) as harness:
        assert harness.read_all() == list(range(40))
        assert harness.fetched[-1].timestamp == latest or not harness.fetched[-1].records


def test_an_error_of_a_function_ends_it_where_a_restart_goes_on() -> None:
    source = FromSourceFunction(make(Broken, 100), bounded=True, capacity=4)
    with SourceHarness(source) as harness:
        with pytest.raises(ReadFailed, match="OSError: no more"):
            harness.read_all()
        rows, snapshot = harness.rows, harness.snapshot()
    mended = FromSourceFunction(make(Counting, 100), bounded=True)
    with SourceHarness(mended, snapshot=snapshot) as harness:
        assert rows + harness.read_all() == list(range(100))
    with SourceHarness(source) as harness, pytest.raises(OSError, match="no more"):
        harness.plan()
    assert no_thread_is_left()


def test_a_function_that_cannot_go_on_is_refused_early() -> None:
    with pytest.raises(ValueError, match="makes a Forgetful, which cannot go on after a restart, as Spark"):
        FromSourceFunction(Forgetful, schema=pa.schema({"n": pa.int64()}))
    with pytest.raises(ValueError, match="parallelism=2: must be 1, as Counting is not a Parallel"):
        FromSourceFunction(make(Counting, 1), parallelism=2)
    with pytest.raises(TypeError, match="must make a SourceFunction, not int"):
        FromSourceFunction(int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capacity=0"):
        FromSourceFunction(make(Counting, 1), capacity=0)
    with pytest.raises(TypeError, match="has no schema"):
        FromSourceFunction(make(Counting, 1)).arrow_schema()


def test_with_a_schema_a_record_is_a_row_and_the_source_travels() -> None:
    schema = pa.schema({"n": pa.int64()})
    source = FromSourceFunction(make(Counting, 3), bounded=True, schema=schema)
    copy: Source[Any, Any] = pickle.loads(pickle.dumps(source))
    assert copy.arrow_schema() == schema
    with SourceHarness(copy) as harness:
        assert harness.read_all() == [(0,), (1,), (2,)]


# -- what the documents describe -------------------------------------------------------------------


class Passing(Operator):
    uid = "passing"

    def process(self, record: Any) -> None:
        self.output.collect(record)


def read_in_tasks(source: Source[Any, Any], parallelism: int = 1, **options: Any) -> list[list[Any]]:
    """The elements that each of the tasks, which run at the same time, emits to its end."""
    outputs = [TaskOutput() for _ in range(parallelism)]
    with SourceCoordinator(source, parallelism=parallelism) as coordinator:

        def run(subtask: int) -> None:
            one = SourceInput(coordinator.link(subtask), source, **options)
            StreamTask(one, [Passing()], outputs[subtask]).run()

        threads = [threading.Thread(target=run, args=(subtask,)) for subtask in range(parallelism)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    return [output.elements for output in outputs]


def records_in_tasks(source: Source[Any, Any], parallelism: int = 1) -> list[list[Any]]:
    return [[each for each in one if isinstance(each, int)] for one in read_in_tasks(source, parallelism)]


@pytest.mark.contract
@pytest.mark.parametrize("section", [1, 7])
def test_a_task_with_a_legacy_source_emits_each_record_once_over_restarts(section: int) -> None:
    source = FromSourceFunction(make(Counting, 300, section), bounded=True, capacity=5)
    committed: list[int] = []
    snapshot: Any = None
    for attempt in range(4):
        with SourceCoordinator(source, parallelism=1, checkpoint=snapshot) as coordinator:
            output = TaskOutput()
            task = StreamTask(SourceInput(coordinator.link(0), source), [Passing()], output)
            if attempt == 3:
                task.run()
                committed += (each for each in output.elements if isinstance(each, int))
                break
            taken: list[Any] = []

            def checkpoint(records: int, task: StreamTask = task, taken: list[Any] = taken) -> None:
                if records == 60 and not taken:
                    taken.append(task.trigger_checkpoint_async(1))

            output.on_record = checkpoint
            while not (taken and taken[0].done()):
                task.run_step()
            state = taken[0].result().input
            snapshot = json.loads(json.dumps(coordinator.snapshot({0: state})))
            barrier = next(at for at, each in enumerate(output.elements) if not isinstance(each, int))
            committed += output.elements[:barrier]
            # What is read after the checkpoint is lost with this attempt.
            task.run_step()
            task.close()
    assert committed == list(range(300))


class Shares(ParallelSourceFunction, Counting):
    """Each instance emits every so-manieth number."""

    def emit(self, context: SourceContext, number: int) -> None:
        place = self.runtime_context
        context.collect(number * place.parallelism + place.subtask)


@pytest.mark.contract
def test_a_parallel_function_runs_once_for_each_instance_and_each_goes_on_from_its_own_state() -> None:
    source = FromSourceFunction(make(Shares, 40), bounded=True, parallelism=3, capacity=5)
    with SourceHarness(source, readers=2) as harness:
        rows = harness.read(30)
        snapshot = harness.snapshot()
    with SourceHarness(source, readers=1, snapshot=snapshot) as harness:
        rows += harness.read_all()
    assert sorted(rows) == list(range(120))
    with SourceHarness(source) as harness:
        assert sorted(harness.micro_batch()) == list(range(120))


def test_a_function_without_a_state_starts_over_after_a_restart() -> None:
    source = FromSourceFunction(Forgetful, bounded=True)
    assert records_in_tasks(source) == [[1]]
    with SourceHarness(source) as harness:
        harness.discover()
        snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.read_all() == [1]


def test_the_watermarks_of_a_function_come_out_of_its_task_in_order() -> None:
    (elements,) = read_in_tasks(
        FromSourceFunction(make(Marked, 40), bounded=True, capacity=5), watermarks=WatermarkStrategy()
    )
    assert [each for each in elements if isinstance(each, int)] == list(range(40))
    marks = [(at, each[1]) for at, each in enumerate(elements) if isinstance(each, tuple)]
    assert [mark for _, mark in marks] == sorted({mark for _, mark in marks})
    assert marks[-1][1] == float("inf") and len(marks) > 1
    # No record comes behind a watermark that says it cannot: record n has the time n - 5.
    for at, mark in marks:
        assert all(number - 5.0 > mark for number in elements[at:] if isinstance(number, int))


class Resting(Counting):
    """Emits half of its numbers, marks itself as idle, and goes on when it is told to."""

    go_on, go_on_again = threading.Event(), threading.Event()

    def run(self, context: SourceContext) -> None:
        end, self.end = self.end, self.end // 2
        super().run(context)
        context.mark_as_temporarily_idle()
        assert context.is_idle
        assert self.go_on.wait(LONG)
        # Event time goes on without a record.
        context.emit_watermark(500.0)
        assert self.go_on_again.wait(LONG)
        self.end = end
        super().run(context)


@pytest.mark.contract
def test_a_function_that_marks_itself_as_idle_is_idle_in_its_task_until_its_next_record() -> None:
    class Told(TaskOutput):
        def emit_status(self, idle: bool) -> None:
            super().emit_status(idle)
            # An unbounded source is idle before its first split, too.
            if idle and 19 in self.elements:
                Resting.go_on.set()

        def emit_watermark(self, timestamp: float) -> None:
            super().emit_watermark(timestamp)
            Resting.go_on_again.set()

    Resting.go_on.clear()
    Resting.go_on_again.clear()
    source, output = FromSourceFunction(make(Resting, 40, 1, True), capacity=50), Told()
    with SourceCoordinator(source, parallelism=1) as coordinator:
        one = SourceInput(coordinator.link(0), source, watermarks=WatermarkStrategy())
        StreamTask(one, [Passing()], output).run()
    assert [each for each in output.elements if isinstance(each, int)] == list(range(40))
    after = output.elements[output.elements.index(19) + 1 :]
    assert after.index("idle") < after.index(("watermark", 500.0)) < after.index(20)
    assert after.index("idle") < after.index("active") < after.index(20)


# -- formats ---------------------------------------------------------------------------------------


class Ranges(InputFormat[list[int], int]):
    """Splits are ranges, as in the documentation."""

    opened: list[Any]

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self.rows = parameters.get("rows", 10)

    def create_input_splits(self, min_splits: int) -> Sequence[list[int]]:
        return [[n * self.rows, (n + 1) * self.rows] for n in range(min_splits)]

    def open(self, split: list[int]) -> None:
        self.left = list(range(*split))

    def reached_end(self) -> bool:
        return not self.left

    def next_record(self) -> int | None:
        return self.left.pop(0)

    def close(self) -> None:
        self.left = []


@pytest.mark.contract
def test_a_shared_split_goes_to_one_reader_also_if_many_ask_at_once() -> None:
    read = records_in_tasks(FromInputFormat(Ranges, parameters={"rows": 1}, min_splits=200), parallelism=4)
    assert sorted(record for records in read for record in records) == list(range(200))


@pytest.mark.contract
def test_a_replicated_split_goes_to_every_reader_once() -> None:
    source = FromInputFormat(lambda: ReplicatingInputFormat(Ranges()), min_splits=3)
    assert records_in_tasks(source, parallelism=2) == [list(range(30))] * 2


@pytest.mark.contract
@pytest.mark.parametrize("reads", range(0, 30, 3))
def test_a_restored_format_gives_each_record_once(reads: int) -> None:
    source = FromInputFormat(Ranges, min_splits=3, batch=4)
    with SourceHarness(source) as harness:
        rows = harness.read(reads)
        snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert rows + harness.read_all() == list(range(30))


class Sized(Ranges):
    def statistics(self) -> InputStatistics:
        return InputStatistics(nbytes=4000, records=40)


@pytest.mark.contract
def test_the_statistics_of_a_format_are_divided_among_its_splits_for_planning() -> None:
    assert Sized().statistics().record_bytes == 100.0
    with SourceHarness(FromInputFormat(Sized, min_splits=4)) as harness:
        assert [(split.rows, split.nbytes) for split in harness.discover()] == [(10, 1000)] * 4
    with SourceHarness(FromInputFormat(Sized, min_splits=4)) as harness:
        # Two splits of ten rows are begun before the limit is reached.
        assert len(harness.plan(ReadLimit(rows=15))) == 2
        assert len(harness.plan(ReadLimit(nbytes=1000))) == 1
    with SourceHarness(FromInputFormat(Ranges, min_splits=2)) as harness:
        assert [(split.rows, split.nbytes) for split in harness.discover()] == [(None, None)] * 2


class LastFirst(Ranges):
    def choose(self, splits: Sequence[list[int]], subtask: int) -> list[int]:
        return splits[-1]


def test_a_format_says_itself_which_reader_gets_which_split() -> None:
    with SourceHarness(FromInputFormat(LastFirst, min_splits=3)) as harness:
        assert harness.read_all() == [*range(20, 30), *range(10, 20), *range(10)]


class Near(list[int]):
    def __init__(self, split: Sequence[int], host: str) -> None:
        super().__init__(split)
        self.hosts = (host,)


class Placed(Ranges):
    def create_input_splits(self, min_splits: int) -> Sequence[list[int]]:
        splits = super().create_input_splits(min_splits)
        return [Near(split, f"host{number}") for number, split in enumerate(splits)]


def test_a_split_with_hosts_goes_to_a_reader_near_to_it() -> None:
    with SourceHarness(FromInputFormat(Placed, min_splits=3), host="host2") as harness:
        assert harness.read_all()[:10] == list(range(20, 30))


def test_the_splits_of_a_format_are_read_once_by_whoever_asks() -> None:
    source = FromInputFormat(Ranges, parameters={"rows": 25}, min_splits=8, batch=10)
    with SourceHarness(source, readers=3) as harness:
        assert sorted(harness.read_all()) == list(range(200))
    assert no_thread_is_left()


def test_splits_that_were_not_given_out_are_in_the_checkpoint() -> None:
    source = FromInputFormat(Ranges, min_splits=6, batch=4)
    with SourceHarness(source) as harness:
        harness.discover(2)
        rows = harness.read(13)
        snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot, readers=2) as harness:
        rows += harness.read(10)
        for subtask in (0, 1):
            harness.restart_reader(subtask)
        rows += harness.read_all()
    assert sorted(rows) == list(range(60))


def test_a_format_is_read_by_whole_splits_in_micro_batches() -> None:
    with SourceHarness(FromInputFormat(Ranges, min_splits=3)) as harness:
        assert harness.micro_batch() == list(range(30))
        assert harness.micro_batch() == []


class Noted(RichInputFormat[list[int], int]):
    """Notes its calls in `calls`; those named in `fails` raise."""

    def __init__(self, calls: list[str], *fails: str) -> None:
        self.calls = calls
        self.fails = fails

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call.split()[0] in self.fails:
            raise LookupError(call)

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self.calls.append(f"configure {dict(parameters)}")

    def create_input_splits(self, min_splits: int) -> Sequence[list[int]]:
        return [[0, 2], [2, 4]]

    def open_input_format(self) -> None:
        self.note(f"open_input_format {self.runtime_context.subtask}")

    def open(self, split: list[int]) -> None:
        self.next, self.end = split
        self.note(f"open {split}")

    def reached_end(self) -> bool:
        return self.next == self.end

    def next_record(self) -> int | None:
        if "next_record" in self.fails:
            raise LookupError("next_record")
        self.next += 1
        return None if self.next == 1 else self.next

    def close(self) -> None:
        self.note("close")

    def close_input_format(self) -> None:
        self.note("close_input_format")


def test_a_format_is_called_in_order() -> None:
    calls: list[str] = []
    with SourceHarness(FromInputFormat(lambda: Noted(calls), parameters={"a": 1})) as harness:
        assert harness.read_all() == [2, 3, 4]
    assert [call for call in calls if not call.startswith("configure")] == [
        "open_input_format 0",
        "open [0, 2]",
        "close",
        "open [2, 4]",
        "close",
        "close_input_format",
    ]
    assert set(calls) >= {"configure {'a': 1}"}


@pytest.mark.parametrize("fails", ["open_input_format", "open", "next_record", "close"])
def test_whatever_raises_everything_is_closed_and_the_first_error_is_raised(fails: str) -> None:
    calls: list[str] = []
    source = FromInputFormat(lambda: Noted(calls, fails, "close_input_format"))
    with SourceHarness(source) as harness, pytest.raises(ReadFailed, match=f"LookupError: {fails}"):
        harness.read_all()
    assert calls[-1] == "close_input_format"
    assert ("close" in calls) == (fails != "open_input_format")


# -- how states and splits are written ---------------------------------------------------------------


@dataclass(frozen=True)
class Offset:
    number: int


class WithDataclass(Counting):
    def snapshot_state(self) -> Any:
        return Offset(self.next)

    def restore_state(self, state: Any) -> None:
        assert isinstance(state, Offset)
        self.next = state.number


class WithTuple(Counting):
    def snapshot_state(self) -> Any:
        return (self.next, self.next)

    def restore_state(self, state: Any) -> None:
        assert isinstance(state, tuple)
        self.next = state[0]


KEY = b"a key that only this job knows"


def goes_on(source: Source[Any, Any], other: Source[Any, Any] | None = None) -> list[int]:
    """The rows of a run and, from its checkpoint, of another."""
    with SourceHarness(source) as harness:
        rows = harness.read(50)
        snapshot = harness.snapshot()
    with SourceHarness(source if other is None else other, snapshot=snapshot) as harness:
        return rows + harness.read(50)


def test_states_are_written_by_a_serializer_that_was_registered_under_a_name() -> None:
    register_serializer("tests.Offset", DataclassSerializer(Offset))
    source = FromSourceFunction(make(WithDataclass, 10**9), serializer="tests.Offset", capacity=10)
    copy: Source[Any, Any] = pickle.loads(pickle.dumps(source))
    rows = goes_on(source, copy)
    assert rows == list(range(len(rows)))


def test_a_state_that_json_would_change_is_refused_and_named() -> None:
    with (
        SourceHarness(FromSourceFunction(make(WithTuple, 100))) as harness,
        pytest.raises(ReadFailed, match=r"TypeError: \(.*, .*\): JSON cannot hold it and give it back"),
    ):
        harness.read(1)


def test_pickles_are_written_and_read_with_a_key() -> None:
    def source(key: Any) -> Source[Any, Any]:
        return FromSourceFunction(make(WithTuple, 10**9), serializer=PickleSerializer(key), capacity=10)

    rows = goes_on(source(KEY), source(lambda: KEY))
    assert rows == list(range(len(rows)))
    with pytest.raises(ReadFailed, match="does not have the code that this key gives, and was not read"):
        goes_on(source(KEY), source(KEY[::-1]))
    with SourceHarness(source(KEY)) as harness:
        harness.read(50)
        assert KEY.decode() not in repr(harness.snapshot()) + repr(harness.source)


class Planted:
    """A pickle that leaves a file behind where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@pytest.mark.contract
@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("kind", ["function", "format"])
def test_a_pickle_that_somebody_planted_in_a_checkpoint_runs_nothing(
    tmp_path: Path, serializer: Any, kind: str
) -> None:
    if serializer == "pickle":
        serializer = PickleSerializer(KEY)
    source: Source[Any, Any] = (
        FromSourceFunction(make(Counting, 10**9), serializer=serializer)
        if kind == "function"
        else FromInputFormat(Ranges, min_splits=9, batch=1, serializer=serializer)
    )
    with SourceHarness(source) as harness:
        harness.read(5)
        snapshot = harness.snapshot()
    evil = base64.b64encode(pickle.dumps(Planted(tmp_path / "ran"))).decode()
    forged = PickleSerializer(b"a key of the attacker's").to_json(Planted(tmp_path / "ran"))
    for planted in (
        evil,
        {"serializer": "pickle", "version": 1, "value": forged},
        {"serializer": "pickle", "version": 1, "value": {"pickle": evil, "code": ""}},
        {"serializer": "pickle", "version": 1, "value": {"pickle": evil}},
    ):
        for split in snapshot["splits"]:
            if kind == "format":
                split["payload"] = planted
            else:
                split["start"]["state"] = planted
        with (
            SourceHarness(source, snapshot=snapshot) as harness,
            pytest.raises(ReadFailed, match="pickle|None"),
        ):
            harness.read(1)
    assert not (tmp_path / "ran").exists()
    # The same bytes run where the key is right, so that it is the code that keeps them out.
    PickleSerializer(KEY).from_json(1, PickleSerializer(KEY).to_json(Planted(tmp_path / "ran"))).close()
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: FromSourceFunction(make(Counting, 1), serializer="yaml"), ValueError, "serializer='yaml'"),
        (lambda: FromSourceFunction(make(Counting, 1), serializer="pickle"), ValueError, "needs a key|key"),
        (lambda: register_serializer("pickle", DataclassSerializer(Offset)), ValueError, "name='pickle'"),
        (lambda: PickleSerializer("text"), TypeError, "key: must be bytes"),  # type: ignore[arg-type]
        (lambda: PickleSerializer(b"short"), ValueError, "key: must have at least 16 bytes, and has 5"),
    ],
)
def test_a_bad_serializer_or_key_is_refused_early(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()


# -- folders -----------------------------------------------------------------------------------------


class Rich(RichInputFormat[str, str]):
    """Lines of files; says what was called."""

    calls: list[str] = []  # noqa: RUF012

    def open_input_format(self) -> None:
        self.calls.append(f"open {self.runtime_context.subtask}")

    def close_input_format(self) -> None:
        self.calls.append("close")

    def create_input_splits(self, min_splits: int) -> Sequence[str]:
        raise AssertionError("a folder has the splits")

    def open(self, split: str) -> None:
        self.file = Path(split).open()  # noqa: SIM115
        self.line = self.file.readline()

    def reached_end(self) -> bool:
        return not self.line

    def next_record(self) -> str | None:
        line, self.line = self.line, self.file.readline()
        return line.strip() or None

    def close(self) -> None:
        self.file.close()


class Locked(Rich):
    def open_input_format(self) -> None:
        raise PermissionError("locked")


@pytest.fixture
def calls() -> list[str]:
    Rich.calls.clear()
    return Rich.calls


def write(folder: Path, name: str, text: str, at: int) -> None:
    (folder / name).write_text(text)
    os.utime(folder / name, (at, at))


def test_new_files_of_a_folder_are_read_those_modified_first_in_front(
    tmp_path: Path, calls: list[str]
) -> None:
    write(tmp_path, "b", "b1\n\nb2\n", at=1_000)
    write(tmp_path, "a", "a1\n", at=2_000)
    write(tmp_path, "_unfinished", "x\n", at=500)
    source = FromFolder(str(tmp_path), Rich, interval=0.01)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    with SourceHarness(source) as harness:
        assert harness.read(3) == ["b1", "b2", "a1"]
        snapshot = harness.snapshot()
        write(tmp_path, "c", "c1\nc2\n", at=3_000)
        assert harness.read(2) == ["c1", "c2"]
    assert calls == ["open 0", "close"]
    # From the checkpoint on the third file is new, and the others are not.
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.read(2) == ["c1", "c2"]
        assert harness.discover() == []


def test_a_folder_can_be_looked_at_once(tmp_path: Path, calls: list[str]) -> None:
    write(tmp_path, "a", "a1\na2\n", at=1_000)
    source = FromFolder(str(tmp_path), Rich, interval=None)
    with SourceHarness(source) as harness:
        assert harness.read_all() == ["a1", "a2"]
    with SourceHarness(source) as harness:
        (piece,) = harness.plan()
        assert (piece.files, piece.nbytes) == (1, 6)
        assert harness.read_split(piece) == ["a1", "a2"]
    with SourceHarness(source) as harness:
        assert len(harness.discover()) == 1
        write(tmp_path, "b", "b1\n", at=2_000)
        assert harness.read_all() == ["a1", "a2"]


def test_a_format_that_cannot_be_opened_is_closed_and_its_error_told(
    tmp_path: Path, calls: list[str]
) -> None:
    write(tmp_path, "a", "a1\n", at=1_000)
    source = FromFolder(str(tmp_path), Locked, interval=None)
    with SourceHarness(source) as harness, pytest.raises(ReadFailed, match="PermissionError: locked"):
        harness.read_all()
    assert calls == ["close"]


def test_bad_formats_are_refused_early(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must make an InputFormat, not int"):
        FromInputFormat(int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="makes a ReplicatingInputFormat"):
        FromInputFormat(lambda: ReplicatingInputFormat(Ranges()), schema=pa.schema({"n": pa.int64()}))
    with pytest.raises(ValueError, match="makes a ReplicatingInputFormat"):
        FromFolder(str(tmp_path), lambda: ReplicatingInputFormat(Ranges()))  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="min_splits=0"):
        FromInputFormat(Ranges, min_splits=0)
    with pytest.raises(TypeError, match="3|int"):
        FromFolder(3, Rich)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="interval=0"):
        FromFolder(str(tmp_path), Rich, interval=0)
    assert "secret" not in repr(FromFolder("s3://user:secret@bucket/x?region=us-east-1", Rich))
