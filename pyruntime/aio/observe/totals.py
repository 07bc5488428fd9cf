"""What operators have done, in a form that adds up over tasks and travels as JSON.

Values without state: safe in any thread. Progress files, exporters, the listener and the report all use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pillarbox.aio.meter import OperatorStatistics
from pillarbox.mailbox.histogram import (
    LatencyHistogram,
    LatencySnapshot,
    merge_snapshots,
    seconds_of,
    snapshot_of,
)

VERSION = 1
"""The version of the JSON form. A reader takes no other: the workers run the same Pillarbox as the driver."""

NO_LATENCY = LatencyHistogram().snapshot()


@dataclass(frozen=True)
class Totals:
    """What one or more operators have done so far."""

    rows_in: int = 0
    """Rows admitted."""
    results: int = 0
    """Rows whose results were emitted."""
    calls: int = 0
    """Attempts at calls: what the service saw."""
    retries: int = 0
    """Attempts that failed and were followed by another."""
    errors: int = 0
    """Rows that failed for good, time-outs included."""
    timeouts: int = 0
    """Attempts and rows that met a limit of time."""
    late: int = 0
    """Outcomes that came after their call's time-out and were ignored."""
    abandoned: int = 0
    """Calls that did not end when they were cancelled."""
    shared: int = 0
    """Rows that shared the call of an equal one."""
    batches: int = 0
    """Calls that were made with a list of rows."""
    not_called: int = 0
    """Rows that were not called, since a budget was used up."""
    found: int = 0
    """Rows whose results were found in the ledger."""
    tokens: float = 0.0
    """Tokens, as the option `usage` gives them."""
    cost: float = 0.0
    """Cost, as the option `usage` gives it."""
    rate_granted: int = 0
    """Calls that the rate has let through."""
    cool_downs: int = 0
    """Times that all calls were held back since the service asked for it."""
    in_flight: int = 0
    """Calls in flight now."""
    waiting: int = 0
    """Rows that wait for a slot, for the rate or for their retry now."""
    finished_waiting: int = 0
    """Rows that have finished and wait for their order now."""
    held_bytes: int = 0
    """Bytes of rows held now, by estimate."""
    capacity: int = 0
    """Calls that may be in flight now."""
    held_splits: int = 0
    """Splits of a source that event-time alignment holds back now."""
    held_seconds: float = 0.0
    """Seconds for which it has held splits back for the same ones."""
    elapsed: float = 0.0
    """Seconds that operators have run, added up."""
    retries_by_reason: Mapping[str, int] = field(default_factory=dict)
    """Retries by the class of the error; "result" for a predicate, "attempt_timeout" for a limit of time."""
    errors_by_type: Mapping[str, int] = field(default_factory=dict)
    """Errors by their class."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds by what the time of the slots went on: see `pillarbox.aio.meter.SPENT`."""
    latency: LatencySnapshot = NO_LATENCY
    """Seconds that attempts took."""
    call_latency: LatencySnapshot = NO_LATENCY
    """Seconds that rows took over all their attempts."""

    @property
    def mean_latency(self) -> float:
        """Seconds that an attempt took in the mean, off by a sixteenth at most; 0 without any."""
        return seconds_of(self.latency) / self.latency.measurements if self.latency.measurements else 0.0


ROWS = ("rows_in", "results", "not_called", "found")
"""Counts of rows: a task that runs again counts them again."""
COUNTS = (
    "calls",
    "retries",
    "errors",
    "timeouts",
    "late",
    "abandoned",
    "shared",
    "batches",
    "tokens",
    "cost",
    "rate_granted",
    "cool_downs",
    "elapsed",
)
"""Counts that only grow, over all attempts of a task."""
LEVELS = (
    "in_flight",
    "waiting",
    "finished_waiting",
    "held_bytes",
    "capacity",
    "held_splits",
    "held_seconds",
)
"""How much there is now: none when the operator has ended."""
TABLES = ("retries_by_reason", "errors_by_type", "spent")
"""Counts by a key."""
HISTOGRAMS = ("latency", "call_latency")

_NUMBERS = (*ROWS, *COUNTS, *LEVELS)


def totals_of(statistics: OperatorStatistics | None) -> Totals:
    """The statistics of one operator as totals; those of an operator that has not begun are None."""
    if statistics is None:
        return Totals()
    given = statistics._asdict()
    return Totals(**{name: given[name] for name in (*_NUMBERS, *TABLES, *HISTOGRAMS) if name in given})


def merge(totals: Iterable[Totals]) -> Totals:
    """What several operators have done together: sums, and the buckets of histograms added up exactly."""
    some = list(totals)
    if len(some) == 1 and type(some[0]) is Totals:
        return some[0]
    return Totals(**merged_fields(some))


def merged_fields(totals: Iterable[Totals]) -> dict[str, Any]:
    """The fields of `merge(totals)`, for classes that have more."""
    some = list(totals)
    fields: dict[str, Any] = {name: sum(getattr(each, name) for each in some) for name in _NUMBERS}
    for name in TABLES:
        table: dict[str, Any] = {}
        for each in some:
            for key, value in getattr(each, name).items():
                table[key] = table.get(key, 0) + value
        fields[name] = table
    for name in HISTOGRAMS:
        fields[name] = merge_snapshots(getattr(each, name) for each in some)
    return fields


def ended(totals: Totals) -> Totals:
    """The same of an operator that runs no more: nothing is in flight, nothing waits."""
    none: dict[str, Any] = dict.fromkeys(LEVELS, 0)
    return dataclasses.replace(totals, **none)


def without_rows(totals: Totals) -> Totals:
    """The same of an attempt whose rows another attempt counts."""
    none: dict[str, Any] = dict.fromkeys(ROWS, 0)
    return dataclasses.replace(totals, **none)


def to_json(totals: Totals) -> dict[str, Any]:
    """The totals as what `json.dumps` takes; `from_json` gives equal ones back."""
    written: dict[str, Any] = {"version": VERSION}
    written |= {name: getattr(totals, name) for name in _NUMBERS}
    written |= {name: dict(getattr(totals, name)) for name in TABLES}
    for name in HISTOGRAMS:
        histogram = getattr(totals, name)
        written[name] = {"max": histogram.max, "buckets": [list(bucket) for bucket in histogram.buckets]}
    return written


def from_json(written: Any) -> Totals:
    """The totals that `to_json` wrote. Raises ValueError for anything else, and for another version."""
    if not isinstance(written, dict) or written.get("version") != VERSION:
        version = written.get("version") if isinstance(written, dict) else None
        raise ValueError(f"version={version!r}: these totals are not of version {VERSION}")
    try:
        fields: dict[str, Any] = {name: _number(written[name]) for name in _NUMBERS}
        for name in TABLES:
            fields[name] = {str(key): _number(value) for key, value in written[name].items()}
        for name in HISTOGRAMS:
            buckets = [(float(bound), int(count)) for bound, count in written[name]["buckets"]]
            fields[name] = snapshot_of(buckets, float(written[name]["max"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"these are no totals: {error!r}") from error
    return Totals(**fields)


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value
