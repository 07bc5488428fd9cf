"""A dry run: the time and cost of a job, from a sample that is really called.

`estimate_cost` is for the driver. `SampleTask` is sent to a worker and runs on its task thread; `forecast` is
arithmetic without state.
"""

# The numbers are what the operator counts of any job (`Totals`), times the rows that there are. Bounds around
# them, by resampling, would need each duration and each cost, and would promise more than a sample knows: a
# kind of row that is not in it, and a service that slows down under the load of all tasks, move the result
# further than any such bound. The notes of an estimate say these instead.

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.batching import Batch
from pillarbox.aio.function import gives_one_row
from pillarbox.aio.options import Budget, Errors, Options, resolve_options
from pillarbox.aio.totals import Totals, number, seconds
from pillarbox.rpc.totals_json import from_json, to_json
from pillarbox.spark.ledger_plan import is_connect
from pillarbox.spark.operator_plan import OperatorPlan, check_sendable, map_in_arrow, name_of, plan_operator
from pillarbox.spark.records import ArrowInput, sliced
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.schema import check_frame, condition_of, parse_schema
from pillarbox.spark.worker import run_job
from pillarbox.validate import check_positive_int, suggesting_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames

SEED = 20
"""Of the sample, so that two estimates of the same data call for the same rows."""


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
    seconds: float
    calls: float
    cost: float | None
    error_share: float
    p50: float
    p95: float
    longest: float
    bound: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        p50, p95, longest = map(seconds, (self.p50, self.p95, self.longest))
        lines = [
            f"{self.rows:,} rows in {self.tasks} tasks at a time, {self.capacity} calls in flight in each; "
            f"{self.sample:,} rows were called",
            f"  duration   {seconds(self.seconds)}, bound by {self.bound}",
            f"  calls      {number(self.calls)}",
            *([] if self.cost is None else [f"  cost       {number(self.cost)}"]),
            f"  errors     {100 * self.error_share:.2g} % of rows",
            f"  one call   {p50} median, {p95} at 95 %, {longest} longest",
            *(f"  - {note}" for note in self.notes),
        ]
        return "\n".join(lines)


@suggesting_options(Options)
def estimate_cost(
    df: DataFrame,
    fn: Callable[[Any], Any],
    *,
    sample: int = 100,
    rows: int | None = None,
    tasks: int | None = None,
    schema: str | T.StructType | None = None,
    file: TextIO | None = None,
    batch: Batch | None = None,
    options: Options | None = None,
    **more: Unpack[OptionNames],
) -> Estimate:
    """Call `fn` for a sample of `df` and estimate duration, calls and cost of `async_map` over all of it.

    The calls of the sample are made, in one task, under the given options, except `max_calls`, `max_cost` and
    `errors`: failed rows are counted.

    sample: rows to call. rows: rows of `df`, with `where` those for which it holds; None counts them, which
        is a Spark job.
    tasks: tasks that run at a time; None for the number that the session and the partitions of `df` allow.
    schema: of results, to check that they fit. file: where the estimate is printed; None for standard output.
    batch, options and the others: as for `async_map`.

        >>> import io
        >>> from pillarbox.spark import estimate_cost
        >>> async def call(row):
        ...     return row.id
        >>> estimate = estimate_cost(spark.range(1000), call, sample=10, rows=1000, file=io.StringIO())
        >>> estimate.rows, estimate.sample, estimate.calls
        (1000, 10, 1000.0)

    The estimate extrapolates the sample to all rows. A kind of row that is rarer than 3 in `sample` may be
    missing from it, and the sample does not show that a service is slower under the load of all tasks. The
    printed text mentions both.

    On the driver. Raises TypeError or ValueError for a bad argument or an empty `df`. A result that does not
    fit is a failure of its row, as in the job.
    """
    check_frame(df)
    if df.isStreaming:
        raise ValueError("df: is a stream, which has no number of rows; give a batch of the same data")
    for name, value in (("sample", sample), ("rows", rows), ("tasks", tasks)):
        if value is not None:
            check_positive_int(name, value)
    given: dict[str, Any] = {**more} if batch is None else {**more, "batch": batch}
    resolved = resolve_options(options, given)
    if resolved.where is not None:
        df = df.where(condition_of(resolved.where))
        # A column belongs to the driver.
        resolved = dataclasses.replace(resolved, where=None)
    token = check_sendable(fn, resolved)
    results = None if schema is None else parse_schema("schema", schema)
    if tasks is None:
        tasks = _tasks(df)
    known = rows is None
    if rows is None:
        rows = df.count()
    free = dataclasses.replace(
        resolved,
        errors=Errors("null", floor=None, redact=resolved.errors.redact),
        budget=Budget(usage=resolved.budget.usage),
        # Results that a ledger has take no time, which is not the question.
        ledger=None,
        latency="normal",
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
    # Some more than needed, since Spark takes a share and no number of rows.
    share = (1.5 * sample + 10) / max(rows, 1)
    sampled = df if share >= 1.0 else df.sample(False, share, SEED).limit(sample)
    if not known and share < 1.0 and sampled.count() < sample:
        # `df` is smaller than `rows` says, as it is where one tries with a part.
        sampled = df
    run = SampleTask(plan, results).run
    # In one task: its calls in flight are those that one task of the job will have.
    one_task = sampled.limit(sample).coalesce(1)
    measured = map_in_arrow(one_task, run, name_of(fn), "totals string, units double").collect()
    if not measured:
        raise ValueError("df: has no rows, so there is nothing to estimate from")
    totals = from_json(json.loads(measured[0].totals))
    found = forecast(
        totals,
        resolved,
        rows=rows,
        tasks=tasks,
        units=measured[0].units,
        image_notes=[*_image_notes(fn, totals, rows)],
    )
    print(found, file=file)
    return found


def _tasks(df: DataFrame) -> int:
    if is_connect(df.sparkSession):
        raise ValueError("tasks=None: Spark Connect does not tell how many tasks run at a time; give tasks")
    return max(1, min(df.sparkSession.sparkContext.defaultParallelism, df.rdd.getNumPartitions()))


class SampleTask:
    """Calls the function for the rows of a sample, and gives one row: what was counted, and the units."""

    def __init__(self, plan: OperatorPlan, schema: T.StructType | None) -> None:
        self._plan = plan
        self._schema = schema

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The measurements of a partition; none for an empty one."""
        units: list[float] = []
        ended: list[Totals] = []
        plan, rate = self._plan, self._plan.options.rate
        if rate is not None and rate.weight is not None:
            weight = rate.weight

            def watched(row: object) -> float:
                units.append(float(weight(row)))
                return units[-1]

            options = dataclasses.replace(plan.options, rate=dataclasses.replace(rate, weight=watched))
            plan = dataclasses.replace(plan, options=options)
        encoder = (
            None
            if self._schema is None
            else RowEncoder(self._schema, plan.time_zone, one_row=gives_one_row(plan.fn))
        )
        with closing(run_job(plan, ArrowInput(sliced(batches)), convert=encoder, ended=ended.append)) as job:
            for _ in job:
                pass
        (totals,) = ended
        if totals.rows_in:
            # What the operator does not weigh is one unit each.
            used = sum(units) if units else float(totals.calls)
            yield pa.RecordBatch.from_pydict({"totals": [json.dumps(to_json(totals))], "units": [used]})


def forecast(
    totals: Totals,
    options: Options,
    *,
    rows: int,
    tasks: int,
    units: float,
    image_notes: Sequence[str] = (),
) -> Estimate:
    """The estimate for `rows` rows, given what a sample took. units: of the rate, in all of its calls.

    image_notes: what is not known of images.
    """
    capacity = options.max_capacity if options.adaptive is None else totals.capacity
    growth = rows / totals.rows_in
    calls = totals.calls * growth
    # A batch shares a slot.
    together = 1.0
    if options.batch is not None:
        seen = max(1.0, totals.calls / max(1, totals.batches))
        together = seen if options.batch.weight is not None else float(options.batch.size)
    slots = tasks * min(capacity, math.ceil(rows / tasks / together)) * together
    # The last calls run while slots are idle already: one long call at the end.
    by_slots = calls * totals.mean_latency / slots + totals.latency.p95
    by_rate = 0.0
    if options.rate is not None:
        shares = 1 if options.limits is not None else tasks
        if options.rate.per_second is not None:
            by_rate = calls / (options.rate.per_second * shares)
        if options.rate.units_per_minute is not None:
            by_rate = max(by_rate, units * growth * 60.0 / (options.rate.units_per_minute * shares))
    return Estimate(
        rows=rows,
        sample=totals.rows_in,
        tasks=tasks,
        capacity=capacity,
        seconds=max(by_slots, by_rate),
        calls=calls,
        cost=totals.cost * growth if totals.cost or options.budget.usage is not None else None,
        error_share=totals.errors / totals.rows_in,
        p50=totals.latency.p50,
        p95=totals.latency.p95,
        longest=totals.latency.max,
        bound="rate" if by_rate > by_slots else "capacity",
        notes=(*_notes(totals, options, rows, tasks, capacity), *image_notes),
    )


def _image_notes(fn: object, totals: Totals, rows: int) -> Iterator[str]:
    images = getattr(fn, "images", None)
    columns = getattr(fn, "image_fields", ())
    if not columns:
        return
    tokens = getattr(images, "tokens", None)
    if tokens is None:
        counted = (
            "those of the sample are counted by the service, and larger images take more"
            if totals.tokens
            else "the service does not count them"
        )
        yield (
            f"the tokens of images ({', '.join(columns)}) are unknown: {counted}; Images(tokens=...) gives "
            "their number"
        )
    else:
        yield (
            f"images take {number(float(tokens * rows * len(columns)))} tokens at {tokens:,} each, as Images "
            "says, if each row has one in each column"
        )


def _notes(totals: Totals, options: Options, rows: int, tasks: int, capacity: int) -> Iterator[str]:
    if totals.rows_in < rows:
        yield (
            f"what fewer than {300 / totals.rows_in:.2g} % of the rows do may be missing from the sample, "
            "and with it the longest calls"
        )
    if options.dedupe:
        yield (
            f"{totals.shared:,} of {totals.rows_in:,} rows shared a call; among more rows more are equal, so "
            "that calls, cost and duration may be far below"
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
