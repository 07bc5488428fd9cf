"""Old functions as sources: in a task, in micro-batches, after restarts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from pillarbox.sources import Source, SourceCoordinator, SourceInput, WatermarkStrategy
from pillarbox.sources.fetching import ReadFailed
from pillarbox.sources.legacy import (
    FromSourceFunction,
    FunctionSplit,
    ParallelSourceFunction,
    SourceContext,
    SourceFunction,
)
from pillarbox.sources.reader import ReaderContext, SplitsAdded
from pillarbox.sources.source import Boundedness
from pillarbox.task import Operator, StreamTask
from pillarbox.testing import SourceHarness
from tests.sources.unit.number_source import LONG
from tests.threads import begun


class TaskOutput:
    """The output of a task, which keeps what is emitted."""

    is_available = True

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.on_record: Callable[[int], object] = lambda count: None

    def collect(self, record: Any) -> None:
        self.elements.append(record)
        self.on_record(len(self.elements))

    def emit_watermark(self, timestamp: float) -> None:
        self.elements.append(("watermark", timestamp))

    def emit_status(self, idle: bool) -> None:
        self.elements.append("idle" if idle else "active")

    def emit_barrier(self, barrier: Any) -> None:
        self.elements.append(barrier)

    def call_when_room(self, wake: Callable[[], object]) -> None:
        raise AssertionError("there is always room")


class Counting(SourceFunction):
    """Emits 0, 1, 2 and so on, `section` of them at a time, up to `end`; then waits for its cancel."""

    def __init__(self, end: int, section: int = 1, ends: bool = True) -> None:
        self.next, self.end, self.section, self.ends = 0, end, section, ends
        self.stop = threading.Event()

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


def test_a_wake_up_before_the_first_fetch_of_a_silent_function_is_heard() -> None:
    source = FromSourceFunction(make(Counting, 0, 1, False))
    with closing(source.create_reader(ReaderContext()).make_split_reader()) as reader:
        reader.handle_splits_changes(SplitsAdded((FunctionSplit("function"),)))
        reader.wake_up()
        assert list(reader.fetch()) == []
    assert no_thread_is_left()


def test_a_silent_function_is_ended_at_once() -> None:
    source = FromSourceFunction(make(Counting, 3, 1, False), grace=LONG)
    with SourceHarness(source) as harness:
        assert harness.read(3) == [0, 1, 2]
        # A close that waited for the grace would not end before the test's time-out.
    assert no_thread_is_left()


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
    assert no_thread_is_left()


def test_bad_functions_are_refused_early() -> None:
    with pytest.raises(ValueError, match="parallelism=2: must be 1, Counting is not a Parallel"):
        FromSourceFunction(make(Counting, 1), parallelism=2)
    with pytest.raises(TypeError, match="must make a SourceFunction, not int"):
        FromSourceFunction(int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capacity=0"):
        FromSourceFunction(make(Counting, 1), capacity=0)
    with pytest.raises(TypeError, match="has no schema"):
        FromSourceFunction(make(Counting, 1)).arrow_schema()


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
    source = FromSourceFunction(make(Counting, 300, section), bounded=True, capacity=8)
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
