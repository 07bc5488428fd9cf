"""The contenders in Spark, on one partition: hand-written functions over Arrow batches, and the operator.

The hand-written ones are what one writes with `mapInArrow` and nothing else; they run in the Python
worker. Each contender is a function of (rows, capacity) that returns the list of answers, as in `contenders`.
The session is the driver's: one contender at a time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench import service
from bench.contenders import Contender
from pillarbox.spark import async_map, async_udf
from pillarbox.spark.records import Record

Batches = Iterator[pa.RecordBatch]
Call = Callable[[int], Awaitable[int]]

SCHEMA = "id long, answer long"
WINDOW_FACTOR = 8
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
DEFAULT_BATCH_ROWS = 10_000


def session(cores: int = 1) -> SparkSession:
    """A local session that says nothing and listens on loopback only."""
    # Without it workers run whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("pillarbox throughput")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def seconds_without_calls(spark: SparkSession, rows: int, repeat: int) -> float:
    """Seconds of the same job through a Python worker that calls nothing: what Spark takes, the median."""

    def unchanged(batches: Batches) -> Batches:
        yield from batches

    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        spark.range(0, rows, 1, 1).mapInArrow(unchanged, "id long").toArrow()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


async def _call_record(record: Record) -> int:
    return await service.call(record.id)


def _batch(ids: list[int], answers: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(ids, pa.int64()), "answer": pa.array(answers, pa.int64())}
    )


def gather_per_batch(capacity: int, call: Call = service.call) -> Callable[[Batches], Batches]:
    """All calls of a batch at once behind a semaphore; the next batch begins when the last call has ended."""

    def run(batches: Batches) -> Batches:
        async def call_all(ids: list[int]) -> list[int]:
            slots = asyncio.Semaphore(capacity)

            async def one(row: int) -> int:
                async with slots:
                    return await call(row)

            return await asyncio.gather(*[one(row) for row in ids])

        with closing(asyncio.new_event_loop()) as loop:
            for batch in batches:
                ids = batch.column("id").to_pylist()
                yield _batch(ids, loop.run_until_complete(call_all(ids)))

    return run


def threads_per_batch(
    capacity: int, call: Callable[[int], int] = service.call_blocking
) -> Callable[[Batches], Batches]:
    """Blocking calls in a pool of `capacity` threads, a batch after the other."""

    def run(batches: Batches) -> Batches:
        with ThreadPoolExecutor(capacity) as pool:
            for batch in batches:
                ids = batch.column("id").to_pylist()
                yield _batch(ids, list(pool.map(call, ids)))

    return run


def window_by_hand(capacity: int, ordered: bool, call: Call = service.call) -> Callable[[Batches], Batches]:
    """Calls that overlap from batch to batch: a semaphore, and in order a window eight times as large."""

    def run(batches: Batches) -> Batches:
        with closing(asyncio.new_event_loop()) as loop:
            window = _Window(capacity, ordered, call)
            for batch in batches:
                loop.run_until_complete(window.admit(batch.column("id").to_pylist()))
                yield _batch(*window.take())
            loop.run_until_complete(window.finish())
            yield _batch(*window.take())

    return run


def wait_by_hand(capacity: int, call: Call = service.call) -> Callable[[Batches], Batches]:
    """The same with `asyncio.wait` over the running tasks, which is shorter and the usual way; unordered."""

    async def one(row: int) -> tuple[int, int]:
        return row, await call(row)

    def run(batches: Batches) -> Batches:
        running: set[asyncio.Task[tuple[int, int]]] = set()
        done: list[tuple[int, int]] = []

        async def wait(at_most: int) -> None:
            nonlocal running
            while len(running) > at_most:
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                done.extend([task.result() for task in ended])

        async def admit(ids: list[int]) -> None:
            for row in ids:
                await wait(capacity - 1)
                running.add(asyncio.create_task(one(row)))

        with closing(asyncio.new_event_loop()) as loop:
            for batch in batches:
                loop.run_until_complete(admit(batch.column("id").to_pylist()))
                yield _batch([row for row, _ in done], [result for _, result in done])
                done.clear()
            loop.run_until_complete(wait(0))
            yield _batch([row for row, _ in done], [result for _, result in done])

    return run


class _Window:
    """The tasks of one partition and the answers that are there, on the task's thread."""

    def __init__(self, capacity: int, ordered: bool, call: Call) -> None:
        self._call_service = call
        self._ordered = ordered
        self._limit = capacity * WINDOW_FACTOR
        self._slots = asyncio.Semaphore(capacity)
        self._window: deque[asyncio.Task[tuple[int, int]]] = deque()
        self._running: set[asyncio.Task[tuple[int, int]]] = set()
        self._done: list[tuple[int, int]] = []

    async def admit(self, ids: list[int]) -> None:
        for row in ids:
            await self._slots.acquire()
            task = asyncio.create_task(self._call(row))
            if self._ordered:
                self._window.append(task)
                if len(self._window) == self._limit:
                    self._done.append(await self._window.popleft())
            else:
                self._running.add(task)
                task.add_done_callback(self._finished)

    async def _call(self, row: int) -> tuple[int, int]:
        try:
            return row, await self._call_service(row)
        finally:
            self._slots.release()

    def _finished(self, task: asyncio.Task[tuple[int, int]]) -> None:
        self._running.discard(task)
        self._done.append(task.result())

    async def finish(self) -> None:
        for task in self._window:
            self._done.append(await task)
        await asyncio.gather(*self._running)

    def take(self) -> tuple[list[int], list[int]]:
        done, self._done = self._done, []
        return [row for row, _ in done], [result for _, result in done]


def spark_contenders(spark: SparkSession) -> list[Contender]:
    """All contenders in Spark, on this session."""

    def contender(
        name: str,
        job: Callable[[DataFrame, int], DataFrame],
        *,
        ordered: bool = True,
        ours: bool = False,
        batch_rows: int = DEFAULT_BATCH_ROWS,
    ) -> Contender:
        def run(rows: int, capacity: int) -> list[int]:
            spark.conf.set(BATCH_ROWS, str(batch_rows))
            answered = job(spark.range(0, rows, 1, 1), capacity)
            answers: list[int] = answered.toArrow().column("answer").to_pylist()
            return answers

        return Contender(name, run, ordered, spark=True, ours=ours)

    def by_hand(function: Callable[[Batches], Batches], df: DataFrame) -> DataFrame:
        return df.mapInArrow(function, SCHEMA)

    def mapped(df: DataFrame, capacity: int, ordered: bool) -> DataFrame:
        return async_map(
            df,
            _call_record,
            schema="answer long",
            keep="*",
            ordered=ordered,
            capacity=capacity,
        )

    def as_column(df: DataFrame, capacity: int) -> DataFrame:
        return df.withColumn("answer", async_udf("long", capacity=capacity)(service.call)("id"))

    return [
        contender("gather per batch of 10,000", lambda df, n: by_hand(gather_per_batch(n), df)),
        contender(
            "gather per batch of 1,000",
            lambda df, n: by_hand(gather_per_batch(n), df),
            batch_rows=1_000,
        ),
        contender(
            "thread pool per batch of 10,000",
            lambda df, n: by_hand(threads_per_batch(n), df),
        ),
        contender(
            "sliding window by hand, unordered",
            lambda df, n: by_hand(window_by_hand(n, ordered=False), df),
            ordered=False,
        ),
        contender(
            "sliding window by hand, ordered, 8 x",
            lambda df, n: by_hand(window_by_hand(n, ordered=True), df),
        ),
        contender(
            "pillarbox.spark.async_map, unordered",
            lambda df, n: mapped(df, n, False),
            ordered=False,
            ours=True,
        ),
        contender(
            "pillarbox.spark.async_map, ordered",
            lambda df, n: mapped(df, n, True),
            ours=True,
        ),
        contender("pillarbox.spark.async_udf", as_column, ours=True),
    ]
