"""`async_stream` when the driver or a worker is killed: its output is that of a run without faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.state_store import PROVIDER, ROCKSDB
from tests.versions import needs_async_stream

RunScript = Callable[..., list[str]]

pytestmark = [pytest.mark.timeout(640), needs_async_stream]

HEAD = """
import asyncio, os, pathlib, signal, sys, time
from pillarbox.spark import async_stream
from tests.spark import queries
tmp = pathlib.Path(sys.argv[1])

def note(line):
    file = os.open(str(tmp / "calls"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{line}\\n".encode())
    os.close(file)
"""

DRIVER = (
    HEAD
    + """
import pyarrow as pa

phase, source, gate = sys.argv[2], str(tmp / "in"), tmp / "open"
if phase == "first":
    rows = [(n, "a" if n < 10 else "b") for n in range(20)]
    spark.createDataFrame(rows, "id long, name string").coalesce(1).write.parquet(source)

async def call(row):
    note(row.id)
    while row.id == 0 and not gate.exists():
        await asyncio.sleep(0.02)
    return {"double": 2 * row.id}

stream = spark.readStream.schema("id long, name string").parquet(source)
out = async_stream(stream, call, schema="double long", keep=["id"], key="name", max_wait=0.3)
writer = out.writeStream.format("json").option("path", str(tmp / "out"))
writer = writer.option("checkpointLocation", str(tmp / "checkpoint"))
if phase == "first":
    query = queries.start(writer)

    def kept():
        state = spark.read.format("statestore").option("stateVarName", "pending")
        blobs = [row.value.blob for row in state.load(str(tmp / "checkpoint")).collect()]
        tables = [pa.ipc.open_stream(blob).read_all() for blob in blobs]
        blocked = [each for table in tables for each in table.column("blocked").to_pylist() if each]
        return sum(len(pa.ipc.open_stream(blob).read_all()) for blob in blocked)

    # The first row is called and not answered; those behind it have their results, in committed state.
    emitted = spark.read.schema("id long")
    while query.lastProgress is None or kept() < 9 or emitted.json(str(tmp / "out")).count() < 10:
        assert query.isActive, query.exception()
    os.kill(spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os._exit(0)
print(*sorted(row.id for row in spark.read.json(str(tmp / "out")).collect()))
gate.touch()
query = queries.start(writer.trigger(availableNow=True))
print(query.awaitTermination(3600), query.exception())
print(*sorted((row.id, row.double) for row in spark.read.json(str(tmp / "out")).collect()), sep=";")
"""
)

WORKER = (
    HEAD
    + """
import dataclasses
from pillarbox.ledger import Ledger
spark.conf.set(*sys.argv[3:])
ledger = Ledger(str(tmp / "ledger")) if sys.argv[2] == "ledger" else None
spark.range(12).coalesce(1).write.parquet(str(tmp / "in"))

def kept():
    return sum(len(ledger.reader(scope)) for scope in ledger.scopes())

async def call(row):
    note(row.id)
    if row.id == 7 and not (tmp / "killed").exists():
        while ledger is not None and kept() < 11:
            await asyncio.sleep(0.05)
        (tmp / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"double": 2 * row.id}

stream = spark.readStream.schema("id long").parquet(str(tmp / "in"))
options = {} if ledger is None else {"ledger": dataclasses.replace(ledger, uid="double")}
out = async_stream(stream, call, schema="double long", keep=["id"], max_wait=60.0, **options)
found = {}
query = out.writeStream.foreachBatch(lambda df, batch: found.update({batch: df.collect()}))
query = queries.start(query.option("checkpointLocation", str(tmp / "c")).trigger(availableNow=True))
print(query.awaitTermination(3600), query.exception())
print(*sorted((row.id, row.double) for rows in found.values() for row in rows), sep=";")
"""
)

WORKERS = (
    HEAD
    + """
import psutil

spark.conf.set(*sys.argv[3:])
spark.range(12).coalesce(1).write.parquet(str(tmp / "in"))
gate = tmp / "open"

async def call(row):
    note(row.id)
    while not gate.exists():
        await asyncio.sleep(0.02)
    return {"double": 2 * row.id}

stream = spark.readStream.schema("id long").parquet(str(tmp / "in"))
out = async_stream(stream, call, schema="double long", keep=["id"], max_wait=float(sys.argv[2]))
found = {}
query = out.writeStream.foreachBatch(lambda df, batch: found.update({batch: df.collect()}))
query = queries.start(query.option("checkpointLocation", str(tmp / "c")).trigger(availableNow=True))
while not (tmp / "calls").exists() or len((tmp / "calls").read_text().split()) < 12:
    assert query.isActive, query.exception()
below = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid()).children(recursive=True)

def is_worker(process):
    # Not the process of the clock, which is the driver's.
    try:
        return "pyspark.daemon" in process.cmdline()
    except psutil.NoSuchProcess:
        return False

workers = [each for each in below if is_worker(each)]
for each in workers:
    each.kill()
_, left = psutil.wait_procs(workers, 60)
gate.touch()
print(len(workers) > 1, left)
print(query.awaitTermination(3600), query.exception())
print(*sorted((row.id, row.double) for rows in found.values() for row in rows), sep=";")
"""
)

SHUFFLE = (
    HEAD
    + """
spark.range(40).coalesce(1).write.parquet(str(tmp / "in"))

async def call(row):
    note(row.id)
    await asyncio.sleep(1.0 if row.id % 2 else 0.0)
    return row.id

stream = spark.readStream.schema("id long").parquet(str(tmp / "in"))
out = async_stream(stream, call, schema="id long", max_wait=0.2).repartition(2)
found = []

def write(df, batch):
    rows = df.rdd
    before = sorted(rows.collect())
    lost = list((tmp / "local").rglob("shuffle_*.data"))
    for each in lost:
        each.unlink()
    # Its tasks find no input, and Spark executes the micro-batch again.
    after = sorted(rows.collect())
    print(batch, len(lost) > 0, after == before)
    found.extend(row.id for row in after)

query = out.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp / "c"))
query = queries.start(query.trigger(availableNow=True))
print(query.awaitTermination(3600), query.exception())
print(*sorted(found))
"""
)


def calls(tmp_path: Path) -> Counter[int]:
    return Counter(map(int, (tmp_path / "calls").read_text().split()))


def pairs(line: str) -> list[list[int]]:
    return [json.loads(f"[{each.strip('()')}]") for each in line.split(";")]


@pytest.mark.slow
@pytest.mark.contract
def test_after_a_killed_driver_the_output_is_whole_and_results_in_the_state_are_not_called_again(
    run_script: RunScript, tmp_path: Path
) -> None:
    settings = {PROVIDER: ROCKSDB}
    assert run_script(DRIVER, str(tmp_path), "first", settings=settings, alone=True) == []
    before, ended, after = run_script(
        DRIVER, str(tmp_path), "second", settings=settings, timeout=300, alone=True
    )
    assert before == " ".join(map(str, range(10, 20)))
    assert ended == "True None"
    assert pairs(after) == [[n, 2 * n] for n in range(20)]
    # Only the call that was under way is made again.
    assert calls(tmp_path) == Counter({0: 2} | dict.fromkeys(range(1, 20), 1))


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("how", ["alone", "ledger"])
def test_after_a_killed_worker_the_output_is_whole_and_what_the_ledger_has_is_not_called_again(
    run_script: RunScript, tmp_path: Path, how: str
) -> None:
    lines = run_script(WORKER, str(tmp_path), how, PROVIDER, ROCKSDB, master="local[4,9]")
    assert lines[0] == "True None"
    assert pairs(lines[1]) == [[n, 2 * n] for n in range(12)]
    assert (tmp_path / "killed").exists()
    made = calls(tmp_path)
    assert made[7] == 2
    if how == "ledger":
        assert made == Counter({7: 2} | {n: 1 for n in range(12) if n != 7})


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("max_wait", ["0.3", "60"], ids=["between micro-batches", "in a task"])
def test_a_call_goes_on_when_all_workers_of_spark_are_killed(
    run_script: RunScript, tmp_path: Path, max_wait: str
) -> None:
    # Spark goes on to use workers that were killed while they were idle.
    lines = run_script(
        WORKERS, str(tmp_path), max_wait, PROVIDER, ROCKSDB, master="local[2,4]", timeout=300, alone=True
    )
    assert lines[:2] == ["True []", "True None"]
    assert pairs(lines[2]) == [[n, 2 * n] for n in range(12)]
    assert calls(tmp_path) == Counter(range(12))


@pytest.mark.slow
@pytest.mark.contract
def test_a_stage_behind_that_loses_its_input_has_the_same_rows_again(
    run_script: RunScript, tmp_path: Path
) -> None:
    settings = {PROVIDER: ROCKSDB, "spark.local.dir": str(tmp_path / "local")}
    *batches, ended, rows = run_script(SHUFFLE, str(tmp_path), settings=settings, alone=True)
    assert ended == "True None"
    assert len(batches) > 2
    assert {line.split(maxsplit=1)[1] for line in batches} <= {"True True", "False True"}
    assert any("True True" in line for line in batches)
    assert rows == " ".join(map(str, range(40)))
    assert calls(tmp_path) == Counter(range(40))
