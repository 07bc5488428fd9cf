"""Ctrl-C at a job, in each phase of its calls: the program ends and leaves no process, nor a line of ours."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.versions import pyspark_version

SECONDS = 120.0
# Before PySpark 4.2 its handler shows the error of reading from the connection that is being read from.
ENDS = ("KeyboardInterrupt",) if pyspark_version() >= (4, 2) else ("KeyboardInterrupt", "py4j.")

# Each phase tells that it is reached by a byte in the FIFO, from the worker.
PROGRAM = """
import asyncio, sys
from pyspark.sql import SparkSession
from pillarbox import Ledger, Rate, Retry
from pillarbox.spark import async_map

phase, fifo, place = sys.argv[1:]
FOREVER_S = 600.0


def reach(here):
    if phase == here:
        with open(fifo, "w") as told:
            told.write("x")


class Refused(Exception):
    status, headers = 429, {"Retry-After": "600"}


class Client:
    async def __aenter__(self):
        reach("open")
        await asyncio.sleep(FOREVER_S if phase == "open" else 0)
        return self

    async def __aexit__(self, *_):
        pass

    async def __call__(self, row):
        reach("call")
        if phase == "call":
            await asyncio.sleep(FOREVER_S)
        reach("cool-down")
        if phase == "cool-down":
            raise Refused
        reach("backoff")
        if phase == "backoff":
            raise ValueError
        reach("rate")
        # Of the ledger's rows the last one says it, when others are being written down.
        if row.id == 2_000:
            reach("ledger")
        return {"answer": row.id}


rows = 200_000 if phase == "ledger" else 20
options = {
    "cool-down": {"retry": Retry(4)},
    "backoff": {"retry": Retry(4, initial=FOREVER_S, maximum=FOREVER_S, jitter=False)},
    "rate": {"rate": Rate(0.001, burst=1)},
    "ledger": {"ledger": Ledger(place, uid="calls", run="run", key=["id"])},
}.get(phase, {})
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.warehouse.dir", place).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
answers = async_map(spark.range(0, rows, 1, 1), Client(), schema="answer long", capacity=1, **options)
answers.write.format("noop").mode("overwrite").save()
print("it came to its end")
"""


@pytest.mark.contract("Ctrl-C ends a program whose Spark job calls, in each phase, and leaves no process.")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["open", "call", "cool-down", "backoff", "rate", "ledger"])
def test_ctrl_c_ends_a_job_and_leaves_no_process(phase: str, tmp_path: Path) -> None:
    fifo = tmp_path / "reached"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", PROGRAM, phase, str(fifo), str(tmp_path / "place")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        reached = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert select.select([reached], [], [], SECONDS)[0], program.poll()
            # As a terminal does: to all that the program has started, its Java and its workers too.
            os.killpg(program.pid, signal.SIGINT)
            # Each process holds these two, so they end when the last one has ended.
            out, err = program.communicate(timeout=SECONDS)
        finally:
            os.close(reached)
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    assert "it came to its end" not in out
    assert err.rstrip().splitlines()[-1].startswith(ENDS), err
    # The tracebacks are PySpark's own, of the driver: none is of a worker.
    assert "pillarbox" not in err, err
