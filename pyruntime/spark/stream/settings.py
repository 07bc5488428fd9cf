"""The settings of a session that `async_stream` needs, and the call that makes them. On the driver."""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from pillarbox.validate import check_int, suggesting_names

log = logging.getLogger("pillarbox")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS = "spark.sql.shuffle.partitions"

MAX_PARTITIONS = 16
"""Partitions of the state among which the buckets of a stream are dealt out: more have nothing to do."""
PARTITIONS_UNKNOWN = 4
"""Partitions where nothing says how many tasks run at a time, as over Spark Connect."""


@suggesting_names
def stream_settings(spark: SparkSession, partitions: int | None = None) -> None:
    """Set the session's requirements of `async_stream`: the RocksDB state store and partitions of state.

    partitions: of the state, 1 to 16; by default the largest of 1, 2, 4, 8 and 16 that is not above the
        number of tasks that run at a time. Spark's default is 200, each of which takes part in every
        micro-batch. A query keeps the number of its first start in its checkpoint.

        >>> from pillarbox.spark import stream_settings
        >>> stream_settings(spark, partitions=2)
        >>> spark.conf.get("spark.sql.shuffle.partitions")
        '2'

    Both settings apply to all queries and shuffles of the session that are planned from now on. On the
    driver. Raises TypeError or ValueError for a bad number.
    """
    if partitions is None:
        at_a_time = PARTITIONS_UNKNOWN
        context = getattr(spark, "_sc", None)
        if context is not None:
            at_a_time = int(context.defaultParallelism)
        partitions = next(each for each in (16, 8, 4, 2, 1) if each <= max(at_a_time, 1))
    check_int("partitions", partitions, 1, MAX_PARTITIONS)
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set(PARTITIONS, str(partitions))


def check_settings(session: SparkSession) -> None:
    """Raise ValueError for a session without the state store of RocksDB; warn of partitions without work."""
    provider = str(session.conf.get(PROVIDER, ""))
    if provider.rpartition(".")[2] != ROCKSDB.rpartition(".")[2]:
        raise ValueError(
            f"async_stream needs the state store of RocksDB, and the session has {PROVIDER}={provider}: "
            "call pillarbox.spark.stream_settings(spark) first"
        )
    partitions = str(session.conf.get(PARTITIONS, ""))
    if partitions.isdigit() and int(partitions) > MAX_PARTITIONS:
        log.warning(
            "async_stream: %s=%s, and its rows are dealt out to %d buckets: each partition more takes its "
            "part of every micro-batch and has nothing to do; call pillarbox.spark.stream_settings(spark) "
            "before the query's first start",
            PARTITIONS,
            partitions,
            MAX_PARTITIONS,
        )
