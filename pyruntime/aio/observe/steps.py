"""What happened between the points of a series: rates, limits, shares. Functions without state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pillarbox.aio.observe.series import Point
from pillarbox.aio.observe.totals import Totals


class Step(NamedTuple):
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
    """Cost until the end of the step."""


def rows_by_attempt(totals: Totals) -> float:
    """Rows that an attempt finishes, in the mean: less than one with retries, more with shared calls."""
    attempts = totals.latency.measurements
    return (totals.call_latency.measurements + totals.shared) / attempts if attempts else 1.0


def steps(points: Sequence[Point], totals: Totals, most: int) -> list[Step]:
    """At most `most` steps of about equal length, of points in the order of time."""
    if len(points) < 2:
        return []
    # Looks and the tasks' writes beat against each other; two looks together even that out.
    least = 2 if len(points) > 20 else 1
    stride = max(math.ceil((len(points) - 1) / most), least)
    # A short rest would give one step that is mostly chance.
    marks = list(range(0, len(points), stride))
    if len(points) - 1 - marks[-1] > stride / 2 or len(marks) == 1:
        marks.append(len(points) - 1)
    else:
        marks[-1] = len(points) - 1
    found: list[Step] = []
    for begin, end in pairwise(marks):
        first, last = points[begin], points[end]
        passed = last.seconds - first.seconds
        if passed <= 0:
            continue
        some = points[begin + 1 : end + 1]
        capacity = _mean([each.capacity for each in some])
        reach = max(len(points) // 20, 4)
        rate = _slot_rate(points[max(begin - reach, 0)], points[min(end + reach, len(points) - 1)], totals)
        found.append(
            Step(
                first.seconds,
                last.seconds,
                # A task that runs again counts its rows anew.
                max(last.results - first.results, 0) / passed,
                None if rate is None or last.attempts == 0 else capacity * rate,
                _mean([each.in_flight for each in some]),
                capacity,
                _mean([each.finished_waiting for each in some]),
                _shares([b - a for a, b in zip(first.spent, last.spent, strict=True)]),
                last.errors - first.errors,
                last.retries - first.retries,
                last.cost,
            )
        )
    return found


def _slot_rate(first: Point, last: Point, totals: Totals) -> float | None:
    """Rows a second that one slot finishes while it is busy.

    Between points that are some way apart: calls that end late end together, and a short span that has
    only such would show a limit that is none.
    """
    attempts, seconds = last.attempts - first.attempts, last.attempt_seconds - first.attempt_seconds
    if attempts <= 0 or seconds <= 0:
        return None
    batches = last.batches - first.batches
    in_call = (last.calls - first.calls) / batches if batches > 0 else 1.0
    return in_call * rows_by_attempt(totals) * attempts / seconds


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _shares(seconds: Sequence[float]) -> tuple[float, ...]:
    seconds = [max(each, 0.0) for each in seconds]
    total = sum(seconds)
    return tuple(each / total if total else 0.0 for each in seconds)
