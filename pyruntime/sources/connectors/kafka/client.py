"""A Kafka: its properties, whose secrets are never shown; its offsets; its records as splits and batches.

Any thread. A consumer that has read what it was to read is kept for the next reader of its process: a Spark
worker has one for each micro-batch, and to connect takes longer than to read some thousand records. Batches
are made a column at a time: the loops over messages are those of `map`, in C.
"""

# Why a consumer is kept only if it has complained of nothing. librdkafka goes on after most errors on threads
# of its own, and says so in a callback alone: whether such a consumer will read is known to nobody. A new one
# costs a connection, a broken one that is taken again costs the next micro-batch its time-out. It is known by
# all its properties, or a source would read with the rights of another.
#
# Why secrets are taken out of texts by their values, where `redaction` goes by patterns: librdkafka quotes
# properties in forms of its own, and a value that is known is found in any of them.

from __future__ import annotations

import atexit
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from pillarbox.redaction import password_from
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


MISSING = 'Kafka needs the package confluent-kafka, here and where tasks run: pip install "pillarbox[kafka]"'
ANSWER_S = 30.0
"""Seconds for a broker to answer what is asked of it, besides reading."""
COMMIT_WAIT_S = 5.0
"""Seconds for a group to be told where it stands."""
LEADER_RETRY_S = 0.05
"""Seconds between two questions about a partition that has no leader."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
MAX_IDLE_CONSUMERS = 2
"""Consumers that one process keeps for the next micro-batch."""
SECRET = re.compile(r"password|secret|token|credential|jaas|\.pem$|\.key$|oauthbearer\.config|userinfo")
SETTLED = {
    "group.id": "give 'group_id'",
    "isolation.level": "give 'isolation'",
    "auto.offset.reset": "give 'on_data_loss'",
    "enable.auto.commit": "the source settles it",
    "enable.auto.offset.store": "the source settles it",
    "enable.partition.eof": "the source settles it",
    "partition.assignment.strategy": "the source settles it",
    "group.instance.id": "the source settles it",
}
"""Properties that the source settles itself, and what to do instead."""
CONSUMER = {
    # A consumer must have a group; it never joins it.
    "group.id": "pillarbox",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}


def package() -> Any:
    """The package `confluent_kafka`. Any thread. Raises ImportError, which says what to install."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise ImportError(MISSING) from None
    return confluent_kafka


class Consumer(NamedTuple):
    """A consumer, and what is needed to use it again."""

    client: Any
    complaints: deque[str]
    """The last thing that went wrong between it and its brokers; it goes on and tries again."""
    key: str
    """The arguments that it was made with: two with the same do the same."""


_idle: dict[str, Consumer] = {}
"""Consumers that read nothing now by their keys, the oldest first."""


@atexit.register
def _close_idle() -> None:
    while _idle:
        _idle.popitem()[1].client.close()


class KafkaClients:
    """The properties of clients, and what makes clients of them. A value; pickles with the secrets in them.

    properties: those of librdkafka. Needs `bootstrap.servers`. password_env: the name of an environment
    variable that holds `sasl.password`: read for each client, so that it does not travel. It has to be set
    here, too. Raises TypeError or ValueError for properties that cannot be; it names them and shows no
    secret.
    """

    def __init__(self, properties: Mapping[str, Any], password_env: str | None = None) -> None:
        if not isinstance(properties, Mapping):
            raise TypeError(f"properties: must be a mapping, not {type(properties).__name__}")
        self._properties = {str(name): value for name, value in properties.items()}
        self._password_env = password_env
        if password_env is not None:
            password_from(password_env)
        for name in self._properties.keys() & SETTLED.keys():
            raise ValueError(f"property {name!r} cannot be given: {SETTLED[name]}")
        self.servers = self._properties.get("bootstrap.servers")
        if not isinstance(self.servers, str) or not self.servers.strip():
            raise ValueError(
                f"property 'bootstrap.servers' is {self.servers!r}: must be host:port, by commas"
            )

    def __repr__(self) -> str:
        return f"Kafka at {self.servers}"

    def hide(self, text: str) -> str:
        """The text without the secrets that it might have in it."""
        found = [value for name, value in self._properties.items() if SECRET.search(name)]
        for value in (*found, os.environ.get(self._password_env or "")):
            if isinstance(value, str) and value:
                text = text.replace(value, "***")
        return text

    def made(
        self, kind: Any, defaults: Mapping[str, Any], fixed: Mapping[str, Any]
    ) -> tuple[Any, deque[str]]:
        """A client, and its last complaint. What is in `defaults` can be overridden by a property."""
        complaints: deque[str] = deque(maxlen=1)

        def complain(error: Any) -> None:
            # That all are down says less than why one is.
            if not complaints or error.code() != error._ALL_BROKERS_DOWN:
                complaints.append(self.hide(str(error.str())))

        # The client would write to stderr what is in the errors already.
        quiet = {"log_level": 0, "error_cb": complain}
        secret = {} if self._password_env is None else {"sasl.password": password_from(self._password_env)}
        try:
            return kind({**quiet, **defaults, **self._properties, **secret, **fixed}), complaints
        except Exception as error:
            raise ValueError(f"{self!r}: these properties cannot be: {self.hide(str(error))}") from None

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """A client that reads, for one thread: one that was given back, if it was made with the same."""
        key = repr((self._properties, self._password_env, settings))
        found = _idle.pop(key, None)
        return found or Consumer(*self.made(package().Consumer, settings, CONSUMER), key)

    def give_back(self, consumer: Consumer, sound: bool) -> None:
        """Keep a consumer with which nothing went wrong for who needs the same; at most two in a process."""
        surplus: Consumer | None = consumer
        if sound and not consumer.complaints:
            consumer.client.unassign()
            surplus = _idle.pop(consumer.key, None)
            _idle[consumer.key] = consumer
            if len(_idle) > MAX_IDLE_CONSUMERS:
                surplus = _idle.pop(next(iter(_idle)), None)
        if surplus is not None:
            # It is in no group, so nobody needs to be told.
            surplus.client.close()

    def failed(self, doing: str, error: BaseException, complaints: Collection[str] = ()) -> Exception:
        """Make an error of what a client has raised: it says where, at what, and what else went wrong."""
        why = "".join(f" ({complaint})" for complaint in complaints)
        return ConnectionError(f"{self!r}: {doing}: {self.hide(str(error))}{why}")


class KafkaOffsets:
    """Asks a Kafka about topics and offsets, for many partitions in one round. Thread-safe.

    Raises ConnectionError where it does not answer. committed_only: whether what a transaction has not
    committed yet counts as not there.
    """

    def __init__(self, clients: KafkaClients, committed_only: bool) -> None:
        self._clients, self._kafka = clients, package()
        self._admin, self._complaints = clients.made(self._kafka.admin.AdminClient, {}, {})
        level = self._kafka.IsolationLevel
        self._isolation = level.READ_COMMITTED if committed_only else level.READ_UNCOMMITTED

    def topics(self, names: Collection[str], pattern: str | None = None) -> dict[str, tuple[str, int]]:
        """Those of `names` that are there, or all whose whole name matches `pattern`, inner ones excepted.

        Of each its id, and how many partitions it has.
        """
        if pattern is not None:
            with self._asking("looking for topics"):
                listed = self._admin.list_topics(timeout=ANSWER_S)
            matching = re.compile(pattern).fullmatch
            names = [name for name in listed.topics if matching(name) and not name.startswith("__")]
        if not names:
            return {}
        topics = self._kafka.TopicCollection(list(names))
        asked = self._admin.describe_topics(topics, request_timeout=ANSWER_S)
        found = {}
        for name, future in sorted(asked.items()):
            with self._asking(f"looking at topic {name!r}", self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART):
                topic = future.result()
                topic_id = str(topic.topic_id)
                found[name] = "" if topic_id == NO_ID else topic_id, len(topic.partitions)
        return found

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that is there."""
        return self._list(partitions, self._kafka.admin.OffsetSpec.earliest())

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset behind the last record that may be read."""
        return self._list(partitions, self._kafka.admin.OffsetSpec.latest())

    def at(self, partitions: Collection[Partition], timestamp: float) -> dict[Partition, int]:
        """The first offset whose record is not earlier than `timestamp` seconds; the end if there is none."""
        # The ends first: a record that comes between the two requests is not passed over.
        ends = self.latest(partitions)
        spec = self._kafka.admin.OffsetSpec.for_timestamp(max(0, round(timestamp * 1000)))
        found = self._list(partitions, spec)
        return {place: ends[place] if found[place] < 0 else found[place] for place in ends}

    def committed(self, partitions: Collection[Partition], group: str) -> dict[Partition, int]:
        """Return the offsets of a group; partitions for which it has said nothing are left out."""
        if not partitions:
            return {}
        places = [self._kafka.TopicPartition(*place) for place in partitions]
        request = self._kafka.ConsumerGroupTopicPartitions(group, places)
        with self._asking(f"asking where group {group!r} stands"):
            asked = self._admin.list_consumer_group_offsets([request], request_timeout=ANSWER_S)
            answer = self._places(asked[group])
        return {Partition(each.topic, each.partition): each.offset for each in answer if each.offset >= 0}

    def commit(self, offsets: Mapping[Partition, int], group: str) -> None:
        """Have a group stand at these offsets."""
        places = [self._kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        request = self._kafka.ConsumerGroupTopicPartitions(group, places)
        with self._asking(f"telling group {group!r} where it stands"):
            told = self._admin.alter_consumer_group_offsets([request], request_timeout=COMMIT_WAIT_S)
            self._places(told[group])

    def _places(self, answer: Future[Any]) -> Sequence[Any]:
        """Return what is answered of a group, partition by partition: each may fail by itself."""
        places: Sequence[Any] = answer.result().topic_partitions
        for each in places:
            # A topic may be deleted at any time, and no later attempt would find it.
            if each.error is not None and each.error.code() != self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self._kafka.KafkaException(each.error)
        return places

    def _list(self, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
        error = self._kafka.KafkaError
        moving = (
            error.NOT_LEADER_FOR_PARTITION, error.LEADER_NOT_AVAILABLE, error.REPLICA_NOT_AVAILABLE,
            error.FENCED_LEADER_EPOCH, error.UNKNOWN_LEADER_EPOCH, error.OFFSET_NOT_AVAILABLE,
        )  # fmt: skip
        found: dict[Partition, int] = {}
        left = set(partitions)
        until = time.monotonic() + ANSWER_S
        while left:
            asked = {self._kafka.TopicPartition(*each): spec for each in left}
            answers = self._admin.list_offsets(
                asked, isolation_level=self._isolation, request_timeout=ANSWER_S
            )
            # A partition that has no leader for a moment is asked about again.
            passed = moving if time.monotonic() < until else ()
            for each, future in answers.items():
                doing = f"asking for an offset of partition {each.partition} of topic {each.topic!r}"
                with self._asking(doing, *passed):
                    found[Partition(each.topic, each.partition)] = future.result().offset
            left.difference_update(found)
            if left:
                time.sleep(LEADER_RETRY_S)
        return found

    @contextmanager
    def _asking(self, doing: str, *passed: int) -> Iterator[None]:
        """Raise ConnectionError for what the client raises, but for errors of these codes."""
        try:
            yield
        except self._kafka.KafkaException as error:
            if error.args[0].code() not in passed:
                # This is when the client says what it had to complain of.
                self._admin.poll(0)
                raise self._clients.failed(doing, error, self._complaints) from None
