"""A partition of a topic, or a range of its offsets, as a split. A plain value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pillarbox.sources.split import Split


class Partition(NamedTuple):
    """A partition of a topic. A plain value."""

    topic: str
    number: int


@dataclass(frozen=True)
class KafkaSplit(Split):
    """The records of a partition with offsets from `start` up to `stop`.

    topic_id: which topic of that name it is: one that was deleted and made again has another; "" for brokers
    before Kafka 2.8, which do not say.
    """

    topic: str = ""
    partition: int = 0
    topic_id: str = ""

    @property
    def rows(self) -> int | None:
        """Offsets in the range. Fewer records if some are markers of transactions or compacted away."""
        return None if self.stop is None or self.start is None else max(0, self.stop - self.start)

    @property
    def place(self) -> Partition:
        """The partition that it is of."""
        return Partition(self.topic, self.partition)


def whole(partition: Partition, topic_id: str, start: int) -> KafkaSplit:
    """The split that is a partition without end. A topic's name has no slash, so the id is its own."""
    return KafkaSplit(_name(partition, topic_id), start, None, *partition, topic_id)


def ranged(partition: Partition, topic_id: str, start: int, stop: int) -> KafkaSplit:
    """The split that is a range of a partition."""
    return KafkaSplit(f"{_name(partition, topic_id)}@{start}", start, stop, *partition, topic_id)


def partition_of(split_id: str) -> tuple[Partition, str] | None:
    """The partition that a split without end is, and its topic's id; None for another one."""
    parts = split_id.split("/", 2)
    if len(parts) != 3 or "@" in parts[2]:
        return None
    return Partition(parts[0], int(parts[1])), parts[2]


def _name(partition: Partition, topic_id: str) -> str:
    return f"{partition.topic}/{partition.number}/{topic_id}"
