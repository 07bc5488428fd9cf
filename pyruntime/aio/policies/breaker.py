"""The circuit breaker of a service that is overloaded or away. Confined to the mailbox thread.

There is none until the service says for the first time that it is overloaded, or is not reached, so that a
row's path is no longer for it.
"""

# A service that is down says nothing: its calls end without an answer (`is_unreached`). One such call may be
# the fault of its row, or of one host of many. So many rows in a row, without an answer between, that chance
# alone would hardly bring them, are an outage: it is waited for as an overload is.
#
# A pause of the refused row alone lets the others go on calling, and a pause of all, ended for all at once,
# brings them back in one burst. So after a cool-down single calls probe, and once one is answered, calls
# begin at a pace. While nothing is known of the service, it begins below what was answered in the last
# second and doubles until the service refuses again. Then it begins below the pace that was refused and
# follows a cubic curve, which is flat near that pace and later looks for more. The pace says too much of a
# service that counts calls in windows of time, and refuses all after the first of them: there the answers of
# a second tell. A small share of refusals lowers the pace; a large one is another cool-down. Where fewer
# calls bring no fewer refusals, the service refuses at random, and the pace grows again.
#
# The curve is that of TCP CUBIC (Ha, Rhee, Xu, 2008), for a rate of calls; the breaker is Nygard's ("Release
# It!", 2007). Why no window of calls in flight instead: a service that answers in 5 ms and takes 10 calls a
# second is overloaded by one call after the other.

from __future__ import annotations

import math
from collections.abc import Callable

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed, ServiceResting, said
from pillarbox.aio.limits.rate import WAIT_MARGIN_S, SlidingCounts, TokenBucket
from pillarbox.aio.totals import clock_time, seconds
from pillarbox.wire import is_overload

PROBES_PER_S = 10.0
"""Calls a second that try whether the service is well again."""
DOUBLING_S = 0.35
"""Seconds in which the pace doubles while nothing is known."""
DECREASE = 0.85
"""The pace after a refusal, as a share of the one that was refused."""
PLATEAU_S = 4.0
"""Seconds until the pace is again the one that was refused."""
FORGET_PACE_S = 8.0
"""Seconds without an answer after which nothing is known any more of what the service takes."""
BURST_S = 0.01
"""Seconds of the pace that may begin at once: timers are not finer."""
NO_PACE_PER_S = 1e5
"""A pace of so many calls a second holds nobody back; it grows no further."""
CUTS_TO_BELIEVE = 3
"""Slow-downs in a row that did not halve the share: then the service refuses at random."""
MANY_REFUSALS = 3
"""Refusals in a window: fewer may be chance."""
MIN_OUTAGE_CALLS = 3
"""Rows in a row whose first calls do not reach the service: fewer are not an outage."""
MAX_CHANCE = 1e-6
"""The chance that so many calls in a row do not reach a service that is up: a larger one is not an outage."""
MAX_OUTAGE_UNSEEN_S = 30.0
"""Seconds for which a service is waited for that this task has never reached: its address may be wrong."""
FEW_SHARE = 0.02
"""A share of refused calls up to which the pace stays as it is."""
WINDOW_S = 1.0
"""Seconds over which calls and refusals are counted."""
SPORADIC_SHARE = 0.1
"""A share of refused calls up to which those that name no pause hold back their own rows only."""

BEGUN, REFUSED, ANSWERED = range(3)
"""Places of the counts of calls."""


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
        self._max_outage = max_outage
        self._clock = clock
        self._backoff = backoff
        now = clock()
        self._cool_until = -math.inf
        self._failing_since: float | None = None
        self._trips_in_a_row = 0
        self.cool_downs = self.granted = 0
        # Calls that reached the service, that did not, and the last ones that did not.
        self._reached = reached
        self._unreached = self._unreached_in_a_row = 0
        # The pace: None for none. It grows from `_start` at `_began`, by the curve if `_is_curved`.
        self._bucket: TokenBucket | None = None
        # Why no call was sent, while that is so.
        self._resting: ServiceResting | None = None
        self._is_probing = self._is_curved = False
        self._start = PROBES_PER_S
        # Shares of refused calls: when the pace was lowered last, and that no pace helps against.
        self._share_before = self._usual_share = 0.0
        self._cuts = 0
        self._began = self._grown_at = now
        self._counts = SlidingCounts(3, WINDOW_S, now)
        self._counts.add(BEGUN, now, answered + in_flight)
        self._counts.add(ANSWERED, now, answered)

    # -- the gate -----------------------------------------------------------------------------

    def ready_in(self, now: float) -> float:
        """0.0 if a call may begin, otherwise the seconds until one may ask again."""
        if now < self._cool_until:
            return self._cool_until - now + WAIT_MARGIN_S
        if self._bucket is None:
            return 0.0
        if not self._is_probing and now - self._grown_at >= BURST_S:
            self._grow(now)
        return self._bucket.ready_in(1.0, now)

    def count_granted(self, now: float) -> None:
        """Note that a call begins."""
        if self._bucket is not None:
            self._bucket.take(1.0, now)
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
    def has_answered(self) -> bool:
        """True if this task has ever had an answer of the service."""
        return self._reached > 0

    @property
    def max_outage(self) -> float:
        """Seconds for which it holds calls back without any answer."""
        return self._max_outage if self.has_answered else min(self._max_outage, MAX_OUTAGE_UNSEEN_S)

    def is_given_up(self, since: float) -> bool:
        """Return True if a call first refused at `since`, or the whole task, has waited long enough."""
        first = since if self._failing_since is None else min(since, self._failing_since)
        return self._clock() - first >= self.max_outage

    def explain(self, call: Call, error: CallFailed) -> None:
        """Say in `error` for how long `call` has waited, which was refused or did not reach the service."""
        since = getattr(call, "refused_since", None)
        if since is None or not self.is_given_up(since):
            return
        limit = f"max_outage={self.max_outage:g} s of Retry"
        if isinstance(error.cause, ServiceResting) and self.has_answered:
            error.detail = f"the service had no address that takes calls for longer than {limit}"
        elif is_overload(error.cause) and self.has_answered:
            error.detail = f"the service was overloaded for longer than {limit}"
        elif self.has_answered:
            error.detail = f"the service was not reached for {limit}"
        else:
            error.detail = f"the service was never reached, for {self.max_outage:g} s: look at its address"

    def explain_now(self) -> str:
        """Say since when the service is away, when it is tried again, and when it is given up."""
        now = self._clock()
        since = now if self._failing_since is None else self._failing_since
        away = "is not reached" if self._unreached_in_a_row else "says that it is overloaded"
        if self._resting is not None:
            away = f"takes no calls ({said(self._resting)})"
        tried = (
            f"tried again at {clock_time(self._cool_until - now)}"
            if now < self._cool_until
            else "is tried now"
        )
        end = clock_time(max(0.0, since + self.max_outage - now))
        return (
            f"the service {away}, for {seconds(now - since)}; {tried}, rows are given up from {end} on "
            "(Retry.max_outage)"
        )

    @property
    def has_given_up(self) -> bool:
        """True if the service has refused all calls for so long that none is held back any more."""
        since = self._failing_since
        return since is not None and self.is_given_up(since)

    @property
    def is_paced(self) -> bool:
        """True since the first cool-down: the service has a pace, or one is looked for."""
        return self._bucket is not None

    @property
    def refused_share(self) -> float:
        """The share of the calls of the last second that were refused."""
        begun, refusals, _ = self._counts.totals(self._clock())
        return refusals / max(1, begun)

    def overloaded(self, asked: float | None) -> bool:
        """Note a refused call; the service asked for so many seconds of pause, or for none in particular.

        Returns True if all calls are held back for it.
        """
        now = self._clock()
        self._counts.add(REFUSED, now)
        self._reached += 1
        self._unreached_in_a_row = 0
        if self._is_hopeless(now):
            return False
        if now < self._cool_until:
            # Of a call that was in flight when the others were refused.
            longer = asked is not None and now + asked > self._cool_until
            self._cool_until = max(self._cool_until, now + (asked or 0.0))
            return longer
        begun, refusals, _ = self._counts.totals(now)
        share = refusals / max(1, begun)
        is_sporadic = share <= SPORADIC_SHARE or refusals < MANY_REFUSALS
        if self._bucket is None:
            # Of the first refusals one that asks for a pause is believed.
            is_sporadic = is_sporadic and asked is None
        elif self._is_probing:
            is_sporadic = False
        elif is_sporadic and refusals >= MANY_REFUSALS:
            self._slow_down(share, now)
        if is_sporadic:
            return False
        self._trip(now)
        self._cool_until = now + (self._backoff(self._trips_in_a_row) if asked is None else asked)
        return True

    def rest(self, error: ServiceResting) -> None:
        """Hold back all calls until the first address of the service takes one: nothing was sent."""
        # spec: Addresses!Pause
        now = self._clock()
        self._resting = error
        if self._is_hopeless(now):
            return
        if now >= self._cool_until:
            self._trip(now)
        self._cool_until = now + error.seconds

    def unreached(self, is_first: bool) -> None:
        """Note a call that ended without an answer: no connection, or one that broke.

        is_first: whether it is the first one charged to its row. Others prove nothing: near the end of the
        input only those rows are left that are called again, each for a reason of its own.
        """
        self._unreached_in_a_row += is_first
        if not (self.is_outage or self._unreached_in_a_row >= self._outage_calls()):
            return
        now = self._clock()
        # Those that were in flight when the others ended so are of the same outage.
        if not self._is_hopeless(now) and now >= self._cool_until:
            self._trip(now)
            self._cool_until = now + self._backoff(self._trips_in_a_row)

    def _outage_calls(self) -> int:
        """Calls in a row without an answer that are an outage, by the share that had none before."""
        share = (self._unreached + 1) / (self._unreached + self._reached + 2)
        return max(MIN_OUTAGE_CALLS, math.ceil(math.log(MAX_CHANCE) / math.log(share)))

    def _is_hopeless(self, now: float) -> bool:
        """Return True if the outage lasts too long to wait for: then calls fail one after the other."""
        if self._failing_since is None:
            self._failing_since = now
        if not self.is_given_up(now):
            return False
        self._bucket = None
        self._cool_until = now
        return True

    def succeeded(self) -> None:
        """Note a call that was answered."""
        now = self._clock()
        self._counts.add(ANSWERED, now)
        self._failing_since = self._resting = None
        self._reached += 1
        if self._unreached_in_a_row:
            if not self.is_outage:
                self._unreached += self._unreached_in_a_row
            self._unreached_in_a_row = 0
        self._trips_in_a_row = 0
        if self._is_probing and now >= self._cool_until:
            self._is_probing = False
            self._began = now
            self._set_pace(self._start, now)

    def _trip(self, now: float) -> None:
        if not self._is_probing:
            known = self._known_pace(now)
            self._is_curved = known is not None
            self._start = max(PROBES_PER_S, DECREASE * (self._answered(now) if known is None else known))
        elif self._failing_since is not None and now - self._failing_since >= FORGET_PACE_S:
            self._is_curved = False
            self._start = PROBES_PER_S
        self._trips_in_a_row += 1
        self.cool_downs += 1
        self._is_probing = True
        self._share_before = self._usual_share = 0.0
        self._cuts = 0
        self._bucket = TokenBucket(PROBES_PER_S, 1.0, now)

    def _slow_down(self, share: float, now: float) -> None:
        """Calls are paced, and the small `share` of the last ones was refused."""
        if share <= max(FEW_SHARE, self._usual_share) or now - self._began < WINDOW_S / 2:
            return
        self._cuts = self._cuts + 1 if share > self._share_before / 2 else 1
        self._share_before = share
        if self._cuts > CUTS_TO_BELIEVE:
            # Fewer calls brought no fewer refusals: their number is not what it is about.
            self._usual_share = 2 * share
            self._cuts = 0
            self._is_curved = False
            self._start = self._bucket.rate if self._bucket is not None else PROBES_PER_S
        else:
            self._start = max(PROBES_PER_S, DECREASE * (self._known_pace(now) or 0.0))
            self._is_curved = True
        self._began = now
        self._set_pace(self._start, now)

    def _known_pace(self, now: float) -> float | None:
        """Calls a second at which the service refuses; None if nobody knows."""
        if self._bucket is None:
            return None
        # The pace is more than the service takes where it refuses after part of a second, and more than what
        # was called where there are no more rows, or no slots. A pace that doubles was mostly lower.
        rate = self._bucket.rate
        return min(
            rate,
            max(DECREASE**2 * rate, self._answered(now)) if self._is_curved else 4.0 * self._answered(now),
        )

    def _answered(self, now: float) -> float:
        """Calls a second that were answered in the last second."""
        return self._counts.totals(now)[ANSWERED] / WINDOW_S

    # -- the pace -----------------------------------------------------------------------------

    def _grow(self, now: float) -> None:
        passed = now - self._began
        if self._is_curved:
            known = self._start / DECREASE
            pace = known * (1.0 + (1.0 - DECREASE) * (passed / PLATEAU_S - 1.0) ** 3)
        else:
            pace = self._start * 2.0 ** min(passed / DOUBLING_S, 64.0)
        self._set_pace(pace, now)

    def _set_pace(self, pace: float, now: float) -> None:
        self._grown_at = now
        if self._bucket is None:
            return
        pace = min(pace, NO_PACE_PER_S)
        self._bucket.keep(math.inf, now)
        self._bucket.rate = pace
        self._bucket.capacity = max(1.0, pace * BURST_S)
