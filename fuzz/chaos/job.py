"""The jobs that are harmed, and the two ways of calling in them. A `Job` is a value, and travels as JSON.

"ledger" is `pillarbox.spark.async_map` with a ledger. "gather" is what one writes by hand: `mapInArrow`, and
`asyncio.gather` over the rows of each batch, with the same number of calls at a time, the same time-out and
the same retries. `run_job` is for the driver.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("batch", "stream", "state")
CONTENDERS = ("ledger", "gather")
SCHEMA = "id long, answer long, call long"
CAPACITY = 16
ATTEMPT_TIMEOUT = 1.0
"""Seconds that a job waits for an answer."""
ATTEMPTS = 12
PAUSE, LONGEST_PAUSE = 0.05, 1.0
FILES_PER_BATCH = 2
UID = "chaos"
LANES = 16
"""Where the state is Spark's, the rows of a lane leave in order."""
MAX_WAIT = 0.3
"""Seconds that slow calls hold up a micro-batch whose state is Spark's."""


@dataclass(frozen=True)
class Job:
    """What a driver is asked to run.

    kind: "batch" writes Parquet once; "stream" reads files, some to a micro-batch, and ends with the last;
        "state" does so with `async_stream`, which leaves calls that are not finished to a later micro-batch.
    rows: in all. parts: tasks of the batch, or files of the stream. folder: for input, output and checkpoint.
    ledger: its location. run: its name, the same each time that the job is started anew. url: the service.
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

    @property
    def output(self) -> Path:
        """Where the rows are committed."""
        return Path(self.folder, "output")

    @property
    def input(self) -> Path:
        """Where the stream's files are."""
        return Path(self.folder, "input")


class Caller:
    """Calls the service, over one HTTP session for all of its calls. For the loop's thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Caller:
        import aiohttp

        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, row: Any) -> dict[str, int]:
        """What the service answers for the row, and the number that the service gave the call."""
        assert self._session is not None
        async with self._session.get(f"{self._url}/call/{row.id}") as response:
            response.raise_for_status()
            said = await response.json()
            return {"answer": said["answer"], "call": said["call"]}


def run_job(spark: SparkSession, job: Job) -> None:
    """Run a job until its output is committed. Raises what Spark raises."""
    if job.kind == "batch":
        rows = spark.range(0, job.rows, 1, job.parts)
        _called(rows, job).write.mode("overwrite").parquet(str(job.output))
        return
    columns = "id long" if job.kind == "stream" else "id long, lane long"
    stream = spark.readStream.schema(columns).option("maxFilesPerTrigger", FILES_PER_BATCH)
    query = (
        _called(stream.parquet(str(job.input)), job)
        .writeStream.format("parquet")
        .option("path", str(job.output))
        .option("checkpointLocation", os.path.join(job.folder, "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _called(rows: DataFrame, job: Job) -> DataFrame:
    if job.contender == "gather":
        return rows.mapInArrow(Gathering(job.url), SCHEMA)
    from pillarbox import Options, Retry
    from pillarbox.ledger import Ledger
    from pillarbox.spark import async_map

    schema, keep, caller = "answer long, call long", ["id"], Caller(job.url)
    options = Options(
        ordered=job.ordered,
        capacity=CAPACITY,
        attempt_timeout=ATTEMPT_TIMEOUT,
        retry=Retry(ATTEMPTS, initial=PAUSE, maximum=LONGEST_PAUSE),
        ledger=Ledger(job.ledger, loss_window=job.loss_window),
        uid=UID,
        run=job.run if job.kind == "batch" else None,
    )
    if job.kind == "state":
        from pillarbox.spark import async_stream

        return async_stream(
            rows, caller, schema=schema, keep=keep, options=options, key="lane", max_wait=MAX_WAIT
        )
    return async_map(rows, caller, schema=schema, keep=keep, options=options, key=["id"])


@dataclass
class _Row:
    id: int


class Gathering:
    """What one writes by hand: `asyncio.gather` over each batch. Runs on the worker's task thread."""

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
                await asyncio.sleep(random.uniform(0, min(LONGEST_PAUSE, PAUSE * 2 ** (attempt - 1))))
        raise AssertionError
