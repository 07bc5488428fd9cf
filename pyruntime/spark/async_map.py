"""The async operator over a DataFrame: `async_map`, and what it runs in each task.

`async_map` is for the driver. `MapTask` and `ChainTask` are sent to the workers and run on their task thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from pillarbox.aio.chained import Stage, Step, form_of_failures, settle_chain
from pillarbox.aio.options import Options, settle_options
from pillarbox.aio.signature import with_options
from pillarbox.spark.dead_letters import DeadLetter, DeadLetterWriter
from pillarbox.spark.error_column import ERROR_TYPE_OF_CHAIN
from pillarbox.spark.executions import warn_of_second_execution
from pillarbox.spark.function import check_sendable, name_of, ship
from pillarbox.spark.latency import Latency
from pillarbox.spark.progress import Progress
from pillarbox.spark.records import ArrowInput, sliced
from pillarbox.spark.schema import condition_of, parse_schema
from pillarbox.spark.work import Work, check_progress, settle, settle_output
from pillarbox.spark.worker import run_job
from pillarbox.spark.writer import WHERE, ChainWriter, RowWriter, SkippedRows, put_back

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames


@with_options()
def async_map(
    df: DataFrame,
    fn: Callable[[Any], Any] | Sequence[Callable[[Any], Any] | Step],
    *,
    schema: str | T.StructType,
    keep: str | Sequence[str] = (),
    where: Column | str | None = None,
    progress: Progress | None = None,
    dead_letter: str | DeadLetter | None = None,
    latency: Latency = "normal",
    options: Options | None = None,
    **given: Unpack[OptionNames],
) -> DataFrame:
    """Call `fn` with each row of `df`, many at a time in each task; a DataFrame of the rows it gives.

    fn: an async function of one record, read as `record.name` or `record["name"]`; or a plain one,
        which runs in threads; or a plain one of the record and a `Collector`, which starts work elsewhere;
        or an object with one of them as its `__call__`. An object with
        `__aenter__`/`__aexit__` is opened once per worker process and closed when no task has used it for
        10 s. It returns a row (dict, tuple, Row, named tuple, dataclass; a bare value where the schema
        has one column that is no array, map or struct), a list of 0..n rows, or an async iterator of rows.
        A list of such functions is a chain in one task: each is called with each row that the one in front
        gives, as it finishes, and reads it as a record too. A `Step` in the list is a function with options
        of its own; those beside the list hold for each.
    schema: the columns of the rows that `fn` gives, or the last function of a list, as a DDL string or a
        StructType.
    keep: input columns to carry in front of them, as Arrow; "*" for all.
    where: call only rows for which this holds, a Column or SQL; the others give a row of nulls. Not for a
        list.
    progress: a `Progress`, to see the job while it runs.
    dead_letter: a folder, or a `DeadLetter`, where rows that fail for good are put aside, with the whole
        input row; `errors` is then "drop" unless given.
    latency: "low" hands each result on at once, for streams; the session must be set up with `LOW_LATENCY`.
    options: an `Options` instead of single options; those given by name stand above it.

    The limits of the options hold for each task, but `max_calls` and `max_cost` for all tasks together.
    `errors`: "fail" fails the task with the first row that fails for good; "null" gives one row of
    nulls in its place; "column" does so and adds a last column `_error`, a struct of type, message,
    attempts, latency and status, null for good rows; "drop" gives no row. In a chain a row that failed for
    good is not called by the functions behind, it keeps its place, and `_error.uid` names the function.

    Batch and streaming DataFrames, classic and Connect. Nothing is called before an action runs; a
    task that Spark runs again calls again. Raises TypeError or ValueError at once for a bad argument;
    in the task, `CallFailed`, `CallTimeout` or `TooManyFailures` with the row, and `DeadLetterError`. A
    result that does not fit the schema is a failed attempt, with a `ResultError`, which `retry` sees like
    others.
    """
    if isinstance(fn, list | tuple):
        if where is not None:
            raise ValueError("where: is for one function; with a list take the rows with df.where(...)")
        return _mapped_chain(
            df,
            settle_chain(fn, options, dict(given), dead_letter),
            schema=schema,
            keep=keep,
            progress=progress,
            latency=latency,
        )
    return mapped(
        df,
        cast("Callable[[Any], Any]", fn),
        settle_options(options, dict(given), dead_letter, instead="drop"),
        schema=schema,
        keep=keep,
        where=where,
        progress=progress,
        dead_letter=dead_letter,
        latency=latency,
    )


def mapped(
    df: DataFrame,
    fn: Callable[[Any], Any],
    settled: Options,
    *,
    schema: str | T.StructType,
    keep: str | Sequence[str],
    progress: Progress | None,
    dead_letter: str | DeadLetter | None,
    latency: Latency,
    where: Column | str | None = None,
    only_failed: bool = False,
) -> DataFrame:
    """The DataFrame of `async_map` and of `retry_failed`; raises TypeError or ValueError for what cannot be.

    only_failed: call only rows of which the ledger says that they failed.
    """
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    token = check_sendable(fn, settled)
    check_progress(progress)
    results = parse_schema("schema", schema)
    kept, output = settle_output(df.schema, keep, results, settled.errors)
    work = settle(
        fn,
        settled,
        token=token,
        session=df.sparkSession,
        progress=progress,
        dead_letter=dead_letter,
        latency=latency,
        columns=df.columns,
        shape=f"{df.schema.simpleString()} {output.simpleString()}",
        results=results,
        streaming=df.isStreaming,
        only_failed=only_failed,
    )
    if work.dead_letters is not None:
        work.dead_letters.dead_letter.check_types(df.schema)
    skips = where is not None
    if skips:
        for field in results.fields:
            if not field.nullable:
                raise ValueError(f"where: rows that are not called give nulls; {field.name!r} is NOT NULL")
        df = df.withColumn(WHERE, condition_of(where))
    made = df.mapInArrow(ship(MapTask(work, results, kept, skips).run, name_of(fn)), output)
    if settled.ledger is None and not df.isStreaming:
        warn_of_second_execution(made, name_of(fn))
    return made


def _mapped_chain(
    df: DataFrame,
    stages: list[Stage],
    *,
    schema: str | T.StructType,
    keep: str | Sequence[str],
    progress: Progress | None,
    latency: Latency,
) -> DataFrame:
    """The DataFrame of `async_map` with a list; raises TypeError or ValueError for what cannot be."""
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    tokens = [check_sendable(stage.fn, stage.options) for stage in stages]
    check_progress(progress)
    results = parse_schema("schema", schema)
    form = form_of_failures(stages)
    kept, output = settle_output(df.schema, keep, results, form, ERROR_TYPE_OF_CHAIN)
    shape = f"{df.schema.simpleString()} {output.simpleString()}"
    works = [
        settle(
            stage.fn,
            stage.options,
            token=token,
            session=df.sparkSession,
            progress=progress,
            dead_letter=stage.dead_letter,
            latency=latency,
            columns=df.columns,
            shape=f"{shape} {stage.uid}",
            results=results if stage is stages[-1] else None,
            streaming=df.isStreaming,
            uid=stage.uid,
            is_behind=stage is not stages[0],
        )
        for stage, token in zip(stages, tokens, strict=True)
    ]
    for work in works:
        if work.dead_letters is not None:
            work.dead_letters.dead_letter.check_types(df.schema)
    name = "_then_".join(name_of(stage.fn) for stage in stages)
    made = df.mapInArrow(ship(ChainTask(works, results, kept, form).run, name), output)
    if not df.isStreaming and all(stage.options.ledger is None for stage in stages):
        warn_of_second_execution(made, name)
    return made


class ChainTask:
    """What `async_map` with a list of functions runs in each task. Sent to the workers as it is.

    form: that in which failed rows leave, as `errors` says.
    """

    def __init__(self, works: Sequence[Work], schema: T.StructType, kept: list[str], form: str) -> None:
        self._works = works
        self._schema = schema
        self._kept = kept
        self._form = form

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output batches for a partition's input batches."""
        works = self._works
        with ExitStack() as stack:
            writer = ChainWriter(
                self._kept,
                self._schema,
                works[-1].time_zone,
                form=self._form,
                ordered=all(work.options.ordered for work in works),
                dead_letters={
                    str(work.uid): stack.enter_context(DeadLetterWriter(work.dead_letters))
                    for work in works
                    if work.dead_letters is not None
                },
                drops=frozenset(str(work.uid) for work in works if work.options.errors == "drop"),
                has_source=len(works) > 1,
            )
            job = run_job(works[0], ArrowInput(sliced(batches)), convert=writer.encoder, then=works[1:])
            for chunk in stack.enter_context(closing(job)):
                batch = writer.write(chunk)
                if batch.num_rows:
                    yield batch


class MapTask:
    """What `async_map` runs in each task. Sent to the workers as it is."""

    def __init__(self, work: Work, schema: T.StructType, kept: list[str], skips: bool) -> None:
        self._work = work
        self._schema = schema
        self._kept = kept
        self._skips = skips

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output batches for a partition's input batches."""
        work = self._work
        with ExitStack() as stack:
            dead_letters = None
            if work.dead_letters is not None:
                dead_letters = stack.enter_context(DeadLetterWriter(work.dead_letters))
            writer = RowWriter(self._kept, self._schema, work.time_zone, work.options, dead_letters)
            skipped = None
            if self._skips:
                skipped = SkippedRows(ordered=work.options.ordered)
                batches = skipped.called(map(_with_mask, batches))
            chunks = stack.enter_context(
                closing(run_job(work, ArrowInput(sliced(batches)), convert=writer.encoder))
            )
            for chunk in chunks:
                batch = writer.write(chunk)
                if skipped is not None:
                    places, rows = skipped.beside(len(chunk))
                    if rows is not None:
                        batch = put_back(batch, writer.nulls(rows), places, writer.counts)
                if batch.num_rows:
                    yield batch
            if skipped is not None:
                _, rows = skipped.beside(None)
                if rows is not None:
                    yield writer.nulls(rows)


def _with_mask(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray]:
    names = batch.schema.names[:-1]
    return batch.select(names), batch.column(len(names))
