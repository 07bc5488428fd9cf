"""Small tasks through each door, beside Spark's identity: `python -m bench.small`.

Milliseconds a task on `local[1]`, of partitions of ten rows, over PySpark's loopback TCP (the default) and
over Unix sockets. Rounds are interleaved; medians. What the doors call returns at once: the figures are the
cost of a task. The identity is measured twice: in the worker that runs the doors, whose garbage collections
are short since Pillarbox was in it, and in a session of its own, as a job without Pillarbox has it.
Beside each figure are the acknowledgements a task that the kernel held back (`DelayedACKs`, of the machine),
each of which may cost 40 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.chunks import ROOT

ROWS_OF_TASK = 10
LIMIT_S = 1800.0
IDENTITY = "identity `mapInArrow`"
ALONE = "identity `mapInArrow`, without Pillarbox"
Figures = dict[str, list[tuple[float, float]]]
"""Milliseconds, and acknowledgements held back, a task: of each door one pair for each round."""
SOCKETS = {"TCP": "false", "Unix sockets": "true"}


def identity(batches: Iterator[Any]) -> Iterator[Any]:
    """Give the batches back."""
    yield from batches


async def of_row(row: Any) -> dict[str, int]:
    """Return the row."""
    return {"id": row.id}


async def of_value(value: int) -> int:
    """Return the value."""
    return value


def held_back() -> int:
    """Return the acknowledgements that this machine has held back so far; 0 where nothing says so."""
    try:
        lines = Path("/proc/net/netstat").read_text().splitlines()
    except OSError:
        return 0
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(dict(zip(names, values, strict=True)).get("DelayedACKs", 0))


def session(sockets: str, **settings: str) -> Any:
    """Return a quiet session of one core. sockets: "true" for Unix ones; settings: others, `_` for dots."""
    from pyspark.sql import SparkSession

    from pillarbox.spark.shipment import use_driver_python

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    spark = builder.config("spark.python.unix.domain.socket.enabled", sockets).getOrCreate()
    use_driver_python(spark)
    return spark


def measure(sockets: str, tasks: int, rounds: int, *, alone: bool) -> Figures:
    """Return the figures of each door, or of the identity alone, in a session of this process."""
    from pillarbox.spark import async_map, async_udf

    spark = session(sockets)
    rows = spark.range(tasks * ROWS_OF_TASK, numPartitions=tasks)
    same = rows.mapInArrow(identity, "id long")
    doors = {
        IDENTITY: same,
        "`async_map`": async_map(rows, of_row, schema="id long"),
        "`async_udf`": rows.select(async_udf(of_value, "long")("id")),
    }
    doors = {ALONE: same} if alone else doors
    found: Figures = {name: [] for name in doors}
    for number in range(rounds + 1):
        for name, door in doors.items():
            began, before = time.perf_counter(), held_back()
            door.write.format("noop").mode("overwrite").save()
            # The first round starts workers and compiles.
            if number:
                seconds = time.perf_counter() - began
                found[name].append((seconds / tasks * 1000, (held_back() - before) / tasks))
    spark.stop()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.small", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.of is not None:
        print(json.dumps(measure(words.of, words.tasks, words.rounds, alone=words.alone)))
        return
    columns: dict[str, Figures] = {}
    for name, value in SOCKETS.items():
        columns[name] = {}
        for alone in (["--alone"], []):
            command = [sys.executable, "-m", "bench.small", "--of", value, *alone]
            command += ["--tasks", str(words.tasks), "--rounds", str(words.rounds)]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
            columns[name] |= json.loads(done.stdout.splitlines()[-1])
    print(f"| ms a task of {ROWS_OF_TASK} rows (acknowledgements held back) | {' | '.join(columns)} |")
    print("|---|" + "---|" * len(columns))
    for door in next(iter(columns.values())):
        cells = []
        for each in columns.values():
            ms, held = (statistics.median(some) for some in zip(*each[door], strict=True))
            cells.append(f"{ms:.1f} ({held:.1f})")
        print(f"| {door} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
