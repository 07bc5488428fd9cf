"""The gate that calls pass before they begin: the rate and the budget, of one task or of many.

Used on the mailbox thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pillarbox.aio.limits.rate import Rate
    from pillarbox.aio.limits.shared import SharedLimits


class GateStatistics(NamedTuple):
    """What one gate has done so far."""

    granted: int = 0
    """Calls let through."""
    units: float = 0.0
    """Units let through."""
    cost: float = 0.0
    """Cost reported by this task."""
    cool_downs: int = 0
    """Times that all calls were held back since the service asked for it."""


class Gate(Protocol):
    """Lets calls begin. All methods are for the mailbox thread, and none of them waits."""

    @property
    def exhausted(self) -> str | None:
        """The limit that lets no call through any more, such as "max_calls=100"; None while some may."""

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Begin; `wake` is called on the loop's thread when `admit` is worth another call."""

    def admit(self, units: float = 1.0) -> float:
        """0.0 if a call of so many units may begin now, and counts; otherwise seconds until one asks again.

        `math.inf` where that is not known: `wake` will be called. Also `math.inf` when exhausted.
        Raises CoordinatorError if what the limits are shared through is lost for good: the job cannot go on.
        """

    def spend(self, cost: float) -> None:
        """A call has cost so much."""

    def cool_down(self, seconds: float | None) -> None:
        """The service is overloaded: nothing is let through for so long (None: for the default time)."""

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """So many calls, at that cost, were made before and count. Before `start`.

        name: what made them. Who shares the gate counts each name once, the first time.
        """

    def statistics(self) -> GateStatistics:
        """Counts so far. Any thread, as an estimate."""

    async def close(self) -> None:
        """End what runs; what was granted and not used is given back. Nothing is woken any more."""


def open_gate(
    rate: Rate | None,
    max_calls: int | None,
    max_cost: float | None,
    coordinator: SharedLimits | None,
    cools: bool = False,
) -> Gate | None:
    """The gate of one task: shared with others where there is a coordinator; None where nothing is bounded.

    cools: whether cool-downs are to be shared, too, where there is a coordinator and nothing is bounded.

    Any thread; the gate belongs to the mailbox thread from its `start` on.
    """
    if rate is None and max_calls is None and max_cost is None and not (cools and coordinator is not None):
        return None
    if coordinator is not None:
        return coordinator.open_for(rate, max_calls, max_cost)
    from pillarbox.aio.limits.local import LocalGate

    return LocalGate(rate, max_calls, max_cost)
