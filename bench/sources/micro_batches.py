"""A micro-batch: the generator of two splits against a stream of two partitions by hand, hardly any rows.

Milliseconds are Spark's own, of `recentProgress`: `triggerExecution`, and its parts. Those of CPU time are of
all processes, which tells more where the machine is busy with something else.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.sources.by_hand import HandRows
from bench.sources.measure import Effort, Figure, Say, cpu_seconds
from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.spark import register_source

BATCHES = 40
WARM_UP = 8
"""Micro-batches of each query that are not counted."""
RATE = 1000.0
LONG = 120.0
TARGET_MS = 20.0
SOURCE_PARTS = ("latestOffset", "queryPlanning", "addBatch")
"""The phases in which the source has a part: it is asked for its end, for partitions, and for rows."""
PARTS = (*SOURCE_PARTS, "walCommit", "commitOffsets")
OVERHEAD = "overhead: latestOffset, planning and read, above by hand"


def measure(spark: SparkSession, folder: Path, effort: Effort, say: Say) -> list[Figure]:
    """A query of each kind a round; the figure of a round is its median micro-batch."""
    spark.dataSource.register(HandRows)
    name = register_source(spark, GeneratorSource(rate=RATE, splits=2), "generated_rows")

    def by_hand() -> DataFrame:
        return spark.readStream.format("hand_rows").option("rate", RATE).load()

    def ours() -> DataFrame:
        return spark.readStream.format(name).schema("id long").load()

    batches = effort.of(BATCHES, least=3)
    both = [("Spark, stream by hand", by_hand), ("generator in Spark", ours)]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind, _ in both}
    for number in range(effort.rounds):
        for kind, read in both if number % 2 == 0 else reversed(both):
            place = folder / f"{number} {kind}"
            median = run(read(), place, batches, WARM_UP if effort.warm_up else 0)
            found[kind].append(median)
            say(f"round {number + 1}: {kind}: {median['triggerExecution']:.0f} ms")
    hand, own = (found[kind] for kind, _ in both)
    figures = [
        Figure("micro-batches", kind, "ms", [each["triggerExecution"] for each in medians])
        for kind, medians in found.items()
    ]
    figures[1].against = figures[0].name
    figures[1].ratios = [b / a for a, b in zip(figures[0].values, figures[1].values, strict=True)]
    figures += [
        Figure("micro-batches", f"{kind}, CPU", "ms", [each["cpu"] for each in medians])
        for kind, medians in found.items()
    ]
    figures += [
        Figure("micro-batches", f"above by hand: {part}", "ms", above(hand, own, part))
        for part in (*PARTS, "cpu")
    ]
    figures.append(Figure("micro-batches", "above by hand", "ms", above(hand, own, "triggerExecution")))
    each_round = zip(*(above(hand, own, part) for part in SOURCE_PARTS), strict=True)
    overhead = Figure("micro-batches", OVERHEAD, "ms", [sum(parts) for parts in each_round])
    overhead.target, overhead.met = f"below {TARGET_MS:g} ms", overhead.median < TARGET_MS
    return [*figures, overhead]


def above(hand: list[dict[str, float]], own: list[dict[str, float]], part: str) -> list[float]:
    """The additional seconds of ours, round by round."""
    return [b[part] - a[part] for a, b in zip(hand, own, strict=True)]


def run(df: DataFrame, place: Path, batches: int, warm_up: int) -> dict[str, float]:
    """Run a query until it has done so many micro-batches; of each duration the median, in milliseconds."""
    query = df.writeStream.format("noop").option("checkpointLocation", str(place)).start()
    try:
        wait_for(query, warm_up)
        used, began = cpu_seconds(), len(query.recentProgress)
        done = wait_for(query, warm_up + batches)
        used, triggers = cpu_seconds() - used, len(query.recentProgress) - began
    finally:
        query.stop()
    measured = [each["durationMs"] for each in done[warm_up:]]
    medians = {
        part: statistics.median(each.get(part, 0) for each in measured)
        for part in ("triggerExecution", *PARTS)
    }
    return medians | {"cpu": used / max(1, triggers) * 1000}


def wait_for(query: Any, batches: int) -> list[dict[str, Any]]:
    """Wait for so many micro-batches with rows; their progress. Raises AssertionError if they do not come."""
    deadline = time.monotonic() + LONG
    while len(done := with_rows(query)) < batches:
        if not query.isActive:
            raise AssertionError(f"the query has ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(done)} micro-batches in {LONG} s")
        time.sleep(0.02)
    return done


def with_rows(query: Any) -> list[dict[str, Any]]:
    """The progress of the micro-batches that had any rows."""
    return [each for each in query.recentProgress if each["numInputRows"]]
