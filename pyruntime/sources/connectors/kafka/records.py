"""Records of Kafka: ranges of offsets as splits, messages as Arrow batches. Any thread.

Batches are made a column at a time: the loops over messages are those of `map`, in C; Python
runs a few lines for each column, not for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from pillarbox.sources.connectors.log import LogSplit, Part

TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""The columns, which are those of Spark's own source."""


class Partition(NamedTuple):
    """A partition of a topic. A plain value."""

    topic: str
    number: int


@dataclass(frozen=True)
class KafkaSplit(LogSplit):
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
    def part(self) -> Part:
        """See `LogSplit.part`."""
        return Part(self.topic, self.partition, self.topic_id)

    @property
    def place(self) -> Partition:
        """The partition that it is of."""
        return Partition(self.topic, self.partition)

    def unreadable_from(self, position: int, why: str) -> str:
        """The words for loss."""
        where = f"partition {self.partition} of topic {self.topic!r}"
        return f"{where} cannot be read on from offset {position}: {why}"


def split_of(part: Part, start: int, stop: int | None) -> KafkaSplit:
    """The split that is a partition from `start` on, or a range of it.

    A topic's name has no slash, so the id is its own.
    """
    name = f"{part.name}/{part.number}/{part.identity}" + ("" if stop is None else f"@{start}")
    return KafkaSplit(name, start, stop, *part)


def to_batch(
    split: KafkaSplit, messages: Sequence[Any], offsets: Sequence[int], schema: pa.Schema
) -> pa.RecordBatch:
    """Messages of one partition, at least one, without errors, with their offsets, as columns of `schema`."""
    from confluent_kafka import Message

    kinds: Sequence[int] = ()
    times: Sequence[int] = ()
    if any(name.startswith("timestamp") for name in schema.names):
        kinds, times = zip(*map(Message.timestamp, messages), strict=True)

    def same(name: str, value: Any) -> Any:
        return pa.repeat(pa.scalar(value, TYPES[name]), len(messages))

    make: dict[str, Callable[[], Any]] = {
        "key": lambda: map(Message.key, messages),
        "value": lambda: map(Message.value, messages),
        "topic": lambda: same("topic", split.topic),
        "partition": lambda: same("partition", split.partition),
        "offset": lambda: offsets,
        # -1 where the broker is too old to have any: the type says so then.
        "timestamp": lambda: pa.array(times, pa.timestamp("ms", "UTC")).cast(TYPES["timestamp"]),
        # Kafka's numbers, which Spark has too, are one less than the client's.
        "timestampType": lambda: [kind - 1 for kind in kinds],
        "headers": lambda: map(Message.headers, messages),
    }
    columns = []
    for name in schema.names:
        made = make[name]()
        if not isinstance(made, pa.Array):
            made = pa.array(list(made), TYPES[name])
        columns.append(made)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
