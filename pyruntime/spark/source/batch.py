"""The batch reader: `BatchReader`, what Spark asks about a read. In Spark's planner, and copies in tasks.

With a way to the driver, tasks ask it for one split after the other, while discovery goes on. Without, the
planner discovers everything and deals it out.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pillarbox.sources.channel import ChannelHandle
from pillarbox.sources.enumerator import ReaderInfo
from pillarbox.sources.events import SourceEvent
from pillarbox.sources.split import Split
from pillarbox.spark.source.link import NO_WAY
from pillarbox.spark.source.packing import pack
from pillarbox.spark.source.planning import MOST
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.schemas import schema_to_text
from pillarbox.spark.source.tasks import AskingPartition, SlicePartition, read_asking, read_slices


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
            return list(deal_out(self._read))
        name, count = uuid.uuid4().hex, self._read.partitions
        with self._driver.connect({"read": None}) as client:
            client.request({
                "open": name, "of": self._of, "partitions": count, "options": self._options,
                "schema": schema_to_text(self._read.schema),
            })  # fmt: skip
        return [AskingPartition(name, number, self._driver) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a task."""
        if isinstance(partition, AskingPartition):
            return read_asking(self._read, partition)
        if isinstance(partition, SlicePartition):
            return read_slices(self._read, partition)
        # Spark makes one itself where there is none.
        return iter(())


class PlannerContext:
    """What an enumerator may ask and order that runs in the planner, before there are any readers."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self.assigned: dict[str, int] = {}
        self.splits: list[Split] = []

    @property
    def parallelism(self) -> int:
        """The most tasks."""
        return self._parallelism

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """None yet."""
        return {}

    def assign(self, splits: Collection[Split], subtask: int) -> None:
        """Give splits to a task."""
        self.splits += splits
        self.assigned.update({split.split_id: subtask for split in splits})

    def no_more_splits(self, subtask: int) -> None:
        """Nothing: the tasks have all of their splits from their beginning."""

    def send(self, subtask: int, event: SourceEvent) -> None:
        """Raises RuntimeError: there is nobody to hear it."""
        raise RuntimeError(NO_WAY)


def deal_out(read: Read) -> Iterator[SlicePartition]:
    """Discover all splits of a bounded source, and deal them out by rule. Raises what discovery raises."""
    context = PlannerContext(read.partitions)
    enumerator = read.source.create_enumerator(context)
    try:
        found: list[Any] = []
        while True:
            splits, enumerator.checkpoint = enumerator.discover(enumerator.checkpoint, MOST)
            if not splits:
                break
            found += splits
        found += context.splits
        ids = {split.split_id for split in found}
        if len(ids) < len(found):
            raise ValueError("a split was discovered twice")

        def assigned_to(split: Any) -> int | None:
            given = context.assigned.get(split.split_id)
            return enumerator.assigned_to(split) if given is None else given

        for number, part in enumerate(pack(found, read.partitions, assigned_to)):
            yield SlicePartition(part, number, None)
    finally:
        enumerator.close()
