"""Latency of a stream's rows, from their arrival to their results: `python -m bench.latency`.

A folder gets files of three rows, the next one when the results of the one before are there; micro-batches
run as soon as they can, and each row's call takes 20 ms. Milliseconds from the time at which a file is in its
place to that at which `foreachBatch` has the results, with Spark's own part: the query plans, logs, commits
each micro-batch. Beside it are a micro-batch without calls, and the loop by hand that people write. A session
of its own has the settings of `latency="low"`, by which each row is a batch between Spark and its workers.
Real-time Mode, which takes no source of files, is in `bench.real_time`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.chunks import ROOT
from bench.small import SOCKETS, session
from pillarbox import Options

LIMIT_S = 1800.0
CALL_S = 0.02
ROWS_OF_FILE = 3
WAIT_S = 60.0
"""Seconds without a result after which the measurement is given up."""
IDENTITY, BY_HAND, OURS = "no calls", "a loop by hand in `mapInArrow`", "`async_map`"
LOW = '`latency="low"`'
SESSIONS = {**SOCKETS, f"Unix sockets, {LOW}": LOW}
"""The setting of Unix sockets of each session; `LOW` for one with those of low latency besides."""


async def call(row: Any) -> int:
    """Return the number of the row, after the time of a call."""
    await asyncio.sleep(CALL_S)
    return row.id  # type: ignore[no-any-return]


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the numbers of the rows."""
    for batch in batches:
        yield batch.select(["id"])


def by_hand(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call for the rows of each batch at once, in a loop that is made for it."""

    async def answer(number: int) -> int:
        await asyncio.sleep(CALL_S)
        return number

    async def answers(numbers: list[int]) -> list[int]:
        return await asyncio.gather(*map(answer, numbers))

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": asyncio.run(answers(batch.column("id").to_pylist()))})


class Query:
    """A query over a folder, and the times of its results."""

    def __init__(self, spark: Any, folder: Path, door: str, options: Options) -> None:
        from pillarbox.spark import async_map

        self.folder, self._number = folder / "in", 0
        self.folder.mkdir(parents=True)
        rows = spark.readStream.schema("id long").json(str(self.folder))
        if door == OURS:
            results = async_map(rows, call, schema="id long", options=options)
        else:
            results = rows.mapInArrow(nothing if door == IDENTITY else by_hand, "id long")
        self._results: queue.Queue[float] = queue.Queue()
        writer = results.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        self._query = writer.foreachBatch(self._take).start()

    def _take(self, batch: Any, _: int) -> None:
        found = batch.collect()
        now = time.perf_counter()
        if found:
            assert len(found) == ROWS_OF_FILE
            self._results.put(now)

    def latency_ms(self) -> float:
        """Return the milliseconds from a new file to its results."""
        self._number += 1
        lines = "\n".join(json.dumps({"id": number}) for number in range(ROWS_OF_FILE))
        path = self.folder / f".{self._number}.json"
        path.write_text(lines)
        began = time.perf_counter()
        path.rename(self.folder / f"{self._number}.json")
        return (self._results.get(timeout=WAIT_S) - began) * 1000

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


def measure(kind: str, files: int) -> dict[str, list[float]]:
    """Return the latencies of each door in a session of this process, taken in turn. kind: of `SESSIONS`."""
    from pillarbox.spark.operator_plan import LOW_LATENCY

    is_low = kind == LOW
    spark = session("true", **LOW_LATENCY) if is_low else session(kind)
    options = Options(latency="low") if is_low else Options()
    with tempfile.TemporaryDirectory() as folder:
        queries = {
            door: Query(spark, Path(folder, str(place)), door, options)
            for place, door in enumerate((IDENTITY, BY_HAND, OURS))
        }
        found: dict[str, list[float]] = {door: [] for door in queries}
        # The first ones start workers and compile.
        for number in range(files + 20):
            for door, query in queries.items():
                ms = query.latency_ms()
                if number >= 20:
                    found[door].append(ms)
        for query in queries.values():
            query.stop()
    spark.stop()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency")
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.of is not None:
        print(json.dumps(measure(words.of, words.files)))
        return
    columns = {}
    for name, value in SESSIONS.items():
        command = [sys.executable, "-m", "bench.latency", "--of", value, "--files", str(words.files)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
        columns[name] = json.loads(done.stdout.splitlines()[-1])
    print(f"| ms from a file of {ROWS_OF_FILE} rows to its results | {' | '.join(columns)} |")
    print("|---|" + "---|" * len(columns))
    for door in next(iter(columns.values())):
        cells = []
        for each in columns.values():
            percentiles = statistics.quantiles(each[door], n=100, method="inclusive")
            cells.append(f"p50 {percentiles[49]:.0f}, p99 {percentiles[98]:.0f}")
        print(f"| {door} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
