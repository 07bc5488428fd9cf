"""The counts of one operator. A value without state: safe in any thread."""

from __future__ import annotations

from typing import NamedTuple


class OperatorStatistics(NamedTuple):
    """What one operator has done so far; a snapshot that does not change."""

    rows_in: int
    """Rows admitted."""
    results: int
    """Rows whose results were emitted."""
    in_flight: int
    """Calls that hold a slot now."""
    waiting: int
    """Rows that wait for a slot or for their retry now."""
    calls: int
    """Attempts begun."""
    retries: int
    """Attempts that failed and were followed by another."""
    errors: int
    """Rows that failed for good, time-outs included."""
    timeouts: int
    """Attempts and rows that met a limit of time."""
    late: int
    """Outcomes that came after their call's time-out and were ignored."""
    abandoned: int
    """Calls that did not end when they were cancelled."""
