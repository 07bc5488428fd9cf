"""Holds back all calls of a task while its service is overloaded: a circuit breaker that learns a pace.

Confined to the mailbox thread. There is none until the service says for the first time that it is
overloaded, or is not reached, so that a row's path is no longer for it. Then it is the gate of the task, in
front of the one that it may have.

A service that is down says nothing: its calls end without an answer (`is_unreached`). One such call may be
the fault of its row, or of one host of many. So many rows in a row, without an answer between, that chance
alone would hardly bring them, are an outage: it is waited for as an overload is.

A pause of the refused row alone lets the others go on calling, and a pause of all, ended for all at once,
brings them back in one burst. So after a cool-down single calls probe, and once one is answered, calls begin
at a pace. While nothing is known of the service, it begins below what was answered in the last second and
doubles until the service refuses again. Then it begins below the pace that was refused and follows a cubic
curve, which is flat near that pace and later looks for more. The pace says too much of a service that counts
calls in windows of time, and refuses all after the first of them: there the answers of a second tell. A
small share of refusals lowers the pace; a large one is another cool-down. Where fewer calls bring no fewer
refusals, the service refuses at random, and the pace grows again.

The curve is that of TCP CUBIC (Ha, Rhee, Xu, 2008), for a rate of calls; the breaker is Nygard's ("Release
It!", 2007). Why no window of calls in flight instead: a service that answers in 5 ms and takes 10 calls a
second is overloaded by one call after the other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from pillarbox.aio.limits.bucket import TICK, Bucket
from pillarbox.aio.limits.limiter import LimiterStatistics, RateLimiter

PROBES_PER_S = 10.0
"""Calls a second that try whether the service is well again."""
WINDOW_S = 1.0
"""Seconds over which calls and refusals are counted."""
SLOTS = 10
"""Parts of the window."""
DOUBLING_S = 0.35
"""Seconds in which the pace doubles while nothing is known."""
DECREASE = 0.85
"""The pace after a refusal, as a share of the one that was refused."""
PLATEAU_S = 4.0
"""Seconds until the pace is again the one that was refused."""
FORGET_PACE_S = 8.0
"""Seconds without an answer after which nothing is known any more of what the service takes."""
BURST_S = 0.01
"""Seconds of the pace that may begin at once: timers are no finer."""
NO_PACE_PER_S = 1e5
"""A pace of so many calls a second holds nobody back; it grows no further."""
SPORADIC_SHARE = 0.1
"""A share of refused calls up to which those that name no pause hold back their own rows only."""
CUTS_TO_BELIEVE = 3
"""Slow-downs in a row that did not halve the share: then the service refuses at random."""
MANY_REFUSALS = 3
"""Refusals in a window: fewer may be chance."""
MIN_OUTAGE_CALLS = 3
"""Rows in a row whose first calls do not reach the service: fewer are no outage."""
MAX_CHANCE = 1e-6
"""The chance that so many calls in a row do not reach a service that is up: a larger one is no outage."""
MAX_OUTAGE_UNSEEN_S = 30.0
"""Seconds for which a service is waited for that this task has never reached: its address may be wrong."""
FEW_SHARE = 0.02
"""A share of refused calls up to which the pace stays as it is."""


class CircuitBreaker:
    """A `RateLimiter` that closes while the service is overloaded, and then opens step by step.

    inner: the gate behind it, or None. backoff: the seconds of the n-th cool-down in a row (from 1) that the
    service did not ask for. max_outage: seconds for which it holds calls back without any answer. answered:
    calls that were answered just now, to tell the first refusal of many from a sporadic one. reached: calls
    that reached the service before. `clock` gives seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        inner: RateLimiter | None,
        backoff: Callable[[int], float],
        max_outage: float,
        answered: int = 0,
        reached: int = 0,
    ) -> None:
        self._max_outage = max_outage
        self._clock = clock
        self._inner = inner
        self._backoff = backoff
        now = clock()
        self._cool_until = -math.inf
        self._failing_since: float | None = None
        self._trips_in_a_row = 0
        self._cool_downs = 0
        self._granted = 0
        # Calls that reached the service, that did not, and the last ones that did not.
        self._reached = reached
        self._unreached = self._unreached_in_a_row = 0
        # The pace: None for none. It grows from `_start` at `_began`, by the curve if `_is_curved`.
        self._bucket: Bucket | None = None
        self._is_probing = self._is_curved = False
        self._start = PROBES_PER_S
        # Shares of refused calls: when the pace was lowered last, and that no pace helps against.
        self._share_before = self._usual_share = 0.0
        self._cuts = 0
        self._began = self._grown_at = now
        # Rings of slots: calls begun and refused in the last `WINDOW_S` seconds.
        self._begun = [0] * SLOTS
        self._refusals = [0] * SLOTS
        self._answers = [0] * SLOTS
        self._slot = math.floor(now * SLOTS / WINDOW_S)
        self._begun[self._slot % SLOTS] = self._answers[self._slot % SLOTS] = answered

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

    def overloaded(self, asked: float | None) -> None:
        """A call was refused; the service asked for so many seconds of pause, or for none in particular."""
        now = self._clock()
        self._refusals[self._turn(now)] += 1
        self._reached += 1
        self._unreached_in_a_row = 0
        if self._is_hopeless(now):
            return
        if now < self._cool_until:
            # Of a call that was in flight when the others were refused.
            self._cool_until = max(self._cool_until, now + (asked or 0.0))
            return
        refusals = sum(self._refusals)
        share = refusals / max(1, sum(self._begun))
        is_sporadic = share <= SPORADIC_SHARE or refusals < MANY_REFUSALS
        if self._bucket is None:
            # Of the first refusals one that asks for a pause is believed.
            is_sporadic = is_sporadic and asked is None
        elif self._is_probing:
            is_sporadic = False
        elif is_sporadic and refusals >= MANY_REFUSALS:
            self._slow_down(share, now)
        if is_sporadic:
            return
        self._trip(now)
        self._cool_until = now + (self._backoff(self._trips_in_a_row) if asked is None else asked)

    def unreached(self, is_first: bool) -> None:
        """A call ended without an answer: no connection, or one that broke.

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
        """A call was answered."""
        now = self._clock()
        self._answers[self._turn(now)] += 1
        self._failing_since = None
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
        self._cool_downs += 1
        self._is_probing = True
        self._share_before = self._usual_share = 0.0
        self._cuts = 0
        self._bucket = Bucket(PROBES_PER_S, 1.0, now)

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
        self._turn(now)
        return sum(self._answers) / WINDOW_S

    def _turn(self, now: float) -> int:
        slot = math.floor(now * SLOTS / WINDOW_S)
        for passed in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            place = passed % SLOTS
            self._begun[place] = self._refusals[place] = self._answers[place] = 0
        self._slot = slot
        return slot % SLOTS

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

    # -- as the gate --------------------------------------------------------------------------

    @property
    def exhausted(self) -> str | None:
        """See `RateLimiter.exhausted`."""
        return None if self._inner is None else self._inner.exhausted

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `RateLimiter.start`. Nothing: the inner gate was started before there was this one."""

    def admit(self, units: float = 1.0) -> float:
        """See `RateLimiter.admit`."""
        now = self._clock()
        if now < self._cool_until:
            return self._cool_until - now + TICK
        bucket = self._bucket
        if bucket is not None:
            if not self._is_probing and now - self._grown_at >= BURST_S:
                self._grow(now)
            wait = bucket.ready_in(1.0, now)
            if wait > 0.0:
                return wait
        if self._inner is not None:
            wait = self._inner.admit(units)
            if wait > 0.0:
                return wait
        if bucket is not None:
            bucket.take(1.0, now)
        self._begun[self._turn(now)] += 1
        self._granted += 1
        return 0.0

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        if self._inner is not None:
            self._inner.count_before(name, calls, cost)

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        if self._inner is not None:
            self._inner.spend(cost)

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`."""
        self.overloaded(seconds)
        if self._inner is not None:
            self._inner.cool_down(seconds)

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        if self._inner is not None:
            return self._inner.statistics()
        return LimiterStatistics(granted=self._granted, units=self._granted, cool_downs=self._cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`."""
        if self._inner is not None:
            await self._inner.close()
