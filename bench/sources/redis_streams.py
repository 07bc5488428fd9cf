"""Redis Streams: the source in Spark against a reader by hand, and without Spark against the bare client."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.sources.alone import fetched
from bench.sources.by_hand import HandRedis, redis_entries
from bench.sources.measure import Effort, Figure, Say, Way, must_be, rates, rounds
from bench.sources.session import count_and_sum
from pillarbox.sources.connectors.redis_streams import RedisStreamSource
from pillarbox.spark import register_source
from tests.servers.redis_server import RedisServer

ROWS = 300_000
STREAM = "numbers"
SCHEMA = pa.schema([("n", pa.int64())])


def fill(url: str, rows: int) -> None:
    """The numbers from 0 on, an entry each."""
    import redis

    with redis.Redis.from_url(url) as client:
        for begin in range(0, rows, 10_000):
            pipeline = client.pipeline(transaction=False)
            for number in range(begin, min(rows, begin + 10_000)):
                pipeline.xadd(STREAM, {"n": number})
            pipeline.execute()


def measure(spark: SparkSession, folder: Path, effort: Effort, say: Say) -> list[Figure]:
    """One stream, from its beginning to its end, by one task."""
    folder.mkdir()
    server = RedisServer(folder)
    try:
        rows = effort.of(ROWS)
        fill(server.url, rows)
        # Registered with its address, the password stands in no option.
        source = RedisStreamSource(server.url, STREAM, schema=SCHEMA, bounded=True)
        name = register_source(spark, source, "redis_numbers")
        spark.dataSource.register(HandRedis)
        total = rows * (rows - 1) // 2

        def bare() -> None:
            must_be(rows, sum(len(entries) for entries in redis_entries(server.url, STREAM)), "client")

        def alone() -> None:
            must_be(rows, sum(len(each.records) for each in fetched(source)), "source alone")

        def by_hand() -> None:
            read = spark.read.format("hand_redis").options(url=server.url, stream=STREAM).load()
            must_be((rows, total), count_and_sum(read, "n"), "by hand")

        def ours() -> None:
            must_be((rows, total), count_and_sum(spark.read.format(name).load(), "n"), "redis")

        ways = [
            Way("redis-py, a loop of XRANGE", bare),
            Way("RedisStreamSource alone", alone),
            Way("Spark, reader by hand", by_hand),
            Way("redis in Spark", ours),
        ]
        against = {ways[1].name: ways[0].name, ways[2].name: ways[0].name, ways[3].name: ways[2].name}
        return rates("redis", rounds(ways, effort, say, server._process.pid), rows, against)
    finally:
        server.kill()
