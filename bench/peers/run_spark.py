"""In Spark, on one partition: `mapInArrow` by hand, and Pillarbox. Run in the project's environment.

One session for all; a job is one action of one task, so a worker that is warm does the next one as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame

from bench.peers.http import AskRecord
from bench.peers.jobs import (
    Job,
    batch_call_for,
    blocking_call_for,
    call_for,
    if_there,
    record_call_for,
    stages_for,
)
from bench.peers.serve import Collect, serve
from bench.spark_contenders import (
    BATCH_ROWS,
    DEFAULT_BATCH_ROWS,
    SCHEMA,
    Batches,
    gather_per_batch,
    session,
    threads_per_batch,
    wait_by_hand,
    window_by_hand,
)
from pillarbox import Buffer, Options
from pillarbox.spark import async_map, async_udf


def unchanged(batches: Batches) -> Batches:
    """Pass batches on unchanged: the cost of a Python worker that does nothing."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column(0), batch.column(0)], names=["id", "answer"])


def gather(df: DataFrame, job: Job) -> DataFrame:
    """All calls of a batch at once, behind a semaphore."""
    return df.mapInArrow(gather_per_batch(job.capacity, call_for(job)), SCHEMA)


def threads(df: DataFrame, job: Job) -> DataFrame:
    """Blocking calls in a pool of threads, a batch after the other."""
    return df.mapInArrow(threads_per_batch(job.capacity, blocking_call_for(job)), SCHEMA)


def window(df: DataFrame, job: Job) -> DataFrame:
    """Calls that overlap from batch to batch, behind a semaphore."""
    return df.mapInArrow(window_by_hand(job.capacity, job.ordered, call_for(job)), SCHEMA)


def waiting(df: DataFrame, job: Job) -> DataFrame:
    """The same with `asyncio.wait`."""
    return df.mapInArrow(wait_by_hand(job.capacity, call_for(job)), SCHEMA)


def identity(df: DataFrame, job: Job) -> DataFrame:
    """The same rows through a worker that calls nothing."""
    return df.mapInArrow(unchanged, SCHEMA)


def mapped(df: DataFrame, job: Job) -> DataFrame:
    """`pillarbox.spark.async_map`."""
    return async_map(
        df,
        record_call_for(job),
        schema="answer long",
        keep="*",
        ordered=job.ordered,
        capacity=job.capacity,
        options=Options(buffer=Buffer(job.reorder)),
    )


def mapped_http(df: DataFrame, job: Job) -> DataFrame:
    """The same with an HTTP session as a resource."""
    return async_map(
        df,
        AskRecord(job.url, job.capacity),
        schema="answer long",
        keep="*",
        ordered=job.ordered,
        capacity=job.capacity,
    )


def batched(df: DataFrame, job: Job) -> DataFrame:
    """`pillarbox.spark.async_map` with 64 rows a call."""
    from pillarbox import Batch

    return async_map(
        df,
        batch_call_for(job),
        schema="answer long",
        keep="*",
        ordered=job.ordered,
        capacity=job.capacity,
        batch=Batch(size=64),
    )


def column(df: DataFrame, job: Job) -> DataFrame:
    """`pillarbox.spark.async_udf`."""
    function = async_udf("long", capacity=job.capacity)(call_for(job))
    return df.withColumn("answer", function("id"))


HALVES = "id long, half long"


def chained(df: DataFrame, job: Job) -> DataFrame:
    """Two functions in one task."""
    both: Any = list(stages_for(job))
    made: DataFrame = if_there(
        lambda: async_map(df, both, schema=SCHEMA, ordered=job.ordered, capacity=job.capacity)
    )
    return made


def in_turn(df: DataFrame, job: Job) -> DataFrame:
    """The same two functions, each in an operator of its own: two passes through Spark."""
    first, second = stages_for(job)
    options: Any = {"ordered": job.ordered, "capacity": job.capacity}
    return async_map(async_map(df, first, schema=HALVES, **options), second, schema=SCHEMA, **options)


CONTENDERS: dict[str, tuple[Callable[[DataFrame, Job], DataFrame], int]] = {
    "gather 10,000": (gather, 10_000),
    "gather 1,000": (gather, 1_000),
    "threads 10,000": (threads, 10_000),
    "threads 1,000": (threads, 1_000),
    "window": (window, DEFAULT_BATCH_ROWS),
    "wait": (waiting, DEFAULT_BATCH_ROWS),
    "identity": (identity, DEFAULT_BATCH_ROWS),
    "async_map": (mapped, DEFAULT_BATCH_ROWS),
    "HTTP async_map": (mapped_http, DEFAULT_BATCH_ROWS),
    "async_map batched": (batched, DEFAULT_BATCH_ROWS),
    "async_udf": (column, DEFAULT_BATCH_ROWS),
    "chain": (chained, DEFAULT_BATCH_ROWS),
    "in turn": (in_turn, DEFAULT_BATCH_ROWS),
}
"""The functions that build the DataFrame, and the rows of its Arrow batches."""


def main() -> None:
    """Serve jobs until the input ends."""
    spark = session()

    def run(job: Job) -> Collect:
        """One action: all rows to the driver as Arrow, or nowhere."""
        make, batch_rows = CONTENDERS[job.contender]
        spark.conf.set(BATCH_ROWS, str(batch_rows))
        made = make(spark.range(0, job.rows, 1, 1), job)
        if not job.keep:
            made.write.format("noop").mode("overwrite").save()
            return lambda: None
        table = made.toArrow()
        return lambda: (table.column("id").to_pylist(), table.column("answer").to_pylist())

    serve(run, f"PySpark {pyspark.__version__}")


if __name__ == "__main__":
    main()
