"""The course of totals over time: points thinned out when there are many, and what happened between them.

`Watch` has a thread of its own, which only reads; its properties are for any thread. `Series` belongs to the
thread that adds to it; `points` gives any thread a list of its own. The rest has no state.
"""

# The course is taken by looking from outside, four times a second, and not by the operator as it goes: a look
# costs the operator nothing, and what it misses between two looks is in the counts of the next. A point holds
# counts since the beginning instead of rates, so that two points can become one without loss; a rate is the
# difference of two. That bounds memory by the width of a page, however long the job, where a ring of the last
# points would forget how it began.

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.aio.totals import INSTRUMENTS, SPENT, Totals
from pillarbox.thread_start import start_thread
from pillarbox.validate import check_positive_number

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_POINTS = 600
"""Points kept, at most: more than a page has room for."""

WATCH_INTERVAL_S, MAX_WATCH_INTERVAL_S = 0.25, 2.0
"""Seconds between two looks: usually, and where looks take long."""
MAX_LOOK_SHARE = 0.1
"""Share of a thread that looks may take: then they come less often."""


def read_totals(source: Any) -> Totals:
    """The totals of what may be observed, as they are now. Any thread.

    source: `Totals`; an object with `totals` (a `Progress`, a `Watch`), or with a method `statistics()` (the
        iterator of `async_map`).

    Raises TypeError for anything else.
    """
    if isinstance(source, Totals):
        return source
    if isinstance(getattr(source, "totals", None), Totals):
        return source.totals  # type: ignore[no-any-return]
    if callable(getattr(source, "statistics", None)):
        found = source.statistics()
        if found is None or isinstance(found, Totals):
            return found or Totals()
    raise TypeError(
        f"source={source!r}: must be a Progress, a Watch, the iterator of async_map, "
        f"or totals, not {type(source).__name__}"
    )


class Point(NamedTuple):
    """Counts until one moment, and the levels around it."""

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
    cost: float
    """Cost until then."""
    attempts: int
    """Attempts that have ended and were measured until then."""
    attempt_seconds: float
    """Seconds that these attempts took, added up."""
    spent: tuple[float, ...]
    """Seconds of the slots' time by its use until then, in the order of `SPENT`."""
    in_flight: float
    """Calls in flight."""
    finished_waiting: float
    """Finished rows waiting for their order."""
    capacity: float
    """Calls that may be in flight."""


_FIRST_LEVEL = Point._fields.index("in_flight")
_COPIED = [name for name in Point._fields if name in INSTRUMENTS and name != "spent"]


def point(seconds: float, totals: Totals) -> Point:
    """The totals as a point."""
    return Point(
        seconds=seconds,
        attempts=totals.latency.measurements,
        attempt_seconds=totals.latency.total,
        spent=tuple(totals.spent.get(name, 0.0) for name in SPENT),
        **{name: getattr(totals, name) for name in _COPIED},
    )


class Series:
    """Points at equal steps, at most `max_points` and the latest one. When it is full, every other one goes.

    Counts stay exact, since they are counts since the beginning. The idea is that of a round-robin database
    (RRDtool) with one archive, which grows coarser instead of forgetting.
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._kept: list[Point] = []
        self._looks, self._looks_per_point = 0, 1
        # Replaced as a whole, so that any thread sees what belongs together.
        self._points: list[Point] = []

    def add(self, seconds: float, totals: Totals) -> None:
        """Add the totals of so many seconds after the beginning; times may not go back."""
        # The latest look is always there, also where it will not stay: who looks wants to know of now.
        latest = point(seconds, totals)
        if self._looks % self._looks_per_point == 0:
            self._kept.append(latest)
        self._looks += 1
        if len(self._kept) > self._max_points:
            self._kept = self._kept[::2]
            self._looks_per_point *= 2
        self._points = [*self._kept, *([] if self._kept[-1] is latest else [latest])]

    def points(self) -> list[Point]:
        """All points in order of time, the latest one included. Any thread."""
        return [*self._points]


class Watch:
    """Record the totals of `source` over time while its `with` block runs.

        >>> from pillarbox import async_map
        >>> from pillarbox.aio.observe import Watch
        >>> async def call(row):
        ...     return row + 1
        >>> with async_map([1, 2, 3], call) as results, Watch(results) as watch:
        ...     numbers = list(results)
        >>> watch.totals.results, watch.totals.errors
        (3, 0)

    source: the iterator of `async_map`, a `Progress`, or totals. interval: seconds between two samples.

    Any thread. Raises TypeError or ValueError at once for a bad argument.
    """

    _totals: Totals

    def __init__(self, source: object, *, interval: float = WATCH_INTERVAL_S) -> None:
        self._interval = check_positive_number("interval", interval)
        self._source = source
        self._totals = self._look(0.0)
        self._series = Series()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def totals(self) -> Totals:
        """The totals as last seen. Any thread."""
        return self._totals

    @property
    def series(self) -> list[Point]:
        """The totals over time: some hundred points, however long. Any thread."""
        return self._series.points()

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError(f"this {type(self).__name__} has been used already: make another one")
        self._begin()
        self._thread = threading.Thread(target=self._run, name="pillarbox-watch", daemon=True)
        start_thread(self._thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _begin(self) -> None:
        """Prepare, before the thread begins to look."""

    def _look(self, seconds: float) -> Totals:
        """The totals now, so many seconds after the beginning."""
        return read_totals(self._source)

    def _show(self, is_last: bool) -> None:
        """Show the totals to a person, after each look."""

    def _run(self) -> None:
        began = time.monotonic()
        stopped = False
        # Once more after the end, or the last counts would be missing.
        while True:
            looked_at = time.monotonic()
            self._totals = self._look(looked_at - began)
            took = time.monotonic() - looked_at
            self._series.add(looked_at - began, self._totals)
            self._show(stopped)
            if stopped:
                return
            # Less often where a look takes long, as the adding up of hundreds of tasks does.
            pause = min(took / MAX_LOOK_SHARE, MAX_WATCH_INTERVAL_S)
            stopped = self._stop.wait(max(self._interval, pause))


class Interval(NamedTuple):
    """A span of time, and what happened in it."""

    begin: float
    """Seconds."""
    end: float
    """Seconds."""
    rows: float
    """Rows emitted a second."""
    limit: float | None
    """Rows a second that the slots allow: their number by the mean latency; None before any has ended."""
    in_flight: float
    """Calls in flight, in the mean."""
    capacity: float
    """Calls that may be in flight, in the mean."""
    finished_waiting: float
    """Finished rows that wait for their order, in the mean."""
    spent: tuple[float, ...]
    """Shares of the slots' time in the order of `SPENT`: 1 in all, or all 0."""
    errors: int
    """Rows that failed for good."""
    retries: int
    """Attempts followed by another."""
    cost: float
    """Cost until the end of the interval."""


def intervals(points: Sequence[Point], totals: Totals, max_intervals: int) -> list[Interval]:
    """At most `max_intervals` intervals of about equal length, of points in the order of time."""
    if len(points) < 2:
        return []
    last_point = len(points) - 1
    # Looks and the tasks' writes beat against each other; two looks together even that out.
    stride = max(math.ceil(last_point / max_intervals), 2 if len(points) > 20 else 1)
    marks = [*range(0, last_point, stride), last_point]
    # A short rest would give one interval that is mostly chance.
    if len(marks) > 2 and marks[-1] - marks[-2] <= stride / 2:
        del marks[-2]
    reach = max(len(points) // 20, 4)
    found: list[Interval] = []
    for begin, end in pairwise(marks):
        first, last = points[begin], points[end]
        passed = last.seconds - first.seconds
        if passed <= 0:
            continue
        some = points[begin + 1 : end + 1]
        in_flight, finished_waiting, capacity = (
            sum(column) / len(some) for column in zip(*(each[_FIRST_LEVEL:] for each in some), strict=True)
        )
        # Between points that are some way apart: calls that end late end together, and a short span that
        # has only such would show a limit that is none.
        rate = _slot_rate(points[max(begin - reach, 0)], points[min(end + reach, last_point)], totals)
        spent = [max(after - before, 0.0) for before, after in zip(first.spent, last.spent, strict=True)]
        found.append(
            Interval(
                begin=first.seconds,
                end=last.seconds,
                # A task that runs again counts its rows anew.
                rows=max(last.results - first.results, 0) / passed,
                limit=None if rate is None or last.attempts == 0 else capacity * rate,
                in_flight=in_flight,
                capacity=capacity,
                finished_waiting=finished_waiting,
                spent=tuple(each / (sum(spent) or 1.0) for each in spent),
                errors=last.errors - first.errors,
                retries=last.retries - first.retries,
                cost=last.cost,
            )
        )
    return found


def _slot_rate(first: Point, last: Point, totals: Totals) -> float | None:
    """Rows a second that one slot finishes while it is busy."""
    attempts, seconds = last.attempts - first.attempts, last.attempt_seconds - first.attempt_seconds
    if attempts <= 0 or seconds <= 0:
        return None
    batches = last.batches - first.batches
    rows_per_call = (last.calls - first.calls) / batches if batches > 0 else 1.0
    # Less than one with retries, more with shared calls.
    measured = max(totals.latency.measurements, 1)
    rows_per_attempt = (totals.call_latency.measurements + totals.shared) / measured
    return rows_per_call * rows_per_attempt * attempts / seconds
