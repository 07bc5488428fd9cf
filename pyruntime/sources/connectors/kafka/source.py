"""Kafka as a source: `KafkaSource`, a value that pickles, and the enumerator that finds its partitions.

A consumer is told which partitions it reads and from where; it joins no group, so nothing is rebalanced and
the same range of offsets can be read again in the same way after a crash. Ends are asked for all partitions
in one round, so a micro-batch over thousands of them costs a few requests.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import pyarrow as pa

from pillarbox.sources.connectors.kafka.client import (
    TYPES,
    KafkaClients,
    KafkaOffsets,
    KafkaSplit,
    Partition,
    split_of,
)
from pillarbox.sources.connectors.kafka.reader import KafkaSplitReader
from pillarbox.sources.connectors.log import Checkpoint, LogEnumerator, LogSource, Part
from pillarbox.sources.connectors.options import Options, option, words
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit

PREFIX = "kafka."
LATEST_TIME = 1e11
"""Seconds since 1970, in the year 5138: what is above were milliseconds."""
FRESH_S = 0.5
"""Seconds for which an end that nobody has asked for yet is as good as a new one: ends only grow."""
OFFSETS = "offsets of 0 and more as {topic: {partition: offset}}"
GONE_S = 60.0
"""Seconds after which a topic that is missing at each look was deleted: a broker that has just begun may not
know all of them yet."""


def parse_where(text: str) -> Any:
    """An option that is a word, a number or JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class KafkaEnumerator(LogEnumerator[KafkaSplit]):
    """The enumerator of a `KafkaSource`. Confined to its thread, but for what `discover` calls."""

    _source: KafkaSource

    def __init__(
        self, source: KafkaSource, context: EnumeratorContext[KafkaSplit], checkpoint: Checkpoint
    ) -> None:
        super().__init__(source, context, checkpoint)
        self._offsets = KafkaOffsets(source.service, source.isolation == "read_committed")
        # What the last round of questions has answered, and when it was asked; ends that nobody has used yet.
        self._asked_at = -FRESH_S
        self._ends: dict[Partition, int | None] = {}
        self._ids: dict[str, str] = {}
        # Since when topics that are known are missing.
        self._missing: dict[str, float] = {}
        # What the group was not told yet.
        self._untold: dict[Partition, int] = {}

    # -- discovery ---------------------------------------------------------------------------------

    def find(self, *, first_look: bool) -> Mapping[str, tuple[str, int]]:
        """The topics. Raises ValueError if one that was named is not there at the first look."""
        source = self._source
        found = self._offsets.topics(source.names, source.pattern)
        missing = [name for name in source.names if name not in found]
        if missing and first_look:
            raise ValueError(f"topics={missing!r}: {source.service!r} has no such topics")
        return found

    def open(self, parts: Sequence[Part], *, first_look: bool) -> list[KafkaSplit]:
        """Partitions: from where it was asked for, or from their beginning if they came later."""
        of = {Partition(part.name, part.number): part for part in parts}
        starts = self._settled(self._source.start if first_look else "earliest", of, rest="earliest")
        if not self._source.bounded:
            return [split_of(part, starts[place], None) for place, part in of.items()]
        # Never behind what is there now.
        ends = self._offsets.latest(of)
        stops = self._settled(self._source.stop, of, rest="latest")
        ranges = [(part, starts[place], min(stops[place], ends[place])) for place, part in of.items()]
        return [split_of(part, start, stop) for part, start, stop in ranges if start < stop]

    def cut(self, split: KafkaSplit) -> tuple[KafkaSplit, KafkaSplit | None]:
        """At most `split_rows` of a range."""
        rows = self._source.split_rows
        if rows is None or split.stop is None or split.stop - split.start <= rows:
            return split, None
        edge = split.start + rows
        return split.up_to(edge), split_of(split.part, edge, split.stop)

    def _settled(self, where: Any, places: Mapping[Partition, Part], *, rest: str) -> dict[Partition, int]:
        """Offsets of a time, of the group, or that were given; those of `rest` for all other partitions."""
        if isinstance(where, float):
            return self._offsets.at(places, where)
        found: dict[Partition, int] = {}
        if isinstance(where, Mapping):
            given = {
                Partition(topic, number): offset for topic in where for number, offset in where[topic].items()
            }
            found = {place: given[place] for place in places if place in given}
        elif where == "committed":
            found = self._offsets.committed(places, self._source.group_id or "")
        else:
            rest = str(where)
        left = [place for place in places if place not in found]
        return found | (self._offsets.earliest(left) if rest == "earliest" else self._offsets.latest(left))

    # -- micro-batches -----------------------------------------------------------------------------

    def assigned_to(self, split: KafkaSplit) -> int | None:
        """A partition without end has a reader by rule: those of a topic go to different ones."""
        if split.stop is not None:
            return None
        return (zlib.crc32(split.topic.encode()) + split.partition) % self.context.parallelism

    def ahead(self, split: KafkaSplit, limit: ReadLimit) -> KafkaSplit | None:
        """Return what is there now of a partition, at most so many rows. Raises DataLossError."""
        if limit.nbytes is not None:
            raise ValueError(
                "max_bytes: Kafka says how many records there are, not their bytes: use max_rows"
            )
        end = self._end(split) if split.stop is None else split.stop
        if end is None or end <= split.start:
            return None
        return split.up_to(end if limit.rows is None else min(end, split.start + max(1, limit.rows)))

    def _end(self, split: KafkaSplit) -> int | None:
        place, topic_id = split.place, split.topic_id
        stale = time.monotonic() - self._asked_at > FRESH_S
        if stale or place not in self._ends or self._ids.get(place.topic, topic_id) != topic_id:
            self._ask_for_ends(place)
        # An end that was used is not used again.
        end, why = self._ends.pop(place), ""
        if self._ids.get(split.topic) != topic_id:
            end, why = None, "its topic was deleted" + ", and made again" * (split.topic in self._ids)
        elif end is not None and end < split.start:
            why = f"it ends at offset {end} now"
        if why:
            self._source.lost(split.unreadable_from(split.start, why), self.warn_once)
        return end

    def _ask_for_ends(self, place: Partition) -> None:
        """The ends of all partitions that are known, and of this one, in one round."""
        known: dict[str, list[Any]] = self.checkpoint["known"]
        found = self._offsets.topics({*known, place.topic})
        asked = {place, *(Partition(name, at) for name in known for at in range(known[name][1]))}
        there = [each for each in asked if each.topic in found and each.number < found[each.topic][1]]
        self._ends = {**dict.fromkeys(asked), **self._offsets.latest(there)}
        self._ids = {name: topic_id for name, (topic_id, _) in found.items()}
        self._asked_at = now = time.monotonic()
        self._missing = {name: self._missing.get(name, now) for name in known if name not in found}

    def is_gone(self, split: KafkaSplit) -> bool:
        """True if its topic has another id, or was missing for long."""
        if split.topic in self._ids:
            return self._ids[split.topic] != split.topic_id
        return self._asked_at - self._missing.get(split.topic, self._asked_at) >= GONE_S

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Have the group stand where the rows end that are durable downstream.

        What it could not be told is told with what comes next.
        """
        for split_id, position in positions.items():
            topic, number, rest = split_id.split("/", 2)
            # A range is not read on, so it says nothing.
            if "@" not in rest:
                self._untold[Partition(topic, int(number))] = position
        if self._source.group_id and self._untold:
            self._offsets.commit(self._untold, self._source.group_id)
        self._untold = {}


@dataclass(eq=False, repr=False)
class KafkaSource(LogSource[KafkaSplit]):
    """Records of Kafka topics, those of each partition in the order of their offsets.

    properties: of librdkafka, `bootstrap.servers` and what security needs. They are never shown but for the
        servers. `group.id` and a few others are the source's own.
    topics: names, or `pattern`: a regular expression that the whole name matches; topics and partitions that
        come later are looked for every `discovery_interval` seconds, and read from their beginning.
    schema: columns by name, of `key`, `value`, `topic`, `partition`, `offset`, `timestamp`, `timestampType`
        and `headers`, as in Spark's own source. None: all, `headers` only with `headers=True`.
    start: "earliest", "latest", "committed" (where `group_id` stands; earliest where it does not), a time in
        seconds since 1970, or offsets as {topic: {partition: offset}}; partitions that it does not name are
        read from the earliest.
    bounded: whether it ends. stop: "latest" (what is there at the start), a time or offsets, as in `start`.
        split_rows: a bounded read has ranges of at most so many offsets; None: a range a partition.
    isolation: "read_committed" or "read_uncommitted".
    on_data_loss: what is done about records that were expired or deleted before they were read: "fail" or
        "ignore".
    on_change: what is done when a checkpoint is of other topics, or of another pattern: "fail", or "follow",
        which lets go of what is no longer named and reads what is new from its beginning.
    group_id: a group that is told what is durable downstream, for others to see. It has no members.
    password_env: the name of an environment variable that holds `sasl.password`; it is read where a
        client is made, on the driver and in tasks, and does not travel.

    Raises TypeError or ValueError for a bad argument. The columns and `start` are those of Spark's Kafka
    source; that positions are the source's, not a group's, is Flink's and Spark's.
    """

    split_type = KafkaSplit
    enumerator_type = KafkaEnumerator
    reader_type = KafkaSplitReader
    logs = "topics"

    properties: Mapping[str, Any] = field()
    topics: str | Sequence[str] | None = option(None, parse=words)
    _: KW_ONLY
    headers: bool = option(False)
    start: Any = option("earliest", parse=parse_where)  # noqa: RUF009 - it is a field
    stop: Any = option("latest", parse=parse_where)  # noqa: RUF009
    split_rows: int | None = option(1_000_000, at_least=1)
    isolation: str = option("read_committed", one_of=("read_committed", "read_uncommitted"))
    group_id: str | None = option(None)

    def __post_init__(self) -> None:
        self.service = KafkaClients(self.properties, self.password_env)
        super().__post_init__()
        try:
            re.compile(self.pattern or "")
        except (TypeError, re.error) as error:
            raise ValueError(f"pattern={self.pattern!r}: must be a regular expression: {error}") from None
        self.start = _where("start", self.start, ("earliest", "latest", "committed"), self.names)
        self.stop = _where("stop", self.stop, ("latest",), self.names)
        if self.start == "committed" and not self.group_id:
            raise ValueError("start='committed': needs group_id")
        if self.stop != "latest" and not self.bounded:
            raise ValueError(f"stop={self.stop!r}: needs bounded=True")

    def default_schema(self) -> pa.Schema:
        """All columns; `headers` only if they are asked for."""
        return pa.schema([(name, kind) for name, kind in TYPES.items() if self.headers or name != "headers"])

    def check_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of `schema`, with the types in which they come: whoever asked for others casts them."""
        unknown = [name for name in schema.names if name not in TYPES]
        if unknown or not schema.names:
            raise ValueError(f"schema: columns {unknown!r} are unknown; there are {', '.join(TYPES)}")
        return pa.schema([(name, TYPES[name]) for name in schema.names])

    def matches(self, name: str) -> bool:
        """See `LogSource.matches`."""
        return re.fullmatch(self.pattern or "", name) is not None

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> KafkaSource:
        """See `LogSource.from_options`. With `kafka.` before each property; offsets are JSON."""
        properties = {name[len(PREFIX) :]: text for name, text in options.items() if name.startswith(PREFIX)}
        if "bootstrap.servers" not in properties:
            raise ValueError("option 'kafka.bootstrap.servers' is missing")
        own = {name: text for name, text in options.items() if not name.startswith(PREFIX)}
        return cls(properties, schema=schema, **Options(own).arguments(cls))


def _where(name: str, where: Any, words: Sequence[str], topics: Sequence[str]) -> Any:
    """A word, a time, or offsets by topic and partition. Raises ValueError."""
    if isinstance(where, str) and where in words:
        return where
    allowed = f"must be {', '.join(map(repr, words))}, seconds since 1970, or {OFFSETS}"
    if isinstance(where, Mapping):
        unknown = [topic for topic in where if topics and topic not in topics]
        if unknown:
            raise ValueError(f"{name}={where!r}: {unknown[0]!r} is not among the topics")
        with suppress(AttributeError, TypeError, ValueError):
            offsets = {
                str(topic): {int(at): int(offset) for at, offset in parts.items()}
                for topic, parts in where.items()
            }
            if all(offset >= 0 for parts in offsets.values() for offset in parts.values()):
                return offsets
    elif isinstance(where, int | float) and not isinstance(where, bool) and where >= 0:
        if where <= LATEST_TIME:
            return float(where)
        allowed = "must be seconds since 1970, not milliseconds"
    raise ValueError(f"{name}={where!r}: {allowed}")
