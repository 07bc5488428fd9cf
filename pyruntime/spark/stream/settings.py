"""The settings of a session that `async_stream` needs, and the call that makes them. On the driver."""

from __future__ import annotations

import logging
from typing import Any

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
    """Set what `async_stream` needs in a session: the state store of RocksDB, and partitions of the state.

        stream_settings(spark)
        async_stream(stream, call, schema="answer string").writeStream.start()

    partitions: of the state, 1 to 16; by default 1, 2, 4, 8 or 16, of these the most that are not above the
        tasks that run at a time. Spark makes 200 unless told, each of which takes part in every micro-batch.
        The number of a query's first start stays with its checkpoint.

    Both settings hold for all queries and shuffles of the session that are planned from now on. Raises
    TypeError or ValueError for a bad number.
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


def check_settings(session: Any) -> None:
    """Raise ValueError for a session without the state store of RocksDB; warn of partitions without work."""
    provider = session.conf.get(PROVIDER, "")
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
