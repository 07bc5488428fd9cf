"""Records of Kafka: ranges of offsets as splits, messages as Arrow batches. Any thread.

Batches are made a column at a time: the loops over messages are those of `map`, in C; Python
runs a few lines for each column, not for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.sources.connectors.log import LogSplit, Part

if TYPE_CHECKING:
    import pyarrow as pa


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


def partition_of(split_id: str) -> Partition | None:
    """The partition that a split without end is; None for another one."""
    parts = split_id.split("/", 2)
    return Partition(parts[0], int(parts[1])) if len(parts) == 3 and "@" not in parts[2] else None


def default_schema(headers: bool) -> pa.Schema:
    """The columns of Spark's Kafka source; `headers` only if they are asked for."""
    import pyarrow as pa

    kinds = {name: kind for name, (kind, _) in _columns().items() if headers or name != "headers"}
    return pa.schema(list(kinds.items()))


def check_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of `schema`, with the types in which they come. Raises ValueError for unknown ones.

    Whoever asked for other types casts them.
    """
    import pyarrow as pa

    known = _columns()
    unknown = [name for name in schema.names if name not in known]
    if unknown or not schema.names:
        raise ValueError(f"schema: columns {unknown!r} are unknown; there are {', '.join(known)}")
    return pa.schema([(name, known[name][0]) for name in schema.names])


class Rows(NamedTuple):
    """Messages of one partition, of which each has a value or none, but no error. A plain value."""

    split: KafkaSplit
    messages: Sequence[Any]
    offsets: Sequence[int]
    times: tuple[Sequence[int], Sequence[int]]
    """Of each the type of its timestamp, and the timestamp."""


class Batches:
    """Makes batches with the columns of `schema`, one that `check_schema` gave. Any thread."""

    def __init__(self, schema: pa.Schema) -> None:
        known = _columns()
        self._schema = schema
        self._makers: list[tuple[Any, Callable[[Any, Rows], Any]]] = [known[name] for name in schema.names]
        self._timed = any(name.startswith("timestamp") for name in schema.names)

    def batch(self, split: KafkaSplit, messages: Sequence[Any], offsets: Sequence[int]) -> pa.RecordBatch:
        """The messages of one partition, at least one, with their offsets."""
        import pyarrow as pa
        from confluent_kafka import Message

        kinds: Sequence[int] = ()
        times: Sequence[int] = ()
        if self._timed:
            kinds, times = zip(*map(Message.timestamp, messages), strict=True)
        rows = Rows(split, messages, offsets, (kinds, times))
        columns = [make(kind, rows) for kind, make in self._makers]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _columns() -> dict[str, tuple[Any, Callable[[Any, Rows], Any]]]:
    """Each column: its type, and what makes it of that type from messages."""
    import pyarrow as pa
    from confluent_kafka import Message

    def by(method: Any) -> Callable[[Any, Rows], Any]:
        return lambda kind, rows: pa.array(list(map(method, rows.messages)), kind)

    def same(value: Callable[[KafkaSplit], Any]) -> Callable[[Any, Rows], Any]:
        return lambda kind, rows: pa.repeat(pa.scalar(value(rows.split), kind), len(rows.messages))

    def timestamp(kind: Any, rows: Rows) -> Any:
        # -1 where the broker is too old to have any: the type says so then.
        return pa.array(rows.times[1], pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(kind)

    def timestamp_type(kind: Any, rows: Rows) -> Any:
        # Kafka's numbers, which Spark has too, are one less than the client's.
        first = rows.times[0][0]
        if rows.times[0].count(first) == len(rows.times[0]):
            return pa.repeat(pa.scalar(first - 1, kind), len(rows.messages))
        return pa.array([number - 1 for number in rows.times[0]], kind)

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return {
        "key": (pa.binary(), by(Message.key)),
        "value": (pa.binary(), by(Message.value)),
        "topic": (pa.string(), same(lambda split: split.topic)),
        "partition": (pa.int32(), same(lambda split: split.partition)),
        "offset": (pa.int64(), lambda kind, rows: pa.array(rows.offsets, kind)),
        "timestamp": (pa.timestamp("us", "UTC"), timestamp),
        "timestampType": (pa.int32(), timestamp_type),
        "headers": (pa.list_(header), by(Message.headers)),
    }
