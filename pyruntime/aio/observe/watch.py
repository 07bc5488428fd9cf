"""Looks at running operators from outside: `Watch`, and what exporters and reports may be given.

A `Watch` has a thread of its own, which only reads. Its properties are for any thread.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from pillarbox.aio.meter import OperatorStatistics
from pillarbox.aio.observe.series import Point, Series
from pillarbox.aio.observe.tasks import TaskTotals
from pillarbox.aio.observe.totals import Totals, totals_of
from pillarbox.validate import check_positive_number

INTERVAL = 0.25
"""Seconds between two looks."""


def read_totals(source: Any) -> Totals:
    """The totals of what may be observed, as they are now. Any thread.

    source: `Totals`; `OperatorStatistics`; an object with `totals` (a `Progress`, a `Watch`); an object with
        a method `statistics()` (what `async_map` gives); one with an `alignment_hold` (the
        `SourceCoordinator` of a task's source).

    Raises TypeError for anything else.
    """
    if isinstance(source, Totals):
        return source
    if isinstance(source, OperatorStatistics):
        return totals_of(source)
    totals = getattr(source, "totals", None)
    if isinstance(totals, Totals):
        return totals
    statistics = getattr(source, "statistics", None)
    if callable(statistics):
        found = statistics()
        if found is None or isinstance(found, OperatorStatistics):
            return totals_of(found)
    if hasattr(source, "alignment_hold"):
        hold = source.alignment_hold
        if hold is None:
            return Totals()
        return Totals(held_splits=len(hold.held), held_seconds=max(0.0, time.time() - hold.since))
    raise TypeError(
        f"source={source!r}: must be a Progress, a Watch, the iterator of async_map, a SourceCoordinator, "
        f"or totals, not {type(source).__name__}"
    )


class Watch:
    """Keeps how the totals of `source` went over time, while its `with` block runs.

        with async_map(fn, rows) as results, Watch(results) as watch:
            for result in results:
                ...
        report(watch, "report.html")

    source: the iterator of `async_map`, or what else `read_totals` takes.
    interval: seconds between two looks.

    Raises TypeError or ValueError at once for a bad argument.
    """

    def __init__(self, source: Any, *, interval: float = INTERVAL) -> None:
        check_positive_number("interval", interval)
        self._totals = read_totals(source)
        self._source = source
        self._interval = interval
        self._series = Series()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = 0.0

    @property
    def totals(self) -> Totals:
        """The totals as last seen. Any thread."""
        return self._totals

    @property
    def series(self) -> list[Point]:
        """The totals over time. Any thread."""
        return self._series.points()

    @property
    def tasks(self) -> list[TaskTotals]:
        """None: one operator has no tasks beside it."""
        return []

    def __enter__(self) -> Watch:
        if self._thread is not None:
            raise RuntimeError("this Watch has been used already: make another one")
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="pillarbox-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        self._look()
        while not self._stop.wait(self._interval):
            self._look()
        self._look()

    def _look(self) -> None:
        self._totals = read_totals(self._source)
        self._series.add(time.monotonic() - self._began, self._totals)
