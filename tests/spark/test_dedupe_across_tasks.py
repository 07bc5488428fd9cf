"""Under Spark, equal rows of all tasks of a job share one call, whoever is killed meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark.sql")

from pillarbox import Dedupe, Options
from pillarbox.ledger import Ledger, LedgerError
from pillarbox.spark import async_map, async_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunScript = Callable[..., list[str]]

HEAD = """
import asyncio, collections, os, pathlib, random, signal, sys
from pillarbox import Dedupe, Options
from pillarbox.ledger import Ledger
from pillarbox.spark import async_map, async_udf
tmp = pathlib.Path(sys.argv[1])
ledger = Ledger(str(tmp / "ledger"), uid="uid", run="run")
options = Options(capacity=32, ledger=ledger, dedupe=Dedupe(across_tasks=True))

# Three of ten rows have a text that another one has, mostly of another task.
ROWS, TEXTS = 2000, 1400
texts = [f"text {number}" for number in range(TEXTS)]
choose = random.Random(7)
texts += [texts[choose.randrange(TEXTS)] for _ in range(ROWS - TEXTS)]
choose.shuffle(texts)
df = spark.createDataFrame([(text,) for text in texts], "text string").repartition(8)

def note(text):
    with open(tmp / "calls", "a") as file:
        file.write(f"{text}\\n")

def calls():
    return collections.Counter((tmp / "calls").read_text().splitlines())

def is_right(rows):
    return sorted(map(tuple, rows)) == sorted((text, text.upper()) for text in texts)
"""


async def shout(row: Any) -> str:
    return str(row).upper()


@pytest.mark.contract
def test_eight_tasks_call_each_distinct_row_once(run_script: RunScript, tmp_path: Path) -> None:
    lines = run_script(
        HEAD
        + """
async def call(row):
    note(row.text)
    await asyncio.sleep(0.002)
    return row.text.upper()

out = async_map(df, call, schema="upper string", keep="*", options=options)
print(is_right(out.collect()), calls() == dict.fromkeys(texts, 1))

@async_udf("string", options=options)
async def shout(text):
    note(f"{text} by a column")
    return text.upper()

print(is_right(df.select("text", shout("text")).collect()))
made = calls()
print(all(made[f"{text} by a column"] == 1 for text in texts))
""",
        str(tmp_path),
        master="local[8,9]",
        timeout=300,
    )
    assert lines == ["True True", "True", "True"]


@pytest.mark.contract
def test_a_worker_that_is_killed_costs_the_calls_that_it_had_in_flight(
    run_script: RunScript, tmp_path: Path
) -> None:
    lines = run_script(
        HEAD
        + """
def first_time():
    try:
        (tmp / "killed").touch(exist_ok=False)
        return True
    except FileExistsError:
        return False

async def call(row):
    note(row.text)
    await asyncio.sleep(0.005)
    if row.text == "text 700" and first_time():
        os.kill(os.getpid(), signal.SIGKILL)
    return row.text.upper()

out = async_map(df, call, schema="upper string", keep="*", options=options)
print(is_right(out.collect()), (tmp / "killed").exists())
made = calls()
again = sum(made.values()) - len(made)
# 32 in flight, and what they gave in the 0.2 s before, at 32 calls in 5 ms at best.
print(len(made) == TEXTS, max(made.values()) <= 2, 1 <= again <= 32 + 32 * 40, again)
""",
        str(tmp_path),
        master="local[8,9]",
        timeout=300,
    )
    assert lines[0] == "True True"
    assert lines[1].startswith("True True True")


def test_a_stream_whose_calls_outlive_a_micro_batch_does_not_take_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = Options(ledger=Ledger(str(tmp_path / "ledger"), uid="uid"), dedupe=Dedupe(across_tasks=True))
    rows = spark.readStream.format("rate").load()
    with pytest.raises(ValueError, match="across_tasks=True: not for a stream"):
        async_stream(rows, shout, schema="text string", options=options)


def test_a_place_without_locks_is_refused_on_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    options = Options(
        ledger=Ledger(str(tmp_path / "ledger"), uid="uid", run="run"), dedupe=Dedupe(across_tasks=True)
    )
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(LedgerError, match="no part of a file can be locked there"):
        async_map(spark.range(3), shout, schema="text string", options=options)
