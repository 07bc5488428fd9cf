"""A dry run: what a job would take and cost, from a sample that is really called.

`estimate` is for the driver. `SampleTask` is sent to a worker and runs on its task thread. The arithmetic is
in `forecast.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Literal, TextIO

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.batching import Batch
from pillarbox.aio.concurrency import Adaptive
from pillarbox.aio.limits.rate import Rate
from pillarbox.aio.limits.shared import SharedLimits
from pillarbox.aio.meter import usage_of
from pillarbox.aio.observe.totals import Totals
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
from pillarbox.spark.forecast import Estimate, Sample, forecast
from pillarbox.spark.function import check_sendable, name_of, ship
from pillarbox.spark.records import ArrowInput, sliced
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.schema import parse_schema
from pillarbox.spark.work import Work, settle
from pillarbox.spark.worker import run_job
from pillarbox.validate import check_positive_int

SEED = 20
"""Of the sample, so that two estimates of the same data call for the same rows."""


def estimate(
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
    settled = resolve_options(options, given)
    token = check_sendable(fn, settled)
    results = None if schema is None else parse_schema("schema", schema)
    if tasks is None:
        tasks = _tasks(df)
    known = rows is None
    if rows is None:
        rows = df.count()
    free = dataclasses.replace(
        settled,
        errors=Errors("null", redact=settled.errors.redact),
        budget=Budget(usage=settled.budget.usage),
        # What is found there takes no time, which is not what is asked.
        ledger=None,
        latency="normal",
        where=None,
    )
    work = settle(
        fn,
        free,
        session=df.sparkSession,
        token=token,
        progress=None,
        columns=df.columns,
        shape="",
        results=T.NullType() if results is None else results,
    )
    task = SampleTask(work, results)
    # Some more than needed, since Spark takes a share and no number of rows.
    share = (1.5 * sample + 10) / max(rows, 1)
    sampled = df if share >= 1.0 else df.sample(False, share, SEED).limit(sample)
    if not known and share < 1.0 and sampled.count() < sample:
        # `df` is smaller than `rows` says, as it is where one tries with a part.
        sampled = df
    measured = _measure(sampled, sample, ship(task.run, name_of(fn)))
    if measured is None:
        raise ValueError("df: has no rows, so there is nothing to estimate from")
    found = forecast(measured, settled, rows=rows, tasks=tasks)
    print(found, file=file)
    return found


def _measure(df: DataFrame, sample: int, run: Callable[..., Iterator[Any]]) -> Sample | None:
    measured = df.limit(sample).coalesce(1).mapInArrow(run, "measured string").collect()
    return Sample.from_json(measured[0].measured) if measured else None


def _tasks(df: DataFrame) -> int:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise ValueError("tasks=None: Spark Connect does not tell how many tasks run at a time; give tasks")
    return max(1, min(df.sparkSession.sparkContext.defaultParallelism, df.rdd.getNumPartitions()))


class SampleTask:
    """Calls the function for the rows of a sample, and gives one row: what was measured, as JSON."""

    def __init__(self, work: Work, schema: T.StructType | None) -> None:
        self._work = work
        self._schema = schema

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The measurements of a partition; none for an empty one."""
        costs: list[float] = []
        units: list[float] = []
        statistics: list[Totals] = []
        work = dataclasses.replace(self._work, options=_watched(self._work.options, costs, units))
        encoder = None if self._schema is None else RowEncoder(self._schema, work.time_zone)
        chunks = run_job(work, ArrowInput(sliced(batches)), convert=encoder, ended=statistics.append)
        with closing(chunks):
            for _ in chunks:
                pass
        (last,) = statistics
        if last.rows_in:
            measured = Sample.of(last, costs, units).to_json()
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
