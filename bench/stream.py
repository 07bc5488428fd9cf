"""`async_stream` beside another state of the package: `python -m bench.stream --beside REF`.

REF is a commit, or the path of another checkout whose kernel is built. Each job is one process with a Spark
of its own; rounds are interleaved, and the table has medians, of what must not be the sums. What is measured:

- rows a second and CPU a row of all processes, 10,000 rows a micro-batch, a service of 20 ms, 256 in flight
- idle: micro-batches, new checkpoint files and the share of a core, after everything has left
- agree: rows that two actions on each micro-batch lose and double
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from bench.chunks import ROOT
from bench.task.states import State, beside, here

ROWS_IN_BATCH = 10_000
SERVICE_S = 0.020
CAPACITY = 256
WARM_UP_BATCHES = 3
IDLE_S = 60.0
LIMIT_S = 900.0
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
JOBS = {
    "100 B": {"kind": "rows", "size": 100},
    "4 kB": {"kind": "rows", "size": 4000},
    "4 kB, ledger": {"kind": "rows", "size": 4000, "ledger": True},
    "idle": {"kind": "idle"},
    "agree": {"kind": "agree"},
}
UNITS = {
    "rows_per_s": "rows/s",
    "cpu_us_per_row": "us of CPU a row",
    "java_us_per_row": "of these Java's, Spark's own",
    "workers_us_per_row": "of these the Python workers'",
    "calls_us_per_row": "of these those of the process of the calls",
    "micro_batches_per_min": "micro-batches a minute",
    "core_share": "share of a core",
    "java_share": "of this Java's, Spark's own",
    "plain_share": "share of a core that a stream of the same files takes without functions",
    "files_per_min": "new files a minute",
    "lost": "rows lost",
    "doubled": "rows doubled",
    "called_again": "calls made again",
    "failed": "queries that failed",
}
COUNTS = {"lost", "doubled", "called_again", "failed"}
"""Of these the table has the sum of all rounds."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=__doc__.split("\n")[0])
    parser.add_argument("--beside", help="a commit, or the path of a checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=15, help="micro-batches of each job (15)")
    parser.add_argument("--only", nargs="*", choices=[*JOBS], default=[*JOBS])
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        print(json.dumps(_measure(json.loads(given.job))), flush=True)
        # Spark's threads would hold the process up.
        os._exit(0)
    states = [here()]
    if given.beside:
        states.insert(0, beside(given.beside, lambda line: print(line, file=sys.stderr)))
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(given.rounds):
        for job in given.only:
            for state in states if number % 2 else reversed(states):
                figures = _run(state, {**JOBS[job], "batches": given.batches})
                print(state.name, job, figures, file=sys.stderr, flush=True)
                found.setdefault((state.name, job), []).append(figures)
    print("| | " + " | ".join(state.name for state in states) + " |")
    print("|---|" + "---|" * len(states))
    for job in given.only:
        for figure in found[states[0].name, job][0]:
            whole = sum if figure in COUNTS else statistics.median
            medians = [whole([each[figure] for each in found[state.name, job]]) for state in states]
            print(f"| {job}: {UNITS[figure]} | " + " | ".join(f"{each:,.6g}" for each in medians) + " |")


def _run(state: State, job: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "bench.stream", "--job", json.dumps({**job, "folder": folder})],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": state.path},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{state.name}: {job}: {done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _measure(job: dict[str, Any]) -> dict[str, float]:
    """Measure one job in a process of its own."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
        # Workers find the state that is measured, and not what is installed.
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    kind = {"rows": _rows, "idle": _idle, "agree": _agree}[job["kind"]]
    return kind(spark, job)


def _rows(spark: Any, job: dict[str, Any]) -> dict[str, float]:
    import asyncio

    from pyspark.sql import functions as F

    from pillarbox.ledger import Ledger
    from pillarbox.spark import async_stream

    async def call(row: Any) -> int:
        await asyncio.sleep(SERVICE_S)
        return int(row.value) * 2

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_IN_BATCH)
    source = source.option("numPartitions", 2).load()
    source = source.select("value", F.lpad(F.col("value").cast("string"), job["size"], "x").alias("text"))
    ledger = Ledger(job["folder"] + "/ledger", uid="bench") if job.get("ledger") else None
    out = async_stream(
        source,
        call,
        schema="double long",
        keep=["value", "text"],
        capacity=CAPACITY,
        ordered=False,
        ledger=ledger,
    )
    marks: list[tuple[float, dict[str, float], int]] = []
    done = threading.Event()

    def sink(df: Any, batch: int) -> None:
        rows = df.agg(F.count("*"), F.sum("double"), F.sum(F.length("text"))).collect()[0][0]
        marks.append((time.monotonic(), _cpu_by_kind(), rows + (marks[-1][2] if marks else 0)))
        if batch >= job["batches"]:
            done.set()

    query = out.writeStream.foreachBatch(sink).option("checkpointLocation", job["folder"] + "/c").start()
    while not done.wait(0.1):
        if not query.isActive:
            raise RuntimeError(str(query.exception()))
    query.stop()
    first, last = marks[WARM_UP_BATCHES], marks[-1]
    rows = last[2] - first[2]
    return {
        "rows_per_s": round(rows / (last[0] - first[0])),
        "cpu_us_per_row": round(1e6 * (sum(last[1].values()) - sum(first[1].values())) / rows, 1),
        **{
            f"{kind}_us_per_row": round(1e6 * (last[1][kind] - first[1][kind]) / rows, 1)
            for kind in ("java", "workers", "calls")
        },
    }


def _idle(spark: Any, job: dict[str, Any]) -> dict[str, float]:
    from pillarbox.spark import async_stream

    async def call(row: Any) -> int:
        return int(row.id)

    folder = job["folder"]
    spark.range(1000).write.parquet(folder + "/in")
    source = spark.readStream.schema("id long").parquet(folder + "/in")

    def started(out: Any, checkpoint: str) -> Any:
        left: list[int] = []
        query = out.writeStream.foreachBatch(lambda df, _: left.append(df.count()))
        query = query.option("checkpointLocation", checkpoint).start()
        while sum(left) < 1000 or not query.recentProgress:
            query.awaitTermination(0.1)
        # What comes after the last row has left belongs to its work.
        query.awaitTermination(5)
        return query

    plain = started(source, folder + "/plain")
    before = _cpu_by_kind()
    plain.awaitTermination(IDLE_S)
    of_plain = sum(_cpu_by_kind().values()) - sum(before.values())
    plain.stop()
    query = started(async_stream(source, call, schema="id long"), folder + "/c")
    files, cpu, before = _files(folder), _cpu_by_process(), _cpu_by_kind()
    query.awaitTermination(IDLE_S)
    minutes, new = IDLE_S / 60, _files(folder) - files
    # Idle workers of Spark end meanwhile, and what they had used before is nobody's.
    used = sum(each - cpu.get(process, 0.0) for process, each in _cpu_by_process().items())
    figures = {
        # The progress of an idle query has the number of the next micro-batch.
        "micro_batches_per_min": sum(f"{folder}/c/offsets/" in each for each in new) / 2 / minutes,
        "core_share": round(used / IDLE_S, 4),
        "java_share": round((_cpu_by_kind()["java"] - before["java"]) / IDLE_S, 4),
        "plain_share": round(of_plain / IDLE_S, 4),
        "files_per_min": len(new) / minutes,
    }
    query.stop()
    return figures


def _agree(spark: Any, job: dict[str, Any]) -> dict[str, float]:
    import asyncio

    from pyspark.errors import StreamingQueryException

    from pillarbox.spark import async_stream

    folder = job["folder"]

    async def call(row: Any) -> int:
        with open(folder + "/calls", "a") as file:
            file.write(f"{row.id}\n")
        await asyncio.sleep(1.0 if row.id % 4 == 0 else 0.0)
        return int(row.id)

    for number in range(4):
        spark.range(60 * number, 60 * number + 60).coalesce(1).write.mode("append").parquet(folder + "/in")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").parquet(folder + "/in")
    out = async_stream(stream, call, schema="id long", max_wait=0.3, ordered=False)
    sinks: tuple[Counter[int], Counter[int]] = (Counter(), Counter())

    def write(df: Any, batch: int) -> None:
        for sink in sinks:
            sink.update(row.id for row in df.collect())

    query = out.writeStream.foreachBatch(write).trigger(availableNow=True)
    query = query.option("checkpointLocation", folder + "/c").start()
    failed = 0.0
    try:
        query.awaitTermination(LIMIT_S)
    except StreamingQueryException:
        failed = 1.0
    calls = Path(folder, "calls").read_text().split()
    return {
        "lost": sum(240 - len(sink) for sink in sinks),
        "doubled": sum(sink.total() - len(sink) for sink in sinks),
        "called_again": len(calls) - len(set(calls)),
        "failed": failed,
    }


def _files(folder: str) -> set[str]:
    return {os.path.join(place, name) for place, _, names in os.walk(folder + "/c") for name in names}


def _processes() -> set[psutil.Process]:
    """This process, those below it, and the one that holds calls, nobody's child."""
    own = psutil.Process()
    found = {own, *own.children(recursive=True)}
    for each in psutil.process_iter(["cmdline"]):
        if "pillarbox.spark.stream.call_process" in " ".join(each.info["cmdline"] or ()):
            found.add(each)
    return found


def _cpu_by_kind() -> dict[str, float]:
    """Seconds of CPU of all processes by kind, the driver included, with those that have ended."""
    used = dict.fromkeys(("java", "workers", "calls", "driver"), 0.0)
    for each in _processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(each.cmdline())
            kind = "java" if "org.apache.spark" in words else "driver"
            kind = "workers" if "pyspark.daemon" in words else kind
            kind = "calls" if "pillarbox.spark.stream.call_process" in words else kind
            times = each.cpu_times()
            used[kind] += times.user + times.system
            if kind == "workers":
                # Java's include the daemon, whose workers end in turn.
                used[kind] += times.children_user + times.children_system
    return used


def _cpu_by_process() -> dict[psutil.Process, float]:
    """Seconds of CPU of each process that is there."""
    used = {}
    for each in _processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            used[each] = times.user + times.system
    return used


if __name__ == "__main__":
    main()
