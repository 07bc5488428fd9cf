"""A million vectors from a column of text, over HTTP, to Parquet on two cores: all processes counted.

`python -m bench.clients.million`. Three jobs on `local[2]`, each over the same cached texts and written as
Parquet: `embed_text`; `mapInArrow` with requests by hand, as one writes it with the standard library and a
pool of threads; and `mapInArrow` that makes the same vectors without a call: what Spark itself takes. CPU is
that of Spark's workers, of Java and of the raw server of this folder. Writes `million.json` into `out/bench`.

Spark's Parquet tries a dictionary of all numbers first, which for vectors is work for nothing. So there is a
second sink, without one (the writer's option `parquet.enable.dictionary`), for what is left of Java then.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame

from bench.chunks import machine
from bench.clients.server import DIMENSIONS, RawServer
from bench.clients.through_spark import BATCH, VECTOR, by_hand
from bench.cpu import cpu_time, tree_time
from bench.spark_contenders import session
from bench.table import Column, print_table
from pillarbox.clients import Embeddings, Http
from pillarbox.spark import embed_text

ROWS, CORES, PARTITIONS = 1_000_000, 2, 8
IN_FLIGHT = 8
"""Requests of a task that are under way at a time."""
ROWS_OF_BATCH = 2_048
"""Rows of an Arrow batch that the job by hand writes: as many as `embed_text` does."""
SINKS = {"Parquet": {}, "Parquet, no dictionary": {"parquet.enable.dictionary": "false"}}


class Used(NamedTuple):
    """Vectors a second, and CPU in microseconds a vector of each kind of process."""

    rate: float
    workers: float
    java: float
    server: float

    @property
    def total(self) -> float:
        """The CPU of all processes."""
        return self.workers + self.java + self.server


def requests_by_hand(url: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function of `mapInArrow` that asks for the vectors with `http.client`, in threads."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        local = threading.local()

        def ask(texts: list[str]) -> bytes:
            if not hasattr(local, "connection"):
                local.connection = HTTPConnection(urlsplit(url).netloc)
            body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64"})
            local.connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            items = json.loads(local.connection.getresponse().read())["data"]
            return b"".join([base64.b64decode(item["embedding"]) for item in items])

        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            for batch in batches:
                for first in range(0, len(batch), ROWS_OF_BATCH):
                    some = batch.slice(first, ROWS_OF_BATCH)
                    texts = some.column("text").to_pylist()
                    parts = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
                    numbers = np.frombuffer(b"".join(pool.map(ask, parts)), np.float32)
                    offsets = pa.array(np.arange(len(some) + 1, dtype=np.int32) * DIMENSIONS)
                    vectors = pa.ListArray.from_arrays(offsets, pa.array(numbers))
                    yield pa.RecordBatch.from_arrays([some.column("id"), vectors], ["id", "vector"])

    return run


def contenders(texts: DataFrame, url: str) -> dict[str, Callable[[], DataFrame]]:
    """The jobs by their names; each makes its DataFrame anew."""
    client = Embeddings(f"{url}/v1", "m", max_texts=BATCH, http=Http(proxy="direct"))
    schema = f"id long, {VECTOR}"
    return {
        "no calls": lambda: texts.mapInArrow(by_hand, schema),
        "requests by hand": lambda: texts.mapInArrow(requests_by_hand(url), schema),
        "embed_text": lambda: embed_text(
            texts, "text", into="vector", client=client, keep=["id"], capacity=IN_FLIGHT
        ),
    }


def measure(job: DataFrame, options: dict[str, str], place: Path, rows: int, server: psutil.Process) -> Used:
    """Write a job's rows as Parquet, and count what that took."""
    served, before, began = tree_time(server).total, cpu_time(), time.monotonic()
    job.write.format("parquet").options(**options).mode("overwrite").save(str(place))
    seconds, used = time.monotonic() - began, cpu_time() - before
    of_server = tree_time(server).total - served
    # The server is below this process too.
    cpu = used.workers - of_server, used.jvm + used.own, of_server
    return Used(rows / seconds, *(each / rows * 1e6 for each in cpu))


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients.million", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", default="", help="words of the names of jobs, with commas between")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    given = parser.parse_args(arguments)
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    written_on = machine()
    spark = session(CORES)
    spark.sparkContext.setLogLevel("ERROR")
    # The first rows warm up: code that Java has not compiled yet, workers that have imported nothing.
    texts, first = [
        spark.range(0, rows, 1, PARTITIONS).selectExpr("id", "concat('text number ', id) as text").cache()
        for rows in (given.rows, max(PARTITIONS, given.rows // 20))
    ]
    texts.count()
    folder = Path(tempfile.mkdtemp(prefix="vectors-"))
    found: dict[str, list[Used]] = {}
    try:
        with RawServer() as server:
            process = psutil.Process(server.pid)
            warm = contenders(first, server.url)
            words = given.jobs.split(",")
            jobs = {
                name: job
                for name, job in contenders(texts, server.url).items()
                if any(word in name for word in words)
            }
            for name in jobs:
                measure(warm[name](), {}, folder / "vectors", given.rows, process)
            for _ in range(given.rounds):
                for sink, options in SINKS.items():
                    for name, job in jobs.items():
                        used = measure(job(), options, folder / "vectors", given.rows, process)
                        found.setdefault(f"{name}, {sink}", []).append(used)
    finally:
        spark.stop()
        shutil.rmtree(folder)
    (out / "million.json").write_text(
        json.dumps({"machine": written_on, "rows": given.rows, "used": found}, indent=1) + "\n"
    )
    columns = [Column(f"{given.rows:,} vectors", right=False), Column("a second")]
    columns += [Column(f"{name}, us") for name in ("workers", "Java", "server", "all")]
    columns.append(Column(f"a second of {CORES} cores"))
    lines = []
    for name, rounds in found.items():
        middle = Used(*(statistics.median(each) for each in zip(*rounds, strict=True)))
        cpu = [middle.workers, middle.java, middle.server, middle.total]
        lines.append(
            [
                name,
                f"{middle.rate:,.0f}",
                *(f"{each:.1f}" for each in cpu),
                f"{CORES * 1e6 / middle.total:,.0f}",
            ]
        )
    print_table(columns, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
