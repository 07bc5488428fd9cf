"""A task's loop beside other coroutines, on one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pillarbox.kernel import MailboxClosedError, WrongThreadError
from pillarbox.mailbox.processor import Controller, MailboxProcessor, Suspension


def idle(controller: Controller) -> None:
    controller.suspend_default_action()


def guest(action: Callable[[Controller], None]) -> MailboxProcessor:
    """A task that only its mail wakes, not the measurement of latencies."""
    return MailboxProcessor(action, latency_interval=None)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main(), 30)

    return asyncio.run(bounded())


async def until_asleep(processor: MailboxProcessor) -> None:
    """Return when the task has nothing to do and its event loop waits for mail."""
    while not processor._sleeps_elsewhere:
        await asyncio.sleep(0)


@pytest.mark.contract
def test_a_task_and_coroutines_take_turns() -> None:
    log: list[str] = []

    def action(controller: Controller) -> None:
        log.append("action")
        if log.count("coroutine") == 3:
            controller.all_actions_completed()

    async def coroutine() -> None:
        for _ in range(3):
            log.append("coroutine")
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(guest(action).run_async(), coroutine())

    run(main)
    first = log.index("action")
    assert "coroutine" in log[first:]
    assert len(log) <= 8


def test_two_tasks_run_on_one_event_loop() -> None:
    log: list[str] = []

    async def main() -> None:
        ping, pong = guest(idle), guest(idle)
        to_ping, to_pong = ping.executor(), pong.executor()

        def turn(name: str) -> None:
            log.append(name)
            other = to_pong if name == "ping" else to_ping
            if len(log) < 20:
                other.execute(turn, "pong" if name == "ping" else "ping")
            else:
                to_ping.execute(ping.all_actions_completed)
                to_pong.execute(pong.all_actions_completed)

        to_ping.execute(turn, "ping")
        await asyncio.gather(ping.run_async(), pong.run_async())

    run(main)
    assert log == ["ping", "pong"] * 10


def test_a_coroutine_awaits_work_of_a_task_on_its_own_loop() -> None:
    async def main() -> int:
        processor = guest(idle)
        task = asyncio.ensure_future(processor.run_async())
        await until_asleep(processor)
        result = await asyncio.wrap_future(processor.executor().submit(int, "7"))
        processor.all_actions_completed()
        await task
        return result

    assert run(main) == 7


def test_other_threads_wake_a_task_that_sleeps() -> None:
    async def main() -> int:
        processor = guest(idle)
        task = asyncio.ensure_future(processor.run_async())
        await until_asleep(processor)

        def work() -> None:
            for _ in range(100):
                processor.executor().submit(int).result(30)
            processor.executor().execute(processor.all_actions_completed)

        thread = threading.Thread(target=work)
        thread.start()
        await task
        thread.join()
        return processor.metrics.snapshot().mails

    assert run(main) == 101


def test_a_coroutine_resumes_a_task_that_sleeps() -> None:
    held: list[Suspension] = []

    def action(controller: Controller) -> None:
        if held:
            controller.all_actions_completed()
        else:
            held.append(controller.suspend_default_action())

    async def main() -> None:
        processor = guest(action)
        task = asyncio.ensure_future(processor.run_async())
        await until_asleep(processor)
        held[0].resume()
        await task
        assert processor.default_actions == 2

    run(main)


def test_a_coroutine_ends_a_task_that_sleeps() -> None:
    async def main() -> None:
        processor = guest(idle)
        task = asyncio.ensure_future(processor.run_async())
        await until_asleep(processor)
        processor.all_actions_completed()
        await task

    run(main)


def test_a_suspended_task_goes_on_when_it_is_run_again() -> None:
    async def main() -> None:
        processor = guest(idle)
        for turn in range(3):
            task = asyncio.ensure_future(processor.run_async())
            await until_asleep(processor)
            processor.suspend()
            await task
            assert not processor.is_running
            assert processor.default_actions == 1, turn
        processor.executor().execute(processor.all_actions_completed)
        processor.run_mailbox_loop()

    run(main)


@pytest.mark.parametrize("error", [LookupError, StopIteration, StopAsyncIteration, asyncio.TimeoutError])
def test_an_error_of_a_mail_ends_it_even_one_that_futures_refuse(error: type[Exception]) -> None:
    async def main() -> None:
        processor = guest(idle)
        processor.report_error(error("mail"))
        await processor.run_async()

    with pytest.raises((error, RuntimeError)) as caught:
        run(main)
    assert isinstance(caught.value, error) or isinstance(caught.value.__cause__, error)


def test_an_error_of_the_default_action_ends_it() -> None:
    def action(controller: Controller) -> None:
        raise LookupError("action")

    async def main() -> None:
        await guest(action).run_async()

    with pytest.raises(LookupError, match="action"):
        run(main)


def test_a_task_that_no_mail_can_wake_ends_with_an_error_and_does_not_spin() -> None:
    async def main() -> None:
        processor = guest(idle)
        task = asyncio.ensure_future(processor.run_async())
        await until_asleep(processor)
        processor.prepare_close()
        await task

    with pytest.raises(MailboxClosedError, match="no more can come"):
        run(main)


def test_an_error_reported_after_the_quiesce_is_the_one_that_is_raised() -> None:
    async def main() -> None:
        processor = guest(idle)
        processor.prepare_close()
        processor.report_error(LookupError("late"))
        await processor.run_async()

    with pytest.raises(LookupError, match="late"):
        run(main)


@pytest.mark.contract
def test_a_cancelled_run_takes_no_more_steps_and_may_be_run_again() -> None:
    async def main() -> None:
        processor = guest(lambda controller: None)
        task = asyncio.ensure_future(processor.run_async())
        while processor.default_actions < 5:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        actions = processor.default_actions
        for _ in range(5):
            await asyncio.sleep(0)
        assert processor.default_actions == actions
        processor.executor().execute(processor.all_actions_completed)
        await processor.run_async()

    run(main)


@pytest.mark.contract
def test_an_error_that_meets_a_cancellation_is_not_lost() -> None:
    async def main() -> None:
        processor = guest(lambda controller: None)

        def fail() -> None:
            task.cancel()
            raise LookupError("mail")

        task = asyncio.ensure_future(processor.run_async())
        processor.executor().execute(fail)
        with pytest.raises(asyncio.CancelledError):
            await task
        await processor.run_async()

    with pytest.raises(LookupError, match="mail"):
        run(main)


def test_mail_after_its_event_loop_is_gone_harms_nobody() -> None:
    processor = guest(idle)

    async def main() -> None:
        task = asyncio.ensure_future(processor.run_async())
        await until_asleep(processor)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)
    # The wake-up that is still armed finds a closed event loop.
    processor.executor().execute(processor.all_actions_completed)
    processor.run_mailbox_loop()


def test_a_task_cannot_be_run_twice_at_once() -> None:
    async def main() -> None:
        processor = guest(idle)
        task = asyncio.ensure_future(processor.run_async())
        await until_asleep(processor)
        with pytest.raises(RuntimeError, match="runs already"):
            await processor.run_async()
        with pytest.raises(RuntimeError, match="runs already"):
            processor.run_mailbox_loop()
        processor.all_actions_completed()
        await task

    run(main)


def test_the_thread_of_the_event_loop_must_be_the_mailbox_thread() -> None:
    processor = guest(idle)
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(processor.run_async())
        except WrongThreadError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_a_guest_is_measured_too() -> None:
    async def main() -> None:
        processor = MailboxProcessor(idle, latency_interval=1e-3)
        task = asyncio.ensure_future(processor.run_async())
        while processor.metrics.snapshot().latency.measurements < 3:
            await asyncio.sleep(0)
        processor.all_actions_completed()
        await task
        snapshot = processor.metrics.snapshot()
        assert snapshot.idle > 0
        assert snapshot.mails <= 1
        assert processor.metrics.times.doing is None

    run(main)
