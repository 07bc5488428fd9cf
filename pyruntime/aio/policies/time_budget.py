"""The time of a budget: from a moment on no call begins. Confined to the mailbox thread."""

# By a timer and not by a look at the clock for each call: a job that nothing else holds back keeps its path
# without a gate until the time is over.

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pillarbox.aio.options import Budget
from pillarbox.aio.policy import PolicyServices
from pillarbox.aio.policy_parts import OptionPolicy, PolicyParts


class TimeBudgetPolicy(OptionPolicy):
    """Ends the calls of an operator when `Budget.max_seconds` or `Budget.until` is over.

    exhaust: lets no call begin any more, for a reason in words. wall_clock: seconds since 1970.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        budget: Budget,
        exhaust: Callable[[str], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._budget = budget
        self._exhaust = exhaust
        self._wall_clock = wall_clock
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, parts: PolicyParts) -> TimeBudgetPolicy:
        """See `OptionPolicy.of`."""
        return cls(parts.options.budget, parts.load.exhaust)

    def open(self, services: PolicyServices) -> None:
        """Take the event loop."""
        self._loop = services.loop

    def start(self) -> None:
        """Begin to count: calls may begin from now on."""
        seconds, limit = self._budget.time_left(self._wall_clock())
        if seconds <= 0.0:
            self._exhaust(limit)
        else:
            self._timer = self._loop.call_later(seconds, self._exhaust, limit)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
