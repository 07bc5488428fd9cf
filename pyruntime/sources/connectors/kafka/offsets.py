"""Asks a Kafka about topics and offsets, for many partitions in one round. Thread-safe."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pillarbox.sources.connectors.kafka.client import ANSWER, KafkaClients, package
from pillarbox.sources.connectors.kafka.split import Partition

AGAIN = 0.05
"""Seconds between two questions about a partition that has no leader."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class Topic(NamedTuple):
    """A topic that is there: which of its name, and how many partitions it has. A plain value."""

    topic_id: str
    partitions: int


class KafkaOffsets:
    """What a Kafka knows of its topics. Thread-safe. Raises ConnectionError where it does not answer.

    committed_only: whether what a transaction has not committed yet counts as not there.
    """

    def __init__(self, clients: KafkaClients, committed_only: bool) -> None:
        self._clients = clients
        self._admin, self._complaints = clients.admin()
        self._committed_only = committed_only

    def topics(self, names: Collection[str], pattern: str | None = None) -> dict[str, Topic]:
        """Those of `names` that are there; or all whose whole name matches `pattern`, inner ones excepted."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        if pattern is not None:
            listed = self._asked("looking for topics", lambda: self._admin.list_topics(timeout=ANSWER))
            matching = re.compile(pattern).fullmatch
            names = [name for name in listed.topics if matching(name) and not name.startswith("__")]
        if not names:
            return {}
        asked = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=ANSWER)
        found = {}
        for name, future in sorted(asked.items()):
            try:
                topic = future.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self._failed(f"looking at topic {name!r}", error) from None
            topic_id = str(topic.topic_id)
            found[name] = Topic("" if topic_id == NO_ID else topic_id, len(topic.partitions))
        return found

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that is there."""
        return self._list(partitions, package().admin.OffsetSpec.earliest())

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset behind the last record that may be read."""
        return self._list(partitions, package().admin.OffsetSpec.latest())

    def at(self, partitions: Iterable[Partition], timestamp: float) -> dict[Partition, int]:
        """The first offset whose record is not earlier than `timestamp` seconds; -1 where there is none."""
        return self._list(
            partitions, package().admin.OffsetSpec.for_timestamp(max(0, round(timestamp * 1000)))
        )

    def committed(self, partitions: Collection[Partition], group: str) -> dict[Partition, int]:
        """Where a group stands; partitions for which it has said nothing are left out."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        if not partitions:
            return {}
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(*each) for each in partitions])
        answer = self._asked(
            f"asking where group {group!r} stands",
            lambda: self._admin.list_consumer_group_offsets([request], request_timeout=ANSWER)[
                group
            ].result(),
        )
        return {
            Partition(each.topic, each.partition): each.offset
            for each in answer.topic_partitions
            if each.offset >= 0
        }

    def commit(self, offsets: Mapping[Partition, int], group: str, done: Callable[[Any], None]) -> Any:
        """Have a group stand at these offsets; the future, and `done` is called with it when it is done."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        places = [TopicPartition(*each, offset) for each, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(group, places)
        future = self._admin.alter_consumer_group_offsets([request], request_timeout=ANSWER)[group]
        future.add_done_callback(done)
        return future

    def _list(self, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        isolation = IsolationLevel.READ_COMMITTED if self._committed_only else IsolationLevel.READ_UNCOMMITTED
        found: dict[Partition, int] = {}
        left = set(partitions)
        until = time.monotonic() + ANSWER
        while left:
            asked = {TopicPartition(*each): spec for each in left}
            answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=ANSWER)
            for each, future in answers.items():
                place = Partition(each.topic, each.partition)
                try:
                    found[place] = future.result().offset
                except KafkaException as error:
                    if error.args[0].code() not in _moving() or time.monotonic() > until:
                        doing = f"asking for an offset of partition {place.number} of topic {place.topic!r}"
                        raise self._failed(doing, error) from None
            left.difference_update(found)
            if left:
                time.sleep(AGAIN)
        return found

    def _asked(self, doing: str, ask: Callable[[], Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return ask()
        except KafkaException as error:
            raise self._failed(doing, error) from None

    def _failed(self, doing: str, error: BaseException) -> Exception:
        # This is when the client says what it had to complain of.
        self._admin.poll(0)
        return self._clients.failed(doing, error, self._complaints)


def _moving() -> frozenset[int]:
    """Errors of a partition that has no leader for a moment."""
    from confluent_kafka import KafkaError

    return frozenset(
        (
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.REPLICA_NOT_AVAILABLE,
            KafkaError.FENCED_LEADER_EPOCH,
            KafkaError.UNKNOWN_LEADER_EPOCH,
            KafkaError.OFFSET_NOT_AVAILABLE,
        )
    )
