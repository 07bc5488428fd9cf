"""The Spark of these measurements: local, quiet, on loopback; and one job that makes all rows count."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf


@contextmanager
def session(cores: int, folder: Path, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """A session with so many cores and these jars, whose files are in `folder`; ended at the end."""
    # Without it workers run whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    builder = SparkSession.builder.master(f"local[{cores}]").appName("pillarbox sources")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # A query that is stopped amid a micro-batch is not an error here.
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The Python function behind a read that does nothing."""
    yield from batches


def count_and_sum(df: DataFrame, column: str) -> tuple[int, int]:
    """Count the rows and sum a column: all rows come to the JVM for it."""
    row = df.agg(sf.count(sf.lit(1)), sf.sum(column)).collect()[0]
    return int(row[0] or 0), int(row[1] or 0)
