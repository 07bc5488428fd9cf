"""Event-time alignment: how far splits are apart, with `max_drift` and without, in Spark and in tasks.

The drift is the latest event time of the split that is furthest, less that of the one that is least far, as
the rows come out: after each micro-batch, and after each Arrow batch that a task has emitted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from bench.sources.measure import Effort, Figure, Say, must_be
from bench.sources.speeds import SpeedsSource
from bench.sources.tasks import read
from pillarbox.sources import WatermarkStrategy
from pillarbox.spark import register_source

SPEEDS = (1.0, 2.0, 4.0, 8.0)
"""Seconds of event time of a row, by split. All splits have as many rows a second."""
MAX_DRIFT = 600.0
BATCH = 25
"""Rows of a batch of one split; of a micro-batch as many for each split."""
MICRO_BATCHES = 40
TASK_RATE = 400.0
"""Rows a second of a split in a task."""
TASK_SECONDS = 4.0
LONG = 120.0


@dataclass
class Drift:
    """The drift of one run over time: seconds since its begin, and seconds of event time."""

    name: str
    where: str
    aligned: bool
    seconds: list[float] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    step: float = 0.0
    """The most that a split has come on with one batch, in seconds of event time."""
    slowest: float = 0.0
    """The position of the slowest split."""
    rows: int = 0

    @property
    def most(self) -> float:
        """The largest drift of the run."""
        return max(self.drift, default=0.0)


class Seen:
    """The position of each split in what was given out; adds the drift to a run. One thread at a time."""

    def __init__(self, run: Drift) -> None:
        self._run = run
        self._latest = [0.0] * len(SPEEDS)
        self._began: float | None = None
        self._lock = threading.Lock()
        self.batches = 0

    def see(self, table: pa.Table | pa.RecordBatch) -> None:
        """Take rows in."""
        with self._lock:
            now = time.monotonic()
            if self._began is None:
                self._began = now
            ids = table.column("id")
            for split in range(len(SPEEDS)):
                rows = pc.filter(ids, pc.equal(table.column("split"), split))
                if len(rows):
                    at = (pc.max(rows).as_py() - split) // len(SPEEDS) * SPEEDS[split]
                    self._run.step = max(self._run.step, at - self._latest[split])
                    self._latest[split] = max(self._latest[split], at)
            self.batches += 1
            self._run.rows += table.num_rows
            self._run.slowest = min(self._latest)
            self._run.seconds.append(now - self._began)
            self._run.drift.append(max(self._latest) - min(self._latest))


def measure(
    spark: SparkSession, folder: Path, effort: Effort, say: Say
) -> tuple[list[Figure], list[dict[str, Any]]]:
    """The figures, and the runs of the first round for the plot."""
    kinds: list[tuple[str, bool, Callable[[Path], Drift]]] = []
    for where, exact in (("micro-batches, positions known", True), ("micro-batches", False)):
        # Without alignment nobody asks for positions.
        for aligned in (False, True) if exact else (True,):
            kinds += [(where, aligned, _micro_batches(spark, where, exact, aligned, effort))]
    for aligned in (False, True):
        kinds += [("tasks", aligned, lambda _, aligned=aligned: _tasks(aligned, effort))]
    runs: dict[tuple[str, bool], list[Drift]] = {(where, aligned): [] for where, aligned, _ in kinds}
    for number in range(effort.rounds):
        for at, (where, aligned, run) in enumerate(kinds):
            drift = run(folder / f"{number} {at}")
            must_be(True, drift.rows > 0 and drift.slowest > 0.0, f"{where}: every split has come on")
            runs[where, aligned].append(drift)
            say(f"round {number + 1}: {drift.name}: {drift.most:,.0f} s apart at most")
    figures = []
    for (where, aligned), each in runs.items():
        figure = Figure("drift", each[0].name, "s at most", [drift.most for drift in each])
        if aligned:
            # Splits that are read share the limit of rows, so how large a batch is depends on who is held.
            figure.target = f"{MAX_DRIFT:g} s and a batch of {max(drift.step for drift in each):g} s"
            figure.met = all(drift.most <= MAX_DRIFT + drift.step for drift in each)
            free = where if where == "tasks" else kinds[0][0]
            figure.against = runs[free, False][0].name
            figure.ratios = [
                own.most / other.most for own, other in zip(each, runs[free, False], strict=True)
            ]
        figures.append(figure)
    return figures, [each[0].__dict__ for each in runs.values()]


def _source(exact: bool, rate: float | None) -> SpeedsSource:
    return SpeedsSource(splits=len(SPEEDS), rate=rate, batch_rows=BATCH, speeds=SPEEDS, exact=exact)


def _name(where: str, aligned: bool) -> str:
    return f"{where}, {f'max_drift {MAX_DRIFT:g} s' if aligned else 'not aligned'}"


def _micro_batches(
    spark: SparkSession, where: str, exact: bool, aligned: bool, effort: Effort
) -> Callable[[Path], Drift]:
    source = _source(exact, None)
    name = register_source(spark, source, f"speeds_{'exact' if exact else 'reported'}")
    options = {"max_rows": str(BATCH * len(SPEEDS))}
    if aligned:
        options |= {"max_drift": str(MAX_DRIFT), "timestamp": "event_time"}

    def run(place: Path) -> Drift:
        drift = Drift(_name(where, aligned), where, aligned)
        seen = Seen(drift)

        def take(df: DataFrame, number: int) -> None:
            seen.see(df.toArrow())

        df = spark.readStream.format(name).options(**options).load().select("id", "split", "event_time")
        query = df.writeStream.foreachBatch(take).option("checkpointLocation", str(place)).start()
        try:
            wanted, deadline = effort.of(MICRO_BATCHES, least=4), time.monotonic() + LONG
            while seen.batches < wanted:
                if not query.isActive or time.monotonic() > deadline:
                    raise AssertionError(f"{seen.batches} micro-batches of {wanted}: {query.exception()}")
                time.sleep(0.02)
        finally:
            query.stop()
        return drift

    return run


def _tasks(aligned: bool, effort: Effort) -> Drift:
    """Two tasks that share the splits, for some seconds."""
    drift = Drift(_name("tasks", aligned), "tasks", aligned)
    source = _source(True, TASK_RATE * len(SPEEDS))
    strategy = WatermarkStrategy("event_time", max_drift=MAX_DRIFT) if aligned else None
    seconds = TASK_SECONDS * max(0.25, min(1.0, effort.size))
    see = Seen(drift).see
    read(source, 2, see, watermarks=strategy, seconds=seconds)
    return drift
