"""Has Spark read a source in micro-batches, and records what its coordinator does there.

A stream is started again until everything has come: its sink fails, records come while it runs, the number of
its tasks changes. The planner of a stream is in a process of Spark's: `RecordedReader` stands for its reader.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pillarbox.spark.data_source import PillarboxSource, StreamReader
from tests.spark import queries

from .recorded import append
from .source_recorder import recording
from .source_runs import Counted

QUERY_TIMEOUT_S = 120
MAX_STARTS = 30
PARTITIONS = 2
PURPOSE = "on purpose"

_recording = ExitStack()


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
        query = queries.start(writer.option("checkpointLocation", str(self.folder / "checkpoint")))
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
