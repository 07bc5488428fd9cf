"""The stream reader: `StreamReader`, what Spark asks about a stream.

Spark has one in a process of its own for each query; it asks it one thing at a time, on one thread. Beside it
run the threads of the enumerator, none of which begins before something is asked: Spark makes readers of
streams that it never runs. Pickled copies go to the tasks, and only read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit as SparkLimit,
)

from pillarbox.sources.enumerator import ReadLimit, SplitEnumerator
from pillarbox.spark.source.options import Read
from pillarbox.spark.source.planning import Json, MicroBatches, OffsetCodec, cut, number_of, pack
from pillarbox.spark.source.tasks import TaskPartition, read_partition

FIRST_IDLE_S, MAX_IDLE_S = 0.01, 0.2
"""Seconds between two plans if the first has found nothing: it doubles. Spark asks without a pause."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a source in micro-batches. `read` says what is read, and how."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._codec: OffsetCodec[Any, Any] = OffsetCodec(read.source)
        self._parallelism = max(read.partitions, read.min_partitions)
        self._told = 0
        self._idle = FIRST_IDLE_S
        self._plan_at = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamReader, (self._read,)

    @cached_property
    def _batches(self) -> MicroBatches[Any, Any]:
        return MicroBatches(self._read.source, self._parallelism)

    # -- what Spark asks; the process of the query -----------------------------------------------------

    def initialOffset(self) -> Json:
        """Begin a new query, with nothing known."""
        return {"version": 1, "number": 0}

    def getDefaultReadLimit(self) -> SparkLimit:
        """The limit of files, for there is always one; the options' other limits hold all the same."""
        return ReadMaxFiles(cast("int", self._read.limit.files))

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there, and end."""
        self._batches.only_what_is_there(self._read.limit)

    def latestOffset(self, start: Json, limit: SparkLimit) -> Json:
        """The offset after the next micro-batch; `start` itself if there is nothing to read.

        After one that has found nothing, the next one waits for some milliseconds.
        """
        batches = self._batches
        time.sleep(max(0.0, self._plan_at - time.monotonic()))
        # Another number: an offset of before was not used, or this process is new.
        if number_of(start) != batches.number:
            batches.take_up(self._codec.from_json(start))
        # Spark knows no limit but the one above, or one that must not count (`Trigger.Once`).
        planned = batches.plan(ReadLimit() if isinstance(limit, ReadAllAvailable) else self._read.limit)
        if planned is not None:
            self._idle = FIRST_IDLE_S
            return self._codec.to_json(planned)
        # Spark does not say so of the last micro-batch, but it is done, or nobody would ask.
        told = self._committed(start)
        if told is not None:
            told.result()
        self._plan_at = time.monotonic() + self._idle
        self._idle = min(2 * self._idle, MAX_IDLE_S)
        return start

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a micro-batch: what `end` says is read, in as many parts as the options say."""
        # spec: SplitAssignment!Run
        slices = self._codec.slices(start, end)
        if not slices:
            return []
        batches, least = self._batches, self._read.min_partitions
        if batches.number < 0:
            # After a restart this is the first that is heard of.
            batches.take_up(self._codec.from_json(end))

        def packed() -> list[list[Any]]:
            enumerator = batches.thread.enumerator
            # What goes to one partition by rule need not be cut: its pieces would meet there again.
            ruled = [each for each in slices if enumerator.assigned_to(each) is not None]
            free = [each for each in slices if enumerator.assigned_to(each) is None]
            pieces = ruled + cut(free, least - len(ruled), enumerator.advance)
            return pack(pieces, self._parallelism, enumerator.assigned_to)

        return [TaskPartition(*part) for part in enumerate(batches.thread.call(packed))]

    def commit(self, end: Json) -> None:
        """Tell the source that what was read up to `end` is durable; do not wait for it."""
        # spec: SplitAssignment!NotifyCommitted
        self._committed(end)

    def stop(self) -> None:
        """End what runs here."""
        self._batches.close()

    def _committed(self, end: Json) -> Future[None] | None:
        """Tell the source what is durable, on its thread, if it hears that. What it raises is logged."""
        batches = self._batches
        if batches.number < 0 or end["number"] <= self._told:
            return None
        if type(batches.thread.enumerator).notify_committed is SplitEnumerator.notify_committed:
            return None
        self._told = end["number"]
        positions = self._codec.from_json(end).positions()
        return batches.thread.submit(batches.coordinator.notify_committed, positions)

    # -- in a task -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one part of a micro-batch."""
        assert isinstance(partition, TaskPartition)
        return read_partition(self._read, partition)
