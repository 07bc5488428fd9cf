"""The circuit breaker of a service that is overloaded or away. Confined to the mailbox thread.

There is none until the service says for the first time that it is overloaded, or is not reached, so that a
row's path is no longer for it.
"""

# A pause of the refused row alone lets the others go on calling, and a pause of all, ended for all at once,
# brings them back in one burst. So after a cool-down single calls probe, and once one is answered, calls
# begin at a pace (`pace`). A service that is down says nothing (`outage`).
#
# One refusal is a matter of its row, whatever pause it asks for: services refuse now and then for reasons of
# their own. Calls are held back for a share of the window that is more than chance, or for refusals in a row.
#
# The breaker is Nygard's ("Release It!", 2007).

from __future__ import annotations

import math
from collections.abc import Callable

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed, ServiceResting
from pillarbox.aio.limits.rate import WAIT_MARGIN_S, SlidingCounts
from pillarbox.aio.policies.load import BEGUN, MANY_REFUSALS, REFUSED, WINDOW_S, are_many
from pillarbox.aio.policies.outage import Outage
from pillarbox.aio.policies.pace import Pace

FORGET_PACE_S = 8.0
"""Seconds without an answer after which nothing is known any more of what the service takes."""
REFUSALS_IN_A_ROW = 5
"""Refusals without an answer between that are more than chance, however long they take to come."""

ANSWERED = 2
"""The place of answered calls among the counts, behind those of calls that began and that were refused."""


class CircuitBreaker:
    """Closes while the service is overloaded, and then opens step by step. Confined to the mailbox thread.

    backoff: the seconds of the n-th cool-down in a row (from 1) that the service did not ask for.
    max_outage: seconds for which it holds calls back without any answer. answered: calls that were answered
    just now, to tell the first refusal of many from a sporadic one; in_flight: those that were not yet.
    reached: calls that reached the service before. `clock` gives seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        backoff: Callable[[int], float],
        max_outage: float,
        answered: int = 0,
        reached: int = 0,
        in_flight: int = 0,
    ) -> None:
        self._clock = clock
        self._backoff = backoff
        now = clock()
        self._cool_until = self._rests_until = -math.inf
        self._trips_in_a_row = 0
        self.cool_downs = self.granted = 0
        self._is_probing = False
        self._refused_in_a_row = 0
        self._answered_at = now if answered else -math.inf
        self._outage = Outage(max_outage, reached)
        self._pace = Pace(now)
        self._counts = SlidingCounts(3, WINDOW_S, now)
        self._counts.add(BEGUN, now, answered + in_flight)
        self._counts.add(ANSWERED, now, answered)

    # -- the gate -----------------------------------------------------------------------------

    def ready_in(self, now: float) -> float:
        """0.0 if a call may begin, otherwise the seconds until one may ask again."""
        if now < self._cool_until:
            return self._cool_until - now + WAIT_MARGIN_S
        return self._pace.ready_in(now, grows=not self._is_probing)

    def count_granted(self, now: float) -> None:
        """Note that a call begins."""
        self._pace.take(now)
        self._counts.add(BEGUN, now)
        self.granted += 1

    # -- what the service says ----------------------------------------------------------------

    @property
    def is_cooling(self) -> bool:
        """True while no call may begin."""
        return self._clock() < self._cool_until

    @property
    def is_outage(self) -> bool:
        """True while calls are held back or probe; what was in flight before may be answered meanwhile."""
        return self._is_probing

    @property
    def has_given_up(self) -> bool:
        """True if the service has refused all calls for so long that none is held back any more."""
        return self._outage.has_given_up(self._clock())

    @property
    def is_paced(self) -> bool:
        """True since the first cool-down: the service has a pace, or one is looked for."""
        return self._pace.is_set

    @property
    def is_refusing(self) -> bool:
        """True if more calls of the last second were refused than some are now and then."""
        begun, refusals, _ = self._counts.totals(self._clock())
        return are_many(refusals, begun)

    def is_given_up(self, since: float) -> bool:
        """Return True if a call first refused at `since`, or the whole task, has waited long enough."""
        return self._outage.is_given_up(since, self._clock())

    def explain(self, call: Call, error: CallFailed) -> None:
        """Say in `error` for how long `call` has waited, which was refused or did not reach the service."""
        self._outage.explain(call, error, self._clock())

    def explain_now(self) -> str:
        """Say since when the service is away, when it is tried again, and when it is given up."""
        return self._outage.explain_now(self._clock(), self._cool_until)

    def overloaded(self, asked: float | None, in_flight: int = 0, full_after: float = 0.0) -> bool:
        """Note a refused call; the service asked for so many seconds of pause, or for none in particular.

        in_flight: calls that are not answered yet. full_after: seconds since the last answer for which the
        refusal means that the service is full, which is a matter of the calls in flight and of no pace.
        Returns True if all calls are held back for it.
        """
        now = self._clock()
        self._counts.add(REFUSED, now)
        self._refused_in_a_row += 1
        self._outage.refused()
        if self._is_hopeless(now):
            return False
        if now < self._cool_until:
            # Of a call that was in flight when the others were refused.
            longer = asked is not None and now + asked > self._cool_until
            self._cool_until = max(self._cool_until, now + (asked or 0.0))
            return longer
        if not self._is_probing:
            silent = now - self._answered_at
            if full_after > 0.0 and silent <= full_after:
                return False
            begun, refusals, _ = self._counts.totals(now)
            calls = max(begun, in_flight + refusals, 1)
            # Where calls are slow, a window has too few.
            is_row = self._refused_in_a_row >= REFUSALS_IN_A_ROW and silent > WINDOW_S
            if not (is_row or are_many(refusals, calls)):
                if self._pace.is_set and refusals >= MANY_REFUSALS:
                    self._pace.slow_down(refusals / calls, now, self._answered(now))
                return False
        # spec: Adaptive!Throttle
        self._trip(now)
        self._cool_until = now + (self._backoff(self._trips_in_a_row) if asked is None else asked)
        return True

    def rest(self, error: ServiceResting) -> None:
        """Hold back all calls until the first address of the service takes one: nothing was sent."""
        # spec: Addresses!Pause
        now = self._clock()
        self._outage.resting = error
        if self._is_hopeless(now):
            return
        if now >= self._cool_until:
            self._trip(now)
        self._cool_until = self._rests_until = now + error.seconds

    def end_rest(self) -> None:
        """Hold no call back for the rest of addresses any more: one of them takes calls."""
        # spec: Addresses!Resume
        if self._cool_until == self._rests_until:
            self._cool_until = min(self._cool_until, self._clock())

    def unreached(self, is_first: bool) -> None:
        """Note a call that ended without an answer: no connection, or one that broke.

        is_first: whether it is the first one charged to its row. Others prove nothing: near the end of the
        input only those rows are left that are called again, each for a reason of its own.
        """
        if not self._outage.unreached(is_first) and not self._is_probing:
            return
        now = self._clock()
        # Those that were in flight when the others ended so are of the same outage.
        if not self._is_hopeless(now) and now >= self._cool_until:
            self._trip(now)
            self._cool_until = now + self._backoff(self._trips_in_a_row)

    def succeeded(self) -> None:
        """Note a call that was answered."""
        self._answered_at = now = self._clock()
        self._refused_in_a_row = 0
        self._counts.add(ANSWERED, now)
        self._outage.answered(self._is_probing)
        self._trips_in_a_row = 0
        if self._is_probing and now >= self._cool_until:
            self._is_probing = False
            self._pace.begin(now)

    def _is_hopeless(self, now: float) -> bool:
        """Return True if the outage lasts too long to wait for: then calls fail one after the other."""
        if not self._outage.is_hopeless(now):
            return False
        self._pace.drop()
        self._cool_until = now
        return True

    def _trip(self, now: float) -> None:
        if not self._is_probing:
            self._pace.learn(self._answered(now))
        elif self._outage.lasts(now) >= FORGET_PACE_S:
            self._pace.forget()
        self._trips_in_a_row += 1
        self.cool_downs += 1
        self._is_probing = True
        self._pace.probe(now)

    def _answered(self, now: float) -> float:
        """Calls a second that were answered in the last second."""
        return self._counts.totals(now)[ANSWERED] / WINDOW_S
