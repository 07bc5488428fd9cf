"""Connectors under Spark, each with its real server: batch, stream, a restart, and no password anywhere."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pillarbox.spark import register_source
from tests.servers import fixtures, redis_server
from tests.servers.redis_server import RedisServer
from tests.spark import queries
from tests.versions import needs_source_streams

pytestmark = pytest.mark.server

redis = fixtures.shared_redis


def read_on(stream: DataFrame, folder: Path) -> list[int]:
    """Read on into Parquet from the checkpoint; all numbers that are there then."""
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    queries.start(writer, str(folder / "out")).awaitTermination()
    return sorted(row.n for row in stream.sparkSession.read.parquet(str(folder / "out")).collect())


def written(folder: Path) -> str:
    """All that Spark has written of the query's progress."""
    return "".join(path.read_text() for path in (folder / "checkpoint" / "offsets").glob("[0-9]*"))


def test_redis_streams_in_batch(spark: SparkSession, redis: RedisServer) -> None:
    for n in range(20):
        redis.command("XADD", f"batch:{n % 3}", "*", "n", str(n))
    register_source(spark)
    options: dict[str, Any] = {"source": "redis", "url": redis.url, "pattern": "batch:*"}
    rows = spark.read.format("pillarbox").options(**options, bounded="true").schema("n int").load()
    assert sorted(row.n for row in rows.collect()) == list(range(20))


@pytest.mark.slow
@needs_source_streams
def test_redis_streams_in_micro_batches(spark: SparkSession, redis: RedisServer, tmp_path: Path) -> None:
    for n in range(20):
        redis.command("XADD", f"spark:{n % 3}", "*", "n", str(n))
    register_source(spark)
    options: dict[str, Any] = {"source": "redis", "url": redis.url, "pattern": "spark:*"}
    stream = (
        spark.readStream.format("pillarbox")
        .options(**options, discovery_interval="0.1", max_rows="7")
        .schema("n int, _stream string")
        .load()
    )
    assert read_on(stream, tmp_path) == list(range(20))
    for n in range(20, 30):
        redis.command("XADD", f"spark:{n % 4}", "*", "n", str(n))
    assert read_on(stream, tmp_path) == list(range(30))
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert {split["split_id"] for split in last["splits"]} == {f"spark:{n}" for n in range(4)}
    assert redis_server.PASSWORD not in written(tmp_path)


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_folders_that_spark_has_partitioned_by_are_read_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    kinds = "id bigint, word string, day date, `an hour` bigint, kind string"
    rows = [
        (1, "one", dt.date(2024, 1, 31), 7, "a/b=c"),
        (2, "two", dt.date(2024, 2, 1), None, "ä %"),
        (3, "three", dt.date(2024, 2, 1), 12, None),
    ]
    by = ["day", "an hour", "kind"]
    place = str(tmp_path / "out")
    spark.createDataFrame(rows, kinds).write.partitionBy(*by).format(form).save(place)
    register_source(spark)
    ours = spark.read.format("pillarbox").option("source", "files").option("format", form)
    theirs = spark.read.format(form).schema(kinds).load(place)
    assert (
        sorted(ours.schema(kinds).load(place).collect())
        == sorted(theirs.collect())
        == sorted(map(tuple, rows))
    )
    if form == "parquet":
        read = ours.load(place)
        assert read.columns == spark.read.parquet(place).columns
        assert sorted(read.collect()) == sorted(map(tuple, rows))
