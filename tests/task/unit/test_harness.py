"""The harness: what a test of one operator can do with it, shown on operators that need all of it."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.task import Operator
from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, CheckpointOptions
from pillarbox.task.protocols import TaskState, Watermark
from pillarbox.testing import OperatorHarness
from tests.task.unit.operators import Declining, Door, Logging, Map

UNALIGNED = CheckpointOptions(aligned=False)


class Sums(Operator):
    """Adds numbers up; emits the sum every ten seconds and at the end."""

    uid = "sums"

    def __init__(self) -> None:
        self.sums: list[int] = [0]
        self.completed: list[int] = []
        self.aborted: list[int] = []

    def restore_state(self, state: Any) -> None:
        self.sums = state

    def open(self) -> None:
        timers = self.context.timers
        timers.register_timer(timers.current_processing_time() + 10.0, self.emit_again)

    def emit_again(self, timestamp: float) -> None:
        self.emit(timestamp)
        self.context.timers.register_timer(timestamp + 10.0, self.emit_again)

    def emit(self, timestamp: float) -> None:
        self.output.collect((timestamp, sum(self.sums)))

    def process(self, record: int) -> None:
        self.sums.append(record)

    def snapshot_state(self, barrier: CheckpointBarrier) -> list[int]:
        return self.sums

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed.append(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.aborted.append(checkpoint_id)

    def finish(self) -> None:
        self.emit(self.context.timers.current_processing_time())


def test_records_and_watermarks_go_in_and_what_is_emitted_can_be_read() -> None:
    with OperatorHarness(Map(str)) as harness:
        harness.push(1, 2)
        harness.push_watermark(7.0)
        harness.push(3)
        assert harness.elements == ["1", "2", Watermark(7.0), "3"]
        assert harness.records == ["1", "2", "3"]
        assert harness.watermarks == [7.0]


def test_time_stands_still_unless_the_test_moves_it() -> None:
    with OperatorHarness(Sums(), now=100.0) as harness:
        harness.push(1, 2)
        harness.advance(9.9)
        assert harness.records == []
        harness.set_time(120.0)
        assert harness.records == [(110.0, 3), (120.0, 3)]


@pytest.mark.contract
def test_a_snapshot_is_restored_into_a_new_operator() -> None:
    first = OperatorHarness(Sums())
    first.push(1, 2)
    snapshot = first.snapshot()
    # What comes later does not get into a snapshot, though the operator gave its own list away.
    first.push(100)
    first.close()
    with OperatorHarness(Sums(), snapshot) as second:
        second.push(4)
        second.advance(10.0)
        assert second.records == [(10.0, 7)]
        assert second.snapshot().barrier.id == snapshot.barrier.id + 1


def test_the_operator_hears_of_the_ends_of_its_checkpoints() -> None:
    operator = Sums()
    with OperatorHarness(operator) as harness:
        first, second, third = (harness.snapshot() for _ in range(3))
        harness.abort(first)
        harness.complete(second)
        harness.complete(second)
    assert (operator.completed, operator.aborted) == ([second.barrier.id], [first.barrier.id])
    assert third.barrier.id not in operator.completed


def test_a_declined_snapshot_raises_and_the_operator_goes_on() -> None:
    with OperatorHarness(Declining(1)) as harness:
        with pytest.raises(CheckpointDeclined, match="not now"):
            harness.snapshot()
        harness.push("x")
        assert harness.records == ["x"]


def test_the_end_of_the_input_finishes_and_closes_the_operator() -> None:
    log: list[str] = []
    harness = OperatorHarness(Logging("a", log))
    harness.end_input()
    assert log[-3:] == ["a end_input", "a finish", "a close"]
    assert harness.ended
    assert harness.task.state is TaskState.FINISHED
    sums = OperatorHarness(Sums())
    sums.push(5)
    sums.end_input()
    assert sums.records == [(0.0, 5)]


def test_an_error_of_the_operator_is_raised_where_the_test_caused_it() -> None:
    log: list[str] = []
    harness = OperatorHarness(Logging("a", log, "process"))
    with pytest.raises(ValueError, match="a process 1"):
        harness.push(1)
    assert log[-1] == "a close"
    assert harness.task.state is TaskState.FAILED
    harness.close()
    assert log.count("a close") == 1


def test_a_harness_that_is_left_closes_the_operator_once() -> None:
    log: list[str] = []
    with OperatorHarness(Logging("a", log)) as harness:
        harness.close()
    assert log == ["a open", "a close"]


def test_an_operator_in_a_yield_can_be_saved_with_what_waits_at_its_door() -> None:
    door = Door()
    harness = OperatorHarness(door)
    futures: list[Future[Any]] = []

    def blocked() -> None:
        futures.append(harness.task.trigger_checkpoint_async(1, UNALIGNED))
        door.let_go()

    door.blocked = blocked
    harness.push("a", "b")
    operator = futures[0].result(timeout=0).operators["door"]
    assert (operator.state, operator.pending) == (["a"], ("b",))
    harness.close()


class Doubles(Operator):
    """Has another thread double each record."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def process(self, record: Any) -> None:
        emit = self.output.collect
        execute = self.context.executor.execute
        thread = threading.Thread(target=lambda: execute(emit, 2 * record))
        self.threads.append(thread)
        thread.start()

    def close(self) -> None:
        for thread in self.threads:
            thread.join()


def test_a_test_can_wait_for_what_other_threads_complete() -> None:
    with OperatorHarness(Doubles()) as harness:
        harness.push(1, 2, 3)
        harness.run_until(lambda: len(harness.records) == 3, timeout=600)
        assert sorted(harness.records) == [2, 4, 6]


def test_waiting_in_vain_ends_and_says_so() -> None:
    with (
        OperatorHarness(Map(str)) as harness,
        pytest.raises(TimeoutError, match="does not hold after 0.01 seconds"),
    ):
        harness.run_until(lambda: False, timeout=0.01)
    with pytest.raises(RuntimeError, match="the task is cancelled"):
        harness.run_until(lambda: False)


class Busy(Map):
    """Has work for ever once it has begun."""

    def process(self, record: Any) -> None:
        self.context.executor.execute(self.process, record)


def test_waiting_in_vain_ends_though_there_is_always_work() -> None:
    harness = OperatorHarness(Busy(str))
    harness.input.push(1)
    with pytest.raises(TimeoutError, match="does not hold after 0.05 seconds"):
        harness.run_until(lambda: False, timeout=0.05)
    harness.close()


def test_waiting_in_vain_ends_though_the_mailbox_takes_no_mail() -> None:
    harness = OperatorHarness(Map(str))
    harness.task.processor.prepare_close()
    with pytest.raises(TimeoutError, match="does not hold after 0.05 seconds"):
        harness.run_until(lambda: False, timeout=0.05)
    harness.close()


def test_an_error_of_close_does_not_hide_the_failure_of_the_test() -> None:
    log: list[str] = []
    failure = AssertionError("what the test found")
    with pytest.raises(AssertionError) as caught, OperatorHarness(Logging("a", log, "close")):
        raise failure
    assert caught.value is failure
    assert "a close" in "".join(traceback.format_exception(failure))
    assert log[-1] == "a close"
    with pytest.raises(ValueError, match="a close"), OperatorHarness(Logging("a", log, "close")):
        log.clear()


def test_a_state_that_cannot_be_pickled_is_found() -> None:
    class Keeps(Map):
        def snapshot_state(self, barrier: CheckpointBarrier) -> Any:
            return threading.Lock()

    with OperatorHarness(Keeps(str)) as harness, pytest.raises(TypeError, match="lock"):
        harness.snapshot()
