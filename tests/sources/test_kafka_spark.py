"""Kafka over Spark: batch reads, micro-batches, what the group is told, and nothing secret in a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pillarbox.sources.connectors.kafka import KafkaSource
from tests.servers import fixtures
from tests.servers.kafka_server import LONG, KafkaServer
from tests.spark import queries
from tests.versions import needs_source_streams

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
pytest.importorskip("pyspark", reason="PySpark is not installed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server]

server = fixtures.kafka


def test_a_batch_read_by_options_gives_every_record_in_sparks_columns(
    spark: SparkSession, server: KafkaServer
) -> None:
    from pillarbox.spark import register_source

    server.create("batch", 2)
    for partition in range(2):
        server.produce("batch", *range(20), partition=partition, at=1_700_000_000.5)
    reader = spark.read.format(register_source(spark, KafkaSource, "topics")).option("topics", "batch")
    for name, value in server.security.items():
        reader = reader.option(f"kafka.{name}", value)
    frame = reader.option("bounded", "true").option("split_rows", "6").load()
    assert dict(frame.dtypes) == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
    }
    found = frame.selectExpr("partition", "offset", "cast(value as string) v", "cast(timestamp as double) t")
    assert sorted(map(tuple, found.collect())) == [
        (partition, offset, str(offset), 1_700_000_000.5) for partition in range(2) for offset in range(20)
    ]
    assert server.security["sasl.password"] not in frame._jdf.queryExecution().toString()


@pytest.mark.slow
@needs_source_streams
def test_a_stream_goes_on_where_it_was_and_then_tells_the_group(
    spark: SparkSession, server: KafkaServer, tmp_path: Path
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions

    from pillarbox.spark import register_source

    server.create("streamed", 3)
    source = KafkaSource(server.client, "streamed", group_id="streamed-group")
    name = register_source(spark, source, "streamed_kafka")

    def run(first: int, count: int) -> None:
        for partition in range(3):
            server.produce("streamed", *range(first, first + count), partition=partition)
        stream = spark.readStream.format(name).option("max_rows", "25").load()
        writer = stream.selectExpr("partition", "cast(cast(value as string) as int) v").writeStream.format(
            "parquet"
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = queries.start(writer, str(tmp_path / "out"))
        assert query.awaitTermination(3600)
        assert max(progress.numInputRows for progress in query.recentProgress) <= 25

    run(0, 20)
    run(20, 10)
    rows = sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))
    assert rows == [(partition, each) for partition in range(3) for each in range(30)]
    asked = [ConsumerGroupTopicPartitions("streamed-group")]
    told = server.admin.list_consumer_group_offsets(asked)["streamed-group"].result(LONG)
    offsets = {each.partition: each.offset for each in told.topic_partitions}
    # Spark says a batch is durable when it plans the next one, so the last one is not told.
    assert set(offsets) == {0, 1, 2}
    assert 60 <= sum(offsets.values()) <= 90
