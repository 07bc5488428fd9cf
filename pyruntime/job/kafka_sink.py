"""`KafkaSink`: rows as messages of a topic, in transactions that commit with the job's checkpoints.

On the job's thread; librdkafka has threads of its own.
"""

# Why the offset of a consumer group. Kafka aborts an open transaction when its producer comes again, and a
# producer that has asked for a commit and died does not learn whether it was made. So each transaction also
# commits the number of its checkpoint, as the offset of a group that nobody reads by: it is there if and only
# if the transaction is. A job that finds another number goes on from the checkpoint before.
#
# To resume the transaction instead, as Flink does by reflection, librdkafka has no call. To keep the rows in
# the checkpoint and send them again would write each row twice, always, for a moment that hardly ever comes.

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pillarbox.aio.row_fields import as_fields
from pillarbox.job.sink import Sink
from pillarbox.validate import check_text

CALL_S = 60.0
"""Seconds that a call of the client may take."""
LEAST_TRANSACTION_S = 60.0
MAX_TRANSACTION_S = 900.0
"""Seconds for which a transaction may be open, at least and at most: what brokers allow by default."""
POLL_S = 0.1
ROWS_PER_POLL = 64
FIELDS = frozenset({"key", "value", "headers", "partition", "topic", "timestamp"})


class KafkaSink(Sink):
    """Writes rows as messages of a topic, in transactions that commit with the job's checkpoints.

    config: the properties of the client, such as `{"bootstrap.servers": "localhost:9092"}`.
    topic: where rows go that do not name their own.
    transactional_id: the name of this job among those that write in transactions; a second job with the same
        one ends the first.

    A row has the names of Spark's sink: `value`, and perhaps `key`, `topic`, `partition`, `headers` and
    `timestamp` (milliseconds); text is encoded as UTF-8. A row without `value` becomes JSON as a whole.

        >>> from pillarbox.job import KafkaSink
        >>> KafkaSink({"bootstrap.servers": "localhost:9092"}, "quotes", transactional_id="quotes-job")
        KafkaSink('quotes', transactional_id='quotes-job')

    A consumer with `isolation.level=read_committed`, the default, gets each row once, after each checkpoint.
    Raises what the client raises, which ends the job; then it goes on from its newest checkpoint whose
    transaction was committed.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, *, transactional_id: str) -> None:
        check_text("topic", topic)
        check_text("transactional_id", transactional_id)
        self._config = dict(config)
        self._topic = topic
        self._id = transactional_id
        self._group = ""
        self._producer: Any = None
        self._consumer: Any = None
        self._is_begun = False
        self._written = 0

    def __repr__(self) -> str:
        return f"KafkaSink({self._topic!r}, transactional_id={self._id!r})"

    def open(self, job: str, interval: float) -> None:
        """Make the producer, and the group that keeps the numbers of committed checkpoints."""
        from confluent_kafka import Consumer, Producer

        limit = min(MAX_TRANSACTION_S, max(LEAST_TRANSACTION_S, 3 * interval))
        self._group = f"pillarbox-{self._id}-{job}"
        self._producer = Producer(
            {
                "transaction.timeout.ms": int(limit * 1000),
                "linger.ms": 5,
                **self._config,
                "transactional.id": self._id,
            }
        )
        # Of a producer alone.
        own = {name: value for name, value in self._config.items() if name not in PRODUCER_ONLY}
        self._consumer = Consumer(
            {**own, "group.id": self._group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        )

    def recover(self, prepared: Sequence[Any]) -> bool:
        """Abort an open transaction; return whether that of the checkpoint was committed."""
        # spec: SinkCommit!Recover
        if not self._is_begun:
            self._producer.init_transactions(CALL_S)
            self._is_begun = True
        return not prepared or self._committed() >= max(prepared)

    def _committed(self) -> int:
        """The number of the last checkpoint whose transaction was committed; -1 for none."""
        from confluent_kafka import TopicPartition

        [found] = self._consumer.committed([TopicPartition(self._topic, 0)], timeout=CALL_S)
        if found.error is not None:
            raise RuntimeError(f"the group {self._group!r} of {self!r} cannot be read: {found.error}")
        return int(found.offset)

    def write(self, rows: Sequence[Any]) -> None:
        """Send rows, in a transaction that is begun with the first one."""
        if not self._written:
            self._producer.begin_transaction()
        produce, poll = self._producer.produce, self._producer.poll
        for number, row in enumerate(rows):
            if number % ROWS_PER_POLL == 0:
                # Other threads of the process, the event loop's among them, get their turn.
                poll(0)
            message = self._message(row)
            self._written += 1
            while True:
                try:
                    produce(**message)
                    break
                except BufferError:
                    # The client's queue is full.
                    poll(POLL_S)
        poll(0)

    def prepare(self, checkpoint: int) -> int | None:
        """Wait until the broker has all rows. Returns the checkpoint's number, which commits with them."""
        if not self._written:
            return None
        left = self._producer.flush(CALL_S)
        if left:
            raise TimeoutError(f"{left} messages of {self!r} were not taken within {CALL_S:g} s")
        return checkpoint

    def commit(self, prepared: Sequence[Any]) -> None:
        """Commit the transaction, and with it the number of the last checkpoint that it has rows of."""
        from confluent_kafka import TopicPartition

        offset = TopicPartition(self._topic, 0, max(prepared))
        group = self._consumer.consumer_group_metadata()
        _again(self._producer.send_offsets_to_transaction, [offset], group, CALL_S)
        _again(self._producer.commit_transaction, CALL_S)
        self._written = 0

    def close(self) -> None:
        """Abort the open transaction."""
        if self._producer is None:
            return
        try:
            if self._written:
                self._producer.abort_transaction(CALL_S)
        finally:
            self._consumer.close()
            self._producer = None

    def _message(self, row: object) -> dict[str, Any]:
        fields = as_fields(row)
        if not isinstance(fields, dict) or "value" not in fields:
            return {"topic": self._topic, "value": json.dumps(fields).encode()}
        unknown = fields.keys() - FIELDS
        if unknown:
            raise ValueError(
                f"row of {self!r}: {min(unknown)!r} is not a part of a message; there are "
                f"{', '.join(sorted(FIELDS))}"
            )
        return {"topic": self._topic, **{name: each for name, each in fields.items() if each is not None}}


PRODUCER_ONLY = frozenset(
    {
        *("transactional.id", "transaction.timeout.ms", "enable.idempotence", "acks", "linger.ms"),
        *("compression.type", "compression.codec", "compression.level", "batch.size", "batch.num.messages"),
        *("queue.buffering.max.messages", "queue.buffering.max.kbytes", "queue.buffering.max.ms"),
        *("delivery.timeout.ms", "message.timeout.ms", "retries", "message.send.max.retries"),
        *("max.in.flight", "max.in.flight.requests.per.connection", "partitioner", "request.required.acks"),
        *("request.timeout.ms", "retry.backoff.ms", "sticky.partitioning.linger.ms"),
    }
)


def _again(call: Callable[..., object], *arguments: object) -> None:
    """Call what may be called again where its error says so."""
    from confluent_kafka import KafkaException

    while True:
        try:
            call(*arguments)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
