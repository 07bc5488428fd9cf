"""Count the calls that `show(5)` makes over a partition of a million rows: `python -m bench.show`.

With the look at what Spark has read of the first results, and without it: then the kernel takes megabytes of
results for a JVM that reads none of them yet, and the task goes on with its calls. One process each; the JVM
of its first job still loads classes. For functions that return at once, after 1 ms and after 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from bench.table import Column, print_table

WAITS_MS = (0, 1, 20)
CAPACITY = 100


class Counted:
    """A function that adds a byte to a file for each call. looks: False to go on whatever Spark has read."""

    def __init__(self, path: str, wait: float, looks: bool) -> None:
        self.path, self.wait, self.looks = path, wait, looks

    async def __aenter__(self) -> Counted:
        if not self.looks:
            from pillarbox.spark.task_connection import DisconnectWatcher

            DisconnectWatcher.await_reader = lambda self: None  # type: ignore[method-assign]
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def __call__(self, row: Any) -> int:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"x")
        os.close(file)
        await asyncio.sleep(self.wait)
        found: int = row.id
        return found


def calls(looks: bool, jobs: int) -> list[list[str]]:
    """The calls of each job, by the time that a call takes."""
    from pyspark.sql import SparkSession

    from pillarbox.spark import async_map

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.range(1_000_000).coalesce(1)
    found = []
    for wait in WAITS_MS:
        counts = []
        for _ in range(jobs):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "calls"
                fn = Counted(str(path), wait / 1000, looks)
                with redirect_stdout(io.StringIO()):
                    async_map(rows, fn, schema="n long", capacity=CAPACITY).show(5)
                counts.append(f"{path.stat().st_size:,}")
        found.append(["with" if looks else "without", f"{wait} ms", *counts])
    spark.stop()
    return found


def main() -> None:
    """Print a table for each way."""
    parser = argparse.ArgumentParser(description="calls of show(5)")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--way", choices=("with", "without"), help="in this process, one way alone")
    given = parser.parse_args()
    if given.way is None:
        for way in ("with", "without"):
            words = [sys.executable, "-m", "bench.show", "--jobs", str(given.jobs), "--way", way]
            subprocess.run(words, check=True)
        return
    columns = [Column("look", right=False), Column("a call takes")]
    columns += [Column(f"job {number + 1}") for number in range(given.jobs)]
    print_table(columns, calls(given.way == "with", given.jobs))


if __name__ == "__main__":
    main()
