"""The one set of instruments: what operators count, in a form that adds up over tasks and travels as JSON.

Values without state: safe in any thread. The bar, the report, the exporters and the listener read `Totals`.
"""

# Each field of `Totals` carries its own description: how it adds up, under which name it is exported, its
# unit. Exporters, JSON and the report walk over the descriptions, so that a new count is one new line here.
# The alternative, counters of prometheus_client or OpenTelemetry in the operator itself, would put a lock and
# a look-up of labels into the way of each row, and would not add up over the processes of Spark's tasks.

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pillarbox.mailbox.metrics import LatencyHistogram, LatencySnapshot, merge_snapshots

SPENT = {
    "calls": "slots that were busy",
    "loop": "the event loop was held up, by code that blocks or computes",
    "input": "no row was there",
    "order": "the window was full of rows that wait for one before them",
    "output": "what takes the results had no room",
    "rate": "the rate or a cool-down held calls back",
    "retry": "rows waited for their retry",
    "ledger": "the ledger's disk, or another attempt of the same task, was waited for",
    "end": "the last calls were waited for",
}
"""The uses of the slots' time. Half of the slots busy for a second are half a second of "calls"."""


TABLES = ("table", "levels", "most", "least")
"""The kinds of instruments that hold numbers by a key."""

NO_LATENCY = LatencyHistogram().snapshot()


class Instrument(NamedTuple):
    """The description of one field of `Totals`."""

    kind: str
    """"row" counts rows, which a task that runs again counts again; "count" only grows, over all attempts of
    a task; "level" is an amount of now, and nothing when the operator has ended; "table" holds counts by a
    key, and "levels" amounts of now; "most" and "least" hold amounts of now that all tasks see, of which the
    largest or the smallest counts; "histogram" holds durations; "histograms" holds such by a key."""
    help: str
    """A description for readers of metrics."""
    export: str | None
    """The name for exporters, without prefix, unit and `_total`; None for what is not exported."""
    unit: str
    """The unit in the words of Prometheus; empty for plain counts."""
    label: str
    """The label that the keys of a table go to; two, with a space between them, for keys of two parts."""


def _of(kind: str, help: str, export: str | None = "", label: str = "", unit: str = "") -> Any:
    """The field of `Totals` of this description. export: "" for the name of the field."""
    metadata = {"instrument": Instrument(kind, help, export, unit, label)}
    if kind in (*TABLES, "histograms"):
        return field(default_factory=dict, metadata=metadata)
    return field(default=NO_LATENCY if kind == "histogram" else 0, metadata=metadata)


@dataclass(frozen=True)
class Totals:
    """The counts of one operator, or of several added up, at one moment."""

    rows_in: int = _of("row", "Rows admitted")
    results: int = _of("row", "Rows whose results were emitted")
    not_called: int = _of("row", "Rows not called, since a budget was used up")
    found: int = _of("row", "Rows whose results were found in the ledger")
    calls: int = _of("count", "Attempts at calls: what the service saw; with batches, rows in them")
    retries: int = _of("count", "Attempts that failed and were followed by another", None)
    errors: int = _of("count", "Rows that failed for good, time-outs included", None)
    timeouts: int = _of("count", "Attempts and rows that met a limit of time")
    late: int = _of("count", "Outcomes that came after their call's time-out and were ignored")
    abandoned: int = _of("count", "Calls that did not end when they were cancelled")
    shared: int = _of("count", "Rows that shared the call of an equal one")
    batches: int = _of("count", "Calls made with a list of rows")
    hedged: int = _of("count", "Calls made since another call of their row was slow")
    hedges_won: int = _of("count", "Calls made since another one was slow that answered first")
    tokens: float = _of("count", "Tokens, as the usage function gives them")
    cost: float = _of("count", "Cost, as the usage function gives it")
    rate_granted: int = _of("count", "Calls that the rate has let through")
    cool_downs: int = _of("count", "Times that all calls were held back for an overloaded service")
    elapsed: float = _of("count", "Seconds that operators have run", None)
    in_flight: int = _of("level", "Calls in flight")
    waiting: int = _of("level", "Rows that wait for a slot, the rate or their retry")
    finished_waiting: int = _of("level", "Finished rows that wait to be emitted, most for their order")
    held_bytes: int = _of(
        "level", "Bytes of rows held, by estimate; 0 without max_bytes", "held", unit="bytes"
    )
    capacity: int = _of("level", "Calls that may be in flight")
    retries_by_reason: Mapping[str, int] = _of("table", "Attempts followed by another", "retries", "reason")
    """The class of the error; "result" for a predicate, "timeout.attempt" for a limit of time."""
    errors_by_type: Mapping[str, int] = _of("table", "Rows that failed for good", "errors", "type")
    spent: Mapping[str, float] = _of(
        "table", "Time of operators by what it went on", "spent", "on", "seconds"
    )
    """See `SPENT`."""
    waits: Mapping[str, int] = _of("levels", "Operators that wait, by what they wait for", None)
    """The things that have been waited for, for some seconds now, in words."""
    policies: Mapping[str, float] = _of("table", "Counts of the policies of calls", "policy", "name")
    """See `CallPolicy.statistics`."""
    endpoint_calls: Mapping[str, int] = _of(
        "table", "Requests that ended, by endpoint", "endpoint_calls", "server_address"
    )
    """By host and port, where a service has several endpoints."""
    endpoint_errors: Mapping[str, int] = _of(
        "table", "Requests that ended with a fault of the endpoint", "endpoint_errors", "server_address"
    )
    endpoint_seconds: Mapping[str, float] = _of(
        "table", "Time of requests, by endpoint", "endpoint_duration", "server_address", "seconds"
    )
    endpoint_resting: Mapping[str, int] = _of(
        "levels", "Operators for which the endpoint rests", "endpoint_resting", "server_address"
    )
    """0 for an endpoint that takes calls. See `Endpoints`."""
    limits_named: Mapping[str, float] = _of(
        "most", "Calls or tokens of a limit that the service has named", "limit_named", "server_address limit"
    )
    """By the endpoint, where there are several, a space, and what the limit counts: "one:80 tokens",
    " requests"."""
    limits_left: Mapping[str, float] = _of(
        "least", "What is left of a limit that the service has named", "limit_left", "server_address limit"
    )
    """The calls or tokens that may begin now, by the same keys, as a process knows it."""
    latency: LatencySnapshot = _of("histogram", "How long attempts took", "attempt_duration", unit="seconds")  # noqa: RUF009
    call_latency: LatencySnapshot = _of(  # noqa: RUF009
        "histogram", "How long rows took over all their attempts", "call_duration", unit="seconds"
    )
    # Only `pillarbox.aio.observe.gen_ai` exports these, by the series of `pillarbox.aio.gen_ai`.
    operation_duration: Mapping[str, LatencySnapshot] = _of(
        "histograms", "How long calls to generative AI took", None
    )
    token_usage: Mapping[str, LatencySnapshot] = _of("histograms", "Tokens of calls to generative AI", None)
    tokens_used: Mapping[str, float] = _of("table", "Tokens of calls to generative AI in all", None)

    @property
    def mean_latency(self) -> float:
        """Seconds that an attempt took in the mean, off by a sixteenth at most; 0 without any."""
        return self.latency.total / self.latency.measurements if self.latency.measurements else 0.0


INSTRUMENTS: dict[str, Instrument] = {
    each.name: each.metadata["instrument"] for each in dataclasses.fields(Totals)
}
"""The descriptions of the fields of `Totals`, by name."""


def instruments(*kinds: str) -> list[str]:
    """The names of the fields of these kinds."""
    return [name for name, each in INSTRUMENTS.items() if each.kind in kinds]


ROWS = instruments("row")
"""The fields that a task that runs again counts again."""


class TaskTotals(NamedTuple):
    """The totals of one operator in one task, over the task's attempts."""

    operator: int
    """The operator's number within the `Progress`, from 0."""
    stage: int
    """Spark's number of the stage."""
    partition: int
    """The partition."""
    attempts: int
    """Attempts of the task that have been seen."""
    running: bool
    """True while an attempt runs."""
    totals: Totals
    """The counts; rows are those of the latest attempt."""


def merge(totals: Iterable[Totals]) -> Totals:
    """The totals of several operators together: sums, and the buckets of histograms added up exactly."""
    some = list(totals)
    return some[0] if len(some) == 1 and type(some[0]) is Totals else Totals(**merged_fields(some))


def merged_fields(totals: Iterable[Totals]) -> dict[str, Any]:
    """The fields of `merge(totals)`, for classes that have more."""
    some = list(totals)
    return {
        name: _ADD.get(each.kind, sum)([getattr(one, name) for one in some])
        for name, each in INSTRUMENTS.items()
    }


def _add_tables(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    added: Counter[str] = Counter()
    for table in tables:
        added.update(table)
    return dict(added)


def _add_histograms(tables: Iterable[Mapping[str, LatencySnapshot]]) -> dict[str, LatencySnapshot]:
    some = list(tables)
    keys = dict.fromkeys(key for table in some for key in table)
    return {key: merge_snapshots([table[key] for table in some if key in table]) for key in keys}


def _choose(choice: Callable[..., Any]) -> Callable[[Iterable[Mapping[str, Any]]], dict[str, Any]]:
    def chosen(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        some = list(tables)
        keys = dict.fromkeys(key for table in some for key in table)
        return {key: choice(table[key] for table in some if key in table) for key in keys}

    return chosen


_ADD: dict[str, Any] = {
    "table": _add_tables,
    "levels": _add_tables,
    "most": _choose(max),
    "least": _choose(min),
    "histogram": merge_snapshots,
    "histograms": _add_histograms,
}


def ended(totals: Totals) -> Totals:
    """The same of an operator that runs no more: nothing is in flight, nothing waits."""
    return _without("level", totals)


def without_rows(totals: Totals) -> Totals:
    """The same of an attempt whose rows another attempt counts."""
    return _without("row", totals)


def _without(kind: str, totals: Totals) -> Totals:
    nothing: dict[str, Any] = dict.fromkeys(instruments(kind), 0)
    if kind == "level":
        nothing |= {name: {} for name in instruments("levels", "most", "least")}
    return dataclasses.replace(totals, **nothing)


# -- numbers as people read them -------------------------------------------------------------------


def number(value: float) -> str:
    """A number with three digits that count at least, as in 1,234,567, 12.3, 0.00123."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    text = f"{value:.{min(digits, 12)}f}"
    return text.rstrip("0").rstrip(".") if digits > 2 else text


def compact(value: float) -> str:
    """A number of at most eight characters, as in 123,456, 12.35 M, 1.2 T."""
    for least, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= least * 0.9995 and math.isfinite(value):
            return f"{float(f'{value / least:.4g}'):g} {unit}"
    return number(value)


def seconds(value: float) -> str:
    """A duration with its unit, as in 250 µs, 12.3 ms, 4.56 s, 3 min 20 s, 2 h 5 min."""
    if not math.isfinite(value):
        return str(value)
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        # What rounds up to a thousand of a unit is one of the next.
        if least * 0.9995 <= value < 59.95:
            return f"{float(f'{value / least:.3g}'):g} {unit}"
    if value < 1e-6:
        return "0 s" if value <= 0 else f"{value * 1e9:.0f} ns"
    whole = round(value)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 10:
        return f"{round(value / 3600):,} h"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def clock_time(left: float) -> str:
    """The time of day in `left` seconds, and the seconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time.time() + left))} (in {seconds(left)})"
