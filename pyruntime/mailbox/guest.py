"""Runs a mailbox processor as a guest of an asyncio event loop, so that mails and coroutines share a thread.

The host loop sleeps in its selector; the mailbox is armed with a wake-up that schedules the next
step there. The idea of a guest run is trio's. Confined to the thread of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident

from pillarbox.mailbox.processor import MailboxProcessor


class GuestDriver:
    """Steps a processor inside an asyncio loop until the processor ends.

    `on_end(error)` is called once, on the loop's thread: with None when all actions are completed,
    with the error when a mail or the default action raised.
    """

    __slots__ = ("_loop", "_on_end", "_processor", "_thread")

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

    def start(self) -> None:
        """Schedule the first step. On the loop's thread, which is the mailbox thread."""
        self._processor.mailbox.check_is_mailbox_thread()
        self._loop.call_soon(self._step)

    def _step(self) -> None:
        processor = self._processor
        try:
            if not processor.is_running:
                return
            more = processor.run_mailbox_step()
        except BaseException as error:
            self._on_end(error)
            return
        if not processor.is_running:
            self._on_end(None)
        elif more or not processor.mailbox.arm_wakeup(self._wake):
            self._loop.call_soon(self._step)

    def _wake(self) -> None:
        # The self-pipe of call_soon_threadsafe is a system call; a mail put by the loop's own
        # thread, the usual one, does without it.
        if get_ident() == self._thread:
            self._loop.call_soon(self._step)
            return
        try:
            self._loop.call_soon_threadsafe(self._step)
        except RuntimeError:
            # The loop was closed: the task has ended and nobody is left to wake.
            return
