"""Runs a mailbox processor as a guest of an asyncio event loop, so that mails and coroutines share a thread.

The host loop sleeps in its selector; the mailbox is armed with a wake-up that schedules the next
step there. The idea of a guest run is trio's. Confined to the thread of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING

from pillarbox.kernel import MailboxClosedError, MailboxState

if TYPE_CHECKING:
    from pillarbox.mailbox.processor import MailboxProcessor


class GuestDriver:
    """Steps a processor inside an asyncio loop until the processor ends.

    `on_end(error)` is called once, on the loop's thread: with None when all actions are completed or the
    processor was suspended, with the error when a mail or the default action raised, and with a
    `MailboxClosedError` when the mailbox is quiesced under a suspended default action.
    """

    __slots__ = ("_loop", "_on_end", "_processor", "_stopped", "_thread")

    def __init__(
        self,
        processor: MailboxProcessor,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._processor = processor
        self._loop = loop
        self._on_end = on_end
        self._thread = get_ident()
        self._stopped = False

    def start(self) -> None:
        """Schedule the first step. On the loop's thread, which is the mailbox thread."""
        self._processor.mailbox.check_is_mailbox_thread()
        self._processor._go_on()
        self._loop.call_soon(self._step)

    def stop(self) -> None:
        """Take no more steps, and never call `on_end`. On the loop's thread."""
        self._processor.mailbox.check_is_mailbox_thread()
        self._stopped = True

    def _step(self) -> None:
        if self._stopped:
            return
        processor = self._processor
        processor._sleeps_elsewhere = False
        try:
            more = processor.is_running and processor.run_mailbox_step()
            if processor.is_running and not more:
                processor._sleeps_elsewhere = True
                if processor.mailbox.arm_wakeup(self._wake):
                    return
                processor._sleeps_elsewhere = False
                state = processor.mailbox.state
                # What came in between is still to be run.
                if state is not MailboxState.OPEN and not processor.mailbox.has_mail():
                    raise MailboxClosedError(state)
            elif not more:
                # A coroutine may have yielded to a mail that raised, and have kept that to itself.
                processor._raise_failure()
        except BaseException as error:
            self._end(error)
            return
        if processor.is_running:
            self._loop.call_soon(self._step)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._stopped = True
        self._processor.metrics.times.switch(None)
        self._on_end(error)

    def _wake(self) -> None:
        if self._stopped:
            return
        try:
            # The self-pipe of call_soon_threadsafe is a system call; a mail put by the loop's own
            # thread, the usual one, does without it.
            if get_ident() == self._thread:
                self._loop.call_soon(self._step)
            else:
                self._loop.call_soon_threadsafe(self._step)
        except RuntimeError:
            # The loop was closed: the task has ended and nobody is left to wake.
            return


async def run_as_guest(processor: MailboxProcessor) -> None:
    """Run a processor until it ends, in the running asyncio loop; raise the error that ended it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    errors: list[BaseException] = []
    timer: asyncio.TimerHandle | None = None

    def on_end(error: BaseException | None) -> None:
        # Not through the future, for it refuses some errors, and nobody would be woken.
        if error is not None:
            errors.append(error)
        if not ended.done():
            ended.set_result(None)

    def measure() -> None:
        nonlocal timer
        processor.metrics.measure_now()
        timer = loop.call_later(interval, measure)

    interval = processor.metrics.interval or 0.0
    if interval:
        timer = loop.call_later(interval, measure)
    driver = GuestDriver(processor, loop, on_end)
    try:
        driver.start()
        await ended
    except asyncio.CancelledError:
        # The error came first, but the cancellation is what the caller gets.
        for error in errors:
            processor.report_error(error)
        raise
    finally:
        driver.stop()
        processor._sleeps_elsewhere = False
        if timer is not None:
            timer.cancel()
    for error in errors:
        raise error
