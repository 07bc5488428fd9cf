"""The limits of one endpoint, learned from its own answers: what is left of its calls and tokens.

Not thread-safe: `pillarbox.aio.endpoint_pool` has the lock.
"""

# Why each endpoint has limits of its own. What an answer names is the account of the endpoint that gave it:
# three regions with a thousand calls a minute each take three thousand. Limits that are learned for all of
# them as one would be three in turn, of which none is believed; and the quota of one that is used up would
# hold back the calls of all.
#
# Why a used-up quota is not a fault. The breaker of an endpoint rests it, lets one call probe and gives calls
# back at a pace that grows: right for an endpoint that is ill. Of one whose quota is used up it is known when
# calls come back, and how many. So it is passed over until then, and takes calls at once afterwards. Only a
# quota that is gone for long makes it rest.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pillarbox.aio.limits.headers import LimitReading
from pillarbox.aio.limits.learned import LearnedLimits
from pillarbox.aio.limits.used_up import RefusalWatch, UsedUp
from pillarbox.aio.retry import MAX_OUTAGE_S
from pillarbox.wire import Reading

CREDIT_REST_S = 600.0
"""Seconds for which an endpoint rests whose account has no credit: a person may have paid meanwhile."""


class Demand(NamedTuple):
    """The demand of one request on the limits of an endpoint.

    units: its weight at the rate. learns: False where what endpoints name is not followed. longest: seconds
    for which a quota may be gone and is waited for. waits: True if a refused request is made again later.
    """

    units: float = 1.0
    learns: bool = True
    longest: float = MAX_OUTAGE_S
    waits: bool = False


USUAL = Demand()


class EndpointLimits:
    """The limits that one endpoint has named, and whether a quota of it is gone for long."""

    __slots__ = ("_held_until", "_watch", "back_at", "learned")

    def __init__(self) -> None:
        self.learned: LearnedLimits | None = None
        """None until an answer has named a limit."""
        self.back_at = -math.inf
        """The time at which a quota is back that was gone for long; infinite for the credit of an account."""
        self._held_until = -math.inf
        self._watch = RefusalWatch()

    def ready_in(self, units: float, now: float) -> float:
        """0.0 if a request of so many units may begin now, otherwise the seconds after which to ask again."""
        if self.learned is None:
            return 0.0
        wait = self.learned.ready_in(units, now)
        return max(wait, self._held_until - now) if now < self._held_until else wait

    def room(self, units: float, now: float) -> float:
        """Requests of so many units that may begin now; infinite where nothing limits them."""
        if self.learned is None:
            return math.inf
        return 0.0 if now < self._held_until else self.learned.room(units, now)

    def begin(self, units: float, now: float) -> None:
        """Reserve what a request that begins will use, by estimate."""
        # spec: Addresses!Send
        if self.learned is not None:
            self.learned.begin(units, now)

    def learn(self, readings: Sequence[LimitReading], began: float, now: float) -> None:
        """Take the limits that an answer names to a request that began at `began`."""
        if self.learned is None:
            self.learned = LearnedLimits()
        self.learned.observe(readings, began, now)

    def use(self, units: float, usage: tuple[float, float, float], began: float, now: float) -> None:
        """Give back what was reserved for a request beyond the tokens that it has used."""
        if self.learned is not None:
            self.learned.use(units, usage, began, now)

    def refused(
        self,
        reading: Reading,
        limits: Sequence[LimitReading],
        answered: int,
        longest: float,
        now: float,
    ) -> UsedUp | None:
        """Look at a refusal, which named these limits; returns what is gone for long, None for nothing."""
        found = self._watch.look(reading, limits, answered, longest)
        if found is not None:
            self.back_at = now + found.seconds
        return found

    def explain(self, demand: Demand, now: float, asked: float | None) -> bool:
        """Return True if a refusal is owed to the limits that are known: it says nothing else.

        asked: the seconds for which the endpoint wants no call, which it then has.
        """
        # spec: Addresses!RefuseForQuota
        if not demand.learns or self.ready_in(demand.units, now) == 0.0:
            return False
        self._held_until = max(self._held_until, now + (asked or 0.0))
        return True
