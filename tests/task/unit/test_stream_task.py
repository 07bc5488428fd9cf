"""The task: what its input and output say, its life from restore to close, its errors, its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.kernel import WrongThreadError
from pillarbox.task import InputStatus, Operator, StreamTask
from pillarbox.task.protocols import MAX_WATERMARK, TaskCancelled, TaskOutput, TaskState, Watermark
from pillarbox.testing import FakeClock
from pillarbox.testing.test_io import CollectedOutput, PushedInput
from tests.task.unit.operators import Door, Logging, Map, Rig

END = Watermark(MAX_WATERMARK)


# -- input and output -----------------------------------------------------------------------------


def test_a_task_without_input_is_idle_and_goes_on_when_there_is_some() -> None:
    clock = FakeClock()
    rig = Rig(Map(str), clock=clock)
    rig.step()
    assert not rig.task.processor.is_default_action_available
    clock.advance(3.0)
    rig.push(1)
    rig.step()
    assert rig.output.records == ["1"]
    times = rig.task.processor.metrics.snapshot()
    assert times.idle > 0
    assert times.back_pressured == 0
    rig.task.close()


@pytest.mark.contract
def test_a_task_whose_output_is_full_reads_nothing_and_is_back_pressured() -> None:
    clock = FakeClock()
    rig = Rig(Map(str), clock=clock)
    rig.output.block()
    rig.push(1, 2)
    rig.step()
    clock.advance(3.0)
    assert rig.output.records == []
    rig.output.unblock()
    rig.step()
    assert rig.output.records == ["1", "2"]
    times = rig.task.processor.metrics.snapshot()
    assert times.back_pressured > 0
    assert times.idle == 0
    rig.task.close()


def test_without_input_and_without_room_a_task_counts_as_back_pressured() -> None:
    class NothingMore:
        calls = 0

        def emit_next(self, output: TaskOutput) -> InputStatus:
            self.calls += 1
            rig.output.block()
            return InputStatus.NOTHING_AVAILABLE

        def available(self) -> Future[Any]:
            return Future()

        def close(self) -> None:
            return None

    clock = FakeClock()
    source = NothingMore()
    rig = Rig(Map(str), input=source, clock=clock)
    rig.step()
    clock.advance(1.0)
    times = rig.task.processor.metrics.snapshot()
    assert (source.calls, times.idle) == (1, 0)
    assert times.back_pressured > 0
    rig.task.close()


@pytest.mark.contract
def test_mail_runs_while_the_task_waits_for_room() -> None:
    rig = Rig(Map(str))
    rig.output.block()
    rig.push(1)
    rig.step()
    ran: list[int] = []
    rig.task.processor.executor().execute(ran.append, 1)
    rig.step()
    assert (ran, rig.output.records) == ([1], [])
    rig.task.close()


class Calls(Operator):
    """Holds `room` calls that only time out, the newest first, and emits them in order; waits while full."""

    def __init__(self, room: int, wait: Callable[[Calls], None]) -> None:
        self.room = room
        self.wait = wait
        self.calls: list[Any] = []
        self.ended: set[Any] = set()

    def process(self, record: Any) -> None:
        while len(self.calls) >= self.room:
            self.wait(self)
        self.calls.append(record)
        now = self.context.timers.current_processing_time()
        self.context.timers.register_timer(
            now + 0.0005 * (self.room - record % self.room), self.times_out(record)
        )

    def times_out(self, record: Any) -> Callable[[float], None]:
        def end(_: float) -> None:
            self.ended.add(record)
            while self.calls and self.calls[0] in self.ended:
                self.output.collect(self.calls.pop(0))

        return end


@pytest.mark.contract
@pytest.mark.parametrize("room", [1, 2, 64, 65, 300])
def test_an_operator_that_is_blocked_by_a_full_queue_gets_its_time_outs(room: int) -> None:
    clock = FakeClock()

    def wait(operator: Calls) -> None:
        # All are due; that of the oldest fires last, long after what one mail fires.
        clock.advance(1.0)
        assert operator.context.executor.try_yield(), "blocked for ever"

    rig = Rig(Calls(room, wait), clock=clock)
    rig.push(*range(2 * room + 1))
    rig.step()
    assert rig.output.records == list(range(2 * room))


def test_an_operator_that_is_blocked_gets_its_time_outs_by_the_clock_of_the_system() -> None:
    rig = Rig(Calls(200, lambda operator: operator.context.executor.yield_()))
    rig.push(*range(401))
    rig.step()
    assert rig.output.records[:201] == list(range(201))


def test_another_thread_wakes_a_task_that_waits_for_input_and_then_for_room() -> None:
    rig = Rig(Map(str))
    rig.output.block()

    def work() -> None:
        rig.push(1)
        rig.output.unblock()
        rig.end()

    thread = threading.Thread(target=work)
    rig.task.processor.executor().execute(thread.start)
    rig.task.run()
    thread.join()
    assert rig.output.elements == ["1", END]


def test_an_input_whose_future_fails_ends_the_task() -> None:
    class Fails:
        def __init__(self) -> None:
            self.future: Future[Any] = Future()

        def emit_next(self, output: TaskOutput) -> InputStatus:
            return InputStatus.NOTHING_AVAILABLE

        def available(self) -> Future[Any]:
            return self.future

        def close(self) -> None:
            return None

    source = Fails()
    rig = Rig(Map(str), input=source)
    rig.step()
    source.future.set_exception(OSError("the connection is gone"))
    with pytest.raises(OSError, match="connection is gone"):
        rig.task.run()
    assert rig.task.state is TaskState.FAILED


def test_an_input_that_says_no_status_is_told_so() -> None:
    class Says:
        def emit_next(self, output: TaskOutput) -> Any:
            return True

        def available(self) -> None:
            return None

        def close(self) -> None:
            return None

    with pytest.raises(TypeError, match="said True; it must say an InputStatus"):
        Rig(Map(str), input=Says()).task.run()


# -- life ------------------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_cancelled_task_raises_and_everything_is_closed_without_finishing() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), name="mine")
    rig.push(1)
    rig.step()
    thread = threading.Thread(target=rig.task.cancel)
    thread.start()
    with pytest.raises(TaskCancelled, match="task 'mine' was cancelled"):
        rig.task.run()
    thread.join()
    assert log == ["a open", "a process 1", "a close"]
    assert rig.task.state is TaskState.CANCELLED
    rig.task.cancel()


def test_cancel_ends_an_operator_that_yields_and_waits_in_vain() -> None:
    door = Door()
    rig = Rig(door)
    door.blocked = rig.task.cancel
    rig.push(1, 2)
    with pytest.raises(TaskCancelled):
        rig.task.run()
    assert rig.output.elements == []


@pytest.mark.contract(convicts=["cancelled_task_emits"])
def test_an_operator_that_swallows_the_cancellation_is_ended_all_the_same() -> None:
    swallowed: list[BaseException] = []

    class Stubborn(Operator):
        def process(self, record: Any) -> None:
            rig.task.cancel()
            try:
                self.context.executor.yield_()
            except TaskCancelled as error:
                swallowed.append(error)
            self.output.collect(record)

        def end_input(self) -> None:
            raise AssertionError("the loop went on")

    rig = Rig(Stubborn(), Map(str))
    rig.push(1, 2, 3)
    rig.end()
    with pytest.raises(TaskCancelled):
        rig.task.run()
    assert len(swallowed) == 1
    assert rig.output.elements == []


def test_a_task_can_be_cancelled_before_it_runs() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    rig.task.cancel()
    rig.push(1)
    with pytest.raises(TaskCancelled):
        rig.task.run()
    assert log == ["a open", "a close"]


def test_an_input_or_an_output_that_is_none_is_refused_when_the_task_is_made() -> None:
    with pytest.raises(TypeError, match="input=.*it has no emit_next, available, close"):
        StreamTask([1, 2], [Map(str)], CollectedOutput())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match="output=.*it has no collect, emit_watermark, emit_barrier, call_when_room"
    ):
        StreamTask(PushedInput(), [Map(str)], [])  # type: ignore[arg-type]


@pytest.mark.contract
def test_a_suspended_task_goes_on_when_it_is_run_again() -> None:
    rig = Rig(Map(str))
    rig.push(1)
    rig.task.suspend()
    rig.task.run()
    assert (rig.task.state, rig.input.closed) == (TaskState.RUNNING, 0)
    rig.end()
    rig.task.run()
    assert rig.output.elements == ["1", END]
    assert rig.task.state is TaskState.FINISHED


def test_a_task_that_has_ended_does_not_run_again() -> None:
    rig = Rig(Map(str))
    rig.run()
    with pytest.raises(RuntimeError, match="'task' is finished"):
        rig.task.run()
    with pytest.raises(RuntimeError, match="can be restored only when created"):
        rig.task.restore()


def test_a_task_cannot_be_run_within_itself() -> None:
    class Nested(Operator):
        def process(self, record: Any) -> None:
            rig.task.run()

    rig = Rig(Nested())
    rig.push(1)
    with pytest.raises(RuntimeError, match="already runs"):
        rig.task.run()


@pytest.mark.parametrize("where", ["process", "close"])
def test_a_task_that_is_closed_from_within_is_closed_once(where: str) -> None:
    log: list[str] = []

    class Closes(Logging):
        def note(self, what: str) -> None:
            super().note(what)
            if what.startswith(where):
                rig.task.close()

    rig = Rig(Closes("a", log), Logging("b", log))
    rig.push(1)
    if where == "close":
        rig.task.restore()
        rig.task.close()
    else:
        with pytest.raises(RuntimeError, match="1 was emitted after the task had closed"):
            rig.task.run()
    assert [line for line in log if "close" in line] == ["a close", "b close"]
    assert rig.input.closed == 1
    assert rig.task.state is TaskState.CANCELLED


@pytest.mark.contract
@pytest.mark.parametrize("method", ["restore", "run", "run_step", "close"])
def test_a_task_belongs_to_the_thread_that_made_it(method: str) -> None:
    rig = Rig(Map(str))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            getattr(rig.task, method)()
        except WrongThreadError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1
    rig.task.close()


def test_a_task_runs_beside_coroutines_of_one_event_loop() -> None:
    async def main() -> list[Any]:
        rig = Rig(Map(str))
        running = asyncio.create_task(rig.task.run_async())
        for i in range(3):
            rig.push(i)
            await asyncio.sleep(0)
        rig.end()
        await running
        return rig.output.elements

    assert asyncio.run(main()) == ["0", "1", "2", END]


def test_cancelling_the_coroutine_cancels_the_task() -> None:
    async def main() -> Rig:
        log: list[str] = []
        rig = Rig(Logging("a", log))
        running = asyncio.create_task(rig.task.run_async())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert log == ["a open", "a close"]
        return rig

    assert asyncio.run(main()).task.state is TaskState.CANCELLED


class Refused:
    """A record that another thread tries to emit."""

    def __init__(self, collect: Callable[[Any], None]) -> None:
        self.errors: list[BaseException] = []
        thread = threading.Thread(target=self._run, args=(collect,))
        thread.start()
        thread.join()

    def _run(self, collect: Callable[[Any], None]) -> None:
        try:
            collect("x")
        except WrongThreadError as error:
            self.errors.append(error)
