"""What the tasks of a read are given, and how they read it: with a list of splits, or asking for each.

In tasks; the partitions are made on the driver and are plain values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from pyspark.sql.datasource import InputPartition

from pillarbox.sources.channel import ChannelHandle
from pillarbox.sources.event_time import EventTimes
from pillarbox.sources.reader import Fetched, ReaderContext
from pillarbox.spark.source.link import TaskLink
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.reading import read_rows


class SlicePartition(InputPartition):
    """Splits that one task reads. `handle`: the way to the enumerator, if there is one."""

    def __init__(self, splits: list[Any], number: int, handle: ChannelHandle | None) -> None:
        self.splits = splits
        self.number = number
        self.handle = handle


class AskingPartition(InputPartition):
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
            return
        event_times = EventTimes(watermarks, read.schema.names)
        latest: dict[str, float] = {}

        def observe(fetched: Fetched) -> None:
            moment = event_times.latest(fetched)
            if moment is not None:
                latest[fetched.split_id] = max(moment, latest.get(fetched.split_id, -math.inf))

        yield from _read(read, partition.splits, link, partition.number, observe)
        if latest:
            link.request({"times": latest})


def read_asking(read: Read, partition: AskingPartition) -> Iterator[Any]:
    """The rows of the splits that the driver gives this partition, until it gives no more."""
    serializer = read.source.split_serializer
    with closing(TaskLink(partition.handle, partition.number, partition.read)) as link:
        index = 0

        def ask() -> Any:
            nonlocal index
            answer = link.request({"next": index})
            if not answer:
                return None
            index += 1
            return serializer.from_json(*answer)

        yield from _read(read, ask, link, partition.number, None)


def _read(
    read: Read,
    splits: Iterable[Any] | Callable[[], Any],
    link: TaskLink,
    number: int,
    observe: Callable[[Fetched], None] | None,
) -> Iterator[Any]:
    context = ReaderContext(subtask=number, send=link.send, schema=read.schema)
    return read_rows(read.source, splits, context, link, observe)
