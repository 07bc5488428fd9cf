"""How a task's time divides into busy, idle and back-pressured: seconds a second, over a sliding minute.

The mailbox thread says what begins; any thread asks for the shares. The idea is Flink's `TimerGauge`.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

WINDOW = 60
"""Seconds that the shares are of, the present one included."""


class Doing(enum.IntEnum):
    """What a task's time goes into."""

    BUSY = 0
    """A mail or the default action runs."""
    IDLE = 1
    """The loop waits for mail, and no input is there."""
    BACK_PRESSURED = 2
    """The loop waits for mail, and there is no room for output."""


class TimeShares(NamedTuple):
    """Seconds of each second, 0 to 1. They add up to less than 1 where the loop did not run."""

    busy: float
    idle: float
    back_pressured: float


class TaskTimes:
    """Adds up times by the second that they fell into, for the last minute. Thread-safe."""

    __slots__ = ("_begun", "_clock", "_lock", "_present", "_seconds", "_since", "_sums", "_until", "doing")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = self._since = clock()
        self._seconds = [-math.inf] * WINDOW
        self._sums = [[0.0] * len(Doing) for _ in range(WINDOW)]
        # The sums of the second in which time was added last, and the end of that second.
        self._present = self._sums[0]
        self._until = -math.inf
        self.doing: Doing | None = None
        """What the present time goes into; None while the loop does not run."""

    def switch(self, doing: Doing | None) -> float:
        """From now on, time goes into `doing`. Returns the time now, in seconds of the clock."""
        # Outside of the lock, for the clock may be anything.
        now = self._clock()
        with self._lock:
            self._account(now)
            self.doing = doing
        return now

    def shares(self) -> TimeShares:
        """The shares of the last minute, or of the time since this was made if that is less."""
        now = self._clock()
        with self._lock:
            self._account(now)
            now = self._since
            first = math.floor(now) - WINDOW + 1
            length = now - max(first, self._begun)
            if length <= 0:
                return TimeShares(0.0, 0.0, 0.0)
            recent = [sums for second, sums in zip(self._seconds, self._sums, strict=True) if second >= first]
            return TimeShares(
                *(sum(column) / length for column in zip(*recent, strict=True)) if recent else (0.0,) * 3
            )

    def _account(self, now: float) -> None:
        # Another thread may have read the clock later and come first.
        if now <= self._since:
            return
        if self.doing is not None:
            # Twice for each sleep of a loop, so what is usual comes first.
            if now < self._until:
                self._present[self.doing] += now - self._since
                self._since = now
                return
            begin = max(self._since, math.floor(now) - WINDOW + 1)
            for second in range(math.floor(begin), math.floor(now) + 1):
                slot = second % WINDOW
                if self._seconds[slot] != second:
                    self._seconds[slot] = second
                    self._sums[slot] = [0.0] * len(Doing)
                self._present, self._until = self._sums[slot], second + 1
                self._present[self.doing] += min(now, self._until) - max(begin, second)
        self._since = now
