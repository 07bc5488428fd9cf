"""Calls in flight, where their number is not given: the option `Adaptive`, and the controller that finds it.

`Adaptive` is a value without state: safe in any thread. A controller belongs to one operator and its mailbox
thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from pillarbox.validate import check_positive_int, naming_arguments

MIN_SAMPLES = 64
"""Latencies that a mean is made of, at least: fewer are noise."""
FULL_SHARE = 0.75
"""Share of the limit that must have been in flight for the limit to be raised."""
CUTS_TO_BELIEVE = 3
"""Cuts in a row that did not help: then the service is slower than it was, and not overloaded by us."""
PROBE_AFTER_TRIPS = 250.0
"""Round trips after which the latency without a queue is measured again."""
PROBE_SHARE = 0.25
"""Share of the calls that are in flight while it is, for a few round trips."""
DECREASE = 0.7
"""Share of the limit that a sign of overload leaves."""
LATENCY_FACTOR = 2.0
"""Times the latency without a queue above which the mean latency is a sign."""
MAX_ERROR_SHARE = 0.1
"""Share of calls that may fail beyond what usually fails."""
MAX_OVERLOAD_SHARE = 0.02
"""Share of calls that the service may refuse: fewer are sporadic, or another client is to blame."""
MIN_OVERLOAD_WINDOW = 16
"""Outcomes among which overloads are counted, at least: one refusal of fewer is chance."""


@naming_arguments
@dataclass(frozen=True)
class Adaptive:
    """Adapt the number of calls in flight: additive increase, multiplicative decrease.

    The limit begins at `start` and doubles in each round trip until the first sign of overload. Then it grows
    by one for each `limit` calls that succeed while the limit is in use. It is multiplied by 0.7, at most
    once in a round trip, in three cases: the service answers "overloaded" (429) to more than 2 % of the
    calls; more than 10 % of the calls fail beyond the usual share; the mean latency is above twice the
    latency without a queue. That latency is measured again every 250 round trips, with a quarter of the calls
    in flight, so that the limit follows a service that has become slower or faster.

    start, least, most: calls in flight, 1 or more.

        >>> from pillarbox import Adaptive, async_map
        >>> async def call(row):
        ...     return row + 1
        >>> list(async_map([1, 2, 3], call, capacity=Adaptive(start=2, most=16)))
        [2, 3, 4]

    AIMD is from Chiu and Jain (1989), latency as a sign from TCP Vegas (Brakmo, 1994), its use for calls from
    Netflix's concurrency-limits, the probe and the tolerated share of losses from TCP BBR (Cardwell, 2016).

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    start: int = 16
    least: int = 1
    most: int = 1024

    def __post_init__(self) -> None:
        for name in ("start", "least", "most"):
            check_positive_int(name, getattr(self, name))
        if not self.least <= self.start <= self.most:
            raise ValueError(
                f"start={self.start!r}: must be between least={self.least!r} and most={self.most!r}"
            )

    def open(self, clock: Callable[[], float] = time.monotonic) -> AdaptiveController:
        """Return a controller of the limit of one operator. `clock` returns seconds and is monotonic."""
        return AdaptiveController(self, clock)


class _Failures:
    """The failures of the last outcomes, by which a limit is cut: errors, overloads of a round trip."""

    __slots__ = ("_errors", "_looked_at", "_outcomes", "_overloads", "_usual_errors")

    def __init__(self) -> None:
        # Since the last look at errors.
        self._outcomes = 0
        self._errors = 0
        self._usual_errors = 0.0
        # Since the last look at overloads.
        self._looked_at = 0
        self._overloads = 0

    def ended(self, limit: int) -> bool:
        """Count an attempt that has ended; True if more failed than usually do. limit: calls in flight."""
        if self._looked_at >= max(MIN_OVERLOAD_WINDOW, limit):
            self._looked_at = self._overloads = 0
        self._looked_at += 1
        self._outcomes += 1
        if self._outcomes < max(MIN_SAMPLES, limit):
            return False
        share = self._errors / self._outcomes
        # Twice what chance makes of so few.
        chance = 2 * math.sqrt(share * (1 - share) / self._outcomes)
        is_sign = share > self._usual_errors + MAX_ERROR_SHARE + chance
        self._usual_errors += (share - self._usual_errors) / 4
        self._outcomes = self._errors = 0
        return is_sign

    def failed(self) -> None:
        """Count an attempt that has ended as an error."""
        self._errors += 1

    def overloaded(self, limit: int, counts: bool) -> bool:
        """Count an attempt that has ended as an overload, if it `counts`; True if these are too many."""
        self._outcomes -= 1
        self._overloads += counts
        outcomes = max(MIN_OVERLOAD_WINDOW, limit)
        # The share of a round trip that is borne, and what chance adds.
        borne = MAX_OVERLOAD_SHARE * outcomes
        if self._overloads <= borne + 2 * math.sqrt(borne * (1 - MAX_OVERLOAD_SHARE)):
            return False
        self._overloads = self._looked_at = 0
        return True


class AdaptiveController:
    """Finds one limit by the attempts that have ended. On the mailbox thread.

    How many calls were in flight it knows by Little's law: the latencies that ended in some time, summed,
    divided by that time.
    """

    def __init__(self, options: Adaptive, clock: Callable[[], float]) -> None:
        self.limit = options.start
        """Calls that may be in flight now."""
        self._options = options
        self._clock = clock
        self._exact = float(options.start)
        self._doubling = True
        now = clock()
        # Since the last raise.
        self._since = now
        self._successes = 0
        self._seconds = 0.0
        self._failures = _Failures()
        # The latency: smoothed, without a queue, and what the present measurement has.
        self._latency = 0.0
        self._samples = 0
        self._base = math.inf
        self._cuts = 0
        # Until then, or after so many outcomes, what ends was begun before the last cut.
        self._settled_at = now
        self._unsettled = 0
        # Unknown until the length of a round trip is known.
        self._probe_at = math.inf
        self._before_probe: float | None = None

    def succeeded(self, seconds: float) -> None:
        """An attempt succeeded after so many seconds."""
        now = self._clock()
        self._ended(now)
        self._successes += 1
        self._seconds += seconds
        if self._unsettled <= 0:
            self._samples += 1
            # A plain mean at first, then one that forgets.
            span = min(self._samples, max(MIN_SAMPLES, self.limit))
            self._latency += (seconds - self._latency) / span
            if self._samples >= max(MIN_SAMPLES, self.limit):
                self._judge(now)
        if self._successes >= (1 if self._doubling else self.limit) and self._before_probe is None:
            self._grow(now)

    def failed(self, overloaded: bool, seconds: float | None = None) -> None:
        """An attempt failed; `overloaded` if the service said that it has too much to do.

        seconds: how long it was in flight; None where nobody knows, then as long as others.
        """
        now = self._clock()
        self._ended(now)
        self._seconds += self._latency if seconds is None else seconds
        # Calls that were begun before the last cut say nothing about the limit that is now.
        if not overloaded:
            self._failures.failed()
        elif self._failures.overloaded(self.limit, counts=self._unsettled <= 0):
            self._cut(now)

    def _ended(self, now: float) -> None:
        if self._unsettled > 0:
            self._unsettled = 0 if now >= self._settled_at else self._unsettled - 1
        if self._failures.ended(self.limit):
            self._cut(now)

    def _judge(self, now: float) -> None:
        """There is a mean of the latencies since the last cut."""
        if self._before_probe is not None:
            self._base = self._latency
            self._set(self._before_probe)
            self._before_probe = None
            self._begin_measuring(now)
            return
        if self._latency < self._base:
            self._base = self._latency
        if self._latency > LATENCY_FACTOR * self._base:
            self._cuts += 1
            if self._cuts > CUTS_TO_BELIEVE:
                self._cuts = 0
                self._base = self._latency
            else:
                self._cut(now)
                return
        else:
            self._cuts = 0
        if now >= self._probe_at and self._exact > self._options.least:
            self._before_probe = self._exact
            self._begin_measuring(now)
            self._set(self._exact * PROBE_SHARE)
        if not now < self._probe_at < math.inf:
            self._probe_at = now + PROBE_AFTER_TRIPS * self._latency

    def _grow(self, now: float) -> None:
        used = now <= self._since or self._seconds / (now - self._since) >= FULL_SHARE * self.limit
        if self._doubling:
            # Calls of a limit that grows say little one by one: look at those of a whole limit.
            if self._successes < self.limit:
                return
            if used:
                self._set(self._exact * 2)
        elif used:
            self._set(self._exact + 1.0)
        self._since = now
        self._successes = 0
        self._seconds = 0.0

    def _cut(self, now: float) -> None:
        if self._unsettled > 0 and now < self._settled_at:
            return
        self._doubling = False
        self._before_probe = None
        self._begin_measuring(now)
        self._set(self._exact * DECREASE)
        self._since = now
        self._successes = 0
        self._seconds = 0.0

    def _begin_measuring(self, now: float) -> None:
        """Begin to measure, after a round trip: the calls in flight were begun under another limit."""
        self._unsettled = self.limit
        self._settled_at = now + (2 * self._latency if self._latency > 0.0 else math.inf)
        self._samples = 0

    def _set(self, limit: float) -> None:
        self._exact = min(max(limit, float(self._options.least)), float(self._options.most))
        self.limit = int(self._exact)
