"""Workers and tasks that die in the middle: rows in are rows out, exactly once, by count and by content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RunScript = Callable[..., list[str]]


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_a_worker_that_is_killed_in_the_middle_loses_and_repeats_no_row(
    run_script: RunScript, tmp_path: Path, partitions: int
) -> None:
    lines = run_script(
        """
import asyncio, os, pathlib, signal, sys
from pillarbox.spark import async_map, async_udf
tmp, partitions = pathlib.Path(sys.argv[1]), int(sys.argv[2])

def kill_once(name):
    try:
        (tmp / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

async def call(row):
    await asyncio.sleep(row.id % 7 / 1000)
    if row.id == 1234:
        kill_once("map")
    return {"text": f"row {row.id}"}

@async_udf("string", capacity=32)
async def column(n):
    await asyncio.sleep(n % 7 / 1000)
    if n == 1234:
        kill_once("udf")
    return f"row {n}"

expected = [(i, f"row {i}") for i in range(3000)]
df = spark.range(0, 3000, 1, partitions)
for ordered in (True, False):
    out = async_map(df, call, schema="text string", keep="*", capacity=32, ordered=ordered)
    print(sorted(map(tuple, out.collect())) == expected, (tmp / "map").exists())
    (tmp / "map").unlink()
print(list(map(tuple, df.select("id", column("id")).collect())) == expected, (tmp / "udf").exists())
""",
        str(tmp_path),
        str(partitions),
        master="local[4,9]",
    )
    assert lines == ["True True"] * 3


@pytest.mark.slow
@pytest.mark.contract
def test_a_query_that_is_stopped_leaves_the_session_usable(run_script: RunScript, tmp_path: Path) -> None:
    lines = run_script(
        """
import asyncio, pathlib, sys, threading, time
from pillarbox.spark import async_map
tmp = pathlib.Path(sys.argv[1])

async def never(row):
    (tmp / "called").touch()
    await asyncio.Event().wait()

async def same(row):
    return row.id

def run():
    spark.sparkContext.setJobGroup("stuck", "a job that never ends", interruptOnCancel=True)
    try:
        async_map(spark.range(100), never, schema="id long").collect()
    except Exception as error:
        print("cancelled" in str(error).lower())

thread = threading.Thread(target=run)
thread.start()
while not (tmp / "called").exists():
    thread.join(0.05)
spark.sparkContext.cancelJobGroup("stuck")
thread.join()
print(len(async_map(spark.range(100), same, schema="id long").collect()))
""",
        str(tmp_path),
        master="local[4,9]",
    )
    assert lines == ["True", "100"]
