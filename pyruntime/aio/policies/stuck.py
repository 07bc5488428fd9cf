"""Counts the calls in flight that seem never to end, where their number is found. On the mailbox thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from pillarbox.aio.policy import PolicyServices

STUCK_LOOK_S = 1.0
"""Seconds between two counts."""
STUCK_TRIPS = 16.0
"""Round trips, and `STUCK_LOOK_S` at least, after which a call in flight seems never to end."""


class StuckCalls:
    """Counts such calls of one operator now and then; without slots beside it they use up the number found.

    round_trip: the seconds of a call, as far as known; infinite where it is not, and no call counts then.
    take: takes each count; what it raises ends the job.
    """

    def __init__(self, round_trip: Callable[[], float], take: Callable[[int], None]) -> None:
        self._round_trip = round_trip
        self._take = take
        self._timer: asyncio.TimerHandle | None = None

    def start(self, services: PolicyServices) -> None:
        """Begin to count."""
        self._services = services
        self._look()

    def close(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        # spec: Adaptive!Find, SlotLease!Find
        services, trip = self._services, self._round_trip()
        self._timer = services.loop.call_later(STUCK_LOOK_S, self._look)
        stuck = 0
        if trip < math.inf:
            stuck = services.running_since(services.clock() - max(STUCK_LOOK_S, STUCK_TRIPS * trip))
        try:
            self._take(stuck)
        except BaseException as error:
            services.stop(error)
