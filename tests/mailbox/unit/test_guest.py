"""A mailbox processor as a guest of an asyncio loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox
from pillarbox.mailbox.processor import Controller, MailboxProcessor, Suspension


async def run(processor: MailboxProcessor) -> None:
    await asyncio.wait_for(processor.run_async(), 30)


@pytest.mark.contract("Mail of other threads wakes the event loop of which a processor is a guest.")
def test_mail_of_other_threads_wakes_the_loop() -> None:
    async def main() -> int:
        count = 0

        def action(controller: Controller) -> None:
            controller.suspend_default_action()

        processor = MailboxProcessor(action)
        executor = processor.executor()

        def step() -> None:
            nonlocal count
            count += 1
            if count == 400:
                processor.all_actions_completed()

        def produce() -> None:
            for _ in range(100):
                executor.submit(step).result(30)

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        await run(processor)
        for thread in threads:
            thread.join()
        return count

    assert asyncio.run(main()) == 400


@pytest.mark.contract
def test_coroutines_and_the_default_action_take_turns() -> None:
    async def main() -> list[str]:
        log: list[str] = []

        def action(controller: Controller) -> None:
            log.append("action")
            if log.count("coroutine") >= 3:
                controller.all_actions_completed()

        async def coroutine() -> None:
            for _ in range(3):
                log.append("coroutine")
                await asyncio.sleep(0)

        await asyncio.gather(run(MailboxProcessor(action)), coroutine())
        return log

    assert asyncio.run(main()).count("coroutine") == 3


def test_an_error_of_a_mail_ends_the_run() -> None:
    async def main() -> None:
        def action(controller: Controller) -> None:
            controller.suspend_default_action()

        processor = MailboxProcessor(action)
        processor.report_error(LookupError("mail"))
        await run(processor)

    with pytest.raises(LookupError, match="mail"):
        asyncio.run(main())


@pytest.mark.contract(
    "A guest runs the mail that comes between its last look and a quiesce, before it ends.",
    convicts=["guest_drops_mail_at_quiesce"],
)
def test_mail_that_comes_just_before_a_quiesce_is_run_by_a_guest() -> None:
    class Late(TaskMailbox):
        """Gets mail from another thread, and is quiesced by it, when its guest is about to sleep."""

        def arm_wakeup(self, callback: Callable[[], object]) -> bool:
            def close() -> None:
                self.put(Mail(ran.append, "urgent", urgent=True))
                self.put(Mail(ran.append, "deferrable", deferrable=True))
                self.quiesce()

            if not ran:
                thread = threading.Thread(target=close)
                thread.start()
                thread.join()
            return super().arm_wakeup(callback)

    async def main() -> None:
        processor = MailboxProcessor(Controller.suspend_default_action, Late(), latency_interval=None)
        with pytest.raises(MailboxClosedError):
            await run(processor)
        assert len(processor.mailbox) == 0

    ran: list[str] = []
    asyncio.run(main())
    assert ran == ["urgent", "deferrable"]


def test_mail_after_the_loop_was_closed_harms_nobody() -> None:
    loop = asyncio.new_event_loop()

    def action(controller: Controller) -> None:
        controller.suspend_default_action()

    processor = MailboxProcessor(action)
    running: Any = loop.create_task(processor.run_async())
    running._log_destroy_pending = False
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    thread = threading.Thread(target=processor.executor().execute, args=(print,))
    thread.start()
    thread.join()
    assert len(processor.mailbox) == 1


def test_a_guest_that_was_suspended_goes_on_with_another_driver() -> None:
    async def main() -> int:
        processor = MailboxProcessor(lambda controller: None)
        for _ in range(3):
            processor.suspend()
            await run(processor)
            assert not processor.is_running
        processor.executor().execute(processor.all_actions_completed)
        await run(processor)
        return processor.metrics.snapshot().mails

    assert asyncio.run(main()) == 4


def test_a_guest_that_was_stopped_takes_no_more_steps() -> None:
    async def main() -> None:
        processor = MailboxProcessor(lambda controller: None)
        running = asyncio.ensure_future(processor.run_async())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        steps = processor.default_actions
        for _ in range(3):
            await asyncio.sleep(0)
        assert processor.default_actions == steps

    asyncio.run(main())


@pytest.mark.contract(convicts=["guest_sleeps_on"])
def test_a_coroutine_that_resumes_a_suspended_guest_wakes_it() -> None:
    suspensions: list[Suspension] = []

    def action(controller: Controller) -> None:
        if suspensions:
            controller.all_actions_completed()
        suspensions.append(controller.suspend_default_action())

    async def main() -> None:
        running = asyncio.ensure_future(MailboxProcessor(action, latency_interval=None).run_async())
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(suspensions) == 1
        suspensions[0].resume()
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()
        assert len(suspensions) == 2

    asyncio.run(main())


@pytest.mark.contract(convicts=["cancelled_guest_loses_error"])
def test_the_error_of_a_guest_that_is_cancelled_in_the_same_turn_is_raised_at_its_end() -> None:
    async def main() -> None:
        processor = MailboxProcessor(lambda controller: controller.suspend_default_action())
        running = asyncio.ensure_future(processor.run_async())
        await asyncio.sleep(0)

        def fails() -> None:
            running.cancel()
            raise ValueError("first")

        processor.executor().execute(fails)
        with pytest.raises(asyncio.CancelledError):
            await running
        processor.prepare_close()
        with pytest.raises(ValueError, match="first"):
            processor.drain()
        processor.close()

    asyncio.run(main())
