"""Kafka: the source in Spark against a reader by hand, and without Spark against the bare consumer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.sources.alone import fetched
from bench.sources.by_hand import HandKafka, kafka_messages
from bench.sources.measure import Effort, Figure, Say, Way, must_be, rates, rounds
from bench.sources.session import count_and_sum
from pillarbox.sources.connectors.kafka import KafkaSource
from pillarbox.spark import register_source
from tests.servers.kafka_server import KafkaServer

ROWS = 500_000
TOPIC = "numbers"
SCHEMA = pa.schema([("value", pa.binary())])
LONG = 60.0


def fill(server: KafkaServer, rows: int) -> None:
    """The numbers from 0 on, a record each, in one partition."""
    from confluent_kafka import Producer

    server.create(TOPIC)
    producer = Producer({**server.client, "queue.buffering.max.messages": rows + 1})
    for number in range(rows):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    must_be(0, producer.flush(LONG), "messages that were not delivered")


def measure(spark: SparkSession, folder: Path, effort: Effort, say: Say) -> list[Figure]:
    """One partition, from its beginning to its end, by one task."""
    folder.mkdir()
    server = KafkaServer(folder)
    try:
        rows = effort.of(ROWS)
        fill(server, rows)
        source = KafkaSource(server.client, TOPIC, schema=SCHEMA, bounded=True, split_rows=None)
        name = register_source(spark, source, "kafka_numbers")
        spark.dataSource.register(HandKafka)
        expected = (rows, rows * (rows - 1) // 2)
        number = "cast(cast(value as string) as long) n"

        def bare() -> None:
            read = sum(len(messages) for messages in kafka_messages(server.bootstrap, TOPIC))
            must_be(rows, read, "consumer")

        def alone() -> None:
            must_be(rows, sum(len(each.records) for each in fetched(source)), "source alone")

        def by_hand() -> None:
            read = spark.read.format("hand_kafka").options(servers=server.bootstrap, topic=TOPIC).load()
            must_be(expected, count_and_sum(read.selectExpr(number), "n"), "by hand")

        def ours() -> None:
            read = spark.read.format(name).load()
            must_be(expected, count_and_sum(read.selectExpr(number), "n"), "kafka")

        ways = [
            Way("confluent-kafka, a loop of consume", bare),
            Way("KafkaSource alone", alone),
            Way("Spark, reader by hand", by_hand),
            Way("kafka in Spark", ours),
        ]
        against = {ways[1].name: ways[0].name, ways[2].name: ways[0].name, ways[3].name: ways[2].name}
        return rates("kafka", rounds(ways, effort, say, server.process.pid), rows, against)
    finally:
        server.close()
