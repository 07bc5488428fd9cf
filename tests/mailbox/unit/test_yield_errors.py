"""An error of a mail ends the task, even if it ran in a yield and whoever yielded kept it to itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.kernel import MailboxClosedError
from pillarbox.mailbox.processor import Controller, MailboxProcessor


def idle(controller: Controller) -> None:
    controller.suspend_default_action()


def fail() -> None:
    raise ValueError("of a mail")


def step(processor: MailboxProcessor) -> None:
    while processor.run_mailbox_step():
        pass


def run_async(processor: MailboxProcessor) -> None:
    asyncio.run(processor.run_async())


RUNS: list[Callable[[MailboxProcessor], Any]] = [
    MailboxProcessor.run_mailbox_loop,
    step,
    run_async,
    MailboxProcessor.drain,
]

every_run = pytest.mark.parametrize("run", RUNS)


@pytest.fixture
def processor() -> MailboxProcessor:
    return MailboxProcessor(idle)


@every_run
def test_the_error_of_a_mail_that_submitted_work_yields_to_ends_the_task(
    processor: MailboxProcessor, run: Callable[[MailboxProcessor], Any]
) -> None:
    executor = processor.executor()
    log: list[str] = []
    future = executor.submit(executor.yield_)
    executor.execute(fail)
    executor.execute(log.append, "after")
    executor.execute(processor.all_actions_completed)
    with pytest.raises(ValueError, match="of a mail"):
        run(processor)
    assert isinstance(future.exception(0), ValueError)
    assert log == []


@every_run
def test_a_reported_error_that_submitted_work_yields_to_ends_the_task(
    processor: MailboxProcessor, run: Callable[[MailboxProcessor], Any]
) -> None:
    executor = processor.executor()

    def work() -> None:
        processor.report_error(ValueError("reported"))
        executor.yield_()

    executor.submit(work)
    executor.execute(processor.all_actions_completed)
    with pytest.raises(ValueError, match="reported"):
        run(processor)


@every_run
@pytest.mark.parametrize("try_", [False, True])
def test_an_error_that_the_yielding_mail_catches_ends_the_task_once(
    processor: MailboxProcessor, run: Callable[[MailboxProcessor], Any], try_: bool
) -> None:
    executor, log = processor.executor(), []

    def stubborn() -> None:
        with contextlib.suppress(ValueError):
            (executor.try_yield if try_ else executor.yield_)()
        log.append("stubborn")

    executor.execute(stubborn)
    executor.execute(fail)
    executor.execute(log.append, "after")
    executor.execute(processor.all_actions_completed)
    with pytest.raises(ValueError, match="of a mail"):
        run(processor)
    assert log == ["stubborn"]
    # Run again, it goes on where it was, and says nothing of what it has said.
    run(processor)
    assert log == ["stubborn", "after"]


@pytest.mark.contract
def test_an_error_that_the_default_action_catches_in_a_yield_ends_the_task() -> None:
    calls = 0

    def action(controller: Controller) -> None:
        nonlocal calls
        calls += 1
        executor.execute(fail)
        with contextlib.suppress(ValueError):
            executor.yield_()
        executor.execute(processor.all_actions_completed)

    processor = MailboxProcessor(action)
    executor = processor.executor()
    with pytest.raises(ValueError, match="of a mail"):
        processor.run_mailbox_loop()
    assert calls == 1


def test_an_error_that_submitted_work_keeps_within_a_yield_reaches_whoever_yielded_first(
    processor: MailboxProcessor,
) -> None:
    executor, log = processor.executor(), []

    def first() -> None:
        executor.yield_()
        log.append("it would wait for what submitted work does, in vain")

    executor.execute(first)
    executor.submit(executor.yield_)
    executor.execute(fail)
    executor.execute(processor.all_actions_completed)
    with pytest.raises(ValueError, match="of a mail"):
        processor.run_mailbox_loop()
    assert log == []


def test_the_first_of_two_errors_that_are_caught_is_raised(processor: MailboxProcessor) -> None:
    executor = processor.executor()

    def stubborn() -> None:
        for _ in range(2):
            with contextlib.suppress(ValueError, KeyError):
                executor.yield_()

    def fail_otherwise() -> None:
        raise KeyError("second")

    executor.execute(stubborn)
    executor.execute(fail)
    executor.execute(fail_otherwise)
    executor.execute(processor.all_actions_completed)
    with pytest.raises(ValueError, match="of a mail"):
        processor.run_mailbox_loop()


@pytest.mark.contract(convicts=["old_failure_raised_again"])
def test_a_yield_raises_what_its_own_mail_raises_and_nothing_of_an_earlier_one(
    processor: MailboxProcessor,
) -> None:
    executor, log = processor.executor(), []

    def stubborn() -> None:
        with contextlib.suppress(ValueError):
            executor.yield_()
        executor.yield_()
        log.append("after the yields")

    executor.execute(stubborn)
    executor.execute(fail)
    executor.execute(log.append, "its own mail")
    with pytest.raises(ValueError, match="of a mail"):
        processor.run_mailbox_loop()
    assert log == ["its own mail", "after the yields"]


@pytest.mark.contract(convicts=["drain_forgets_failure"])
def test_an_error_that_a_mail_catches_before_it_drains_the_mailbox_ends_the_task(
    processor: MailboxProcessor,
) -> None:
    executor = processor.executor()

    def stubborn() -> None:
        with contextlib.suppress(ValueError):
            executor.yield_()
        processor.drain()
        processor.all_actions_completed()

    executor.execute(stubborn)
    executor.execute(fail)
    with pytest.raises(ValueError, match="of a mail"):
        processor.run_mailbox_loop()


def test_an_error_that_a_coroutine_beside_the_task_catches_ends_the_task() -> None:
    async def main() -> None:
        slept = asyncio.Event()

        def action(controller: Controller) -> None:
            controller.suspend_default_action()
            slept.set()

        processor = MailboxProcessor(action)
        running = asyncio.ensure_future(processor.run_async())
        await slept.wait()
        processor.executor().execute(fail)
        with pytest.raises(ValueError, match="of a mail"):
            processor.executor().yield_()
        with pytest.raises(ValueError, match="of a mail"):
            await asyncio.wait_for(running, 30)

    asyncio.run(main())


def test_an_error_of_a_yield_outside_of_every_run_is_its_callers_alone(processor: MailboxProcessor) -> None:
    executor = processor.executor()
    executor.execute(fail)
    with pytest.raises(ValueError, match="of a mail"):
        executor.yield_()
    executor.execute(processor.all_actions_completed)
    processor.run_mailbox_loop()
    processor.drain()
    assert not processor.is_running


def test_a_yield_that_no_mail_can_end_is_no_error_of_a_mail(processor: MailboxProcessor) -> None:
    executor = processor.executor()
    future: Future[None] = executor.submit(executor.yield_)
    processor.prepare_close()
    processor.drain()
    assert isinstance(future.exception(0), MailboxClosedError)


def test_an_error_that_is_caught_within_an_action_ends_the_task() -> None:
    processor = MailboxProcessor(idle, run_action=lambda fn, *args: fn(*args))
    executor = processor.executor()
    executor.submit(executor.yield_)
    executor.execute(fail)
    executor.execute(processor.all_actions_completed)
    with pytest.raises(ValueError, match="of a mail"):
        processor.run_mailbox_loop()
