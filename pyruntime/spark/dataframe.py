"""The async operator over a DataFrame: the plan of `async_map`, and what it runs in each task.

`map_dataframe` and `called_once` are for the driver. `MapTask` is sent to the workers and runs on their task
thread.
"""

# Why `mapInArrow`. It gives a partition as one iterator, and takes other rows and columns, at other times: an
# operator keeps calls in flight over many batches, leaves rows out, and gives several for one. `mapInPandas`
# does the same and makes pandas of every batch, in which whole numbers with nulls become floats. An RDD's
# `mapPartitions` pickles each row, and Spark Connect has none.
#
# Why `where` is a column at the end of the input. A filter, and a union with the rows that it leaves out,
# would read the input twice, and the order of the rows would be lost; a function that is asked for each row
# would cost a call of Python a row. As a column Spark evaluates it, and the task puts the rows back at their
# places.

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.function import gives_one_row
from pillarbox.aio.options import Options
from pillarbox.aio.stages import Stage, form_of_failures
from pillarbox.spark.error_column import ERROR_TYPE, ERROR_TYPE_OF_CHAIN
from pillarbox.spark.observation import JobProgress, check_progress
from pillarbox.spark.operator_plan import (
    OperatorPlan,
    check_sendable,
    map_in_arrow,
    name_of,
    output_schema,
    plan_operator,
)
from pillarbox.spark.records import ArrowInput, rows_of, sliced
from pillarbox.spark.schema import check_frame, condition_of, frame_of, holds, parse_schema
from pillarbox.spark.worker import run_job
from pillarbox.spark.writer import WHERE, Interleaver, LeftOutRows, RowWriter, called


def map_dataframe(
    df: Any,
    stages: Sequence[Stage],
    *,
    schema: object,
    keep: str | Sequence[str],
    progress: JobProgress | bool | None,
) -> Any:
    """The DataFrame of `async_map`; raises TypeError or ValueError for what cannot be.

    df: a DataFrame of Spark, or a table without Spark, whose calls are made before this returns one like it.
    stages: the functions of a list, or one.
    """
    df = frame_of(df)
    # A table without Spark is one task, which runs here and now.
    is_local = df.sparkSession is None and hasattr(df, "run")
    name = "_then_".join(name_of(stage.fn) for stage in stages)
    if progress is True and is_local:
        with df.watched(name) as shown:
            return map_dataframe(df, stages, schema=schema, keep=keep, progress=shown)
    where = stages[0].options.where
    if where is not None and is_local:
        raise ValueError("where: is a condition of Spark; filter a table of another kind before it is given")
    # A column belongs to the driver; in a task it is one of the input.
    stages = [stage._replace(options=dataclasses.replace(stage.options, where=None)) for stage in stages]
    check = df.token if is_local else check_sendable
    tokens = [check(stage.fn, stage.options) for stage in stages]
    check_comparable(df.schema, stages[0].options)
    watcher = check_progress(progress)
    results = parse_schema("schema", schema, has_spark=not is_local)
    mode = form_of_failures(stages)
    is_chain = stages[0].uid is not None
    kept, output = output_schema(
        df.schema, keep, results, mode, ERROR_TYPE_OF_CHAIN if is_chain else ERROR_TYPE
    )
    plans = [
        plan_operator(
            stage.fn,
            stage.options,
            token=token,
            session=df.sparkSession,
            progress=watcher,
            columns=df.columns,
            results=results if stage is stages[-1] else None,
            streaming=df.isStreaming,
            uid=stage.uid,
            is_behind=stage is not stages[0],
            zone=df.zone if is_local else None,
        )
        for stage, token in zip(stages, tokens, strict=True)
    ]
    for plan in plans:
        if plan.dead_letters is not None:
            plan.dead_letters.check_types(df.schema)
    if where is not None:
        for field in results.fields:
            if not field.nullable:
                raise ValueError(f"where: rows that are not called give nulls; {field.name!r} is NOT NULL")
        df = df.withColumn(WHERE, condition_of(where))
    if is_local:
        return df.run(plans, results, kept, mode)
    task = MapTask(plans, results, kept, mode, skips=where is not None)
    return map_in_arrow(df, task.run, name, output)


def check_comparable(schema: T.StructType, options: Options) -> None:
    """Raise ValueError if `options` compare whole rows, and these have a column of lists or dicts."""
    dedupe, batch = options.dedupe, options.batch
    if dedupe is None or dedupe.key is not None or dedupe.across_tasks or (batch is not None and batch.arrow):
        return
    for field in schema.fields:
        if holds(field.dataType, (T.ArrayType, T.MapType)):
            raise ValueError(
                f"dedupe: whole rows are compared, and column {field.name!r} is "
                f"{field.dataType.simpleString()}, and lists and dicts have no hash: give a function of what "
                f"is compared, such as dedupe=lambda row: tuple(row.{field.name}), or leave the column out"
            )


@contextmanager
def called_once(df: DataFrame) -> Iterator[DataFrame]:
    """Make the calls for the rows of `df` once, now, and keep the results for all uses in the `with` block.

    df: a batch DataFrame, such as a result of `async_map`. Its rows are persisted (memory, then disk) and
        released at the end of the block.

        >>> from pillarbox.spark import async_map, called_once
        >>> async def call(row):
        ...     return row.id * 10
        >>> with called_once(async_map(spark.range(3), call, schema="price long")) as priced:
        ...     priced.count(), priced.where("price > 5").count()
        (3, 2)

    If an executor is lost with the rows that it kept, its partitions are called again; a ledger prevents a
    second payment. On the driver, also in foreachBatch. Raises TypeError, ValueError for a stream, and the
    errors of the job.
    """
    check_frame(df)
    if df.isStreaming:
        raise ValueError(
            "df: is a stream, whose rows cannot be kept; use it on micro-batches, in foreachBatch"
        )
    kept = df.persist()
    try:
        # Every partition, which the first use of the rows may not need.
        kept.write.format("noop").mode("overwrite").save()
        yield kept
    finally:
        kept.unpersist()


class MapTask:
    """The part of `async_map` that runs in each task. Sent to the workers as it is.

    plans: of the functions of a list, or of one. schema: of the results of the last one. kept: columns of the
    input that stand in front of them. errors: the form in which failed rows leave. skips: True if the last
    column of the input says which rows are called.
    """

    def __init__(
        self,
        plans: Sequence[OperatorPlan],
        schema: T.StructType,
        kept: list[str],
        errors: str,
        *,
        skips: bool,
    ) -> None:
        self._plans = plans
        self._schema = schema
        self._kept = kept
        self._errors = errors
        self._skips = skips

    # Makes the rows of a slice of the input.
    _unpack = staticmethod(rows_of)
    _writer_type = RowWriter

    def run(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """The output batches for a partition's input batches."""
        first, *others = self._plans
        with ExitStack() as stack:
            writer = self._writer(stack)
            interleaver = Interleaver(ordered=all(plan.options.ordered for plan in self._plans))
            rows = ArrowInput(self._slices(batches), self._unpack)
            job = run_job(first, rows, convert=writer.encoder, then=others)
            for chunk in stack.enter_context(closing(job)):
                batch = interleaver.write(chunk, writer) if self._skips else writer.write(chunk)
                if batch.num_rows:
                    yield batch
            if (batch := interleaver.rest(writer)).num_rows:
                yield batch

    def _slices(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | LeftOutRows]:
        return sliced(called(batches, self._kept) if self._skips else batches)

    def _writer(self, stack: ExitStack) -> RowWriter:
        plans = self._plans
        drops = {plan.uid for plan in plans if plan.options.errors.mode == "drop"}
        return self._writer_type(
            self._kept,
            self._schema,
            plans[-1].time_zone,
            errors=self._errors,
            ordered=all(plan.options.ordered for plan in plans),
            dead_letters={
                plan.uid: stack.enter_context(plan.dead_letters.writer())
                for plan in plans
                if plan.dead_letters is not None
            },
            # Where this is what happens to all of them the encoder does it.
            drops=() if self._errors == "drop" else drops,
            uid=plans[-1].uid,
            is_behind=len(plans) > 1,
            one_row=gives_one_row(plans[-1].fn),
            redact=plans[-1].options.errors.redaction,
        )
