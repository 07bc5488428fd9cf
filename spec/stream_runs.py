"""Has queries of `async_stream` run on Spark as a seed says, records them, and has TLC judge the record.

A run is a query that is started again until it has ended: its sinks have actions of their own, one after the
other or at the same time, and skip what they have; another action takes some rows; the driver fails between
any two of them; an action of a micro-batch begins after its commit; processes that hold calls are killed, and
workers in their tasks. Several queries share the session.

    python -m spec.stream_runs [--runs 50] [--seed 1] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pillarbox.spark import async_stream
from pillarbox.spark.stream import buckets
from pillarbox.spark.stream.settings import PROVIDER, ROCKSDB
from tests.spark import queries

from . import stream_trace
from .recorded import append, read_events
from .stream_recorder import ACTION, RecordedProcessor

FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SECONDS = (0.0, 0.0, 0.05, 0.5, 1.5)
"""Of calls."""
MAX_WAIT_S = 0.1
MAX_STARTS = 20
QUERY_TIMEOUT_S = 300
RUNS_AT_ONCE = 3
ALIKE = (
    {"a": None, "b": "1", "x": 0.0},
    {"a": "1", "b": None, "x": 0.0},
    {"a": "1", "b": None, "x": -0.0},
    {"a": "1", "b": "", "x": None},
    {"a": "", "b": "1", "x": None},
    {"a": None, "b": None, "x": None},
    {"a": None, "b": None, "x": 1.0},
    {"a": None, "b": None, "x": 1.0000000000000002},
)
"""Rows without an id: a hash that skips nulls, and a comparison of numbers, takes some for others."""
COLUMNS = "a string, b string, x double"
TRACE = "streams.trace"

_building = threading.Lock()
"""Held while a query is built and started: its settings belong to the whole process, or to the session."""


class DriverFailedError(Exception):
    """The driver of a run fails on purpose."""


def shown(row: Any) -> str:
    """The text of a row, in which all that differ do."""
    return repr((row.a, row.b, row.x))


async def called(seconds: Sequence[float], row: Any) -> tuple[str, str]:
    """Each call has another result."""
    await asyncio.sleep(seconds[zlib.crc32(shown(row).encode()) % len(seconds)])
    return shown(row), uuid.uuid4().hex


class Driver:
    """A query over a checkpoint of its own, as the seed says. `run` runs it to its end."""

    def __init__(self, seed: int, spark: SparkSession, folder: Path) -> None:
        self.name = f"seed {seed}"
        self.spark = spark
        self.folder = folder / str(seed)
        self.trace = str(folder / TRACE)
        self.dice = dice = random.Random(seed)
        self.ordered = dice.random() < 0.5
        self.sinks = dice.choice([1, 2])
        self.seconds = [dice.choice(SECONDS) for _ in range(7)]
        # Some rows are equal, others nearly. The model puts a state together of any versions of its buckets:
        # of few.
        self.parts = [
            [{**dice.choice(ALIKE), "key": dice.randrange(3)} for _ in range(dice.randint(1, 6))]
            for _ in range(dice.randint(1, 4))
        ]
        # In format 1 a task that comes after the commit replaces the state that counts.
        self.version = dice.choice(["1", "2"])
        self.failures = dice.choice([0, 0, 1, 2])
        self.kills = dice.choice([0, 0, 1, 2])
        self.batch = -1
        self.before: DataFrame | None = None
        self.taken: list[dict[int, list[Any]]] = [{} for _ in range(self.sinks)]

    def say(self, what: str, **words: Any) -> None:
        """Record how the query goes on."""
        append(self.trace, what, stream=self.name, **words)

    def run(self) -> None:
        """Start the query until it has ended, and check what its sinks have."""
        self.say("plan", ordered=self.ordered, sinks=self.sinks)
        for number, part in enumerate(self.parts):
            path = self.folder / "in" / f"{number}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{json.dumps(row)}\n" for row in part))
            os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
        out = self.build()
        for _ in range(MAX_STARTS):
            try:
                self.start(out)
            except PySparkException:
                if self.dice.random() < 0.3:
                    # As another driver has it: nothing is known of the calls of before.
                    out, self.before = self.build(), None
                continue
            break
        self.say("log")
        all_rows = Counter(repr((row["a"], row["b"], row["x"])) for part in self.parts for row in part)
        for taken in self.taken:
            rows = [row for _, rows in sorted(taken.items()) for row in rows]
            assert Counter(map(shown, rows)) == all_rows, self.name
            assert all(row.told == shown(row) for row in rows), self.name
            assert len({row.call for row in rows}) == len(rows), self.name

    def build(self) -> DataFrame:
        """The output, of processors that record."""

        def recorded(plan: Any) -> RecordedProcessor:
            return RecordedProcessor(replace(plan, name=f"{self.name}.{plan.name}"), self.trace)

        with _building:
            original: Any = buckets.BucketProcessor
            module: Any = buckets
            module.BucketProcessor = recorded
            try:
                source = self.spark.readStream.schema(f"{COLUMNS}, key long").option(
                    "maxFilesPerTrigger", "1"
                )
                return async_stream(
                    source.json(str(self.folder / "in")),
                    partial(called, self.seconds),
                    schema="told string, call string",
                    keep=["a", "b", "x"],
                    key="key",
                    max_wait=MAX_WAIT_S,
                    ordered=self.ordered,
                )
            finally:
                module.BucketProcessor = original

    def start(self, out: DataFrame) -> None:
        """One run of the query; raises what has ended it."""
        writer = out.writeStream.foreachBatch(self.write).trigger(availableNow=True)
        with _building:
            self.spark.conf.set(FORMAT_VERSION, self.version)
            query = queries.start(writer.option("checkpointLocation", str(self.folder / "state")))
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), f"{self.name} does not come to its end"
        finally:
            query.stop()

    def write(self, df: DataFrame, batch: int) -> None:
        """One micro-batch, or its replay: actions in any order."""
        dice = self.dice
        if batch == self.batch:
            self.say("restart")
        else:
            if self.batch >= 0:
                self.say("log")
            self.say("batch")
        late = self.before if batch != self.batch else None
        self.batch, self.before = batch, None
        if self.kills and dice.random() < 0.5:
            self.kills -= 1
            kill = self.kill_process if dice.random() < 0.6 else self.kill_worker
            threading.Timer(dice.uniform(0.0, 0.8), kill).start()
        actions = dice.sample(range(1, self.sinks + 1), self.sinks)
        if dice.random() < 0.5:
            actions.insert(dice.randint(0, len(actions)), 0)
        fails_after = -1
        if self.failures and dice.random() < 0.4:
            self.failures -= 1
            fails_after = dice.randint(0, len(actions) - 1)
        is_late_first = dice.random() < 0.5
        if late is not None and is_late_first:
            self.in_thread(partial(self.look, late, rows=None))
        must_execute = True
        for number, action in enumerate(actions):
            if number == fails_after:
                raise DriverFailedError
            if action == 0:
                self.look(df, rows=1)
                continue
            if batch in self.taken[action - 1] and not must_execute and dice.random() < 0.5:
                self.say("skip", sink=action)
                continue
            must_execute = False
            if dice.random() < 0.5:
                self.take(df, action)
            else:
                # Spark tells the tasks of such a thread neither query nor micro-batch.
                self.in_thread(partial(self.take, df, action), *self.beside(df))
            if late is not None and not is_late_first:
                self.in_thread(partial(self.look, late, rows=None))
                late = None
        if self.version == "2" and dice.random() < 0.4:
            self.before = df

    def beside(self, df: DataFrame) -> list[Callable[[], None]]:
        """Perhaps an action that goes on at the same time."""
        return [partial(self.look, df, rows=None)] if self.dice.random() < 0.3 else []

    def in_thread(self, *actions: Callable[[], None]) -> None:
        """Each in a thread of its own, at the same time."""
        with ThreadPoolExecutor(len(actions)) as pool:
            for future in [pool.submit(action) for action in actions]:
                future.result()

    def take(self, df: DataFrame, sink: int) -> None:
        """Have a sink take the rows, unless it has them."""
        self.spark.sparkContext.setLocalProperty(ACTION, str(sink))
        rows = df.collect()
        assert self.taken[sink - 1].setdefault(self.batch, rows) == rows, self.name
        self.say("take", sink=sink)

    def look(self, df: DataFrame, rows: int | None) -> None:
        """An action that takes so many rows to no sink, None for all. It may be refused."""
        self.spark.sparkContext.setLocalProperty(ACTION, "0")
        with contextlib.suppress(PySparkException):
            df.collect() if rows is None else df.take(rows)

    def kill_process(self) -> None:
        """Kill the process that holds calls."""
        lives = [event["life"] for event in read_events(Path(self.trace)) if event["what"] == "attach"]
        if lives:
            pid = int(lives[-1].partition("-")[0])
            append(self.trace, "kill", pid=pid)
            _kill(pid)

    def kill_worker(self) -> None:
        """Kill the worker that has begun a task last."""
        tasks = [
            event["task"]
            for event in read_events(Path(self.trace))
            if event["what"] == "start" and event["stream"] == self.name
        ]
        if tasks:
            _kill(int(tasks[-1].partition("-")[0]))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def make_runs(seeds: Sequence[int], folder: Path) -> None:
    """Run a query for each seed, and record them in a file of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.master("local[4,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config(PROVIDER, ROCKSDB)
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    counter = itertools.count(1)
    try:
        with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
            for future in [pool.submit(Driver(seed, spark, folder).run) for seed in seeds]:
                future.result()
                print(f"{next(counter)} of {len(seeds)}", end="\r", file=sys.stderr, flush=True)
    finally:
        spark.stop()


def main(words: Sequence[str]) -> int:
    """Run `python -m spec.stream_runs`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m spec.stream_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="to make")
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--keep", type=Path, default=None, metavar="FOLDER", help="for what is recorded")
    options = parser.parse_args(words)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pillarbox-runs-") as scratch:
        folder = options.keep or Path(scratch)
        make_runs(range(options.seed, options.seed + options.runs), folder)
        print(f"{options.runs} runs made in {time.monotonic() - began:.0f} s")
        return stream_trace.main([str(folder / TRACE)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
