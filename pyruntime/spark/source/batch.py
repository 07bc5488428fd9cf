"""The batch reader: `BatchReader`, what Spark asks about a read. In Spark's planner, and copies in tasks.

With a way to the driver, tasks ask it for one split after the other, while discovery goes on. Without, the
planner discovers everything and deals it out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pillarbox.sources.channel import ChannelHandle
from pillarbox.sources.enumerating import discover_all
from pillarbox.sources.split_coordinator import Delivery, SplitCoordinator
from pillarbox.spark.source.packing import pack
from pillarbox.spark.source.planning import MAX_SPLITS_PER_DISCOVERY
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.schemas import schema_to_text
from pillarbox.spark.source.tasks import RequestingPartition, SlicePartition, read_requested, read_slices


class BatchReader(DataSourceReader):
    """Reads a bounded source.

    driver: the way to the driver's Python process; None: splits are dealt out by rule. of, options: as what
    the source was registered there, and its options.
    """

    def __init__(self, read: Read, driver: ChannelHandle | None, of: str, options: Mapping[str, str]) -> None:
        self._read = read
        self._driver = driver
        self._of = of
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        if self._driver is None:
            return deal_out(self._read)
        name, count = uuid.uuid4().hex, self._read.partitions
        with self._driver.connect({"read": None}) as client:
            client.request({
                "open": name, "of": self._of, "partitions": count, "options": self._options,
                "schema": schema_to_text(self._read.schema),
            })  # fmt: skip
        return [RequestingPartition(name, number, self._driver) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task."""
        if isinstance(partition, RequestingPartition):
            return read_requested(self._read, partition)
        if isinstance(partition, SlicePartition):
            return read_slices(self._read, partition)
        # Spark makes one itself where there is none.
        return iter(())


def deal_out(read: Read) -> list[SlicePartition]:
    """Discover all splits of a bounded source, and deal them out by rule. Raises what discovery raises."""
    context: SplitCoordinator[Any] = SplitCoordinator(read.partitions, Delivery.PLANNED)
    enumerator = read.source.create_enumerator(context)
    try:
        steps = discover_all(enumerator, enumerator.checkpoint, MAX_SPLITS_PER_DISCOVERY)
        found = [split for splits, _ in steps for split in splits]
        parts = pack(found, read.partitions, enumerator.assigned_to)
        return [SlicePartition(part, number, None) for number, part in enumerate(parts)]
    finally:
        enumerator.close()
