"""Kafka as a source: `KafkaSource`. A value that pickles; any thread.

A consumer is told which partitions it reads and from where; it joins no group, so nothing is rebalanced and
the same range of offsets can be read again in the same way after a crash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.kafka.client import KafkaClients
from pillarbox.sources.connectors.kafka.columns import check_schema, default_schema
from pillarbox.sources.connectors.kafka.enumerator import Checkpoint, KafkaEnumerator, beginning
from pillarbox.sources.connectors.kafka.reader import KafkaSplitReader
from pillarbox.sources.connectors.kafka.split import KafkaSplit
from pillarbox.sources.connectors.options import Options, check_on_data_loss, password_from
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.source import Boundedness, Source

if TYPE_CHECKING:
    import pyarrow as pa

ISOLATIONS = ("read_committed", "read_uncommitted")
PREFIX = "kafka."
LATEST_TIME = 1e11
"""Seconds since 1970, in the year 5138: what is above were milliseconds."""


class KafkaSource(Source[KafkaSplit, Checkpoint]):
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
    group_id: a group that is told what is durable downstream, for others to see. It has no members.
    event_time: "timestamp" if Kafka's timestamps are the event time: then alignment cuts exactly.
    patience: seconds that a range with an end may bring nothing, before TimeoutError.
    password_env: the name of an environment variable, read now, that holds `sasl.password`.

    Raises TypeError or ValueError for a bad argument. The columns and `start` are those of Spark's Kafka
    source; that positions are the source's, not a group's, is Flink's and Spark's.
    """

    split_type = KafkaSplit

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: str | Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        schema: pa.Schema | None = None,
        headers: bool = False,
        start: str | float | Mapping[str, Mapping[int, int]] = "earliest",
        bounded: bool = False,
        stop: str | float | Mapping[str, Mapping[int, int]] = "latest",
        split_rows: int | None = 1_000_000,
        isolation: str = "read_committed",
        on_data_loss: str = "fail",
        group_id: str | None = None,
        event_time: str | None = None,
        discovery_interval: float = 10.0,
        patience: float = 120.0,
        password_env: str | None = None,
    ) -> None:
        if password_env is not None:
            properties = {**properties, "sasl.password": password_from(password_env)}
        self.clients = KafkaClients(properties)
        self.topics = () if topics is None else (topics,) if isinstance(topics, str) else tuple(topics)
        self.pattern = pattern
        if (not self.topics) == (pattern is None):
            raise ValueError(f"topics={topics!r}, pattern={pattern!r}: give one of them")
        if not all(isinstance(topic, str) and topic for topic in self.topics):
            raise TypeError(f"topics={topics!r}: must be names")
        if len(set(self.topics)) < len(self.topics):
            raise ValueError(f"topics={topics!r}: each must be named once")
        if pattern is not None:
            try:
                re.compile(pattern)
            except (TypeError, re.error) as error:
                raise ValueError(f"pattern={pattern!r}: must be a regular expression: {error}") from None
        if isolation not in ISOLATIONS:
            raise ValueError(f"isolation={isolation!r}: must be one of {', '.join(ISOLATIONS)}")
        if event_time not in (None, "timestamp"):
            raise ValueError(f"event_time={event_time!r}: must be 'timestamp' or None")
        if group_id is not None and (not isinstance(group_id, str) or not group_id):
            raise ValueError(f"group_id={group_id!r}: must be a name or None")
        if split_rows is not None and (
            isinstance(split_rows, bool) or not isinstance(split_rows, int) or split_rows < 1
        ):
            raise ValueError(f"split_rows={split_rows!r}: must be an int of at least 1, or None")
        for name, seconds in (("discovery_interval", discovery_interval), ("patience", patience)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise ValueError(f"{name}={seconds!r}: must be seconds above 0")
        self.start = _where("start", start, ("earliest", "latest", "committed"), self.topics)
        self.stop = _where("stop", stop, ("latest",), self.topics)
        if self.start == "committed" and group_id is None:
            raise ValueError("start='committed': needs group_id")
        if self.stop != "latest" and not bounded:
            raise ValueError(f"stop={stop!r}: needs bounded=True")
        self.bounded = bool(bounded)
        self.split_rows = split_rows
        self.isolation = isolation
        self.on_data_loss = check_on_data_loss(on_data_loss)
        self.group_id = group_id
        self.event_time = event_time
        self.discovery_interval = float(discovery_interval)
        self.patience = float(patience)
        self._schema = None if schema is None else check_schema(schema)
        self._headers = bool(headers)

    def __repr__(self) -> str:
        what = self.pattern if self.pattern is not None else ", ".join(self.topics)
        return f"<topics {what} of {self.clients!r}>"

    @property
    def boundedness(self) -> Boundedness:
        """As it was asked for."""
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def arrow_schema(self) -> pa.Schema:
        """The columns: those that were given, or all."""
        return default_schema(self._headers) if self._schema is None else self._schema

    def create_enumerator(self, context: EnumeratorContext[KafkaSplit]) -> KafkaEnumerator:
        """The enumerator of a new run. Raises ImportError without the package `confluent-kafka`."""
        return KafkaEnumerator(self, context, beginning())

    def restore_enumerator(
        self, context: EnumeratorContext[KafkaSplit], checkpoint: Checkpoint
    ) -> KafkaEnumerator:
        """The enumerator of a run that goes on."""
        return KafkaEnumerator(self, context, checkpoint)

    def create_reader(self, context: ReaderContext) -> SourceReader[KafkaSplit]:
        """A reader with one consumer for all its partitions."""
        schema = self.arrow_schema() if context.schema is None else check_schema(context.schema)
        return FetchingReader(
            context, lambda: KafkaSplitReader(self, schema), threading=Threading.MANY_SPLITS
        )

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> KafkaSource:
        """See `Source.from_options`. The options are the arguments, and `kafka.` before each property.

        `topics` are parted by commas; offsets are JSON.
        """
        properties = {
            name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)
        }
        if "bootstrap.servers" not in properties:
            raise ValueError("option 'kafka.bootstrap.servers' is missing")
        given = Options({name: value for name, value in options.items() if not name.startswith(PREFIX)})
        rows = given.number("split_rows", int, 1_000_000)
        source = cls(
            properties,
            given.words("topics"),
            pattern=given.text("pattern"),
            schema=schema,
            headers=given.flag("headers", False),
            start=_read("start", given.text("start"), "earliest"),
            bounded=given.flag("bounded", False),
            stop=_read("stop", given.text("stop"), "latest"),
            split_rows=rows,
            isolation=given.text("isolation") or "read_committed",
            on_data_loss=given.text("on_data_loss") or "fail",
            group_id=given.text("group_id"),
            event_time=given.text("event_time"),
            discovery_interval=given.number("discovery_interval", float, 10.0),
            patience=given.number("patience", float, 120.0),
            password_env=given.text("password_env"),
        )
        given.check_all_read()
        return source


def _where(name: str, where: Any, words: Sequence[str], topics: Sequence[str]) -> Any:
    """A word, a time, or offsets by topic and partition. Raises ValueError."""
    if where in words if isinstance(where, str) else False:
        return where
    if isinstance(where, int | float) and not isinstance(where, bool) and where >= 0:
        if where > LATEST_TIME:
            raise ValueError(f"{name}={where!r}: must be seconds since 1970, not milliseconds")
        return float(where)
    if isinstance(where, Mapping):
        try:
            offsets = {
                str(topic): {int(number): int(offset) for number, offset in parts.items()}
                for topic, parts in where.items()
            }
        except (AttributeError, TypeError, ValueError):
            offsets = {"": {0: -1}}
        if not any(offset < 0 for parts in offsets.values() for offset in parts.values()):
            unknown = [topic for topic in offsets if topics and topic not in topics]
            if unknown:
                raise ValueError(f"{name}={where!r}: {unknown[0]!r} is not among the topics")
            return offsets
    allowed = ", ".join(map(repr, words))
    raise ValueError(
        f"{name}={where!r}: must be {allowed}, seconds since 1970, or offsets of 0 and more "
        "as {topic: {partition: offset}}"
    )


def _read(name: str, text: str | None, otherwise: str) -> Any:
    """An option that is a word, a number or JSON."""
    if text is None:
        return otherwise
    if text.strip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"option {name!r} is {text!r}: must be JSON: {error}") from None
    try:
        return float(text)
    except ValueError:
        return text
