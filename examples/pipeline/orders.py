"""Writes orders into a Kafka topic, which it makes. A script."""

from __future__ import annotations

import argparse
import json

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "orders"
PARTITIONS = 4


def main() -> None:
    """Write `--count` orders, numbered from `--first` on, over all partitions."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kafka", required=True, help="host:port")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    client = {"bootstrap.servers": given.kafka}
    admin = AdminClient(client)
    try:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
    # Idempotent: a message that is sent again after a lost answer is there once.
    producer = Producer({**client, "enable.idempotence": True})
    for number in range(given.first, given.first + given.count):
        order = {"order": number, "parcels": 1 + number % 5}
        producer.produce(TOPIC, json.dumps(order), key=str(number), partition=number % PARTITIONS)
        producer.poll(0)
    left = producer.flush(60)
    if left:
        raise SystemExit(f"{left} orders could not be written")
    print(f"{given.count} orders written")


if __name__ == "__main__":
    main()
