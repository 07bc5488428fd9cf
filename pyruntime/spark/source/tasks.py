"""The partitions of a read, and how tasks read them: with a list of splits, or asking for each.

In tasks; the partitions are made on the driver and are plain values.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Generic, TypeVar

from pyspark.sql.datasource import InputPartition

from pillarbox.sources.channel import ChannelHandle
from pillarbox.sources.event_time import EventTimes
from pillarbox.sources.reader import Fetched, ReaderContext
from pillarbox.sources.remote_link import pieces
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import MAX_SPLITS_PER_ANSWER
from pillarbox.spark.source.link import TaskLink
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.reading import read_rows

S = TypeVar("S", bound=Split)

SMALL_READ_S, LARGE_READ_S = 0.05, 0.2
"""Seconds: what is read in less than the first is small, in more than the second large."""


class SlicePartition(InputPartition):
    """Splits that one task reads. `handle`: the way to the enumerator, if there is one."""

    def __init__(self, splits: list[Any], number: int, handle: ChannelHandle | None) -> None:
        self.splits = splits
        self.number = number
        self.handle = handle


class RequestingPartition(InputPartition):
    """A task that asks for one split after the other."""

    def __init__(self, read: str, number: int, handle: ChannelHandle) -> None:
        self.read = read
        self.number = number
        self.handle = handle


def read_slices(read: Read, partition: SlicePartition) -> Iterator[Any]:
    """The rows of the partition; then, where splits are aligned, their event times are reported."""
    watermarks = read.options.watermarks
    with closing(TaskLink(partition.handle, partition.number)) as link:
        if watermarks is None:
            yield from _read(read, partition.splits, link, partition.number, None)
            if link.has_sent:
                # Answered after all events were heard: one that the enumerator refuses fails the task.
                link.request({"times": {}})
            return
        event_times = EventTimes(watermarks, read.schema.names)
        latest: dict[str, float] = {}

        def observe(fetched: Fetched) -> None:
            moment = event_times.latest(fetched)
            if moment is not None:
                latest[fetched.split_id] = max(moment, latest.get(fetched.split_id, -math.inf))

        yield from _read(read, partition.splits, link, partition.number, observe)
        # In pieces: a message has room for the times of some thousand splits.
        for piece in pieces(latest.items()):
            link.request({"times": dict(piece)})


def read_requested(read: Read, partition: RequestingPartition) -> Iterator[Any]:
    """The rows of the splits that the driver gives this partition, until it gives no more."""
    with closing(TaskLink(partition.handle, partition.number, partition.read)) as link:
        yield from _read(
            read, SplitRequester(link.request, read.source.split_serializer), link, partition.number, None
        )


class SplitRequester(Generic[S]):
    """Gives what a partition reads next: asks for more when it has none, for several where they are small.

    Twice as many are asked for when all of an answer was read in less than `SMALL_READ_S`; half as many when
    in more than `LARGE_READ_S`.
    Called by one thread at a time, which need not be the same one.
    """

    def __init__(
        self,
        request: Callable[[Any], Any],
        serializer: Serializer[S],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._serializer = serializer
        self._clock = clock
        self._waiting: deque[list[Any]] = deque()
        self._index = 0
        self._most = 1
        self._answered: float | None = None

    def __call__(self) -> S | None:
        """The next split; None at the end. Waits where none is there yet."""
        if not self._waiting:
            self._ask()
        if not self._waiting[0]:
            return None
        self._index += 1
        return self._serializer.from_json(*self._waiting.popleft())

    def _ask(self) -> None:
        if self._answered is not None:
            took = self._clock() - self._answered
            if took < SMALL_READ_S:
                self._most = min(2 * self._most, MAX_SPLITS_PER_ANSWER)
            elif took > LARGE_READ_S:
                self._most = max(self._most // 2, 1)
        self._waiting.extend(self._request({"next": self._index, "most": self._most}))
        self._answered = self._clock()


def _read(
    read: Read,
    splits: Iterable[Any] | Callable[[], Any],
    link: TaskLink,
    number: int,
    observe: Callable[[Fetched], None] | None,
) -> Iterator[Any]:
    context = ReaderContext(subtask=number, send=link.send, schema=read.schema)
    return read_rows(read.source, splits, context, link, observe)
