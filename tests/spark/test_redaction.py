"""The traces of a real job when calls fail: no key anywhere, and on request no row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import _environment
from tests.spark.state_store import PROVIDER, ROCKSDB
from tests.versions import needs_async_stream

KEY = "AIzaSyB-0123456789abcdefghijklmnopqrstu"
PASSWORD = "hunter2hunter2"

SCRIPT = """
from pillarbox import Errors, Timeout
import os, shutil, sys, traceback
from pyspark.sql import SparkSession
from pillarbox import Ledger, Rate, Redact, Retry
from pillarbox.spark import Progress, async_map, async_stream, async_udf, call_failed
from tests.spark import queries
from pillarbox.spark.dead_letters import DeadLetter

os.makedirs("events")
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", "file://" + os.path.abspath("events"))
    .config(*sys.argv[1:])
    .config("spark.sql.shuffle.partitions", "2").getOrCreate())
spark.sparkContext.setLogLevel("INFO")


class GeoError(Exception):
    status = 500


async def geocode(row):
    key, password = os.environ["GEO_KEY"], os.environ["GEO_PASSWORD"]
    try:
        raise ConnectionError(f"no way to https://me:{password}@geo.example/v1 for {row.name}")
    except ConnectionError as error:
        url = f"https://geo.example/v1?address={row.address}&key={key}"
        raise GeoError(f"GET {url} for {row.name}") from error


def no_answer(row):
    raise LookupError(f"nothing for {row.name} with token={os.environ['GEO_KEY']}")


def no_weight(row):
    try:
        no_answer(row)
    except LookupError as error:
        raise GeoError(f"no weight of {row.name}") from error


async def late(row):
    import asyncio

    await asyncio.sleep(60)


def told(df, **how):
    try:
        df.collect()
    except Exception as error:
        traceback.print_exc()
        return f"{error}\\n{call_failed(error)}"
    raise AssertionError("nothing has failed")


def run(people, name, redact):
    texts = []
    given = dict(schema="lat double", errors=Errors(redact=redact))
    texts.append(told(async_map(people, geocode, **given)))
    few = Errors("drop", stop_after=1, redact=redact)
    texts.append(told(async_map(people, geocode, schema="lat double", errors=few)))
    texts.append(told(async_map(people, late, timeout=0.05, **given)))
    texts.append(told(async_map(people, late, timeout=Timeout(0.05, fallback=no_answer), **given)))
    # What a hook has raised.
    weighed = Rate(units_per_minute=1000, weight=no_weight)
    texts.append(told(async_map(people, answer, rate=weighed, **given)))
    column = async_udf("double", errors=Errors(redact=redact))(geocode_name)
    texts.append(told(people.select(column("name", "address"))))
    # Not an error of a call: two rows have one key.
    clash = Ledger(name + "-clash", uid="c", run="r", key=["kind"])
    texts.append(told(async_map(people, answer, ledger=clash, **given)))
    with Progress() as progress:
        letters = DeadLetter(name + "-letters", keep=["id"])
        rows = async_map(
            people,
            geocode,
            schema="lat double",
            keep=["id"],
            progress=progress,
            retry=Retry(attempts=2, initial=0.001),
            errors=Errors("column", redact=redact, dead_letter=letters),
            ledger=Ledger(name + "-ledger", retry_errors=False, uid="geo", run="r", key=["id"]),
        )
        rows.write.json(name + "-rows")
    progress.report(name + "-report.html")
    with open(name + "-errors", "w") as file:
        file.write("\\n".join(texts))
    print(name, len(texts), spark.read.parquet(name + "-letters").count())


SCHEMA = "id long, kind string, name string, address string"


async def geocode_in_turn(row):
    import asyncio

    # The first of its kind has no end, so that the error of the second waits in the state for its turn.
    await asyncio.sleep(86_400 if row.id < 3 else 0)
    return await geocode(row)


def run_stream(name, redact):
    os.mkdir(name + "-in")
    shutil.copy(name + ".json", name + "-in")
    stream = spark.readStream.schema(SCHEMA).json(name + "-in")
    letters = DeadLetter(name + "-stream-letters", keep=["id"])
    errors = Errors("column", redact=redact, dead_letter=letters)
    rows = async_stream(
        stream, geocode_in_turn, schema="lat double", keep=["id"], key="kind", max_wait=0.1, errors=errors
    )
    checkpoint = os.path.abspath(name + "-checkpoint")
    query = queries.start(rows.writeStream.format("json").option("path", name + "-stream-rows").option(
        "checkpointLocation", checkpoint))
    # In its files the state is compressed.
    state = b""
    while b"GeoError" not in state:
        assert query.isActive, query.exception()
        if query.lastProgress is not None:
            state = b"".join(blobs_of(checkpoint))
    query.stop()
    with open(name + "-checkpoint-state", "wb") as file:
        file.write(state)


def blobs_of(checkpoint):
    rows = spark.read.format("statestore").option("stateVarName", "pending").load(checkpoint)
    return [bytes(row.value.blob) for row in rows.collect()]


async def geocode_name(name, address):
    from types import SimpleNamespace

    return await geocode(SimpleNamespace(name=name, address=address))


async def answer(row):
    return 1.0


for name, redact in (("open", None), ("closed", Redact(rows=True))):
    people = spark.read.schema(SCHEMA).json(name + ".json")
    run(people, name, redact)
    run_stream(name, redact)
spark.stop()
"""

OPEN = '{"id": 1, "kind": "a", "name": "Ada Lovelace", "address": "12 St James\'s Square"}\n'
CLOSED = '{"id": 2, "kind": "b", "name": "Grace Hopper", "address": "3 Cathedral Parkway"}\n'
OTHERS = '{"id": %d, "kind": "%s", "name": "Katherine Johnson", "address": "9 Hampton Roads"}\n'

PEOPLE_WITHHELD = ("Grace", "Hopper", "Cathedral", "Parkway", "Katherine", "Johnson", "Hampton")


def content_of(path: Path) -> str:
    """All that a file holds, also where it is compressed."""
    rows = str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else ""
    return path.read_bytes().decode("latin-1") + rows


@pytest.mark.slow
@pytest.mark.spark
@needs_async_stream
@pytest.mark.contract("What a job with failed calls leaves behind holds no key, and on request no row.")
def test_what_a_job_with_failed_calls_leaves_behind_holds_no_key_and_on_request_no_row(
    tmp_path: Path,
) -> None:
    (tmp_path / "open.json").write_text(OPEN + OPEN.replace("Ada", "Augusta").replace("1,", "3,"))
    (tmp_path / "closed.json").write_text(CLOSED + OTHERS % (4, "b"))
    (tmp_path / "job.py").write_text(SCRIPT)
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "job.py", PROVIDER, ROCKSDB],
            cwd=tmp_path,
            env={**_environment(), "GEO_KEY": KEY, "GEO_PASSWORD": PASSWORD},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=280,
        )
    assert done.returncode == 0, (tmp_path / "log").read_text()[-5000:]
    assert done.stdout.splitlines() == ["open 7 2", "closed 7 2"]
    left = {
        str(path.relative_to(tmp_path)): content_of(path)
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name not in ("job.py", "open.json", "closed.json")
    }
    for name in ("open", "closed"):
        # Each is there, and says what has failed.
        for place in ("letters", "ledger", "rows", "errors", "checkpoint"):
            said = "".join(text for path, text in left.items() if path.startswith(f"{name}-{place}"))
            assert "GeoError" in said, place
            assert name == "closed" or "https://geo.example/v1?***" in said, place
        assert "GeoError" in left[f"{name}-report.html"]
    events = "".join(text for path, text in left.items() if path.startswith("events"))
    for text in (left["log"], events):
        assert text.count("https://geo.example/v1?***") >= 4
        assert "LookupError" in text
        assert "two rows of this run have one key" in text
        assert "GeoError: <withheld" in text
        assert "LookupError: <withheld" in text
        assert "with token=***" in text
    assert "Ada" in left["open-errors"]
    assert "Ada" not in left["open-report.html"]
    found = [(path, part) for path, text in left.items() for part in (KEY, PASSWORD) if part in text]
    assert not found
    # Rows that are in flight are in the checkpoint, whole: see docs/privacy.md.
    found = [
        (path, part)
        for path, text in left.items()
        for part in PEOPLE_WITHHELD
        if part in text and not path.startswith("closed-checkpoint")
    ]
    assert not found
