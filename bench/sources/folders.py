"""A day of a hundred: a filter on the column that folders `day=...` give, against a pattern that names one.

Which files were opened, the file system knows: the time of access of one that was not stays where it was put.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

from bench.sources.files import table
from bench.sources.measure import Effort, Figure, Say, Way, must_be, rounds
from bench.sources.session import count_and_sum
from pillarbox.sources.connectors.files import FileSource
from pillarbox.spark import register_source

DAYS = 100
ROWS = 50_000
"""Rows of a day."""
LONG_AGO = 10**9
"""A time of access, in nanoseconds since 1970."""


def measure(spark: SparkSession, folder: Path, effort: Effort, say: Say, days: int = DAYS) -> list[Figure]:
    """The rows of one day, in three ways: seconds, loading included, and the files that were opened."""
    rows = effort.of(ROWS, least=10)
    dates = [dt.date(2026, 1, 1) + dt.timedelta(days=number) for number in range(days)]
    day = dates[days // 2]
    paths = [write(folder / f"day={each}", rows) for each in dates]
    ours = register_source(spark, FileSource, "folders")
    expected = (rows, rows * (rows - 1) // 2)

    def way(name: str, load: Callable[[], DataFrame]) -> Way:
        return Way(name, lambda: must_be(expected, count_and_sum(load(), "id"), name))

    filtered = f"day = '{day}'"
    ways = [
        way("Spark's Parquet, a filter", lambda: spark.read.parquet(str(folder)).where(filtered)),
        way("files, a filter", lambda: spark.read.format(ours).load(str(folder)).where(filtered)),
        way("files, a pattern", lambda: spark.read.format(ours).load(f"{folder}/day={day}*/*")),
    ]
    runs = rounds(ways, effort, say)
    base = runs["files, a filter"].seconds
    figures = []
    for each in ways:
        seconds = Figure("folders", each.name, "s", runs[each.name].seconds)
        if each.name != "files, a filter":
            seconds.against = "files, a filter"
            seconds.ratios = [own / other for own, other in zip(seconds.values, base, strict=True)]
        figures += [seconds, Figure("folders", f"{each.name}, files opened", "files", [opened(each, paths)])]
    return figures


def write(folder: Path, rows: int) -> Path:
    """One file in a folder."""
    folder.mkdir(parents=True)
    path = folder / "part.parquet"
    pyarrow.parquet.write_table(table(rows), path)
    return path


def opened(way: Way, paths: list[Path]) -> float:
    """Count the open ones of these files. Raises AssertionError where the file system does not tell."""
    for path in paths:
        os.utime(path, ns=(LONG_AGO, path.stat().st_mtime_ns))
    way.run()
    count = sum(path.stat().st_atime_ns != LONG_AGO for path in paths)
    if not count:
        raise AssertionError(f"{paths[0]}: its file system keeps no times of access (noatime): use another")
    return float(count)
