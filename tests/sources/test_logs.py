"""Contracts of sources that read logs, held against a real Kafka and a real Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pillarbox.sources.connectors.kafka import KafkaSource
from pillarbox.sources.connectors.redis_streams import RedisStreamSource
from tests.servers import fixtures
from tests.versions import needs_source_streams

pytest.importorskip("confluent_kafka", reason="the package confluent-kafka is not installed")
pytest.importorskip("redis", reason="the package redis is not installed")
pa = pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.server]

kafka, shared_redis, redis = fixtures.kafka, fixtures.shared_redis, fixtures.redis


class Log(NamedTuple):
    """A service with logs: makes one, adds a number to one, and makes a source of some of them."""

    make: Callable[[str], None]
    add: Callable[[str, int], None]
    source: Callable[..., Any]
    number: str
    """The SQL that gives the number of a row."""


@pytest.fixture(params=["kafka", "redis"])
def log(request: pytest.FixtureRequest) -> Log:
    server = request.getfixturevalue(request.param)
    if request.param == "kafka":

        def of_topics(*names: str, **options: Any) -> KafkaSource:
            return KafkaSource(server.client, names or None, discovery_interval=0.01, **options)

        def produce(name: str, number: int) -> None:
            server.produce(name, number)

        return Log(server.create, produce, of_topics, "cast(cast(value as string) as int)")

    def add(name: str, number: int) -> None:
        server.command("XADD", name, "*", "n", str(number))

    def make(name: str) -> None:
        add(name, -1)
        server.command("XTRIM", name, "MAXLEN", "0")

    def of_streams(*names: str, **options: Any) -> RedisStreamSource:
        schema = pa.schema([("n", pa.int32())])
        return RedisStreamSource(server.url, names or None, schema=schema, discovery_interval=0.01, **options)

    return Log(make, add, of_streams, "n")


class Query:
    """A query that is started again and again under one checkpoint: reads what is there, and ends."""

    def __init__(self, spark: SparkSession, log: Log, folder: Path) -> None:
        self.spark, self.log, self.folder = spark, log, folder

    def run(self, source: Any) -> list[int]:
        """The numbers of all rows that have come until now. Raises what ends the query."""
        from pillarbox.spark import register_source

        name = register_source(self.spark, source, "logs_under_test")
        rows = self.spark.readStream.format(name).load().selectExpr(f"{self.log.number} n")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.start(str(self.folder / "out"))
        assert query.awaitTermination(120)
        return sorted(n for (n,) in self.spark.read.parquet(str(self.folder / "out")).collect())


@pytest.mark.slow
@needs_source_streams
def test_a_stream_that_starts_at_the_latest_record_reads_what_came_after_a_first_run_that_read_nothing(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.make("late")
    log.add("late", 0)
    query = Query(spark, log, tmp_path)
    assert query.run(log.source("late", start="latest")) == []
    log.add("late", 1)
    assert query.run(log.source("late", start="latest")) == [1]


@pytest.mark.slow
@needs_source_streams
def test_a_log_that_came_while_a_stream_was_down_that_had_found_none_is_read_from_its_beginning(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    query = Query(spark, log, tmp_path)
    pattern = "came_later.*" if log.number != "n" else "came_later*"
    assert query.run(log.source(pattern=pattern, start="latest")) == []
    log.make("came_later")
    log.add("came_later", 1)
    assert query.run(log.source(pattern=pattern, start="latest")) == [1]
