"""The committed messages of a topic of Kafka, as tests read them. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.servers.kafka_server import KafkaServer


def committed_values(
    server: KafkaServer, topic: str, read: Callable[[bytes], Any] = int, partitions: int = 1
) -> list[Any]:
    """The values of a topic, in order by partition, as a consumer gets them that reads what is committed."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    found: list[Any] = []
    for partition in range(partitions):
        consumer = Consumer({**server.client, **settings, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, partition, 0)])
        try:
            ended = False
            while not ended:
                for message in consumer.consume(1000, timeout=1.0):
                    ended = message.error() is not None
                    if not ended:
                        found.append(read(message.value()))
        finally:
            consumer.close()
    return found
