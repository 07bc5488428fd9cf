"""The timers of an operator as its task sees them: made when the operator first asks for them.

`OwnTimers` is confined to the mailbox thread. What fires them is in the ring `timers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pillarbox.mailbox.processor import MailboxExecutor
from pillarbox.providers import TIMERS, provided


def monotonic_epoch() -> Callable[[], float]:
    """A clock that never goes back: the seconds since the epoch, counted on by the monotonic clock."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()


class RegisteredTimer(Protocol):
    """A call that begins once, when the clock has come to a moment."""

    timestamp: float
    """The moment at which it fires, or has fired, in seconds on the service's clock. Any thread."""

    @property
    def done(self) -> bool:
        """True if no call will begin: it has begun, was cancelled, or the service has ended. Any thread."""

    def cancel(self) -> bool:
        """Have it not fire any more. Mailbox thread. Returns False, without effect, if it was done."""


class TimerService(Protocol):
    """The timers of one operator; `pillarbox.task.timers` says when they fire."""

    def current_processing_time(self) -> float:
        """Read the clock, in seconds. Any thread."""

    def register_timer(self, timestamp: float, callback: Callable[[float], object]) -> RegisteredTimer:
        """Have `callback(timestamp)` called when the clock has come to `timestamp`. Mailbox thread."""

    def timers_done(self) -> Future[None]:
        """A future that is done when, after `quiesce`, every timer that had begun is done. Any thread."""

    def quiesce(self) -> None:
        """Forget the timers that are not due, and take no new ones; what is due still fires. Idempotent."""

    def shutdown(self) -> None:
        """Forget every timer and end the thread: nothing fires after this. Idempotent."""

    def __len__(self) -> int:
        """Timers that wait. Any thread, as an estimate."""


class OwnTimers:
    """The timers of one operator, of which most have none. clock: gives seconds, any thread."""

    __slots__ = ("_clock", "_executor", "_has_ended", "_service")

    def __init__(self, executor: MailboxExecutor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self._has_ended = False
        self._service: TimerService | None = None

    def service(self) -> TimerService:
        """The timers, which are made at the first call; after `quiesce` none of them fires."""
        if self._service is None:
            service: TimerService = provided(TIMERS, "timers")(self._executor, self._clock)
            self._service = service
            if self._has_ended:
                service.shutdown()
        return self._service

    def quiesce(self) -> Future[None]:
        """Let no further timer begin; returns a future that is done when those that had begun are done."""
        self._has_ended = True
        if self._service is not None:
            self._service.quiesce()
            return self._service.timers_done()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def shutdown(self) -> None:
        """Let nothing fire from now on. Idempotent."""
        self._has_ended = True
        if self._service is not None:
            self._service.shutdown()
