"""The end of a task: its operators are finished, its errors are told, everything is closed once."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.kernel import MailboxClosedError, MailboxState
from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, OperatorSnapshot, TaskSnapshot
from pillarbox.task.operator_timers import RegisteredTimer
from pillarbox.task.protocols import MAX_WATERMARK, TaskOutput, TaskState, Watermark
from pillarbox.testing import FakeClock
from pillarbox.testing.test_io import CollectedOutput, PushedInput
from tests.task.unit.operators import Logging, Map, Rig

END = Watermark(MAX_WATERMARK)


def notes_of(error: BaseException) -> str:
    """The notes of an error."""
    return "\n".join(getattr(error, "__notes__", []))


# -- the end of the input --------------------------------------------------------------------------


@pytest.mark.contract
def test_at_the_end_of_the_data_operators_are_finished_one_after_the_other() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Logging("b", log))
    assert rig.run(1) == [1, END]
    assert log == [
        "b open",
        "a open",
        "a process 1",
        "b process 1",
        "a watermark inf",
        "b watermark inf",
        "a end_input",
        "a finish",
        "b end_input",
        "b finish",
        "a close",
        "b close",
    ]
    assert rig.task.state is TaskState.FINISHED
    assert rig.input.closed == 1


def test_the_end_of_input_alone_means_the_end_of_the_data_as_well() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    rig.end(InputStatus.END_OF_INPUT)
    rig.task.run()
    assert log[-3:] == ["a end_input", "a finish", "a close"]


def test_a_stopped_input_leaves_the_operators_unfinished() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    rig.push(1)
    rig.end(InputStatus.STOPPED, InputStatus.END_OF_INPUT)
    rig.task.run()
    assert log == ["a open", "a process 1", "a close"]
    assert rig.output.elements == [1]
    assert rig.task.state is TaskState.FINISHED


@pytest.mark.parametrize("second", [InputStatus.END_OF_DATA, InputStatus.STOPPED])
def test_the_data_of_an_input_end_once(second: InputStatus) -> None:
    rig = Rig(Map(str))
    rig.end(InputStatus.END_OF_DATA, second)
    with pytest.raises(RuntimeError, match="after the end of its data"):
        rig.task.run()


class Calls(Operator):
    """Each record is a call, finished by `futures[record].set_result`; `end_input` waits for all of them."""

    uid = "calls"

    def __init__(self) -> None:
        self.futures: dict[Any, Future[Any]] = {}
        self.left: set[Any] = set()
        self.all_out: Future[None] | None = None

    def process(self, record: Any) -> None:
        self.left.add(record)
        future: Future[Any] = Future()
        self.futures[record] = future
        future.add_done_callback(
            lambda done: self.context.executor.execute(self._emit, record, done.result())
        )

    def _emit(self, record: Any, result: Any) -> None:
        self.left.discard(record)
        self.output.collect(result)
        if not self.left and self.all_out is not None:
            self.all_out.set_result(None)

    def end_input(self) -> Future[None] | None:
        self.all_out = Future() if self.left else None
        return self.all_out


@pytest.mark.contract
def test_the_end_waits_for_what_is_under_way_and_mail_runs_meanwhile() -> None:
    log: list[str] = []
    calls = Calls()
    rig = Rig(calls, Logging("b", log))
    rig.push(1, 2)
    rig.end()
    rig.step()
    assert rig.task.state is TaskState.RUNNING
    calls.futures[2].set_result("two")
    rig.step()
    assert log[-1] == "b process two"
    calls.futures[1].set_result("one")
    rig.step()
    assert rig.output.elements == [END, "two", "one"]
    assert log[-4:] == ["b process one", "b end_input", "b finish", "b close"]
    assert rig.task.state is TaskState.FINISHED


def test_timers_fire_while_the_end_waits_and_no_longer_when_the_operator_is_finished() -> None:
    clock = FakeClock()
    fired: list[float] = []

    class Retries(Operator):
        def open(self) -> None:
            self.done: Future[None] = Future()
            self.context.timers.register_timer(5.0, self.retry)
            self.context.timers.register_timer(50.0, fired.append)

        def process(self, record: Any) -> None:
            raise AssertionError("there is no record")

        def retry(self, timestamp: float) -> None:
            fired.append(timestamp)
            self.output.collect("retried")
            self.done.set_result(None)

        def end_input(self) -> Future[None]:
            return self.done

    rig = Rig(Retries(), clock=clock)
    rig.end()
    rig.step()
    assert (fired, rig.task.state) == ([], TaskState.RUNNING)
    clock.advance(5.0)
    rig.step()
    assert rig.output.elements == [END, "retried"]
    assert rig.task.state is TaskState.FINISHED
    clock.advance(100.0)
    assert fired == [5.0]


def test_at_the_end_of_the_input_timers_that_had_begun_fire_and_no_new_ones() -> None:
    clock = FakeClock()
    fired: list[float] = []
    late: list[RegisteredTimer] = []

    class Sets(Operator):
        def open(self) -> None:
            for _ in range(200):
                self.context.timers.register_timer(1.0, fired.append)
            self.context.timers.register_timer(2.0, fired.append)

        def process(self, record: Any) -> None:
            raise AssertionError("there is no record")

        def register(self) -> None:
            late.append(self.context.timers.register_timer(1.0, fired.append))

    class Stops:
        stopped = False

        def emit_next(self, output: TaskOutput) -> InputStatus:
            if not self.stopped:
                self.stopped = True
                return InputStatus.STOPPED
            # No mail runs any more before the end: what is due now takes several mails.
            operator.context.executor.execute(operator.register)
            clock.set(1.0)
            return InputStatus.END_OF_INPUT

        def available(self) -> None:
            return None

        def close(self) -> None:
            assert len(fired) == 200, "timers are waited for before anything is closed"

    operator = Sets()
    Rig(operator, input=Stops(), clock=clock).task.run()
    clock.set(10.0)
    assert fired == [1.0] * 200
    assert [timer.done for timer in late] == [True]


def test_mail_that_an_operator_has_put_runs_before_the_next_operator_is_finished() -> None:
    log: list[str] = []

    class PutsAtTheEnd(Operator):
        uid = "a"

        def process(self, record: Any) -> None:
            raise AssertionError("there is no record")

        def finish(self) -> None:
            self.context.executor.execute(self.output.collect, "last", deferrable=True)

    rig = Rig(PutsAtTheEnd(), Logging("b", log))
    rig.end()
    rig.task.run()
    assert log[-4:] == ["b process last", "b end_input", "b finish", "b close"]


@pytest.mark.contract
def test_the_steps_of_a_task_run_deferrable_mail_with_nothing_else_left() -> None:
    log: list[str] = []

    class Waits(Map):
        def end_input(self) -> Future[None]:
            future: Future[None] = Future()
            log.append("waits")
            self.context.executor.execute(future.set_result, None, deferrable=True)
            return future

        def finish(self) -> None:
            log.append("goes on")

    assert Rig(Waits(str)).run(1) == ["1", END]
    assert log == ["waits", "goes on"]


@pytest.mark.contract
def test_a_task_ends_when_all_timers_of_an_operator_that_had_begun_have_fired_however_many_they_are() -> None:
    clock, fired = FakeClock(), list[float]()

    class Times(Map):
        def process(self, record: Any) -> None:
            self.context.timers.register_timer(0.0, fired.append)

    rig = Rig(Times(str), clock=clock)
    rig.push(*range(500))
    rig.end(InputStatus.STOPPED, InputStatus.END_OF_INPUT)
    rig.task.run()
    assert fired == [0.0] * 500


def test_mail_left_at_the_end_of_the_input_is_run_deferrable_mail_too() -> None:
    ran: list[str] = []

    class Ends:
        def emit_next(self, output: TaskOutput) -> InputStatus:
            executor = task.processor.executor()
            executor.execute(ran.append, "deferrable", deferrable=True)
            executor.execute(ran.append, "ordinary")
            return InputStatus.END_OF_INPUT

        def available(self) -> None:
            return None

        def close(self) -> None:
            ran.append("close")

    task = StreamTask(Ends(), [Map(str)], CollectedOutput())
    task.run()
    assert ran == ["deferrable", "ordinary", "close"]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["restore", "open"])
def test_after_a_failure_in_restore_everything_is_closed_once(step: str) -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Logging("b", log, step), Logging("c", log))
    states = {uid: OperatorSnapshot(1, ()) for uid in "abc"}
    with pytest.raises(ValueError, match=f"b {step}"):
        rig.task.restore(TaskSnapshot(CheckpointBarrier(1, 0.0), None, states))
    assert [line for line in log if "close" in line] == ["a close", "b close", "c close"]
    assert rig.input.closed == 1
    assert rig.task.state is TaskState.FAILED
    assert rig.task.processor.mailbox.state is MailboxState.CLOSED
    rig.task.close()
    assert rig.input.closed == 1
    with pytest.raises(RuntimeError, match="'task' is failed"):
        rig.task.run()


@pytest.mark.contract
@pytest.mark.parametrize("step", ["process", "watermark", "end_input", "finish", "close"])
def test_whatever_step_fails_everything_is_closed_once(step: str) -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Logging("b", log, step), Logging("c", log))
    rig.push(1)
    rig.end()
    with pytest.raises(ValueError, match=f"b {step}"):
        rig.task.run()
    assert [line for line in log if "close" in line] == ["a close", "b close", "c close"]
    assert rig.input.closed == 1
    assert rig.task.state is TaskState.FAILED


@pytest.mark.contract
def test_the_first_error_wins_and_later_ones_go_with_it() -> None:
    class Input(PushedInput):
        def close(self) -> None:
            super().close()
            raise OSError("the input cannot be closed")

    log: list[str] = []
    source = Input()
    rig = Rig(Logging("a", log, "process", "close"), Logging("b", log, "close"), input=source)
    source.push(1)
    with pytest.raises(ValueError, match="a process 1") as caught:
        rig.task.run()
    notes = notes_of(caught.value)
    assert [part in notes for part in ("OSError: the input cannot", "a close", "b close")] == [True] * 3
    assert source.closed == 1


def test_an_error_in_closing_alone_is_raised() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="a close") as caught:
        Rig(Logging("a", log, "close"), Logging("b", log, "close")).run(1)
    assert "b close" in notes_of(caught.value)


def test_a_mail_that_raises_ends_the_task_and_futures_of_mail_left_are_cancelled() -> None:
    rig = Rig(Map(str))
    executor = rig.task.processor.executor()

    def fail() -> None:
        raise ValueError("in a mail")

    executor.execute(fail)
    left = executor.submit(lambda: "never")
    with pytest.raises(ValueError, match="in a mail"):
        rig.task.run()
    assert left.cancelled()


@pytest.mark.contract
def test_a_timer_does_not_outlive_the_task() -> None:
    clock = FakeClock()
    fired: list[float] = []

    class Sets(Operator):
        def process(self, record: Any) -> None:
            self.context.timers.register_timer(1.0, fired.append)

    rig = Rig(Sets(), clock=clock)
    rig.push("x")
    rig.step()
    rig.task.close()
    clock.advance(10.0)
    assert fired == []


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_thread_for_timers_that_are_asked_for_in_close_does_not_outlive_the_task(cancelled: bool) -> None:
    class SetsInClose(Map):
        def close(self) -> None:
            timers = self.context.timers
            timers.register_timer(timers.current_processing_time() + 3600.0, print)

    before = set(threading.enumerate())
    rig = Rig(SetsInClose(str))
    if cancelled:
        rig.task.restore()
        rig.task.close()
    else:
        rig.run(1)
    assert set(threading.enumerate()) <= before


# -- mail that cannot be put any more --------------------------------------------------------------


class Polls(Map):
    """Has a mail that puts itself again, for ever."""

    runs = 0

    def open(self) -> None:
        self.context.executor.execute(self.again)

    def again(self) -> None:
        self.runs += 1
        self.output.collect("polled")
        self.context.executor.execute(self.again)


def test_a_mail_that_puts_itself_again_does_not_keep_the_task_from_ending_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []
    polls = Polls(str)
    rig = Rig(polls, Polls(str, "b"))

    class Ends(PushedInput):
        def emit_next(self, output: TaskOutput) -> InputStatus:
            rig.task.processor.executor().execute(ran.append, "left", deferrable=True)
            return InputStatus.END_OF_INPUT

    rig = Rig(polls, Polls(str, "b"), input=Ends())
    with caplog.at_level(logging.DEBUG, "pillarbox"):
        rig.task.run()
    assert rig.task.state is TaskState.FINISHED
    assert ran == ["left"]
    # What the last one has emitted has come out.
    assert rig.output.records == ["polled"] * rig.output.records.count("polled")
    assert rig.output.records.count("polled") >= polls.runs
    assert [record.levelname for record in caplog.records] == ["DEBUG"] * 2
    assert all("again" in record.getMessage() for record in caplog.records)


def test_a_mail_that_waits_in_vain_at_the_end_is_an_error_all_the_same() -> None:
    class Ends(PushedInput):
        statuses = iter([InputStatus.STOPPED, InputStatus.END_OF_INPUT])

        def emit_next(self, output: TaskOutput) -> InputStatus:
            status = next(self.statuses)
            if status is InputStatus.END_OF_INPUT:
                executor = rig.task.processor.executor()
                executor.execute(executor.yield_)
            return status

    rig = Rig(Map(str), input=Ends())
    with pytest.raises(MailboxClosedError, match="no more can come"):
        rig.task.run()
    assert rig.task.state is TaskState.FAILED


def test_an_operator_that_cannot_put_mail_for_a_record_at_the_end_is_an_error() -> None:
    class Asks(Map):
        def process(self, record: Any) -> None:
            self.context.executor.execute(self.output.collect, record)

    class Emits(Polls):
        def again(self) -> None:
            if self.context.executor._mailbox.state is MailboxState.QUIESCED:
                self.output.collect("late")
            else:
                self.context.executor.execute(self.again)

    rig = Rig(Emits(str), Asks(str))
    with pytest.raises(MailboxClosedError, match="refused"):
        rig.run()
    assert rig.task.state is TaskState.FAILED
