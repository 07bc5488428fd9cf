"""Has Spark read a source as a batch and in micro-batches, and records what its coordinator does there.

A batch read fails, is let go of, is read again, and once more by another job over the same plan. A stream is
started again until everything has come: its sink fails, records come while it runs, the number of its tasks
changes. The planner of a stream is in a process of Spark's: `RecordedReader` stands for its reader there.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from pillarbox.spark import register_source
from pillarbox.spark.source import driver
from pillarbox.spark.source.data_source import PillarboxSource
from pillarbox.spark.source.stream import StreamReader

from .recorded import append
from .source_recorder import recording
from .source_runs import Counted

QUERY_TIMEOUT_S = 120
MAX_STARTS = 30
PARTITIONS = 2
PURPOSE = "on purpose"

_recording = ExitStack()


# -- batch reads -----------------------------------------------------------------------------------


def record_batch(spark: SparkSession, folder: Path, failures: int = 3) -> Path:
    """Record a batch read of which so many attempts fail. Spark should try a task twice."""
    path = folder / "batch.trace"
    source = Counted(6, 3, piece=2, fetch_s=0.02, failed=str(folder / "failed"), failures=failures)
    words = {"splits": source.splits, "length": source.length, "readers": PARTITIONS}
    append(path, "plan", delivery="replayed", **words)
    kept, driver.SUSPEND_AFTER_S = driver.SUSPEND_AFTER_S, 0.05
    try:
        with recording(path):
            register_source(spark, source, "counted")
            out = spark.read.format("counted").option("partitions", PARTITIONS).load()
            out = out.withColumn("partition", spark_partition_id())
            append(path, "job")
            for _ in range(failures):
                # A job that has failed leaves a read that nobody reads for a while.
                with suppress(PySparkException):
                    _collect(out, path)
                    break
                time.sleep(1.0)
            append(path, "job")
            _collect(out, path)
    finally:
        driver.SUSPEND_AFTER_S = kept
    return path


def _collect(out: DataFrame, path: Path) -> None:
    rows = out.collect()
    # What a task's end has the driver do comes a little later.
    time.sleep(0.5)
    for partition in range(PARTITIONS):
        own = [[row.split, row.record] for row in rows if row.partition == partition]
        append(path, "output", partition=partition, rows=own)


# -- streams ---------------------------------------------------------------------------------------


class RecordedReader(StreamReader):
    """A stream's reader that records into the file `path` what Spark asks it. In the planner's process."""

    def __init__(self, read: Any, path: str) -> None:
        super().__init__(read)
        self._path = path
        self._begun = False

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            _recording.enter_context(recording(self._path))
            append(self._path, "restart", tasks=self._read.partitions)

    def prepareForTriggerAvailableNow(self) -> None:
        """Also say that it begins."""
        self._begin()
        super().prepareForTriggerAvailableNow()

    def latestOffset(self, start: Any, limit: Any) -> Any:
        """Also say what was planned."""
        self._begin()
        planned = super().latestOffset(start, limit)
        offset = None
        if planned["number"] != start["number"]:
            offset = {
                "number": planned["number"],
                "known": planned["enumerator"]["checkpoint"],
                "splits": [[each["split_id"], each["start"]] for each in planned["splits"]],
                "slices": [[each["split_id"], each["start"], each["stop"]] for each in planned["slices"]],
            }
        append(self._path, "planned", start=start["number"], offset=offset)
        return planned

    def partitions(self, start: Any, end: Any) -> Any:
        """Also say that it begins, if this is the first that is asked."""
        self._begin()
        return super().partitions(start, end)


class RecordedSource(PillarboxSource):
    """A source whose streams record into the file `path`."""

    path: ClassVar[str]

    def streamReader(self, schema: Any) -> RecordedReader:
        """One that records."""
        return RecordedReader(self._read(schema), self.path)


def register_recorded(spark: SparkSession, source: Any, name: str, path: Path) -> None:
    """Register a source whose streams record into the file `path`."""
    members = {"registered": source, "format_name": name, "parallelism": 2, "path": str(path)}
    spark.dataSource.register(type("Recorded", (RecordedSource,), members))


class StreamRun:
    """A stream of a source that grows, as the seed says. `run` runs it to its end."""

    def __init__(self, seed: int, spark: SparkSession, folder: Path) -> None:
        self.dice = random.Random(seed)
        self.spark = spark
        self.path = folder / f"{seed}.trace"
        self.folder = folder / str(seed)
        self.logs = self.folder / "log"
        self.logs.mkdir(parents=True)
        self.source = Counted(3, 5, folder=str(self.logs))
        self.failures = 3

    def say(self, what: str, **words: Any) -> None:
        """Record how the stream goes on."""
        append(self.path, what, **words)

    def run(self) -> Path:
        """Start it until everything was read; gives the place of the record."""
        words = {"splits": self.source.splits, "length": self.source.length, "readers": PARTITIONS}
        self.say("plan", delivery="planned", available_now=True, **words)
        register_recorded(self.spark, self.source, "growing", self.path)
        for _ in range(MAX_STARTS):
            for _ in range(self.dice.randint(0, 4)):
                self.arrive()
            is_last = self.left() == 0
            has_ended = self.start()
            self.say("stopped", offsets=self.count("offsets"), done=self.count("commits"))
            if is_last and has_ended:
                self.say("end")
                return self.path
        raise AssertionError(f"{self.path} does not come to its end")

    def count(self, log: str) -> int:
        """The offsets, or commits, that Spark has written down."""
        return len([*(self.folder / "checkpoint" / log).glob("[0-9]*")])

    def left(self) -> int:
        """The records that have not come yet."""
        numbers = range(1, self.source.splits + 1)
        return sum(self.source.length - self.source.arrived(number) for number in numbers)

    def arrive(self) -> None:
        """One record more, of a split that is there or the next one."""
        source = self.source
        there = [n for n in range(1, source.splits + 1) if n == 1 or source.arrived(n - 1)]
        growing = [number for number in there if source.arrived(number) < source.length]
        if growing:
            number = self.dice.choice(growing)
            self.say("arrive", split=number)
            with (self.logs / str(number)).open("ab") as file:
                file.write(b"x")

    def start(self) -> bool:
        """One run of the query. True if it has ended by itself."""
        stream = self.spark.readStream.format("growing").option("max_rows", self.dice.randint(1, 4))
        stream = stream.option("partitions", self.dice.randint(1, PARTITIONS))
        writer = stream.load().writeStream.foreachBatch(self.write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), f"{self.path} does not come to its end"
        except PySparkException as error:
            if PURPOSE not in str(error):
                raise
            return False
        finally:
            query.stop()
        return True

    def write(self, df: DataFrame, batch: int) -> None:
        """One micro-batch: it may fail when its rows are there."""
        rows = [[row.split, row.record] for row in df.collect()]
        assert len({(split, record) for split, record in rows}) == len(rows)
        self.say("sink", batch=batch, rows=rows)
        for _ in range(self.dice.randint(0, 2)):
            self.arrive()
        if self.failures and self.dice.random() < 0.3:
            self.failures -= 1
            raise RuntimeError(PURPOSE)
