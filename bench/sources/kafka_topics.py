"""Kafka: the source in Spark against Spark's own and a reader by hand; alone against the bare consumer.

Spark's own source comes from Maven Central (`tests.servers.maven`). In a session without it only the others
are measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.sources.alone import fetched
from bench.sources.by_hand import HandConstant, HandKafka, kafka_messages
from bench.sources.measure import Effort, Figure, Say, Way, acknowledgements, must_be, rates, rounds
from bench.sources.session import count_and_sum
from pillarbox.sources.connectors.kafka import KafkaSource
from pillarbox.spark import register_source
from tests.servers.kafka_server import KafkaServer
from tests.servers.maven import SPARK_KAFKA

ROWS = 500_000
MICRO_BATCHES = 10
"""Of a stream over all rows."""
TOPIC = "numbers"
SCHEMA = pa.schema([("value", pa.binary())])
LONG = 60.0
STREAM_LONG_S = 300
NUMBER = "cast(cast(value as string) as long) n"
NOT_IN_SPARK = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""The jars of Spark's own source that PySpark does not bring."""
BATCH, STREAM = "Spark's own, batch", "Spark's own, stream"
MICRO_BATCH = f"{STREAM}, a micro-batch"
OURS = "kafka in Spark, stream"
CONSTANT = "constant batches, stream"
CONSTANT_AT_ONCE = 1_000
"""Rows of a constant batch: as many as a fetch of ours gives."""
TARGETS = {BATCH: 1.3, MICRO_BATCH: 1.0}
"""A whole query is more: it starts Python, which a query does once."""


def spark_jars() -> list[Path]:
    """The jars of Spark's own source. Skips where they cannot be had."""
    jars = SPARK_KAFKA.folder_or_skip().iterdir()
    return sorted(each for each in jars if each.name.startswith(NOT_IN_SPARK))


def fill(server: KafkaServer, rows: int) -> None:
    """The numbers from 0 on, a record each, in one partition."""
    from confluent_kafka import Producer

    server.create(TOPIC)
    producer = Producer({**server.client, "queue.buffering.max.messages": rows + 1})
    for number in range(rows):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    must_be(0, producer.flush(LONG), "messages that were not delivered")


def measure(spark: SparkSession, folder: Path, effort: Effort, say: Say) -> list[Figure]:
    """One partition, from its beginning to its end, by one task; as a stream in ten micro-batches."""
    folder.mkdir()
    server = KafkaServer(folder)
    try:
        rows = effort.of(ROWS)
        fill(server, rows)
        figures = measure_batch(spark, server, rows, effort, say)
        if has_own_source(spark):
            figures += measure_stream(spark, server, rows, effort, say, folder / "checkpoints")
        for figure in figures:
            least = TARGETS.get(figure.against)
            if least is not None and not figure.name.startswith(CONSTANT):
                figure.target, figure.met = f"{least} x", statistics.median(figure.ratios) >= least
        return figures
    finally:
        server.close()


def has_own_source(spark: SparkSession) -> bool:
    """True if Spark's own source is among the jars of the session."""
    return "spark-sql-kafka" in (spark.sparkContext.getConf().get("spark.jars") or "")


def measure_batch(
    spark: SparkSession, server: KafkaServer, rows: int, effort: Effort, say: Say
) -> list[Figure]:
    """All rows in one read: ours, by hand and Spark's own; and without Spark."""
    source = KafkaSource(server.client, TOPIC, schema=SCHEMA, bounded=True, split_rows=None)
    name = register_source(spark, source, "kafka_numbers")
    spark.dataSource.register(HandKafka)
    expected = (rows, rows * (rows - 1) // 2)

    def bare() -> None:
        read = sum(len(messages) for messages in kafka_messages(server.bootstrap, TOPIC))
        must_be(rows, read, "consumer")

    def alone() -> None:
        must_be(rows, sum(len(each.records) for each in fetched(source)), "source alone")

    def in_spark(load: Callable[[], DataFrame]) -> Callable[[], None]:
        return lambda: must_be(expected, count_and_sum(load().selectExpr(NUMBER), "n"), "rows and sum")

    by_hand = spark.read.format("hand_kafka").options(servers=server.bootstrap, topic=TOPIC)
    own = spark.read.format("kafka").options(subscribe=TOPIC, **own_options(server))
    ways = [
        Way("confluent-kafka, a loop of consume", bare),
        Way("KafkaSource alone", alone),
        Way("Spark, reader by hand", in_spark(by_hand.load)),
        Way("kafka in Spark", in_spark(spark.read.format(name).load)),
    ]
    against = {ways[1].name: ways[0].name, ways[2].name: ways[0].name, ways[3].name: ways[2].name}
    if has_own_source(spark):
        ways.append(Way(BATCH, in_spark(own.load)))
    runs = rounds(ways, effort, say, server.process.pid)
    figures = rates("kafka", runs, rows, against)
    if BATCH in runs:
        # The same rounds once more, beside another one.
        ours = {"kafka in Spark, batch": runs["kafka in Spark"], BATCH: runs[BATCH]}
        figures += rates("kafka", ours, rows, {"kafka in Spark, batch": BATCH})[:1]
    return figures


def measure_stream(
    spark: SparkSession, server: KafkaServer, rows: int, effort: Effort, say: Say, folder: Path
) -> list[Figure]:
    """All rows by a query that reads what is there: whole, and micro-batches by what Spark says of them."""
    limit = max(1, rows // MICRO_BATCHES)
    name = register_source(spark, KafkaSource(server.client, TOPIC, schema=SCHEMA), "kafka_number_stream")
    numbers = count()
    milliseconds: dict[str, list[float]] = {}

    def stream(kind: str, load: Callable[[], DataFrame]) -> Way:
        def run() -> None:
            writer = load().selectExpr(NUMBER).writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(folder / str(next(numbers)))).start()
            must_be(True, query.awaitTermination(STREAM_LONG_S), f"{kind}: the end")
            done = [each for each in query.recentProgress if each["numInputRows"]]
            must_be(rows, sum(each["numInputRows"] for each in done), kind)
            took = statistics.median(each["durationMs"]["triggerExecution"] for each in done)
            milliseconds.setdefault(kind, []).append(took)

        return Way(kind, run)

    spark.dataSource.register(HandConstant)
    nothing = {"columns": "value", "rows": rows, "at_once": CONSTANT_AT_ONCE, "limit": limit}
    reader, own = spark.readStream.format(name), spark.readStream.format("kafka")
    ways = [
        stream(OURS, reader.option("max_rows", limit).load),
        stream(STREAM, own.options(subscribe=TOPIC, maxOffsetsPerTrigger=limit, **own_options(server)).load),
        stream(CONSTANT, spark.readStream.format("hand_constant").options(**nothing).load),
    ]
    runs = rounds(ways, effort, say, server.process.pid)
    figures = rates("kafka", runs, rows, {OURS: STREAM, CONSTANT: STREAM})
    measured = {way.name: milliseconds[way.name][-effort.rounds :] for way in ways}
    figures += micro_batches(measured, limit)
    return [*figures, *acknowledgements("kafka", runs, -(-rows // limit), "a micro-batch")]


def micro_batches(milliseconds: dict[str, list[float]], rows: int) -> Iterator[Figure]:
    """The median micro-batch of each round, of so many rows: ours, and constant ones, beside Spark's."""
    own = milliseconds[STREAM]
    for name in (OURS, CONSTANT):
        took = milliseconds[name]
        yield Figure(
            "kafka", f"{name}, a micro-batch of {rows:,} rows", "ms", took,
            against=MICRO_BATCH, ratios=[b / a for a, b in zip(took, own, strict=True)],
        )  # fmt: skip
    yield Figure("kafka", MICRO_BATCH, "ms", own)


def own_options(server: KafkaServer) -> dict[str, str]:
    """The options of Spark's own source besides the topic."""
    return {"kafka.bootstrap.servers": server.bootstrap, "startingOffsets": "earliest"}
