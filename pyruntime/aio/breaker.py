"""Holds back all calls of a task while its service is overloaded: a circuit breaker that learns a pace.

Confined to the mailbox thread. There is none until the service says for the first time that it is
overloaded, so that a row's path is no longer for it. Then it is the gate of the task, in front of the one
that it may have.

A pause of the refused row alone lets the others go on calling, and a pause of all, ended for all at once,
brings them back in one burst. So after a cool-down single calls probe, and once one is answered, calls begin
at a pace. While nothing is known of the service, it doubles until the service refuses again. Then it begins
below the pace that was refused and follows a cubic curve, which is flat near that pace and later looks for
more. A small share of refusals lowers the pace; a large one is another cool-down. Where fewer calls bring no
fewer refusals, the service refuses at random, and the pace grows again.

The curve is that of TCP CUBIC (Ha, Rhee, Xu, 2008), for a rate of calls; the breaker is Nygard's ("Release
It!", 2007). Why no window of calls in flight instead: a service that answers in 5 ms and takes 10 calls a
second is overloaded by one call after the other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from pillarbox.aio.limits.bucket import TICK, Bucket
from pillarbox.aio.limits.gate import Gate, GateStatistics

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
PLATEAU_S = 8.0
"""Seconds until the pace is again the one that was refused."""
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
FEW_SHARE = 0.02
"""A share of refused calls up to which the pace stays as it is."""


class Breaker:
    """A `Gate` that closes while the service is overloaded, and then opens step by step.

    inner: the gate behind it, or None. backoff: the seconds of the n-th cool-down in a row (from 1) that the
    service did not ask for. max_outage: seconds for which it holds calls back without any answer. answered:
    calls that were answered just now, to tell the first refusal of many from a sporadic one. `clock` gives
    seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        inner: Gate | None,
        backoff: Callable[[int], float],
        max_outage: float,
        answered: int = 0,
    ) -> None:
        self.max_outage = max_outage
        self._clock = clock
        self._inner = inner
        self._backoff = backoff
        now = clock()
        self._cool_until = -math.inf
        self._failing_since: float | None = None
        self._trips_in_a_row = 0
        self._cool_downs = 0
        self._granted = 0
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
        self._slot = math.floor(now * SLOTS / WINDOW_S)
        self._begun[self._slot % SLOTS] = answered

    # -- what the service says ----------------------------------------------------------------

    @property
    def is_cooling(self) -> bool:
        """True while no call may begin."""
        return self._clock() < self._cool_until

    def is_given_up(self, since: float) -> bool:
        """Return True if a call first refused at `since`, or the whole task, has waited long enough."""
        first = since if self._failing_since is None else min(since, self._failing_since)
        return self._clock() - first >= self.max_outage

    def overloaded(self, asked: float | None) -> None:
        """A call was refused; the service asked for so many seconds of pause, or for none in particular."""
        now = self._clock()
        self._refusals[self._turn(now)] += 1
        if self._failing_since is None:
            self._failing_since = now
        if self.is_given_up(now):
            # Who would wait for the end of it? Calls fail one after the other.
            self._bucket = None
            self._cool_until = now
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
        elif self._trips_in_a_row:
            is_sporadic = False
        elif is_sporadic and refusals >= MANY_REFUSALS:
            self._slow_down(share, now)
        if is_sporadic:
            return
        self._trip(now)
        self._cool_until = now + (self._backoff(self._trips_in_a_row) if asked is None else asked)

    def succeeded(self) -> None:
        """A call was answered."""
        now = self._clock()
        self._failing_since = None
        self._trips_in_a_row = 0
        if self._is_probing and now >= self._cool_until:
            self._is_probing = False
            self._began = now
            self._set_pace(self._start, now)

    def _trip(self, now: float) -> None:
        known = self._known_pace(now)
        self._is_curved = known is not None
        self._start = PROBES_PER_S if known is None else max(PROBES_PER_S, DECREASE * known)
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
        """Calls a second at which the service refuses; None if it does at any pace, or if nobody knows."""
        if self._trips_in_a_row:
            return None
        # What began in the last second: fewer than the pace allows where there are no more rows, or no slots.
        begun = sum(self._begun) / WINDOW_S if now - self._began >= WINDOW_S else math.inf
        if self._bucket is None:
            return begun if self._cool_downs and begun < math.inf else None
        # A pace that doubles was lower for most of that second.
        return min(self._bucket.rate, begun if self._is_curved else 4.0 * begun)

    def _turn(self, now: float) -> int:
        slot = math.floor(now * SLOTS / WINDOW_S)
        for passed in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            self._begun[passed % SLOTS] = self._refusals[passed % SLOTS] = 0
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
        """See `Gate.exhausted`."""
        return None if self._inner is None else self._inner.exhausted

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Gate.start`. Nothing: the inner gate was started before there was this one."""

    def admit(self, units: float = 1.0) -> float:
        """See `Gate.admit`."""
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
        """See `Gate.count_before`."""
        if self._inner is not None:
            self._inner.count_before(name, calls, cost)

    def spend(self, cost: float) -> None:
        """See `Gate.spend`."""
        if self._inner is not None:
            self._inner.spend(cost)

    def cool_down(self, seconds: float | None) -> None:
        """See `Gate.cool_down`."""
        self.overloaded(seconds)
        if self._inner is not None:
            self._inner.cool_down(seconds)

    def statistics(self) -> GateStatistics:
        """See `Gate.statistics`."""
        if self._inner is not None:
            return self._inner.statistics()
        return GateStatistics(granted=self._granted, units=self._granted, cool_downs=self._cool_downs)

    async def close(self) -> None:
        """See `Gate.close`."""
        if self._inner is not None:
            await self._inner.close()
