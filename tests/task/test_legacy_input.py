"""A legacy source as the input of a task: order, room, checkpoints, errors, the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.mailbox import SynchronizedActionExecutor
from pillarbox.task import InputStatus, Operator, StreamTask, TaskSnapshot, legacy_input
from pillarbox.task.fair_lock import FairLock
from pillarbox.task.legacy import SourceContext
from pillarbox.task.legacy_input import LegacyInputState, LegacySourceInput
from tests.task.sources import LONG, Queue, Source, TaskOutput, read_all


class Counting(Source):
    """Emits the numbers below `count`; checkpoints hold the next one."""

    def __init__(self, count: int, section: bool = True) -> None:
        super().__init__(self._emit_all if section else self._emit_all_in_one_section)
        self.count = count

    def _emit_all(self, source: Source, context: SourceContext) -> None:
        while self.offset < self.count and not self.stop.is_set():
            with context.checkpoint_lock:
                context.collect(self.offset)
                self.offset += 1

    def _emit_all_in_one_section(self, source: Source, context: SourceContext) -> None:
        with context.checkpoint_lock:
            while self.offset < self.count and not self.stop.is_set():
                context.collect(self.offset)
                self.offset += 1

    def snapshot_state(self) -> int:
        return self.offset

    def restore_state(self, state: int) -> None:
        self.offset = state


class Passing(Operator):
    uid = "passing"

    def process(self, record: Any) -> None:
        self.output.collect(record)


@pytest.fixture
def make() -> Iterator[Callable[..., LegacySourceInput]]:
    """Makes inputs, and closes them."""
    inputs: list[LegacySourceInput] = []

    def make_one(source: Source, **options: Any) -> LegacySourceInput:
        inputs.append(LegacySourceInput(source, grace=LONG, name="under test", **options))
        return inputs[-1]

    yield make_one
    for one in inputs:
        one.close()


def test_elements_come_out_in_order_and_then_the_end(make: Any) -> None:
    def body(source: Source, context: SourceContext) -> None:
        context.collect(None)
        context.emit_watermark(1.0)
        context.mark_as_temporarily_idle()
        context.collect("b")

    one = make(Source(body))
    assert read_all(one) == [None, ("watermark", 1.0), "idle", "active", "b"]
    assert one.emit_next(TaskOutput()) is InputStatus.END_OF_INPUT
    assert one.available() is None


def test_an_error_of_the_source_comes_out_after_what_it_had_emitted(make: Any) -> None:
    def body(source: Source, context: SourceContext) -> None:
        context.collect(1)
        raise LookupError("source")

    one = make(Source(body))
    output = TaskOutput()
    with pytest.raises(LookupError, match="source"):
        read_all(one, output)
    assert output.elements == [1]


@pytest.mark.contract
@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_a_source_is_no_further_ahead_than_the_capacity(
    make: Any, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    original = legacy_input._Buffer.available

    def available(buffer: Any) -> Future[None]:
        full.set()
        return original(buffer)

    monkeypatch.setattr(legacy_input._Buffer, "available", available)
    one = make(Counting(50), capacity=capacity)
    output = TaskOutput()
    ahead = []
    for _ in range(20):
        one.emit_next(output)
        assert full.wait(LONG)
        ahead.append(len(one.snapshot_state().pending))
    assert max(ahead) <= capacity
    assert output.elements + read_all(one) == list(range(50))


def test_the_source_starts_with_the_first_read(make: Any) -> None:
    started = threading.Event()
    one = make(Source(lambda source, context: started.set()))
    assert one.available() is None
    assert not started.is_set()
    assert read_all(one) == []
    assert started.is_set()


def test_a_cancelled_source_ends_the_input_after_what_it_had_emitted(make: Any) -> None:
    emitted = threading.Event()

    def body(source: Source, context: SourceContext) -> None:
        context.collect(1)
        emitted.set()
        context.wait(LONG)

    one = make(Source(body))
    output = TaskOutput()
    one.emit_next(output)
    assert emitted.wait(LONG)
    one.cancel()
    assert output.elements + read_all(one) == [1]
    assert not one.snapshot_state().ended


def test_close_ends_the_source_and_what_waits_for_more(make: Any) -> None:
    source = Source(lambda source, context: context.wait(LONG))
    one = make(source)
    assert one.emit_next(TaskOutput()) is InputStatus.NOTHING_AVAILABLE
    more = one.available()
    assert more is not None
    one.close()
    one.close()
    assert more.done()
    assert source.cancels == 1


# ---- checkpoints


def test_a_snapshot_holds_the_state_and_what_was_not_read_and_restores_to_the_same_records(make: Any) -> None:
    rng = random.Random(5)
    for section in (True, False):
        read: list[Any] = []
        state: LegacyInputState | None = None
        for _ in range(10):
            one = make(Counting(40, section), capacity=rng.randint(1, 12))
            if state is not None:
                one.restore_state(state)
            output = TaskOutput()
            for _ in range(rng.randint(0, 12)):
                one.emit_next(output)
            state = one.snapshot_state()
            read += output.elements
            # What is read after the snapshot is lost with this attempt.
            one.emit_next(output)
            one.close()
        one = make(Counting(40, section))
        one.restore_state(state)
        assert read + read_all(one) == list(range(40))


def test_a_snapshot_waits_until_a_record_and_its_state_are_both_there(make: Any) -> None:
    class Slow(Counting):
        def _emit_all(self, source: Source, context: SourceContext) -> None:
            with context.checkpoint_lock:
                context.collect("record")
                between.set()
                queue.wait_for_next()
                self.offset += 1

    between = threading.Event()
    one = make(Slow(1))
    queue = Queue(one.lock)
    one.emit_next(TaskOutput())
    assert between.wait(LONG)
    assert one.snapshot_state()[:2] in [(1, ("record",)), (1, ())]


def test_a_source_that_had_ended_does_not_run_again(make: Any) -> None:
    one = make(Counting(3))
    output = TaskOutput()
    one.emit_next(output)
    one._thread.done.result(LONG)
    one.emit_next(output)
    state = one.snapshot_state()
    assert state.ended
    again = make(Source(lambda source, context: context.collect("again")))
    with pytest.raises(ValueError, match="state.source=3"):
        again.restore_state(state)
    again.restore_state(state._replace(source=None))
    assert output.elements + read_all(again) == [0, 1, 2]
    assert again.snapshot_state() == LegacyInputState(None, (), True)


def test_a_source_without_a_state_starts_over_and_what_was_not_read_comes_once(make: Any) -> None:
    filled = threading.Event()

    def body(source: Source, context: SourceContext) -> None:
        for number in range(3):
            context.collect(number)
        if not filled.is_set():
            filled.set()
            source.stop.wait(LONG)

    one = make(Source(body))
    one.emit_next(TaskOutput())
    assert filled.wait(LONG)
    state = one.snapshot_state()
    assert state == LegacyInputState(None, (), False)
    again = make(Source(body))
    again.restore_state(state)
    assert read_all(again) == [0, 1, 2]


def test_a_source_that_runs_cannot_be_restored(make: Any) -> None:
    one = make(Counting(3))
    state = one.snapshot_state()
    one.emit_next(TaskOutput())
    with pytest.raises(RuntimeError, match="under test runs already"):
        one.restore_state(state)


@pytest.mark.parametrize(("capacity", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_bad_capacity_is_named_with_its_value(capacity: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"capacity={capacity!r}"):
        LegacySourceInput(Counting(1), capacity=capacity)


# ---- in a task


@pytest.mark.contract
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("section", [True, False])
def test_a_task_with_a_legacy_source_emits_each_record_once_over_restarts(
    shared: bool, section: bool
) -> None:
    count = 300
    committed: list[int] = []
    snapshot: TaskSnapshot | None = None
    for attempt in range(4):
        lock = FairLock()
        one = LegacySourceInput(Counting(count, section), lock=lock, capacity=5, grace=LONG)
        output = TaskOutput()
        options: Any = {"action_executor": SynchronizedActionExecutor(lock)} if shared else {}
        task = StreamTask(one, [Passing()], output, **options)
        task.restore(snapshot)
        if attempt == 3:
            task.run()
            committed += [element for element in output.elements if isinstance(element, int)]
            break
        taken: list[Future[TaskSnapshot]] = []

        def checkpoint(records: int, task: StreamTask = task, taken: list[Any] = taken) -> None:
            if records == 60 and not taken:
                taken.append(task.trigger_checkpoint_async(1))

        output.on_record = checkpoint
        while not (taken and taken[0].done()):
            task.run_step()
        snapshot = taken[0].result()
        barrier = next(at for at, element in enumerate(output.elements) if not isinstance(element, int))
        committed += output.elements[:barrier]
        task.run_step()
        task.close()
    assert committed == list(range(count))


def test_an_error_of_a_legacy_source_ends_its_task() -> None:
    def fail(source: Source, context: SourceContext) -> None:
        context.wait(0.0)
        raise LookupError("source")

    task = StreamTask(LegacySourceInput(Source(fail)), [Passing()], TaskOutput())
    with pytest.raises(LookupError, match="source"):
        task.run()
