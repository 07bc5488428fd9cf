"""One timer of a processing-time service: what it calls, when, and whether it comes again.

Made by the service only. Confined to the mailbox thread, `done` and `timestamp` excepted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pillarbox.task.timers import ProcessingTimeService

NOT_ARMED = -1
"""A handle that names no timer of the kernel's `Deadlines`."""


class Timer:
    """Calls `callback(timestamp)` on the mailbox thread when the service's clock has come to `timestamp`.

    Made by `ProcessingTimeService.register_timer`.
    """

    __slots__ = ("_callback", "_handle", "_service", "_timestamp")

    def __init__(
        self, service: ProcessingTimeService, timestamp: float, callback: Callable[[float], object]
    ) -> None:
        self._service = service
        self._timestamp = timestamp
        self._callback: Callable[[float], object] | None = callback
        self._handle = NOT_ARMED

    @property
    def timestamp(self) -> float:
        """When it fires, or has fired, in seconds on the service's clock. Any thread."""
        return self._timestamp

    @property
    def done(self) -> bool:
        """Whether no call will begin: it has begun, was cancelled, or the service has ended. Any thread."""
        return self._callback is None

    def cancel(self) -> bool:
        """Have it not fire any more. Mailbox thread.

        Returns False, without effect, if it was done. Raises `WrongThreadError` from another thread.
        """
        return self._service._cancel(self)

    def __repr__(self) -> str:
        state = "done" if self.done else "waits"
        return f"<{type(self).__name__} at {self._timestamp!r} s, {state}>"


class PeriodicTimer(Timer):
    """A timer that comes again, at first at `first`, with a `period` in seconds."""

    __slots__ = ("_period",)

    def __init__(
        self,
        service: ProcessingTimeService,
        first: float,
        period: float,
        callback: Callable[[float], object],
    ) -> None:
        super().__init__(service, first, callback)
        self._period = period

    @abstractmethod
    def _next(self) -> float:
        """When it comes again, asked for when its call has returned."""


class FixedRateTimer(PeriodicTimer):
    """Fires at `first`, `first + period`, and so on: late calls are made up for, one after the other."""

    __slots__ = ("_first", "_times")

    def __init__(
        self,
        service: ProcessingTimeService,
        first: float,
        period: float,
        callback: Callable[[float], object],
    ) -> None:
        super().__init__(service, first, period, callback)
        self._first = first
        self._times = 0

    def _next(self) -> float:
        # A product, because a sum would gather the rounding errors of every period.
        self._times += 1
        return self._first + self._times * self._period


class FixedDelayTimer(PeriodicTimer):
    """Fires again when `period` seconds have passed since its call returned."""

    __slots__ = ()

    def _next(self) -> float:
        return self._service.current_processing_time() + self._period
