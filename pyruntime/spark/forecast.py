"""From a measured sample to the whole job: duration, calls, cost, errors, with bounds. Pure."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.options import Options

RESAMPLES = 400
Z = 1.96
"""Of a normal distribution, for 19 in 20."""


class Range(NamedTuple):
    """An expected value and its bounds, of 19 in 20 samples."""

    expected: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        """All three, multiplied."""
        return Range(self.expected * factor, self.low * factor, self.high * factor)


class Sample(NamedTuple):
    """What calling a sample has shown. `durations` are of attempts, in seconds, each with its number."""

    rows: int
    calls: int
    batches: int
    errors: int
    capacity: int
    elapsed: float
    longest: float
    durations: list[tuple[float, int]]
    costs: list[float]
    units: list[float]
    errors_by_type: dict[str, int]
    shared: int = 0
    """Rows that shared the call of an equal one."""

    @property
    def called(self) -> int:
        """Rows that had calls of their own."""
        return self.rows - max(self.shared, self.rows - self.calls, 0)

    @classmethod
    def of(cls, counts: Totals, costs: list[float], units: list[float]) -> Sample:
        """The sample that an operator has counted."""
        durations = []
        for bound, number in counts.latency.buckets:
            # The middle of its bucket, each of which is at most an eighth wide.
            durations.append((min(bound * 15 / 16, counts.latency.max), number))
        return cls(
            counts.rows_in,
            counts.calls,
            counts.batches,
            counts.errors,
            counts.capacity,
            counts.elapsed,
            counts.latency.max,
            durations,
            costs,
            units,
            dict(counts.errors_by_type),
            counts.shared,
        )

    def to_json(self) -> str:
        """As text, for the way to the driver."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Sample:
        """What `to_json` gave."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Estimate:
    """What a job is expected to take. Printed, it says so in words.

    seconds: from the first call to the last result; Spark's own work comes on top. calls: attempts. cost: as
    `usage` gives it, None without. error_share: of rows that fail for good. p50, p95, longest: seconds of one
    attempt, as seen. bound: what bounds the speed, "capacity" or "rate". notes: what the numbers do not know.
    """

    rows: int
    sample: int
    tasks: int
    capacity: int
    seconds: Range
    calls: Range
    cost: Range | None
    error_share: Range
    p50: float
    p95: float
    longest: float
    bound: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows in {self.tasks} tasks at a time, {self.capacity} calls in flight in each; "
            f"{self.sample:,} rows were called",
            f"  duration   {_time(self.seconds.expected)}  ({_time(self.seconds.low)} to "
            f"{_time(self.seconds.high)}), bound by {self.bound}",
            f"  calls      {_number(self.calls)}",
        ]
        if self.cost is not None:
            lines.append(f"  cost       {_number(self.cost)}")
        share = self.error_share.times(100.0)
        lines.append(f"  errors     {share.expected:.2g} % of rows ({share.low:.2g} to {share.high:.2g} %)")
        lines.append(
            f"  one call   {_time(self.p50)} median, {_time(self.p95)} at 95 %, {_time(self.longest)} longest"
        )
        return "\n".join([*lines, *(f"  - {note}" for note in self.notes)])


def forecast(sample: Sample, options: Options, *, rows: int, tasks: int) -> Estimate:
    """What `rows` rows would take, given what `sample` rows took."""
    chance = random.Random(0)
    seconds = [duration for duration, number in sample.durations for _ in range(number)]
    mean = bootstrap(seconds, chance)
    retried = wilson(sample.calls - sample.called, max(1, sample.calls))
    per_call = Range(*(1.0 / (1.0 - min(share, 0.99)) for share in retried))
    called = _rows_called(sample, options, rows)
    calls = Range(*(a * b for a, b in zip(per_call, called, strict=True)))
    capacity = options.max_capacity if options.adaptive is None else sample.capacity
    together = _rows_together(sample, options)
    slots = tasks * min(capacity, math.ceil(rows / tasks / together)) * together
    # The last calls run while slots are idle already: one long call at the end.
    tail = Range(_quantile(seconds, 0.95), _quantile(seconds, 0.5), sample.longest)
    by_slots = Range(*(c * m / slots + t for c, m, t in zip(calls, mean, tail, strict=True)))
    by_rate = _seconds_by_rate(sample, options, calls, tasks, chance)
    bound_by_rate = by_rate is not None and by_rate.expected > by_slots.expected
    took = Range(*map(max, by_slots, by_rate)) if by_rate is not None else by_slots
    cost = None
    if sample.costs:
        each = bootstrap(sample.costs, chance)
        paid = called.times(len(sample.costs) / max(1, sample.called))
        cost = Range(*(a * b for a, b in zip(each, paid, strict=True)))
    return Estimate(
        rows,
        sample.rows,
        tasks,
        capacity,
        took,
        calls,
        cost,
        wilson(sample.errors, sample.rows),
        _quantile(seconds, 0.5),
        _quantile(seconds, 0.95),
        sample.longest,
        "rate" if bound_by_rate else "capacity",
        tuple(_notes(sample, options, rows, tasks, capacity)),
    )


def _rows_called(sample: Sample, options: Options, rows: int) -> Range:
    """Rows that have calls of their own; more rows have more equals, down to as many calls as were seen."""
    if sample.called == sample.rows and not options.dedupe:
        return Range(rows, rows, rows)
    share = wilson(sample.called, sample.rows)
    low = min(sample.called * 1.0, rows * share.low)
    return Range(rows * share.expected, low, rows * share.high)


def _rows_together(sample: Sample, options: Options) -> float:
    """Rows of one call."""
    if options.batch is None:
        return 1.0
    seen = sample.calls / max(1, sample.batches)
    return float(options.batch.size) if options.batch.weight is None else max(1.0, seen)


def _seconds_by_rate(
    sample: Sample, options: Options, calls: Range, tasks: int, chance: random.Random
) -> Range | None:
    rate = options.rate
    if rate is None:
        return None
    shares = 1 if options.limits is not None else tasks
    found = Range(0.0, 0.0, 0.0)
    if rate.per_second is not None:
        found = calls.times(1.0 / (rate.per_second * shares))
    if rate.units_per_minute is not None:
        weight = bootstrap(sample.units, chance) if sample.units else Range(1.0, 1.0, 1.0)
        minutes = (c * w / (rate.units_per_minute * shares) for c, w in zip(calls, weight, strict=True))
        found = Range(*map(max, found, (60.0 * each for each in minutes)))
    return found


def _notes(sample: Sample, options: Options, rows: int, tasks: int, capacity: int) -> list[str]:
    notes = []
    if sample.rows < rows:
        notes.append(
            f"what fewer than {300 / sample.rows:.2g} % of the rows do may be missing from the sample, "
            "and with it the longest calls"
        )
    if options.dedupe:
        notes.append(
            f"{sample.rows - sample.called:,} of {sample.rows:,} rows shared a call; among more rows more "
            "are equal, so that calls, cost and duration may be far below"
        )
    at_once = min(sample.rows, capacity)
    if at_once < tasks * capacity:
        notes.append(
            f"the sample had at most {at_once:,} calls in flight, the job has up to {tasks * capacity:,}: "
            "a service that slows down under load was not seen to"
        )
    if sample.errors and options.errors.mode == "fail":
        kinds = ", ".join(sorted(sample.errors_by_type))
        notes.append(f"rows failed ({kinds}), and errors='fail' would end the job with the first")
    limits = [name for name in ("max_calls", "max_cost") if getattr(options.budget, name) is not None]
    notes.extend(f"{name}={getattr(options.budget, name):,.12g} may end the calls before" for name in limits)
    return notes


def bootstrap(values: Sequence[float], chance: random.Random) -> Range:
    """The mean and where 19 in 20 means of resampled values lie (Efron's percentile bootstrap)."""
    if not values:
        return Range(0.0, 0.0, 0.0)
    count = len(values)
    means = sorted(sum(chance.choices(values, k=count)) / count for _ in range(RESAMPLES))
    cut = RESAMPLES // 40
    return Range(sum(values) / count, means[cut], means[-cut - 1])


def wilson(hits: int, count: int) -> Range:
    """A share and its bounds (Wilson's score interval), which are right for no hits as well."""
    share = hits / count
    scale = 1.0 + Z * Z / count
    middle = (share + Z * Z / (2 * count)) / scale
    half = Z / scale * math.sqrt(share * (1.0 - share) / count + Z * Z / (4.0 * count * count))
    return Range(share, max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def _time(seconds: float) -> str:
    if seconds < 1.0:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200.0 else f"{seconds / 3600:,.3g} h"


def _number(found: Range) -> str:
    expected, low, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in found)
    return f"{expected}  ({low} to {high})"
