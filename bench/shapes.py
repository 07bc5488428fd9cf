"""Jobs of unusual shapes through `async_map`, beside Spark's identity: `python -m bench.shapes`.

Each job runs in a session of its own on `local[1]`, so that a worker of the identity has nothing of Pillarbox
in it; what is called returns at once. Seconds of the job, and the most memory that a Python worker has had.

| shape | what it is |
|---|---|
| first | 20 tasks of one row, each in a fresh worker process: seconds a task |
| tasks | 10,000 tasks of ten rows |
| columns | 20,000 rows of 200 columns, which the function reads one of, and which are kept |
| large | 40 rows of 10 MB, which are kept |
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.chunks import ROOT
from bench.small import identity, session

LIMIT_S = 3600.0
LARGE_BYTES = 10_000_000
SHAPES = ("first", "tasks", "columns", "large")
DOORS = ("identity", "async_map")


async def of_row(row: Any) -> int:
    """Return the number of the row."""
    return row.id  # type: ignore[no-any-return]


def frame(spark: Any, shape: str) -> tuple[Any, int]:
    """Return the rows of a shape, and the number of their tasks."""
    from pyspark.sql import functions as F

    if shape == "first":
        return spark.range(20, numPartitions=20), 20
    if shape == "tasks":
        return spark.range(100_000, numPartitions=10_000), 10_000
    if shape == "columns":
        numbers = [(F.col("id") + place).alias(f"c{place}") for place in range(200)]
        return spark.range(20_000, numPartitions=1).select("id", *numbers), 1
    text = F.repeat(F.lit("0123456789"), LARGE_BYTES // 10).alias("text")
    return spark.range(40, numPartitions=1).select("id", text), 1


def most_memory() -> float:
    """Return the most MB that a Python worker of this process's Spark has had; 0 where none is left."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError, ValueError):
            if b"pyspark.daemon" in (status.parent / "cmdline").read_bytes() and _is_ours(status):
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
                found = max(found, int(lines["VmHWM"].split()[0]))
    return found / 1024


def _is_ours(status: Path) -> bool:
    """Return True if a process is a worker: its parent is a daemon, which has Java for its parent."""
    pid = int(status.parent.name)
    line: list[int] = []
    while pid > 1 and len(line) < 4:
        lines = dict(each.split(":", 1) for each in Path(f"/proc/{pid}/status").read_text().splitlines())
        pid = int(lines["PPid"])
        line.append(pid)
    return os.getpid() in line[2:]


def measure(shape: str, door: str) -> tuple[float, float]:
    """Return the seconds of the job, or of a task of "first", and MB of a worker at most."""
    from pillarbox.spark import async_map

    reuse = str(shape != "first").lower()
    spark = session("true", spark_driver_memory="4g", spark_python_worker_reuse=reuse)
    rows, tasks = frame(spark, shape)
    if door == "identity":
        job = rows.mapInArrow(identity, rows.schema)
    else:
        job = async_map(rows, of_row, schema="got long", keep=rows.columns)
    # The first job starts the daemon and compiles.
    warm, _ = frame(spark, "first")
    warm.mapInArrow(identity, "id long").write.format("noop").mode("overwrite").save()
    began = time.perf_counter()
    job.write.format("noop").mode("overwrite").save()
    seconds, mb = time.perf_counter() - began, most_memory()
    spark.stop()
    return (seconds / tasks if shape == "first" else seconds), mb


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.shapes")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--of", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.of is not None:
        print(json.dumps(measure(*words.of)))
        return
    # Modules are compiled once, as where packages are installed.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(words.rounds):
        for shape in words.only:
            for door in DOORS:
                command = [sys.executable, "-m", "bench.shapes", "--of", shape, door]
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True
                )
                found.setdefault((shape, door), []).append(json.loads(done.stdout.splitlines()[-1]))
    print("| shape | identity, s | `async_map`, s | ratio | identity, MB | `async_map`, MB |")
    print("|---|---|---|---|---|---|")
    for shape in words.only:
        (theirs, their_mb), (ours, our_mb) = (
            [statistics.median(each) for each in zip(*found[shape, door], strict=True)] for door in DOORS
        )
        cells = f"{theirs:.2f} | {ours:.2f} | {ours / theirs:.2f} | {their_mb:.0f} | {our_mb:.0f}"
        print(f"| {shape} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
