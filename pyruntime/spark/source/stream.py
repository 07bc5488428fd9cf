"""The stream reader: `StreamReader`, what Spark asks about a stream.

Spark has one in a process of its own for each query; it asks it one thing at a time, on one thread. Pickled
copies go to the tasks: they have nothing of what runs here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.streaming.datasource import ReadLimit as SparkLimit

from pillarbox.sources.enumerator import ReadLimit
from pillarbox.spark.source.offsets import Json, OffsetCodec
from pillarbox.spark.source.packing import cut, pack
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.stream_driver import StreamDriver
from pillarbox.spark.source.tasks import SlicePartition, read_slices

log = logging.getLogger("pillarbox")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a source in micro-batches. `read` says what is read, and with which options."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._codec: OffsetCodec[Any, Any] = OffsetCodec(read.source)
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    @property
    def _here(self) -> StreamDriver:
        if self._driver is None:
            self._driver = StreamDriver(self._read, self._codec)
        return self._driver

    # -- what Spark asks; the process of the query -----------------------------------------------------

    def initialOffset(self) -> Json:
        """Begin a new query, with nothing known."""
        return {"version": 1, "number": 0}

    def getDefaultReadLimit(self) -> SparkLimit:
        """The limit of the options; of several limits the first, the others hold all the same."""
        limit = self._read.options.limit
        if limit.rows is not None:
            return ReadMaxRows(limit.rows)
        if limit.nbytes is not None:
            return ReadMaxBytes(limit.nbytes)
        return ReadAllAvailable() if limit.files is None else ReadMaxFiles(limit.files)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there, and end."""
        self._here.only_what_is_there()

    def latestOffset(self, start: Json, limit: SparkLimit) -> Json:
        """The offset after the next micro-batch; `start` itself if there is nothing to read."""
        planned = self._here.plan(start, self._limit(limit))
        return start if planned is None else self._codec.to_json(planned)

    def reportLatestOffset(self) -> Json | None:
        """For Spark's progress, as `latestOffset`: who holds whom in event time, and since when."""
        hold = None if self._driver is None else self._driver.hold
        return None if hold is None else {"alignment": hold.to_json()}

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a micro-batch: what `end` says is read, in as many parts as the options say."""
        # spec: SplitAssignment!Run
        slices = self._codec.slices(start, end)
        if not slices:
            return []
        here, least = self._here, self._read.options.min_partitions or 1
        here.settle(end)
        handle = here.handle()

        def packed() -> list[list[Any]]:
            enumerator = here.thread.enumerator
            # What goes to one partition by rule need not be cut: its pieces would meet there again.
            ruled = [each for each in slices if enumerator.assigned_to(each) is not None]
            free = [each for each in slices if enumerator.assigned_to(each) is None]
            pieces = ruled + cut(free, least - len(ruled), enumerator.advance)
            return pack(pieces, here.parallelism, enumerator.assigned_to)

        return [
            SlicePartition(splits, number, handle) for number, splits in enumerate(here.thread.call(packed))
        ]

    def commit(self, end: Json) -> None:
        """Tell the source that what was read up to `end` is durable; do not wait for it."""
        # spec: SplitAssignment!NotifyCommitted
        self._here.committed(end)

    def stop(self) -> None:
        """End what runs here."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _limit(self, limit: SparkLimit) -> ReadLimit:
        own = self._read.options.limit
        if isinstance(limit, ReadAllAvailable):
            # Spark says so where there is no limit, and where one must not count (`Trigger.Once`).
            return ReadLimit()
        if isinstance(limit, ReadMaxRows):
            return own._replace(rows=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return own._replace(nbytes=limit.max_bytes)
        if isinstance(limit, ReadMaxFiles):
            return own._replace(files=limit.max_files)
        raise ValueError(f"limit={limit!r}: must be one of rows, bytes or files, or none")

    # -- in a task -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one part of a micro-batch."""
        assert isinstance(partition, SlicePartition)
        return read_slices(self._read, partition)
