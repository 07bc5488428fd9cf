"""Decides after which time a call is hedged, and how many hedges there are. Confined to the mailbox thread.

`pillarbox.aio.hedging` makes the calls and settles them.
"""

# Why credit, and not a share of the last seconds. A service that becomes slow makes every call a slow one,
# and a hedge of each would double its load just then. Credit that comes with calls, and of which there is
# never more than for a few, bounds that without a window of time to choose.
#
# Which times a quantile is of. Of calls that have answered, the first of each attempt; where its hedge came
# first, the time until then stands for it. That is less than the call would have taken, and more than
# `after`: its rank is right, which is all that a quantile asks. Times of the calls that won, in its place,
# would make every slow call a fast one, and the quantile would fall until every call is hedged.

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from pillarbox.aio.calls import Call
from pillarbox.aio.hedge import Hedge
from pillarbox.aio.policy_parts import OptionPolicy, PolicyParts

START_CREDIT = 2.0
"""Hedges that no call has paid for: a task of a few rows may have one slow call, too."""
MOST_CREDIT = 10.0
"""Hedges that may be saved up, unless more of the calls in flight may be hedged."""
RECENT_CALLS = 1000
"""Calls whose times the quantile is of: with 99 of 100, ten are above it."""
LEAST_CALLS = 20
"""Calls before which nothing is known of their times."""
LEAST_AFTER_S = 0.001
"""Seconds that a call may take in any case: the resolution of an event loop's timers."""
NEW_CALLS = 32
"""Calls after which the quantile is looked at anew."""
_ROUNDING = 1e-9
"""Twenty times 0.05 may be less than 1 in sums of floats."""


class HedgePolicy(OptionPolicy):
    """The decisions of a `Hedge` for one operator.

    capacity: calls in flight, at most. clock: seconds. `after` are the seconds after which a call is slow,
    None while they are not known. `hedged` and `won` count hedges, and those that answered first.
    """

    def __init__(self, hedge: Hedge, capacity: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._share = hedge.budget
        self._most = max(MOST_CREDIT, hedge.budget * capacity)
        self._credit = START_CREDIT
        self._quantile = hedge.quantile
        self._recent: deque[float] = deque(maxlen=RECENT_CALLS)
        self._new = 0
        if self._quantile is not None:
            # Of the times, some must be above.
            self._least = max(LEAST_CALLS, math.ceil(1.0 / (1.0 - self._quantile) - _ROUNDING))
        else:
            self.skips = frozenset(["ended"])
        self.after: float | None = hedge.seconds
        self.calls = hedge.calls
        """Calls of one attempt, at most."""
        self.hedged = self.won = 0

    @classmethod
    def of(cls, parts: PolicyParts) -> HedgePolicy:
        """See `OptionPolicy.of`."""
        options = parts.options
        assert options.hedge is not None
        return cls(options.hedge, options.max_capacity, parts.clock)

    def totals(self) -> dict[str, int]:
        """Counts of hedges, by the fields of `Totals`. Any thread."""
        return {"hedged": self.hedged, "hedges_won": self.won}

    @property
    def affordable(self) -> int:
        """Hedges that may begin now."""
        return int(self._credit + _ROUNDING)

    def begin(self, calls: Sequence[Call]) -> None:
        """Count a call: a first one pays for hedges, a hedge costs one."""
        if calls[0].hedges is None:
            self._credit = min(self._most, self._credit + self._share)
        else:
            self._credit -= 1.0
            self.hedged += 1

    def ended(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Learn from a call that was answered what calls take."""
        if error is not None:
            return
        first = calls[0].hedges
        self._recent.append(seconds if first is None else self._clock() - first.began)
        self._new += 1
        known = len(self._recent)
        if known >= self._least and (self.after is None or self._new >= NEW_CALLS):
            assert self._quantile is not None
            self._new = 0
            self.after = max(LEAST_AFTER_S, sorted(self._recent)[math.ceil(self._quantile * known) - 1])
