"""The protocol of limits that a call passes before it begins: rate and budget, of one task or of many.

Used on the mailbox thread.
"""

# One protocol for limits of one task, of a coordinator and of a Redis, so that whoever makes calls does not
# know which it has. It never waits and allocates nothing: `admit` is on the way of every attempt. An
# `async` method would cost a coroutine for each call, most of which may begin at once; instead it gives the
# seconds to wait.

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol


class LimiterStatistics(NamedTuple):
    """Counts of one limiter so far."""

    granted: int = 0
    """Calls let through."""
    units: float = 0.0
    """Units let through."""
    cost: float = 0.0
    """Cost reported by this task."""
    cool_downs: int = 0
    """Times that all calls were held back since the service asked for it."""


class RateLimiter(Protocol):
    """Lets calls begin. All methods are for the mailbox thread, and none of them waits."""

    @property
    def exhausted(self) -> str | None:
        """The limit that lets no call through any more, such as "max_calls=100"; None while some may."""

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Begin; `wake` is called on the loop's thread when `admit` is worth another call."""

    def admit(self, units: float = 1.0) -> float:
        """0.0 if a call of so many units may begin now, and counts; otherwise seconds until one asks again.

        `math.inf` where that is not known: `wake` will be called. Also `math.inf` when exhausted.
        Raises CoordinatorError if the server of the shared limits is lost for good: the job cannot go on.
        """

    def spend(self, cost: float) -> None:
        """A call has cost so much."""

    def cool_down(self, seconds: float | None) -> None:
        """The service is overloaded: nothing is let through for so long (None: for the default time)."""

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """So many calls, at that cost, were made before and count. Before `start`.

        name: what made them. Who shares the limits counts each name once, the first time.
        """

    def statistics(self) -> LimiterStatistics:
        """Counts so far. Any thread, as an estimate."""

    async def close(self) -> None:
        """End what runs; what was granted and not used is given back. Nothing is woken any more."""
