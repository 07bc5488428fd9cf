"""Vectors through Spark: CPU of the Python worker a vector of 1,024 floats, to a noop sink and to Parquet.

`python -m bench.clients.through_spark`, the first part of `make bench-clients`. One core, one partition, 64
texts a batch; the raw server of this folder answers, where there is one. Rounds are interleaved, medians are
printed, and all rounds written as `through_spark.json` into `out/bench`. The first
line is a hand-written `mapInArrow` that calls nothing: what Spark itself takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame

from bench.chunks import machine
from bench.clients.server import DIMENSIONS, RawServer
from bench.cpu import cpu_time, tree_time
from bench.spark_contenders import session
from bench.table import Column, print_table
from pillarbox import Batch, Ledger
from pillarbox.clients import Embeddings, Http
from pillarbox.spark import async_map, embed_text

ROWS, ROUNDS = 20_000, 5
BATCH = 64
VECTOR = "vector array<float>"


class Block:
    """Vectors out of memory, in the three forms in which a function gives them. Sent to the workers."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._block: Any = None

    async def __call__(self, batch: Any) -> Any:
        """The vectors of a batch: of lists, NumPy arrays or one block."""
        if self._block is None:
            block = np.random.default_rng(0).random((BATCH, DIMENSIONS), np.float32)
            rows = [(row,) for row in (block.tolist() if self._form == "lists" else block)]
            self._block = block if self._form == "block" else rows
        return self._block[: len(batch)]


def by_hand(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same vectors without calls."""
    block = np.random.default_rng(0).random((BATCH, DIMENSIONS), np.float32)
    for batch in batches:
        for start in range(0, len(batch), BATCH):
            ids = batch.column("id").slice(start, BATCH)
            offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * DIMENSIONS)
            vectors = pa.ListArray.from_arrays(offsets, pa.array(block[: len(ids)].ravel()))
            yield pa.RecordBatch.from_arrays([ids, vectors], ["id", "vector"])


def contenders(texts: DataFrame, url: str, folder: Path) -> dict[str, Callable[[], DataFrame]]:
    """The jobs by their names; each makes its DataFrame anew."""

    def mapped(form: str, **batch: Any) -> DataFrame:
        return async_map(texts, Block(form), schema=VECTOR, keep=["id"], batch=Batch(BATCH, **batch))

    def embedded(**more: Any) -> DataFrame:
        client = Embeddings(f"{url}/v1", "m", max_texts=BATCH, http=Http(proxy="direct"))
        return embed_text(texts, "text", into="vector", client=client, keep=["id"], capacity=8, **more)

    def kept() -> DataFrame:
        place = tempfile.mkdtemp(dir=folder)
        return embedded(ledger=Ledger(place, uid="embed", run="bench", key=["id"]))

    return {
        "by hand, no calls": lambda: texts.mapInArrow(by_hand, f"id long, {VECTOR}"),
        "async_map, lists": lambda: mapped("lists"),
        "async_map, NumPy rows": lambda: mapped("rows"),
        "async_map, Batch(arrow=True)": lambda: mapped("block", arrow=True),
        "embed_text, HTTP": embedded,
        "embed_text, HTTP, ledger": kept,
    }


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients.through_spark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    written_on = machine()
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    texts = spark.range(0, options.rows, 1, 1).selectExpr("id", "concat('text number ', id) as text").cache()
    texts.count()
    folder = Path(tempfile.mkdtemp(prefix="vectors-"))
    found: dict[str, list[tuple[float, float, float]]] = {}
    try:
        with RawServer() as server:
            service = psutil.Process(server.pid)
            jobs = contenders(texts, server.url, folder)
            for number in range(-1, options.rounds):
                for name, job in jobs.items():
                    for sink in ("noop", "parquet") if name == "embed_text, HTTP" else ("noop",):
                        served, before = tree_time(service).total, cpu_time()
                        written = job().write.format(sink).mode("overwrite")
                        written.save(str(folder / "parquet")) if sink == "parquet" else written.save()
                        used = cpu_time() - before
                        of_server = tree_time(service).total - served
                        # The server is below this process too. The first round warms up.
                        if number >= 0:
                            cpu = used.workers - of_server, used.jvm, of_server
                            label = name if sink == "noop" else f"{name}, to Parquet"
                            found.setdefault(label, []).append(
                                tuple(each / options.rows * 1e6 for each in cpu)  # type: ignore[arg-type]
                            )
    finally:
        spark.stop()
        shutil.rmtree(folder)
    worker_of = {name: [worker for worker, _, _ in rounds] for name, rounds in found.items()}
    (out / "through_spark.json").write_text(
        json.dumps({"machine": written_on, "worker": worker_of}, indent=1) + "\n"
    )
    columns = [Column("through Spark", right=False), Column("worker, us a vector"), Column("lowest")]
    columns += [Column("vectors a second of its CPU"), Column("Java, us"), Column("the server, us")]
    lines = []
    for name, rounds in found.items():
        worker, java, of_server = (statistics.median(each) for each in zip(*rounds, strict=True))
        lowest = min(each[0] for each in rounds)
        lines.append(
            [
                name,
                f"{worker:.1f}",
                f"{lowest:.1f}",
                f"{1e6 / worker:,.0f}",
                f"{java:.1f}",
                f"{of_server:.1f}",
            ]
        )
    print_table(columns, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
