"""The pace at which calls begin after a service was overloaded. Confined to the mailbox thread."""

# While nothing is known of the service, calls begin below what was answered in the last second and their pace
# doubles until the service refuses again. Then it begins below the pace that was refused and follows a cubic
# curve, which is flat near that pace and later looks for more. The pace says too much of a service that
# counts calls in windows of time, and refuses all after the first of them: there the answers of a second
# count. A small share of refusals lowers the pace; a large one is another cool-down. Where fewer calls bring
# no fewer refusals, the service refuses at random, and the pace grows again.
#
# The curve is that of TCP CUBIC (Ha, Rhee, Xu, 2008), for a rate of calls. Why no window of calls in flight
# instead: a service that answers in 5 ms and takes 10 calls a second is overloaded by one call after the
# other.

from __future__ import annotations

import math

from pillarbox.aio.limits.rate import TokenBucket

PROBES_PER_S = 10.0
"""Calls a second that try whether the service is well again."""
DOUBLING_S = 0.35
"""Seconds in which the pace doubles while nothing is known."""
DECREASE = 0.85
"""The pace after a refusal, as a share of the one that was refused."""
PLATEAU_S = 4.0
"""Seconds until the pace is again the one that was refused."""
BURST_S = 0.01
"""Seconds of the pace that may begin at once: timers are not finer."""
NO_PACE_PER_S = 1e5
"""A pace of so many calls a second holds no call back; it grows no further."""
CUTS_TO_BELIEVE = 3
"""Slow-downs in a row that did not halve the share: then the service refuses at random."""
FEW_SHARE = 0.02
"""A share of refused calls up to which the pace stays as it is."""
SETTLED_S = 0.5
"""Seconds after a change of the pace in which refusals are of calls that began before."""


class Pace:
    """A rate of calls that probes, grows and is lowered; there is none before the first probes.

    now: seconds by the clock of the breaker. answered: calls a second that were answered in the last second.
    """

    __slots__ = (
        *("_began", "_bucket", "_cuts", "_grown_at", "_is_curved", "_share_before", "_start"),
        *("_usual_share",),
    )

    def __init__(self, now: float) -> None:
        # It grows from `_start` at `_began`, by the curve if `_is_curved`. None for no pace.
        self._bucket: TokenBucket | None = None
        self._start = PROBES_PER_S
        self._began = self._grown_at = now
        self._is_curved = False
        # Shares of refused calls: when the pace was lowered last, and that no pace helps against.
        self._share_before = self._usual_share = 0.0
        self._cuts = 0

    @property
    def is_set(self) -> bool:
        """True while calls have a pace."""
        return self._bucket is not None

    @property
    def per_second(self) -> float | None:
        """Calls a second that may begin; None for no limit."""
        bucket = self._bucket
        return None if bucket is None or bucket.rate >= NO_PACE_PER_S else bucket.rate

    def ready_in(self, now: float, grows: bool) -> float:
        """0.0 if a call may begin, otherwise the seconds until one may ask again. grows: no probe."""
        if self._bucket is None:
            return 0.0
        if grows and now - self._grown_at >= BURST_S:
            self._grow(now)
        return self._bucket.ready_in(1.0, now)

    def take(self, now: float) -> None:
        """Count a call that begins."""
        if self._bucket is not None:
            self._bucket.take(1.0, now)

    def drop(self) -> None:
        """Have no pace any more."""
        self._bucket = None

    def learn(self, answered: float) -> None:
        """Choose where the pace begins after the probes that are to come."""
        known = self._known(answered)
        self._is_curved = known is not None
        self._start = max(PROBES_PER_S, DECREASE * (answered if known is None else known))

    def forget(self) -> None:
        """Forget the pace that the service takes."""
        self._is_curved = False
        self._start = PROBES_PER_S

    def probe(self, now: float) -> None:
        """Let single calls begin."""
        self._share_before = self._usual_share = 0.0
        self._cuts = 0
        self._bucket = TokenBucket(PROBES_PER_S, 1.0, now)

    def begin(self, now: float) -> None:
        """Let calls begin at the pace from which it grows."""
        self._began = now
        self._set(self._start, now)

    def slow_down(self, share: float, now: float, answered: float) -> None:
        """Lower the pace, as the small `share` of the last calls was refused."""
        if share <= max(FEW_SHARE, self._usual_share) or now - self._began < SETTLED_S:
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
            self._start = max(PROBES_PER_S, DECREASE * (self._known(answered) or 0.0))
            self._is_curved = True
        self.begin(now)

    def _known(self, answered: float) -> float | None:
        """Calls a second at which the service refuses; None if that is not known."""
        if self._bucket is None:
            return None
        # The pace is more than the service takes where it refuses after part of a second, and more than what
        # was called where there are no more rows, or no slots. A pace that doubles was mostly lower.
        rate = self._bucket.rate
        return min(rate, max(DECREASE**2 * rate, answered) if self._is_curved else 4.0 * answered)

    def _grow(self, now: float) -> None:
        passed = now - self._began
        if self._is_curved:
            known = self._start / DECREASE
            pace = known * (1.0 + (1.0 - DECREASE) * (passed / PLATEAU_S - 1.0) ** 3)
        else:
            pace = self._start * 2.0 ** min(passed / DOUBLING_S, 64.0)
        self._set(pace, now)

    def _set(self, pace: float, now: float) -> None:
        self._grown_at = now
        if self._bucket is None:
            return
        pace = min(pace, NO_PACE_PER_S)
        self._bucket.keep(math.inf, now)
        self._bucket.rate = pace
        self._bucket.capacity = max(1.0, pace * BURST_S)
