"""The outages of a service: since when it gives no answer, and for how long it is waited for.

Confined to the mailbox thread.
"""

# A service that is down says nothing: its calls end without an answer (`is_unreached`). One such call may be
# the fault of its row, or of one host of many. So many rows in a row, without an answer between, that chance
# alone would hardly bring them, are an outage: it is waited for as an overload is.

from __future__ import annotations

import math

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed, ServiceResting, said
from pillarbox.aio.totals import clock_time, seconds
from pillarbox.wire import is_overload

MIN_OUTAGE_CALLS = 3
"""Rows in a row whose first calls do not reach the service: fewer are not an outage."""
MAX_CHANCE = 1e-6
"""The chance that so many calls in a row do not reach a service that is up: a larger one is not an outage."""
MAX_OUTAGE_UNSEEN_S = 30.0
"""Seconds for which a service is waited for that this task has never reached: its address may be wrong."""


class Outage:
    """Counts calls that reached the service and that did not, and gives up when none was answered for long.

    most: seconds for which calls are held back without any answer. reached: calls that reached it before.
    now: seconds by the clock of the breaker. `resting` says why no call was sent, while that is so.
    """

    __slots__ = ("_failing_since", "_most", "_reached", "_unreached", "_unreached_in_a_row", "resting")

    def __init__(self, most: float, reached: int) -> None:
        self._most = most
        self._failing_since: float | None = None
        # Calls that reached the service, that did not, and the last ones that did not.
        self._reached = reached
        self._unreached = self._unreached_in_a_row = 0
        self.resting: ServiceResting | None = None

    @property
    def has_answered(self) -> bool:
        """True if this task has ever had an answer of the service."""
        return self._reached > 0

    @property
    def most(self) -> float:
        """Seconds for which calls are held back without any answer."""
        return self._most if self.has_answered else min(self._most, MAX_OUTAGE_UNSEEN_S)

    def lasts(self, now: float) -> float:
        """Seconds since the service was first refused or not reached, without a good answer since."""
        return 0.0 if self._failing_since is None else now - self._failing_since

    def is_given_up(self, since: float, now: float) -> bool:
        """Return True if a call first refused at `since`, or the whole task, has waited long enough."""
        first = since if self._failing_since is None else min(since, self._failing_since)
        return now - first >= self.most

    def has_given_up(self, now: float) -> bool:
        """Return True if all calls were refused for so long that none is held back any more."""
        return self._failing_since is not None and self.is_given_up(self._failing_since, now)

    def refused(self) -> None:
        """Note a call that reached the service, which refused it."""
        self._reached += 1
        self._unreached_in_a_row = 0

    def unreached(self, is_first: bool) -> bool:
        """Note a call that did not reach the service; True if the last ones in a row are an outage.

        is_first: whether it is the first one charged to its row.
        """
        self._unreached_in_a_row += is_first
        share = (self._unreached + 1) / (self._unreached + self._reached + 2)
        least = max(MIN_OUTAGE_CALLS, math.ceil(math.log(MAX_CHANCE) / math.log(share)))
        return self._unreached_in_a_row >= least

    def answered(self, was_outage: bool) -> None:
        """Note a call that was answered. was_outage: those without an answer before it were of an outage."""
        self._failing_since = self.resting = None
        self._reached += 1
        if self._unreached_in_a_row:
            if not was_outage:
                self._unreached += self._unreached_in_a_row
            self._unreached_in_a_row = 0

    def is_hopeless(self, now: float) -> bool:
        """Note that the service fails; True if it does so for too long: then calls fail one by one."""
        if self._failing_since is None:
            self._failing_since = now
        return self.is_given_up(now, now)

    def explain(self, call: Call, error: CallFailed, now: float) -> None:
        """Say in `error` for how long `call` has waited, which was refused or did not reach the service."""
        since = getattr(call, "refused_since", None)
        if since is None or not self.is_given_up(since, now):
            return
        limit = f"max_outage={self.most:g} s of Retry"
        if isinstance(error.cause, ServiceResting) and self.has_answered:
            error.detail = f"the service had no address that takes calls for longer than {limit}"
        elif is_overload(error.cause) and self.has_answered:
            error.detail = f"the service was overloaded for longer than {limit}"
        elif self.has_answered:
            error.detail = f"the service was not reached for {limit}"
        else:
            error.detail = f"the service was never reached, for {self.most:g} s: look at its address"

    def explain_now(self, now: float, cool_until: float) -> str:
        """Say since when the service is away, when it is tried again, and when it is given up."""
        away = "is not reached" if self._unreached_in_a_row else "says that it is overloaded"
        if self.resting is not None:
            away = f"takes no calls ({said(self.resting)})"
        tried = f"tried again at {clock_time(cool_until - now)}" if now < cool_until else "is tried now"
        lasts = self.lasts(now)
        end = clock_time(max(0.0, self.most - lasts))
        return (
            f"the service {away}, for {seconds(lasts)}; {tried}, rows are given up from {end} on "
            "(Retry.max_outage)"
        )
