"""Deadlines of the calls of one operator, on the clock of its event loop. Confined to the loop's thread."""

# `loop.call_later` for each call would be simpler. It makes a handle and a heap entry for each, compares
# handles in Python, and sweeps the heap whenever half of it is cancelled, as nearly all time-outs are. Here
# a deadline is a handle of the kernel's timers, and the loop has one timer, for the deadline that comes
# first. All have the same time to live, so they expire in the order in which they were armed, and that
# timer need not be moved: for one that was cancelled meanwhile it fires and finds nothing.

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pillarbox.kernel import Deadlines

K = TypeVar("K")


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of `loop`, in seconds: the monotonic one, unless the loop has a time of its own, as in tests.

    uvloop's own reading of it is that of the beginning of the turn, in milliseconds.
    """
    kind = type(loop)
    is_usual = kind.time is asyncio.BaseEventLoop.time or kind.__module__.startswith("uvloop")
    return time.monotonic if is_usual else loop.time


def time_left(timer: asyncio.TimerHandle | None, loop: asyncio.AbstractEventLoop) -> float:
    """Seconds until `timer` of `loop` fires; 0.0 for none, and where that is in this turn."""
    # A timer of uvloop that is due at once has no time.
    when = getattr(timer, "when", None)
    return 0.0 if when is None else max(0.0, when() - loop.time())


class CallDeadlines(Generic[K]):
    """A deadline per arming, `seconds` after it, on the loop's monotonic clock.

    `cancel(handle)` forgets an arming; no effect when it has expired, was cancelled, or for -1.
    """

    __slots__ = ("_expired", "_loop", "_timer", "_timers", "cancel", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expired: Callable[[K], None]) -> None:
        self.seconds = seconds
        self._loop = loop
        self._expired = expired
        usual = sys.platform == "linux" and type(loop).time is asyncio.BaseEventLoop.time
        self._timers = Deadlines(None if usual else loop.time)
        self._timer: asyncio.TimerHandle | None = None
        self.cancel = self._timers.cancel

    def arm(self, key: K) -> int:
        """Have `expired(key)` called in `seconds`, unless the handle that is returned is cancelled."""
        handle = self._timers.arm(self.seconds, key)
        if self._timer is None:
            self._schedule()
        return handle

    def arm_rest(self, key: K, spent: float) -> int:
        """As `arm`, where so many of the seconds were spent before a restore."""
        handle = self._timers.arm(max(0.0, self.seconds - spent), key)
        if self._timer is not None:
            self._timer.cancel()
        self._schedule()
        return handle

    def oldest(self) -> tuple[K, float] | None:
        """The key that expires first, and when, by the loop's clock. Any thread, as an estimate."""
        return self._timers.peek()

    def close(self) -> None:
        """Forget every key; nothing expires any more."""
        self._timers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        deadline = self._timers.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # One at a time, because what an expiry does may cancel the next one; no more than there are now,
        # because it may also arm.
        for _ in range(len(self._timers)):
            expired = self._timers.expire(1)
            if not expired:
                break
            self._expired(expired[0])
        if self._timer is None:
            self._schedule()


class CallTimes(Generic[K]):
    """The limits of time of an operator's calls: `total` of a row, `attempt` of one execution; None for none.

    expired, attempt_expired: take the key that has met a limit, and run under `guarded`, which handles what
    they raise.
    """

    __slots__ = ("attempt", "total")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        total: float | None,
        attempt: float | None,
        expired: Callable[[K], None],
        attempt_expired: Callable[[K], None],
    ) -> None:
        self.total = None if total is None else CallDeadlines(loop, total, expired)
        self.attempt = None if attempt is None else CallDeadlines(loop, attempt, attempt_expired)

    def cancel(self, total: int, attempt: int) -> None:
        """Forget two armings, by their handles."""
        if self.total is not None:
            self.total.cancel(total)
        if self.attempt is not None:
            self.attempt.cancel(attempt)

    def overdue(self) -> tuple[K, str, float, float] | None:
        """The key that expires first: key, limit, seconds, deadline. Any thread, as an estimate."""
        found = [
            (oldest[0], limit, deadlines.seconds, oldest[1])
            for limit, deadlines in (("timeout", self.total), ("timeout.attempt", self.attempt))
            if deadlines is not None and (oldest := deadlines.oldest()) is not None
        ]
        return min(found, key=lambda late: late[3], default=None)

    def close(self) -> None:
        """Forget every key; nothing expires any more."""
        for deadlines in (self.total, self.attempt):
            if deadlines is not None:
                deadlines.close()
