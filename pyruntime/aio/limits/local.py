"""The gate of one task: its own rate and its own budget. Confined to the mailbox thread.

`admit` is on the way of every attempt: constant time, one reading of the clock, nothing is allocated.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from pillarbox.aio.limits.bucket import TICK, Bucket
from pillarbox.aio.limits.limiter import LimiterStatistics, RateLimiter
from pillarbox.aio.limits.rate import Rate

COOL_DOWN = 1.0
"""Seconds that calls are held back where no rate says how long."""


class LocalLimiter:
    """A `RateLimiter` whose limits hold for one task. `clock` gives seconds and never goes back."""

    def __init__(
        self,
        rate: Rate | None,
        max_calls: int | None,
        max_cost: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.exhausted: str | None = None
        self._clock = clock
        self._max_calls = math.inf if max_calls is None else max_calls
        self._max_cost = math.inf if max_cost is None else max_cost
        self._default_cool_down = COOL_DOWN if rate is None else rate.cool_down
        self._requests: Bucket | None = None
        self._weights: Bucket | None = None
        now = clock()
        if rate is not None and rate.per_second is not None:
            self._requests = Bucket(rate.per_second, max(1.0, rate.per_second * rate.burst), now)
        if rate is not None and rate.units_per_minute is not None:
            per_second = rate.units_per_minute / 60.0
            self._weights = Bucket(per_second, per_second * rate.burst, now)
        # Past, unless a cool-down runs.
        self._cool_until: float | None = None
        self._granted = 0
        self._before = 0
        self._cost_before = 0.0
        self._units = 0.0
        self._cost = 0.0
        self._cool_downs = 0

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `RateLimiter.start`. This gate wakes nobody: its waits are known beforehand."""

    def admit(self, units: float = 1.0) -> float:
        """See `RateLimiter.admit`."""
        if self.exhausted is not None:
            return math.inf
        now = self._clock()
        if self._cool_until is not None:
            left = self._cool_until - now
            if left > 0.0:
                return left + TICK
            self._end_cool_down(units, now)
        requests = self._requests
        weights = self._weights
        if requests is not None:
            if weights is not None:
                wait = weights.ready_in(units, now)
                if wait > 0.0:
                    return wait
            wait = requests.take_if_ready(1.0, now)
            if wait > 0.0:
                return wait
            if weights is not None:
                weights.take(units, now)
        elif weights is not None:
            wait = weights.take_if_ready(units, now)
            if wait > 0.0:
                return wait
        self._granted += 1
        self._units += units
        if self._granted + self._before >= self._max_calls:
            self.exhausted = f"max_calls={self._max_calls}"
        return 0.0

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        self._cost += cost
        if self._cost + self._cost_before >= self._max_cost and self.exhausted is None:
            self.exhausted = f"max_cost={self._max_cost}"

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        self._before, self._cost_before = calls, cost
        if calls >= self._max_calls:
            self.exhausted = f"max_calls={self._max_calls}"
        elif cost >= self._max_cost:
            self.exhausted = f"max_cost={self._max_cost}"

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`."""
        end = self._clock() + (self._default_cool_down if seconds is None else seconds)
        if self._cool_until is None or end > self._cool_until:
            self._cool_until = end
        self._cool_downs += 1

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        return LimiterStatistics(self._granted, self._units, self._cost, self._cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`. Nothing runs here."""

    def _end_cool_down(self, units: float, now: float) -> None:
        # spec: Feeding!CoolEnds
        self._cool_until = None
        # One call tries whether the service is well again. What has gathered meanwhile would be a burst.
        if self._requests is not None:
            self._requests.keep(1.0, now)
        if self._weights is not None:
            self._weights.keep(min(units, self._weights.capacity), now)


class TaskRateLimiter:
    """A `RateLimiter` whose rate and cool-downs are those of one task, and whose budget is that of `budget`.

    Confined to the mailbox thread.
    """

    def __init__(self, rate: Rate | None, budget: RateLimiter) -> None:
        self._rate = LocalLimiter(rate, None, None)
        self._budget = budget
        # Units that the rate has let through for a call that the budget still holds back.
        self._ahead: float | None = None

    @property
    def exhausted(self) -> str | None:
        """See `RateLimiter.exhausted`."""
        return self._budget.exhausted

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `RateLimiter.start`."""
        self._budget.start(loop, wake)

    def admit(self, units: float = 1.0) -> float:
        """See `RateLimiter.admit`."""
        # The rate first: what the budget lets through counts as called.
        if self._ahead != units:
            wait = self._rate.admit(units)
            if wait > 0.0:
                return math.inf if self._budget.exhausted is not None else wait
            self._ahead = units
        wait = self._budget.admit(units)
        if wait == 0.0:
            self._ahead = None
        return wait

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        self._budget.spend(cost)

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        self._budget.count_before(name, calls, cost)

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`."""
        self._rate.cool_down(seconds)

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        return self._budget.statistics()._replace(cool_downs=self._rate.statistics().cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`."""
        await self._budget.close()
