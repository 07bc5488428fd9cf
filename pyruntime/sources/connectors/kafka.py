"""Kafka as a source: `KafkaSource`, its partitions and offsets, its clients, the reader and the enumerator.

A consumer is told which partitions it reads and from where; it joins no group, so nothing is rebalanced and
the same range of offsets can be read again in the same way after a crash. Ends are asked for all partitions
in one round, so a micro-batch over thousands of them costs a few requests.
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
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from pillarbox.redaction import password_from
from pillarbox.sources.connectors.log import (
    LOOK_S,
    Checkpoint,
    Cursor,
    LogEnumerator,
    LogReader,
    LogSource,
    LogSplit,
    Part,
    check_where,
    masked,
    parse_where,
)
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit
from pillarbox.sources.reader import Fetched
from pillarbox.sources.source import option, read_options, words
from pillarbox.validate import naming_arguments

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
Where: TypeAlias = "float | str | Mapping[str, Mapping[int, int]]"


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

    def column(name: str) -> pa.Array:
        if name in ("topic", "partition"):
            return pa.repeat(pa.scalar(getattr(split, name), TYPES[name]), len(messages))
        if name == "timestamp":
            # -1 where the broker is too old to have any: the type says so then.
            return pa.array(times, pa.timestamp("ms", "UTC")).cast(TYPES[name])
        if name == "timestampType":
            # Kafka's numbers, which Spark has too, are one less than the client's.
            return pa.array([kind - 1 for kind in kinds], TYPES[name])
        values = offsets if name == "offset" else list(map(getattr(Message, name), messages))
        return pa.array(values, TYPES[name])

    return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)


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
CONSUMER = {
    # A consumer must have a group; it never joins it.
    "group.id": "pillarbox",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
INSTEAD = {"group.id": "group_id", "isolation.level": "isolation", "auto.offset.reset": "on_data_loss"}
SETTLED = {*CONSUMER, *INSTEAD, "partition.assignment.strategy", "group.instance.id"}
"""Properties that the source settles itself; and what to give instead of some."""


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
        for name in self._properties.keys() & SETTLED:
            what = f"give {INSTEAD[name]!r}" if name in INSTEAD else "the source settles it"
            raise ValueError(f"property {name!r} cannot be given: {what}")
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
        return masked(text, (*found, os.environ.get(self._password_env or "")))

    def made(
        self, kind: Callable[[dict[str, Any]], Any], defaults: Mapping[str, Any], fixed: Mapping[str, Any]
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
    committed yet counts as not there. answer_s: seconds for a broker to answer.
    """

    def __init__(self, clients: KafkaClients, committed_only: bool, answer_s: float = ANSWER_S) -> None:
        self._clients, self._kafka, self._answer_s = clients, package(), answer_s
        self._admin, self._complaints = clients.made(self._kafka.admin.AdminClient, {}, {})
        level = self._kafka.IsolationLevel
        self._isolation = level.READ_COMMITTED if committed_only else level.READ_UNCOMMITTED

    def topics(self, names: Collection[str], pattern: str | None = None) -> dict[str, tuple[str, int]]:
        """Those of `names` that are there, or all whose whole name matches `pattern`, inner ones excepted.

        Of each its id, and how many partitions it has.
        """
        if pattern is not None:
            with self._asking("looking for topics"):
                listed = self._admin.list_topics(timeout=self._answer_s)
            matching = re.compile(pattern).fullmatch
            names = [name for name in listed.topics if matching(name) and not name.startswith("__")]
        if not names:
            return {}
        topics = self._kafka.TopicCollection(list(names))
        asked = self._admin.describe_topics(topics, request_timeout=self._answer_s)
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
            asked = self._admin.list_consumer_group_offsets([request], request_timeout=self._answer_s)
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

    def _list(self, partitions: Iterable[Partition], spec: object) -> dict[Partition, int]:
        error = self._kafka.KafkaError
        moving = (
            error.NOT_LEADER_FOR_PARTITION, error.LEADER_NOT_AVAILABLE, error.REPLICA_NOT_AVAILABLE,
            error.FENCED_LEADER_EPOCH, error.UNKNOWN_LEADER_EPOCH, error.OFFSET_NOT_AVAILABLE,
        )  # fmt: skip
        found: dict[Partition, int] = {}
        left = set(partitions)
        until = time.monotonic() + self._answer_s
        while left:
            asked = {self._kafka.TopicPartition(*each): spec for each in left}
            answers = self._admin.list_offsets(
                asked, isolation_level=self._isolation, request_timeout=self._answer_s
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


# -- reading ----------------------------------------------------------------------------------------

MAX_MESSAGES = 1_000
"""Messages that one fetch takes. The client makes an object of each; with many of them at a time
they fall out of the processor's caches before they are read, and cost three times as much."""
MIN_MESSAGES = 10
FETCH_BYTES = 8 * 2**20
"""Bytes of one fetch, about."""
LINGER_S = 0.005
"""Seconds that a fetch waits for more, once it has something."""
RANGE_WAIT_MS = 20
"""Milliseconds that the broker keeps a request for which it has nothing, where that shows a range's end."""
PREFETCHED_MESSAGES = 10_000
"""Messages that the client fetches ahead."""
RANGE_TIMEOUT_S = 120.0
"""Longer than brokers take to elect a leader."""
FETCH_BACKOFF_MS = 2
"""Milliseconds after which a client that has fetched enough looks whether it has still. By default that is a
second, in which whoever reads faster waits: four times as slow."""

OUT_OF_RANGE = "_AUTO_OFFSET_RESET"
NO_PARTITION = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")
REFUSED = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "_AUTHENTICATION")
"""Names of errors."""


class KafkaSplitReader(LogReader[KafkaSplit, Cursor[KafkaSplit]]):
    """Reads with one consumer. range_timeout: seconds for which a range that has an end may bring nothing."""

    source: KafkaSource

    def __init__(
        self, source: KafkaSource, schema: pa.Schema, range_timeout: float = RANGE_TIMEOUT_S
    ) -> None:
        super().__init__(source, schema)
        self._kafka, self._range_timeout = package(), range_timeout
        self._consumer: Any = None
        # False once anything went wrong with the consumer, which another reader should not have then.
        self._sound = True
        self._reading: dict[Partition, Cursor[KafkaSplit]] = {}
        self._waited = 0.0
        self._max_messages = MAX_MESSAGES

    def close(self) -> None:
        """Give the consumer back, or end it."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self.source.service.give_back(consumer, self._sound)

    # -- what the consumer reads -------------------------------------------------------------------

    def _open(self, splits: Sequence[KafkaSplit]) -> Consumer:
        """Get a consumer for such splits as these."""
        settings = {"isolation.level": self.source.isolation, "fetch.queue.backoff.ms": FETCH_BACKOFF_MS}
        # What lies behind a range is fetched for nothing; in powers of ten, for a consumer is used again only
        # with the same settings.
        largest = 10 ** max(len(str(split.rows or PREFETCHED_MESSAGES)) for split in splits)
        settings["queued.min.messages"] = min(PREFETCHED_MESSAGES, largest)
        if all(split.stop is not None for split in splits):
            # An end that is not a record is seen only by a request that finds nothing: it should not take
            # long.
            settings["fetch.wait.max.ms"] = RANGE_WAIT_MS
        found: Consumer = self.source.service.consumer(settings)
        return found

    def settle(self, live: Sequence[Cursor[KafkaSplit]]) -> None:
        """Have the consumer read the first of these splits of each partition, each from where it stands."""
        self._end_earlier(live)
        wanted: dict[Partition, Cursor[KafkaSplit]] = {}
        for cursor in live:
            if not cursor.ended:
                wanted.setdefault(cursor.split.place, cursor)
        if self._consumer is None and wanted:
            self._consumer = self._open([cursor.split for cursor in live])
        left = [place for place, cursor in self._reading.items() if wanted.get(place) is not cursor]
        if left:
            self._consumer.client.incremental_unassign([self._kafka.TopicPartition(*place) for place in left])
        begun = [place for place, cursor in wanted.items() if self._reading.get(place) is not cursor]
        if begun:
            places = [self._kafka.TopicPartition(*place, wanted[place].position) for place in begun]
            self._consumer.client.incremental_assign(places)
        self._reading, self._waited = wanted, 0.0

    def _let_go(self, place: Partition) -> None:
        """Have the consumer not read a partition; it is settled anew what it reads."""
        self._consumer.client.incremental_unassign([self._kafka.TopicPartition(*place)])
        del self._reading[place]
        self.changed = True

    def _end_earlier(self, live: Sequence[Cursor[KafkaSplit]]) -> None:
        """End what is read of a topic that was deleted, where another one of its name is to be read."""
        endless = [cursor for cursor in live if cursor.split.stop is None]
        if len(endless) == len({cursor.split.place for cursor in endless}):
            return
        offsets = KafkaOffsets(self.source.service, committed_only=True)
        found = offsets.topics({cursor.split.topic for cursor in endless})
        for cursor in endless:
            topic = cursor.split.topic
            if topic in found and found[topic][0] != cursor.split.topic_id:
                self._lost(cursor, "its topic was deleted, and made again")
                cursor.ended = True

    def read(self, live: Sequence[Cursor[KafkaSplit]]) -> list[Fetched]:
        """The next messages, one batch for each partition that has any."""
        messages = self._consumer.client.consume(1, LOOK_S)
        if not messages:
            self._check_progress()
            return []
        messages += self._consumer.client.consume(self._max_messages - 1, LINGER_S)
        runs, ends, faults = self._sorted(messages)
        if runs or ends:
            self._waited = 0.0
        fetched = [self._taken(place, runs.get(place, []), ends.get(place, -1)) for place in {**runs, **ends}]
        # After the records that came before them.
        for message in faults:
            self._take_fault(message, message.error())
        return [each for each in fetched if each is not None]

    def _check_progress(self) -> None:
        self._waited += LOOK_S
        splits = [cursor.split for cursor in self._reading.values()]
        ranges = [split.split_id for split in splits if split.stop is not None]
        if ranges and self._waited > self._range_timeout:
            why = "".join(f" ({complaint})" for complaint in self._consumer.complaints)
            raise TimeoutError(
                f"{self.source.service!r}: nothing came for {self._waited:.0f} s of {ranges[0]!r}, which "
                f"has not ended{why}"
            )

    def _sorted(
        self, messages: list[Any]
    ) -> tuple[dict[Partition, list[Any]], dict[Partition, int], list[Any]]:
        """The records by partitions, in their order; how far those were read that have ended; and faults."""
        message_type = self._kafka.Message
        runs: dict[Partition, list[Any]] = {}
        ends: dict[Partition, int] = {}
        faults = [message for message in messages if message.error() is not None]
        if faults:
            messages = [message for message in messages if message.error() is None]
            at_end = [each for each in faults if each.error().name() == "_PARTITION_EOF"]
            ends = {Partition(each.topic(), each.partition()): each.offset() for each in at_end}
            faults = [each for each in faults if each not in at_end]
        topics, numbers = list(map(message_type.topic, messages)), list(map(message_type.partition, messages))
        if messages and numbers.count(numbers[0]) == topics.count(topics[0]) == len(messages):
            return {Partition(topics[0], numbers[0]): messages}, ends, faults
        places = zip(topics, numbers, strict=True)
        for place, run in groupby(zip(places, messages, strict=True), itemgetter(0)):
            runs.setdefault(Partition(*place), []).extend(map(itemgetter(1), run))
        return runs, ends, faults

    def _taken(self, place: Partition, messages: list[Any], end: int) -> Fetched | None:
        """Make rows of these messages of a partition for its split; all up to `end` has come."""
        cursor = self._reading.get(place)
        if cursor is None:
            return None
        split, records = cursor.split, ()
        offsets: list[int] = list(map(self._kafka.Message.offset, messages))
        end = max(end, offsets[-1] + 1 if offsets else -1)
        low = bisect_left(offsets, cursor.position)
        high = len(offsets) if split.stop is None else bisect_left(offsets, split.stop)
        if high > low:
            records = to_batch(split, messages[low:high], offsets[low:high], self.schema)
            wanted = FETCH_BYTES * (high - low) // max(1, records.nbytes)
            self._max_messages = max(MIN_MESSAGES, min(MAX_MESSAGES, wanted))
        if split.stop is not None and end >= split.stop:
            # What lies behind its end is dropped; what waits for it may begin before that.
            self._let_go(place)
            return self.finish(cursor, records)
        cursor.position = max(cursor.position, end)
        return Fetched(split.split_id, records, cursor.position) if high > low else None

    def _take_fault(self, message: Any, error: Any) -> None:
        self._sound = False
        place = Partition(message.topic(), message.partition()) if message.topic() else None
        cursor = None if place is None else self._reading.get(place)
        if error.name() in (OUT_OF_RANGE, *NO_PARTITION):
            if cursor is not None and error.name() == OUT_OF_RANGE:
                self._out_of_range(cursor)
            elif cursor is not None:
                self._lost(cursor, "there is no such partition any more")
                cursor.ended = cursor.split.stop is not None
        elif error.fatal() or error.name() in REFUSED:
            text = self.source.service.hide(str(error.str()))
            raise PermissionError(f"{self.source.service!r}: reading {place or 'topics'}: {text}")
        else:
            # The client tries again.
            self._consumer.complaints.append(self.source.service.hide(str(error.str())))

    def _out_of_range(self, cursor: Cursor[KafkaSplit]) -> None:
        place, stop = self._kafka.TopicPartition(*cursor.split.place), cursor.split.stop
        try:
            first, end = self._consumer.client.get_watermark_offsets(place, timeout=ANSWER_S)
        except self._kafka.KafkaException as error:
            raise self.source.service.failed(f"asking for the ends of {place}", error) from None
        # Or it is there again, as after a change of leaders.
        if not first <= cursor.position <= end:
            self._lost(cursor, f"it has offsets {first} up to {end} now")
            # A range that has nothing else, or lies in what was deleted, is over.
            cursor.ended = stop is not None and not cursor.position < first < stop
            cursor.position = first
        self._let_go(cursor.split.place)

    def _lost(self, cursor: Cursor[KafkaSplit], why: str) -> None:
        self.source.lost(cursor.split.unreadable_from(cursor.position, why))


# -- finding and cutting ----------------------------------------------------------------------------

PREFIX = "kafka."
FRESH_S = 0.5
"""Seconds for which an end that nobody has asked for yet is as good as a new one: ends only grow."""


class KafkaEnumerator(LogEnumerator[KafkaSplit]):
    """The enumerator of a `KafkaSource`. Confined to its thread, but for what `discover` calls."""

    _source: KafkaSource
    gone_after_s = 60.0
    """After so long a topic that is missing at each look was deleted: a broker that has just begun may not
    know all of them yet."""

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
        self._untold: dict[Partition, int] = {}

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
        stops = ends if self._source.stop == "latest" else self._settled(self._source.stop, of, rest="latest")
        ranges = []
        for place, part in of.items():
            start, stop = starts[place], min(stops[place], ends[place])
            step = self._source.split_rows or max(1, stop - start)
            ranges += [split_of(part, at, min(at + step, stop)) for at in range(start, stop, step)]
        return ranges

    def _settled(self, where: Where, places: Collection[Partition], *, rest: str) -> dict[Partition, int]:
        """The offsets of a time, a word or the group, or that were given; for other partitions of `rest`."""
        if isinstance(where, float):
            return self._offsets.at(places, where)
        found: dict[Partition, int] = {}
        if isinstance(where, Mapping):
            given = {place: where.get(place.topic, {}).get(place.number) for place in places}
            found = {place: offset for place, offset in given.items() if offset is not None}
        elif where == "committed":
            found = self._offsets.committed(places, self._source.group_id or "")
        else:
            rest = where
        left = [place for place in places if place not in found]
        return found | (self._offsets.earliest(left) if rest == "earliest" else self._offsets.latest(left))

    def assigned_to(self, split: KafkaSplit) -> int | None:
        """A partition without end has a reader by rule: those of a topic go to different ones."""
        if split.stop is not None:
            return None
        return (zlib.crc32(split.topic.encode()) + split.partition) % self.context.parallelism

    def ahead(self, split: KafkaSplit, limit: ReadLimit) -> KafkaSplit | None:
        """Return what is there now of a partition, at most so many rows. Raises DataLossError."""
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
        return self._asked_at - self._missing.get(split.topic, self._asked_at) >= self.gone_after_s

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Have the group stand where the rows end that are durable downstream."""
        for split_id, position in positions.items():
            topic, number, rest = split_id.split("/", 2)
            # A range is not read on, so it says nothing.
            if "@" not in rest:
                self._untold[Partition(topic, int(number))] = position
        if self._source.group_id and self._untold:
            # What it cannot be told now is told with what comes next.
            self._offsets.commit(self._untold, self._source.group_id)
        self._untold = {}


@naming_arguments
@dataclass(eq=False, repr=False)
class KafkaSource(LogSource[KafkaSplit]):
    """Records of Kafka topics, in the order of the offsets within each partition.

        >>> from pillarbox.sources.connectors.kafka import KafkaSource
        >>> KafkaSource({"bootstrap.servers": "broker:9092"}, "orders", bounded=True)
        <topics orders of Kafka at broker:9092>

    properties: of librdkafka, `bootstrap.servers` and what security needs. They are never shown but for the
        servers. `group.id` and a few others are the source's own.
    topics: names, or `pattern`: a regular expression that the whole name matches.
    schema: columns by name, of `key`, `value`, `topic`, `partition`, `offset`, `timestamp`, `timestampType`
        and `headers`, as in Spark's own source. None: all but `headers`.
    start: "earliest", "latest", "committed" (where `group_id` stands; earliest where it does not), a time in
        seconds since 1970, or offsets, as in `{"orders": {0: 17}}`, earliest for the rest.
    bounded: whether it ends. stop: where: "latest", a time, or offsets, which are not read themselves, latest
        for other partitions; never behind what is there at the start. split_rows: a bounded read has ranges
        of at most so many offsets; None: a range a partition.
    isolation: "read_committed" or "read_uncommitted".
    group_id: a group that is told what is durable downstream, for others to see. It has no members.
    password_env: as in `LogSource`, of `sasl.password`.

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
    start: Any = option("earliest", parse=parse_where)  # noqa: RUF009 - it is a field
    stop: Any = option("latest", parse=parse_where)  # noqa: RUF009 - it is a field
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
        self.start = check_where("start", self.start, ("earliest", "latest", "committed"), self.names)
        self.stop = check_where("stop", self.stop, ("latest",), self.names)
        if self.start == "committed" and not self.group_id:
            raise ValueError("start='committed': needs group_id")
        if self.stop != "latest" and not self.bounded:
            raise ValueError(f"stop={self.stop!r}: needs bounded=True")

    def default_schema(self) -> pa.Schema:
        """All columns but `headers`, which cost most and have few readers."""
        return pa.schema([(name, kind) for name, kind in TYPES.items() if name != "headers"])

    def check_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of `schema` with the types in which they arrive; the caller casts them."""
        unknown = [name for name in schema.names if name not in TYPES]
        if unknown or not schema.names:
            raise ValueError(f"schema: columns {unknown!r} are unknown; there are {', '.join(TYPES)}")
        return pa.schema([(name, TYPES[name]) for name in schema.names])

    def matches(self, name: str) -> bool:
        """See `LogSource.matches`."""
        return re.fullmatch(self.pattern or "", name) is not None

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> KafkaSource:
        """See `LogSource.from_options`. With `kafka.` before each property."""
        properties = {name[len(PREFIX) :]: text for name, text in options.items() if name.startswith(PREFIX)}
        if "bootstrap.servers" not in properties:
            raise ValueError("option 'kafka.bootstrap.servers' is missing")
        own = {name: text for name, text in options.items() if not name.startswith(PREFIX)}
        return cls(properties, schema=schema, **read_options(cls, own))
