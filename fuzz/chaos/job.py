"""The jobs that are harmed, and the two ways of calling in them. A `Job` is a value, and travels as JSON.

"ledger" is `pillarbox.spark.async_map` with a ledger. "gather" is what one writes by hand: `mapInArrow`, and
`asyncio.gather` over the rows of each batch, with the same number of calls at a time, the same time-out and
the same retries. `run_job` is for the driver.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.chaos.calls import CALLER
from pillarbox import Timeout

if TYPE_CHECKING:
    import aiohttp
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("batch", "stream", "state", "shuffled", "repeated", "twice", "changed", "column")
STREAMS = frozenset({"stream", "state"})
CONTENDERS = ("ledger", "gather")
SCHEMA = "id long, answer long, call long"
CAPACITY = 16
ATTEMPT_TIMEOUT = 1.0
"""Seconds that a job waits for an answer."""
ATTEMPTS = 12
PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
FILES_PER_BATCH = 2
UID = "chaos"
CHANGED = 10**6
"""Added to the id of a row whose input has changed, or whose name is null: for the service it is another."""
EACH = 10
"""Of so many rows one has changed, or has no name."""
LANES = 16
"""Number of lanes. Where the state is Spark's, the rows of a lane leave in order."""
MAX_WAIT = 0.3
"""Seconds that slow calls hold up a micro-batch whose state is Spark's."""
KILL, HOLD = "kill", "hold"
"""The effects of a trap: it kills a worker, or has it wait for another attempt of its task."""
HELD_S = 20.0
"""Seconds for which a worker waits so, at most."""
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True)
class Job:
    """The job that a driver is asked to run.

    kind: "batch" writes Parquet once; "stream" reads files, some to a micro-batch, and ends with the last;
        "state" does so with `async_stream`, which leaves calls that are not finished to a later micro-batch,
        and has two sinks, see `_write_to_both`.
        As "batch" are: "shuffled", whose input comes out of a shuffle; "repeated", where rows have names that
        come again in each task, or null; "twice", with two actions on one DataFrame at a time; "changed",
        which runs twice under one name, the second time with some other rows; "column", whose calls are
        those of an `async_udf`.
    rows: in all. parts: tasks of the batch, or files of the stream. folder: for input, output and checkpoint.
    ledger: its location. run: its name, the same each time that the job is started anew. url: the service.
    checkpoint_format: of Spark's state.
    """

    kind: str
    contender: str
    ordered: bool
    rows: int
    parts: int
    folder: str
    ledger: str
    run: str
    url: str
    loss_window: float = 0.2
    checkpoint_format: int = 1

    @property
    def output(self) -> Path:
        """The folder in which the rows are committed."""
        return Path(self.folder, "output")

    @property
    def second_output(self) -> Path:
        """The output of a second action, or the second sink."""
        return Path(self.folder, "output-second")

    @property
    def input(self) -> Path:
        """The folder of the stream's files."""
        return Path(self.folder, "input")

    @property
    def departed(self) -> Path:
        """The file in which a `Witness` writes down what leaves the tasks."""
        return Path(self.folder, "departed.log")

    @property
    def trap(self) -> Path:
        """The file that has a `Witness` do what it says when all rows of a task have left."""
        return Path(self.folder, "trap")


def input_ids(kind: str, rows: int, parts: int) -> list[int]:
    """The ids of the rows that the committed output of a job has, in the order of its input."""
    if kind == "changed":
        return [row + CHANGED * (row % EACH == 0) for row in range(rows)]
    if kind == "repeated":
        # Those without a name are known by their content, of which there is one each.
        return [row + CHANGED if row % EACH == 0 else row % names_of(rows, parts) for row in range(rows)]
    return list(range(rows))


def names_of(rows: int, parts: int) -> int:
    """The number of names, about, in a job with repeated ones: each comes twice in each task."""
    return max(EACH, rows // parts // 2 // EACH * EACH)


class Caller:
    """Calls the service, over one HTTP session for all of its calls. For the loop's thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Caller:
        import aiohttp

        caller = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers={CALLER: caller}
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, row: Any) -> dict[str, int]:
        """Answer for the row, as the service does, with the number that the service gave the call."""
        assert self._session is not None
        # aiohttp sends a GET once more by itself where its connection was reset: two calls for one attempt.
        async with self._session.post(f"{self._url}/call/{row.id}") as response:
            response.raise_for_status()
            said = await response.json()
            return {"answer": said["answer"], "call": said["call"]}


class ColumnCaller(Caller):
    """The same for the values of a column."""

    async def __call__(self, id: int) -> dict[str, int]:
        """As for the row of this id."""
        return await super().__call__(_Row(id))


def run_job(spark: SparkSession, job: Job) -> None:
    """Run a job until its output is committed. Raises what Spark raises."""
    if job.kind not in STREAMS:
        _run_batch(spark, job)
        return
    columns = "id long" if job.kind == "stream" else "id long, lane long"
    stream = spark.readStream.schema(columns).option("maxFilesPerTrigger", FILES_PER_BATCH)
    writer = _called(stream.parquet(str(job.input)), job).writeStream
    if job.kind == "stream":
        writer = writer.format("parquet").option("path", str(job.output))
    else:
        spark.conf.set(CHECKPOINT_FORMAT, job.checkpoint_format)
        writer = writer.foreachBatch(lambda df, batch: _write_to_both(df, batch, job))
    writer = writer.option("checkpointLocation", os.path.join(job.folder, "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _write_to_both(df: DataFrame, batch: int, job: Job) -> None:
    """Write a micro-batch to two sinks, each idempotent by its number, by an action of each.

    Of a micro-batch that is executed several times, the first sink has the last execution's rows, the second
    one the first one's.
    """

    def write_once(output: Path) -> None:
        if not (output / "_SUCCESS").exists():
            _write(df, output)

    # In a thread of Python alone Spark tells the tasks neither query nor micro-batch.
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(write_once, job.second_output / str(batch))
        if batch % 2:
            wait([second])
        # Otherwise both at a time.
        _write(df, job.output / str(batch))
    second.result()


def _run_batch(spark: SparkSession, job: Job) -> None:
    rows = spark.range(0, job.rows, 1, job.parts)
    if job.kind == "changed":
        before = Path(job.folder, "output-before")
        rows = rows.withColumnRenamed("id", "name")
        if not (before / "_SUCCESS").exists():
            _write(_called(rows.selectExpr("name", "name AS id"), job), before)
        rows = rows.selectExpr("name", f"IF(name % {EACH} = 0, name + {CHANGED}, name) AS id")
    elif job.kind == "shuffled":
        rows = rows.repartition(job.parts, "id")
    elif job.kind == "repeated":
        name = f"id % {names_of(job.rows, job.parts)}"
        rows = rows.selectExpr(
            f"IF(id % {EACH} = 0, NULL, {name}) AS name", f"IF(id % {EACH} = 0, id + {CHANGED}, {name}) AS id"
        )
    called = _called(rows, job)
    if job.kind != "twice":
        _write(called, job.output)
        return
    with ThreadPoolExecutor(2) as pool:
        outputs = job.output, job.second_output
        actions = [pool.submit(_write, called, output, pool=output.name) for output in outputs]
        if any(action.exception() for action in wait(actions, return_when=FIRST_EXCEPTION).done):
            # As a driver does that ends when an action of it has failed.
            spark.sparkContext.cancelAllJobs()
    for action in actions:
        action.result()


def _write(rows: DataFrame, output: Path, pool: str | None = None) -> None:
    """Write them. pool: of Spark's scheduler, for an action beside others."""
    if pool is not None:
        # A property of this thread.
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    rows.write.mode("overwrite").parquet(str(output))


def _called(rows: DataFrame, job: Job) -> DataFrame:
    if job.contender == "gather":
        return rows.mapInArrow(Gathering(job.url), SCHEMA)
    with _witnessed(type(rows), job.departed, job.trap):
        return _called_by_pillarbox(rows, job)


@contextmanager
def _witnessed(frames: type[DataFrame], log: Path, trap: Path) -> Iterator[None]:
    """Have all that is mapped meanwhile write down what leaves it. trap: see `Job`."""
    original = frames.mapInArrow

    def map_in_arrow(frame: DataFrame, func: Any, schema: Any, *words: Any, **named: Any) -> DataFrame:
        return original(frame, Witness(func, str(log), str(trap)), schema, *words, **named)

    frames.mapInArrow = map_in_arrow  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        frames.mapInArrow = original  # type: ignore[method-assign]


class Witness:
    """Writes down each row with the answer of a call before anybody behind `run` gets it. Task's thread."""

    def __init__(
        self, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], log: str, trap: str
    ) -> None:
        self._run = run
        self._log = log
        self._trap = trap

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return what `run` gives."""
        # Each line is one write to the end, whoever else writes.
        log = os.open(self._log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        has_answers = False
        try:
            for batch in self._run(batches):
                if "call" in batch.schema.names:
                    has_answers = True
                    rows = zip(batch.column("id").to_pylist(), batch.column("call").to_pylist(), strict=True)
                    line = {"at": time.monotonic(), "rows": list(rows)}
                    os.write(log, json.dumps(line).encode() + b"\n")
                yield batch
            if has_answers:
                self._fall_into_trap()
        finally:
            os.close(log)

    def _fall_into_trap(self) -> None:
        # A state in front of this is written when its last row has come; the sink's file is not there yet.
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        held = f"{self._trap}-{context.stageId()}-{context.partitionId()}"
        with suppress(FileNotFoundError):
            # An attempt of the same task waits for this one.
            os.unlink(held)
            return
        with suppress(FileNotFoundError):
            os.rename(self._trap, held)
            if Path(held).read_text() == HOLD:
                end = time.monotonic() + HELD_S
                while os.path.exists(held) and time.monotonic() < end:
                    time.sleep(0.01)
                return
            os.unlink(held)
            os.kill(os.getpid(), signal.SIGKILL)


def _called_by_pillarbox(rows: DataFrame, job: Job) -> DataFrame:
    from pillarbox import Options, Retry
    from pillarbox.ledger import Ledger
    from pillarbox.spark import async_map, async_udf

    schema, keep, caller = "answer long, call long", ["id"], Caller(job.url)
    options = Options(
        ordered=job.ordered,
        capacity=CAPACITY,
        timeout=Timeout(attempt=ATTEMPT_TIMEOUT),
        retry=Retry(ATTEMPTS, initial=PAUSE_S, maximum=MAX_PAUSE_S),
    )
    key = "name" if "name" in rows.columns else "id"
    ledger = Ledger(
        job.ledger,
        loss_window=job.loss_window,
        uid=UID,
        run=None if job.kind in STREAMS else job.run,
        key=[key] if job.kind not in ("state", "column") else None,
    )
    if job.kind == "state":
        from pillarbox.spark import async_stream

        return async_stream(
            rows,
            caller,
            schema=schema,
            keep=keep,
            options=options,
            ledger=ledger,
            key="lane",
            max_wait=MAX_WAIT,
        )
    if job.kind == "column":
        said = async_udf(schema, options=options, ledger=ledger)(ColumnCaller(job.url))
        return rows.select("id", said("id").alias("said")).select("id", "said.*")
    return async_map(rows, caller, schema=schema, keep=keep, options=options, ledger=ledger)


@dataclass
class _Row:
    id: int


class Gathering:
    """The handwritten way: `asyncio.gather` over each batch. Runs on the worker's task thread."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with their answers."""
        import pyarrow as pa

        for batch in batches:
            ids = batch.column("id").to_pylist()
            yield pa.RecordBatch.from_pylist(asyncio.run(self._answers(ids)))

    async def _answers(self, ids: list[int]) -> list[dict[str, int]]:
        limit = asyncio.Semaphore(CAPACITY)
        async with Caller(self._url) as caller:
            return await asyncio.gather(*(self._answer(caller, limit, row) for row in ids))

    async def _answer(self, caller: Caller, limit: asyncio.Semaphore, row: int) -> dict[str, int]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with limit:
                    return {"id": row, **await asyncio.wait_for(caller(_Row(row)), ATTEMPT_TIMEOUT)}
            except Exception:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(random.uniform(0, min(MAX_PAUSE_S, PAUSE_S * 2 ** (attempt - 1))))
        raise AssertionError
