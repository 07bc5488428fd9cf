"""A mailbox processor as a guest of an asyncio loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pillarbox.mailbox import Controller, GuestDriver, MailboxProcessor


async def run(processor: MailboxProcessor) -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_end(error: BaseException | None) -> None:
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    GuestDriver(processor, asyncio.get_running_loop(), on_end).start()
    await asyncio.wait_for(ended, 30)


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


def test_mail_after_the_loop_was_closed_harms_nobody() -> None:
    loop = asyncio.new_event_loop()

    def action(controller: Controller) -> None:
        controller.suspend_default_action()

    processor = MailboxProcessor(action)
    GuestDriver(processor, loop, lambda error: None).start()
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
        return processor.statistics().mails

    assert asyncio.run(main()) == 4


def test_a_guest_that_was_stopped_takes_no_more_steps() -> None:
    async def main() -> None:
        processor = MailboxProcessor(lambda controller: None)
        ends: list[BaseException | None] = []
        driver = GuestDriver(processor, asyncio.get_running_loop(), ends.append)
        driver.start()
        driver.stop()
        for _ in range(3):
            await asyncio.sleep(0)
        assert processor.statistics().default_actions == 0
        assert ends == []

    asyncio.run(main())
