"""Ten thousand splits of a few rows: what they take in Spark, in one micro-batch, and in tasks."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.sources.measure import Effort, Figure, Say, Way, must_be, rounds
from bench.sources.session import count_and_sum
from bench.sources.tasks import read
from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.spark import register_source

SPLITS = 10_000
ROWS = 10
"""Rows of a split."""
TASKS = 4
LONG = 300.0


def measure(spark: SparkSession, folder: Path, effort: Effort, say: Say) -> list[Figure]:
    """The same rows in few splits and in many, read in each way."""
    splits = effort.of(SPLITS, least=8)
    rows = splits * ROWS
    many, few = GeneratorSource(rows=rows, splits=splits), GeneratorSource(rows=rows, splits=2)
    in_many, in_two = register_source(spark, many, "many_splits"), register_source(spark, few, "two_splits")
    expected = (rows, rows * (rows - 1) // 2)
    nbytes: list[float] = []

    def in_batch(name: str) -> Any:
        def run() -> None:
            must_be(expected, count_and_sum(spark.read.format(name).load(), "id"), name)

        return run

    def in_stream(name: str) -> Any:
        def run() -> None:
            place = folder / f"{name} {len(list(folder.glob('*')))}"
            must_be([expected], micro_batches(spark.readStream.format(name).load(), place), name)
            nbytes.append((place / "offsets" / "0").stat().st_size)
            offset = json.loads((place / "offsets" / "0").read_text().splitlines()[-1])
            must_be(splits if name == in_many else 2, len(offset["slices"]), "slices of the micro-batch")

        return run

    def in_tasks(source: GeneratorSource) -> Any:
        def run() -> None:
            must_be(expected, in_task_threads(source), "tasks")

        return run

    folder.mkdir()
    ways = [
        Way("Spark, batch, 2 splits", in_batch(in_two)),
        Way(f"Spark, batch, {splits:,}", in_batch(in_many)),
        Way("Spark, one micro-batch, 2 splits", in_stream(in_two)),
        Way(f"Spark, one micro-batch, {splits:,}", in_stream(in_many)),
        Way("StreamTasks, 2 splits", in_tasks(few)),
        Way(f"StreamTasks, {splits:,} by need", in_tasks(many)),
    ]
    bases = {1: 0, 3: 2, 5: 4}
    runs = rounds(ways, effort, say)
    figures = []
    for at, way in enumerate(ways):
        figure = Figure("splits", way.name, "s", runs[way.name].seconds)
        if at in bases:
            base = ways[bases[at]].name
            figure.against = base
            pairs = zip(runs[base].seconds, runs[way.name].seconds, strict=True)
            figure.ratios = [own / other for other, own in pairs]
        figures.append(figure)
    for at, base in bases.items():
        pairs = zip(runs[ways[base].name].seconds, runs[ways[at].name].seconds, strict=True)
        each = [(own - other) / splits * 1e6 for other, own in pairs]
        figures.append(Figure("splits", f"a split more: {ways[at].name}", "us", each))
    figures.append(Figure("splits", "the offset of a micro-batch, with its file", "bytes", [max(nbytes)]))
    return figures


def micro_batches(df: DataFrame, place: Path) -> list[tuple[int, int]]:
    """Read what there is; of each micro-batch the rows and the sum of their numbers."""
    found: list[tuple[int, int]] = []

    def take(batch: DataFrame, number: int) -> None:
        found.append(count_and_sum(batch, "id"))

    writer = df.writeStream.foreachBatch(take).option("checkpointLocation", str(place))
    query = writer.trigger(availableNow=True).start()
    try:
        must_be(True, query.awaitTermination(int(LONG)), "the query has ended")
    finally:
        query.stop()
    return found


def in_task_threads(source: GeneratorSource) -> tuple[int, int]:
    """Read all of it with some tasks; the rows and the sum of their numbers."""
    guard, found = threading.Lock(), [0, 0]

    def see(batch: pa.RecordBatch) -> None:
        numbers = batch.column("id").to_numpy()
        with guard:
            found[0] += len(numbers)
            found[1] += int(numbers.sum())

    read(source, TASKS, see)
    return found[0], found[1]
