"""Small tasks through each door, beside Spark's identity: `python -m bench.small`.

Milliseconds a task on `local[1]`, of partitions of ten rows, over PySpark's loopback TCP (the default) and
over Unix sockets. Rounds are interleaved; medians. What the doors call returns at once: the figures are the
cost of a task.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.chunks import ROOT

ROWS_OF_TASK = 10
LIMIT_S = 1800.0
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


def measure(sockets: str, tasks: int, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds a task of each door, one for each round, in a session of this process."""
    from pyspark.sql import SparkSession

    from pillarbox.spark import async_map, async_udf
    from pillarbox.spark.operator_plan import use_driver_python

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.python.unix.domain.socket.enabled", sockets).getOrCreate()
    use_driver_python(spark)
    rows = spark.range(tasks * ROWS_OF_TASK, numPartitions=tasks)
    doors = {
        "identity `mapInArrow`": rows.mapInArrow(identity, "id long"),
        "`async_map`": async_map(rows, of_row, schema="id long"),
        "`async_udf`": rows.select(async_udf(of_value, "long")("id")),
    }
    found: dict[str, list[float]] = {name: [] for name in doors}
    for number in range(rounds + 1):
        for name, door in doors.items():
            began = time.perf_counter()
            door.write.format("noop").mode("overwrite").save()
            # The first round starts workers and compiles.
            if number:
                found[name].append((time.perf_counter() - began) / tasks * 1000)
    spark.stop()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.small", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.of is not None:
        print(json.dumps(measure(words.of, words.tasks, words.rounds)))
        return
    columns = {}
    for name, value in SOCKETS.items():
        command = [sys.executable, "-m", "bench.small", "--of", value]
        command += ["--tasks", str(words.tasks), "--rounds", str(words.rounds)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
        columns[name] = json.loads(done.stdout.splitlines()[-1])
    print(f"| ms a task of {ROWS_OF_TASK} rows | {' | '.join(columns)} |")
    print("|---|" + "---|" * len(columns))
    for door in next(iter(columns.values())):
        medians = [statistics.median(each[door]) for each in columns.values()]
        print(f"| {door} | {' | '.join(f'{each:.1f}' for each in medians)} |")


if __name__ == "__main__":
    main()
