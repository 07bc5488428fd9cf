"""How totals went over time: points at equal steps, thinned out when there are many.

`Series` belongs to the thread that adds to it; `points` gives any thread a list of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from pillarbox.aio.meter import SPENT
from pillarbox.aio.observe.totals import Totals
from pillarbox.mailbox.histogram import seconds_of

MOST = 600
"""Points kept, at most: more than a page has room for."""


class Point(NamedTuple):
    """What had been done at one moment, and the levels around it."""

    seconds: float
    """Seconds since the series began."""
    results: int
    """Rows emitted until then."""
    calls: int
    """Attempts until then."""
    errors: int
    """Rows failed for good until then."""
    retries: int
    """Retries until then."""
    batches: int
    """Calls made with a list of rows until then."""
    attempts: int
    """Attempts that have ended and were measured until then."""
    attempt_seconds: float
    """Seconds that these attempts took, added up."""
    rate_granted: int
    """Calls that the rate has let through until then."""
    cost: float
    """Cost until then."""
    spent: tuple[float, ...]
    """Seconds by what the time of the slots went on until then, in the order of `SPENT`."""
    in_flight: float
    """Calls in flight, in the mean since the point before."""
    waiting: float
    """Rows waiting for a slot, the rate or a retry, in the mean since the point before."""
    finished_waiting: float
    """Finished rows waiting for their order, in the mean since the point before."""
    capacity: float
    """Calls that may be in flight, in the mean since the point before."""


_FIRST_LEVEL = Point._fields.index("in_flight")


def point(seconds: float, totals: Totals) -> Point:
    """The totals as a point."""
    return Point(
        seconds,
        totals.results,
        totals.calls,
        totals.errors,
        totals.retries,
        totals.batches,
        totals.latency.measurements,
        seconds_of(totals.latency),
        totals.rate_granted,
        totals.cost,
        tuple(totals.spent.get(name, 0.0) for name in SPENT),
        totals.in_flight,
        totals.waiting,
        totals.finished_waiting,
        totals.capacity,
    )


class Series:
    """Points at equal steps, at most `most`. When it is full, each two points become one.

    Counts stay exact, since they are counts since the beginning; levels become means. The idea is that of
    a round-robin database (RRDtool) with one archive, which grows coarser instead of forgetting.
    """

    def __init__(self, most: int = MOST) -> None:
        if isinstance(most, bool) or not isinstance(most, int):
            raise TypeError(f"most={most!r}: must be a number of points")
        if most < 4:
            raise ValueError(f"most={most!r}: must be 4 points or more")
        self._pairs = (most - 1) // 2
        # Whole points, the one that is not whole yet, and the looks in that: one value, so that any thread
        # sees what belongs together.
        self._state: tuple[list[Point], Point | None, int] = ([], None, 0)
        self._looks = 1

    def add(self, seconds: float, totals: Totals) -> None:
        """Add what the totals were so many seconds after the beginning; times may not go back."""
        points, pending, looks = self._state
        pending = _joined(pending, looks, point(seconds, totals))
        looks += 1
        if looks < self._looks:
            self._state = points, pending, looks
            return
        points = [*points, pending]
        # The beginning stays a point of its own, or the first step would be lost.
        rest = points[1:]
        if len(rest) == self._pairs * 2:
            self._looks *= 2
            points = [points[0], *(_joined(a, 1, b) for a, b in zip(rest[::2], rest[1::2], strict=True))]
        self._state = points, None, 0

    def points(self) -> list[Point]:
        """All points in order of time, the one that is not whole yet included. Any thread."""
        points, pending, _ = self._state
        return list(points) if pending is None else [*points, pending]


def _joined(first: Point | None, looks: int, last: Point) -> Point:
    """One point of two, of which the first stands for so many looks and the last for one."""
    if first is None:
        return last
    levels = (
        (first[i] * looks + last[i]) / (looks + 1)  # type: ignore[operator]
        for i in range(_FIRST_LEVEL, len(Point._fields))
    )
    return Point(*last[:_FIRST_LEVEL], *levels)  # type: ignore[arg-type]
