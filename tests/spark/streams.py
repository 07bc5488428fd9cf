"""For tests of `async_stream`: input in files, one a micro-batch, and what each micro-batch emitted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.spark.state_store import PROVIDER, ROCKSDB

END_TIMEOUT_S = 3600
"""Seconds beyond the time-out of every test, which alone ends a wait for what never happens."""


@contextmanager
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The session with the state store that is needed."""
    spark.conf.set(PROVIDER, ROCKSDB)
    try:
        yield
    finally:
        spark.conf.unset(PROVIDER)


def write_input(
    spark: SparkSession, folder: Path, schema: str, files: Iterable[list[tuple[Any, ...]]]
) -> None:
    """A file for each list of rows; the source reads them in this order, one in a micro-batch."""
    for number, rows in enumerate(files):
        spark.createDataFrame(rows, schema).coalesce(1).write.mode("append").parquet(str(folder))
        # The source sorts by time.
        for path in folder.glob("*.parquet"):
            if path.stat().st_mtime > 1_000_000_000 + 1000:
                os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))


def read_input(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """The stream of these files."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(folder))


def until(said: Callable[[], Any], query: Any = None) -> Any:
    """The value of `said`, once it is true."""
    while not (found := said()):
        assert query is None or query.isActive, query.exception()
        time.sleep(0.02)
    return found


class Collected:
    """A sink that keeps what each micro-batch emitted; a replay stands instead of what it replays."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.batches[batch] = df.collect()

    @property
    def rows(self) -> list[Any]:
        """Everything, in the order of micro-batches."""
        return [row for _, rows in sorted(self.batches.items()) for row in rows]


def note(path: str, line: object) -> None:
    """Append a line, in one write, from any process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def noted(path: Path) -> list[str]:
    """The lines so far."""
    return path.read_text().split() if path.exists() else []
