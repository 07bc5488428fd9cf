"""A token bucket: how much may be used now, and when so much may be used. Without a clock and without a lock.

Used by one thread at a time: by the gate of a task, and by the thread of a coordinator.
"""

from __future__ import annotations

TICK = 1e-6
"""Seconds added to every wait, so that rounding never brings a caller back too early."""


class Bucket:
    """Holds up to `capacity` tokens and gets `rate` of them a second. `now` is seconds of a monotonic clock.

    The level is kept, and the time at which it was so: differences of a clock add up without an error,
    so the rate is exact in the long run. What is heavier than the bucket may go when the bucket is full, and
    leaves a debt. So over t seconds at most max(capacity, heaviest) + rate x t is taken.
    """

    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float, level: float | None = None) -> None:
        self.rate = rate
        self.capacity = capacity
        self._level = capacity if level is None else level
        self._at = now

    def ready_in(self, amount: float, now: float) -> float:
        """0.0 if `amount` may be taken now, otherwise the seconds until then."""
        level = self._level + (now - self._at) * self.rate
        if level >= amount and amount <= self.capacity:
            return 0.0
        lacking = min(amount, self.capacity) - level
        return lacking / self.rate + TICK if lacking > 0.0 else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, whether it is there or not."""
        level = self._level + (now - self._at) * self.rate
        self._level = (level if level < self.capacity else self.capacity) - amount  # noqa: FURB136 - min is slow
        self._at = now

    def take_if_ready(self, amount: float, now: float) -> float:
        """Take `amount` if that is allowed now, and give 0.0; otherwise the seconds until then."""
        capacity = self.capacity
        level = self._level + (now - self._at) * self.rate
        if level > capacity:
            level = capacity
        if level < amount and level < capacity:
            lacking = (amount if amount < capacity else capacity) - level  # noqa: FURB136 - min is slow
            return lacking / self.rate + TICK
        self._level = level - amount
        self._at = now
        return 0.0

    def give_back(self, amount: float, now: float) -> None:
        """As if `amount` had not been taken."""
        self.take(-amount, now)
        self._level = min(self._level, self.capacity)

    def keep(self, amount: float, now: float) -> None:
        """Let no more than `amount` be there."""
        self._level = min(self.level(now), amount)
        self._at = now

    def level(self, now: float) -> float:
        """What is there; below 0 for a debt."""
        return min(self._level + (now - self._at) * self.rate, self.capacity)
