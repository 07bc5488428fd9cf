"""A dry run: the time and cost of a job, from a sample that is really called.

`estimate_cost` is for the driver. `SampleTask` is sent to a worker and runs on its task thread; `forecast` is
arithmetic without state.
"""

# The bounds are those of resampling (Efron's bootstrap) for means and Wilson's score interval for shares. A
# normal distribution would be simpler, and wrong where it matters: durations and costs have long tails, and
# no error in a hundred rows does not mean none in a million. Both need no assumption, and no package.

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TextIO

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.batching import Batch
from pillarbox.aio.concurrency import Adaptive
from pillarbox.aio.limits.rate import Rate, SharedLimits
from pillarbox.aio.observe.totals import Totals, from_json, number, seconds, to_json
from pillarbox.aio.options import (
    UNSET,
    Budget,
    ErrorMode,
    Errors,
    Options,
    Timeout,
    given_options,
    resolve_options,
)
from pillarbox.aio.usage import usage_of
from pillarbox.spark.function import check_sendable, name_of, ship
from pillarbox.spark.operator_plan import OperatorPlan, plan_operator
from pillarbox.spark.records import ArrowInput, sliced
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.schema import parse_schema
from pillarbox.spark.worker import run_job
from pillarbox.validate import check_positive_int

SEED = 20
"""Of the sample, so that two estimates of the same data call for the same rows."""

RESAMPLES = 400
Z = 1.96
"""Of a normal distribution, for 19 in 20."""


class Range(NamedTuple):
    """An expected value and its bounds, of 19 in 20 samples."""

    expected: float
    low: float
    high: float

    def times(self, other: float | Range) -> Range:
        """All three, multiplied by a number or by those of another range."""
        factors = other if isinstance(other, Range) else (other, other, other)
        return Range(*(one * factor for one, factor in zip(self, factors, strict=True)))

    def __str__(self) -> str:
        return f"{number(self.expected)}  ({number(self.low)} to {number(self.high)})"


@dataclass(frozen=True)
class Estimate:
    """The time, calls and cost that a job is expected to take. Printed, it says so in words.

    seconds: from the first call to the last result; Spark's own work comes on top. calls: attempts. cost: as
    `usage` or the results say it, None without. error_share: of rows that fail for good. p50, p95, longest:
    seconds of one attempt, as seen. bound: what bounds the speed, "capacity" or "rate". notes: what the
    numbers do not know.
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
        expected, low, high = map(seconds, self.seconds)
        share = self.error_share.times(100.0)
        p50, p95, longest = map(seconds, (self.p50, self.p95, self.longest))
        lines = [
            f"{self.rows:,} rows in {self.tasks} tasks at a time, {self.capacity} calls in flight in each; "
            f"{self.sample:,} rows were called",
            f"  duration   {expected}  ({low} to {high}), bound by {self.bound}",
            f"  calls      {self.calls}",
            *([] if self.cost is None else [f"  cost       {self.cost}"]),
            f"  errors     {share.expected:.2g} % of rows ({share.low:.2g} to {share.high:.2g} %)",
            f"  one call   {p50} median, {p95} at 95 %, {longest} longest",
            *(f"  - {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def estimate_cost(
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    sample: int = 100,
    rows: int | None = None,
    tasks: int | None = None,
    schema: str | T.StructType | None = None,
    file: TextIO | None = None,
    # From `Options`, but ordered, ledger:
    capacity: int | Literal["auto"] | Adaptive = UNSET,
    timeout: float | Timeout | None = UNSET,
    retry: Any = UNSET,
    rate: Rate | None = UNSET,
    batch: Batch | None = UNSET,
    errors: ErrorMode | Errors = UNSET,
    budget: Budget | None = UNSET,
    limits: SharedLimits | None = UNSET,
    options: Options | None = None,
) -> Estimate:
    """Call `fn` for a sample of `df`, and say what `async_map` over all of it would take, call and cost.

    The calls of the sample are really made, in one task, under the options that are given, but for
    `max_calls`, `max_cost` and `errors`: failed rows are counted.

    sample: rows to call. rows: rows of `df`; None to count them, which is a job of Spark.
    tasks: tasks that run at a time; None for what the session and the partitions of `df` allow.
    schema: of results, to see whether they fit. file: where the estimate is printed; None for standard
        output.
    options: an `Options`, for those that have no name here.

    The bounds are those of 19 in 20 samples (bootstrap for means, Wilson's interval for shares). They know
    what the sample has seen: a kind of row that is rarer than 3 in `sample` may well be missing, and a
    service that is slower under the load of all tasks was not asked. The text says both.

    Raises TypeError or ValueError for a bad argument or an empty `df`. A result that does not fit is a
    failure of its row, as in the job.
    """
    given = given_options(locals())
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    if df.isStreaming:
        raise ValueError("df: is a stream, which has no number of rows; give a batch of the same data")
    check_positive_int("sample", sample)
    for name, value in (("rows", rows), ("tasks", tasks)):
        if value is not None:
            check_positive_int(name, value)
    resolved = resolve_options(options, given)
    token = check_sendable(fn, resolved)
    results = None if schema is None else parse_schema("schema", schema)
    if tasks is None:
        tasks = _tasks(df)
    known = rows is None
    if rows is None:
        rows = df.count()
    free = dataclasses.replace(
        resolved,
        errors=Errors("null", redact=resolved.errors.redact),
        budget=Budget(usage=resolved.budget.usage),
        # Results that a ledger has take no time, which is not the question.
        ledger=None,
        latency="normal",
        where=None,
    )
    plan = plan_operator(
        fn,
        free,
        session=df.sparkSession,
        token=token,
        progress=None,
        columns=df.columns,
        results=T.NullType() if results is None else results,
    )
    task = SampleTask(plan, results)
    # Some more than needed, since Spark takes a share and no number of rows.
    share = (1.5 * sample + 10) / max(rows, 1)
    sampled = df if share >= 1.0 else df.sample(False, share, SEED).limit(sample)
    if not known and share < 1.0 and sampled.count() < sample:
        # `df` is smaller than `rows` says, as it is where one tries with a part.
        sampled = df
    run = ship(task.run, name_of(fn))
    # In one task: its calls in flight are those that one task of the job will have.
    measured = sampled.limit(sample).coalesce(1).mapInArrow(run, "measured string").collect()
    if not measured:
        raise ValueError("df: has no rows, so there is nothing to estimate from")
    found = forecast(read_sample(measured[0].measured), resolved, rows=rows, tasks=tasks)
    print(found, file=file)
    return found


def _tasks(df: DataFrame) -> int:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise ValueError("tasks=None: Spark Connect does not tell how many tasks run at a time; give tasks")
    return max(1, min(df.sparkSession.sparkContext.defaultParallelism, df.rdd.getNumPartitions()))


class Sample(NamedTuple):
    """The outcome of calling a sample."""

    totals: Totals
    durations: list[float]
    """Seconds of the attempts."""
    costs: list[float]
    """Costs of the results, one each where `usage` gives them."""
    units: list[float]
    """Weights of the attempts, one each where the rate has them."""

    @property
    def called(self) -> int:
        """Rows that had calls of their own."""
        totals = self.totals
        return totals.rows_in - max(totals.shared, totals.rows_in - totals.calls, 0)


def read_sample(text: str) -> Sample:
    """The sample that a `SampleTask` has measured."""
    measured = json.loads(text)
    totals = from_json(measured["totals"])
    durations = [
        # The middle of its bucket, each of which is at most an eighth wide.
        min(bound * 15 / 16, totals.latency.max)
        for bound, count in totals.latency.buckets
        for _ in range(count)
    ]
    return Sample(totals, durations, measured["costs"], measured["units"])


class SampleTask:
    """Calls the function for the rows of a sample, and gives one row: what was measured, as JSON."""

    def __init__(self, plan: OperatorPlan, schema: T.StructType | None) -> None:
        self._plan = plan
        self._schema = schema

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The measurements of a partition; none for an empty one."""
        costs: list[float] = []
        units: list[float] = []
        ended: list[Totals] = []
        plan = dataclasses.replace(self._plan, options=_watched(self._plan.options, costs, units))
        encoder = None if self._schema is None else RowEncoder(self._schema, plan.time_zone)
        chunks = run_job(plan, ArrowInput(sliced(batches)), convert=encoder, ended=ended.append)
        with closing(chunks):
            for _ in chunks:
                pass
        (totals,) = ended
        if totals.rows_in:
            measured = json.dumps({"totals": to_json(totals), "costs": costs, "units": units})
            yield pa.RecordBatch.from_pydict({"measured": [measured]})


def _watched(options: Options, costs: list[float], units: list[float]) -> Options:
    """The options, with functions that also write down what they give."""
    if options.budget.usage is not None:
        usage = options.budget.usage

        def watched_usage(row: Any, result: Any) -> Any:
            used = usage_of(usage(row, result))
            costs.append(used.cost)
            return used

        options = dataclasses.replace(options, budget=Budget(usage=watched_usage))
    if options.rate is not None and options.rate.weight is not None:
        weight = options.rate.weight

        def watched_weight(row: Any) -> float:
            units.append(float(weight(row)))
            return units[-1]

        options = dataclasses.replace(options, rate=dataclasses.replace(options.rate, weight=watched_weight))
    return options


def forecast(sample: Sample, options: Options, *, rows: int, tasks: int) -> Estimate:
    """The estimate for `rows` rows, given what the rows of the sample took."""
    # One seed: the same sample gives the same bounds.
    totals, chance = sample.totals, random.Random(0)
    capacity = options.max_capacity if options.adaptive is None else totals.capacity
    retried = wilson(totals.calls - sample.called, max(1, totals.calls))
    called = _rows_called(sample, options, rows)
    # Of a small sample the bound may be 1, and calls without end: a hundred a row say that it is bad.
    calls = called.times(Range(*(1.0 / (1.0 - min(share, 0.99)) for share in retried)))
    # A batch shares a slot.
    together = 1.0
    if options.batch is not None:
        seen = max(1.0, totals.calls / max(1, totals.batches))
        together = seen if options.batch.weight is not None else float(options.batch.size)
    slots = tasks * min(capacity, math.ceil(rows / tasks / together)) * together
    # The last calls run while slots are idle already: one long call at the end.
    p50, p95 = _quantile(sample.durations, 0.5), _quantile(sample.durations, 0.95)
    tail = (p95, p50, totals.latency.max)
    work = calls.times(bootstrap(sample.durations, chance))
    by_slots = Range(*(each / slots + last for each, last in zip(work, tail, strict=True)))
    by_rate = _seconds_by_rate(sample, options, calls, tasks, chance)
    cost = None
    if sample.costs:
        # Only results have a cost: rows that failed bring the mean of all rows down.
        cost = bootstrap(sample.costs, chance).times(called).times(len(sample.costs) / max(1, sample.called))
    elif totals.cost:
        # Of results that say it themselves only the sum is known.
        mean = totals.cost / max(1, sample.called)
        cost = called.times(Range(mean, mean, mean))
    return Estimate(
        rows=rows,
        sample=totals.rows_in,
        tasks=tasks,
        capacity=capacity,
        seconds=Range(*map(max, by_slots, by_rate)),
        calls=calls,
        cost=cost,
        error_share=wilson(totals.errors, totals.rows_in),
        p50=p50,
        p95=p95,
        longest=totals.latency.max,
        bound="rate" if by_rate.expected > by_slots.expected else "capacity",
        notes=tuple(_notes(sample, options, rows, tasks, capacity)),
    )


def _rows_called(sample: Sample, options: Options, rows: int) -> Range:
    """Rows that have calls of their own; more rows have more equals, down to as many calls as were seen."""
    if sample.called == sample.totals.rows_in and not options.dedupe:
        return Range(rows, rows, rows)
    share = wilson(sample.called, sample.totals.rows_in).times(rows)
    return share._replace(low=min(float(sample.called), share.low))


def _seconds_by_rate(
    sample: Sample, options: Options, calls: Range, tasks: int, chance: random.Random
) -> Range:
    found = Range(0.0, 0.0, 0.0)
    if options.rate is None:
        return found
    shares = 1 if options.limits is not None else tasks
    if options.rate.per_second is not None:
        found = calls.times(1.0 / (options.rate.per_second * shares))
    if options.rate.units_per_minute is not None:
        units = calls.times(bootstrap(sample.units, chance)) if sample.units else calls
        found = Range(*map(max, found, units.times(60.0 / (options.rate.units_per_minute * shares))))
    return found


def _notes(sample: Sample, options: Options, rows: int, tasks: int, capacity: int) -> Iterator[str]:
    totals = sample.totals
    if totals.rows_in < rows:
        yield (
            f"what fewer than {300 / totals.rows_in:.2g} % of the rows do may be missing from the sample, "
            "and with it the longest calls"
        )
    if options.dedupe:
        yield (
            f"{totals.rows_in - sample.called:,} of {totals.rows_in:,} rows shared a call; among more rows "
            "more are equal, so that calls, cost and duration may be far below"
        )
    at_once = min(totals.rows_in, capacity)
    if at_once < tasks * capacity:
        yield (
            f"the sample had at most {at_once:,} calls in flight, the job has up to {tasks * capacity:,}: "
            "a service that slows down under load was not seen to"
        )
    if totals.errors and options.errors.mode == "fail":
        kinds = ", ".join(sorted(totals.errors_by_type))
        yield f"rows failed ({kinds}), and errors='fail' would end the job with the first"
    for name in ("max_calls", "max_cost"):
        if getattr(options.budget, name) is not None:
            yield f"{name}={getattr(options.budget, name):,.12g} may end the calls before"


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
