"""Errors of workers as a user sees them: the sentence, the user's frames, and none of Pillarbox's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch
from pillarbox.spark import async_map, async_udf, call_failed
from pillarbox.spark.shown_errors import MAX_LINES, lines_of

pytestmark = pytest.mark.spark

OURS = ("pyruntime/", "pillarbox/", "pyspark/", "py4j/", "at org.apache", "Traceback")


def price_of(row: Any) -> float:
    return 1.0 / (row.id - row.id)


async def in_a_helper(row: Any) -> dict[str, float]:
    return {"price": price_of(row)}


def blocking(row: Any) -> dict[str, float]:
    return {"price": price_of(row)}


async def in_batches(rows: list[Any]) -> list[dict[str, float]]:
    return [{"price": price_of(row)} for row in rows]


async def of_a_column(n: int) -> float:
    return 1.0 / (n - n)


async def raised_from(row: Any) -> float:
    try:
        return price_of(row)
    except ZeroDivisionError as error:
        raise LookupError(f"no price of {row.id}") from error


class Client:
    async def __aenter__(self) -> Client:
        raise LookupError("no key is set")

    async def __aexit__(self, *error: object) -> None:
        return None

    async def __call__(self, row: Any) -> float:
        return 1.0


def mapped(fn: Any, **named: Any) -> Callable[[DataFrame], DataFrame]:
    return lambda df: async_map(df, fn, schema="price double", **named)


def failure_of(df: DataFrame) -> PySparkException:
    with pytest.raises(PySparkException) as failed:
        df.collect()
    return failed.value


CASES = [
    (mapped(in_a_helper), "ZeroDivisionError: ", ["in in_a_helper", "in price_of"]),
    (mapped(blocking), "ZeroDivisionError: ", ["in blocking", "in price_of"]),
    (mapped(in_batches, batch=Batch(2)), "ZeroDivisionError: ", ["in in_batches", "in price_of"]),
    (
        lambda df: df.select(async_udf("double")(of_a_column)("id")),
        "ZeroDivisionError: ",
        ["in of_a_column"],
    ),
    (mapped(raised_from), "LookupError: no price of 7", ["in raised_from", "raised from ZeroDivisionError"]),
    (mapped(Client()), "LookupError: no key is set", []),
]


@pytest.mark.contract(
    "A worker's error begins with its sentence and has the user's frames, none of Pillarbox's or Spark's."
)
@pytest.mark.parametrize(("make", "sentence", "frames"), CASES)
def test_an_error_has_its_sentence_first_and_the_users_frames_next(
    spark: SparkSession, make: Callable[[DataFrame], DataFrame], sentence: str, frames: list[str]
) -> None:
    error = failure_of(make(spark.range(7, 8)))
    lines = lines_of(error)
    assert lines is not None
    assert len(lines) <= MAX_LINES
    assert sentence in lines[0]
    text = "\n".join(lines)
    for frame in frames:
        assert frame in text
    # The text of the error too, for who prints it, logs it, or has another display.
    said = str(error).partition("JVM stacktrace")[0]
    assert sentence in said.split("\n  File")[0]
    for each in OURS:
        assert each not in text.partition("The job was started by")[0]
        assert each not in said.replace("pillarbox.aio.errors.", "").partition("[pillarbox]")[0]


def test_the_line_of_the_script_that_began_the_job_is_shown(spark: SparkSession) -> None:
    lines = lines_of(failure_of(async_map(spark.range(1), in_a_helper, schema="price double")))
    assert lines is not None
    after = lines[lines.index("The job was started by:") + 1 :]
    assert "test_shown_errors.py" in after[0]
    assert "df.collect()" in after[1]


def test_a_job_that_writes_shows_no_java(spark: SparkSession, tmp_path: Path) -> None:
    df = async_map(spark.range(1), in_a_helper, schema="price double")
    with pytest.raises(Exception, match="ZeroDivisionError") as failed:
        df.write.parquet(str(tmp_path / "out"))
    lines = lines_of(failed.value)
    assert lines is not None and len(lines) <= MAX_LINES
    assert "ZeroDivisionError" in lines[0]
    assert not any("org.apache" in line for line in lines)
    assert call_failed(failed.value) is not None


def test_an_error_of_sparks_own_is_shown_as_it_is(spark: SparkSession) -> None:
    error = failure_of(spark.range(1).select(F.raise_error(F.lit("theirs"))))
    assert lines_of(error) is None
    assert lines_of(ValueError("not Spark's")) is None


def test_a_long_sentence_and_deep_calls_stay_within_the_lines(spark: SparkSession) -> None:
    def deeper(n: int) -> float:
        if n == 0:
            raise LookupError("x\n" * 100_000)
        return deeper(n - 1)

    async def deep(row: Any) -> float:
        return deeper(50)

    lines = lines_of(failure_of(async_map(spark.range(1), deep, schema="price double")))
    assert lines is not None
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) < 700


@pytest.mark.contract("A forgotten `await` is named, whatever kind of function forgets it.")
@pytest.mark.parametrize("kind", ["coroutine", "inside", "plain", "batch"])
def test_a_forgotten_await_is_named(spark: SparkSession, kind: str) -> None:
    async def service(row: Any) -> float:
        return 1.0

    async def coroutine(row: Any) -> Any:
        return service(row)

    async def inside(row: Any) -> Any:
        return {"price": service(row)}

    def plain(row: Any) -> Any:
        return service(row)

    async def batch(rows: list[Any]) -> list[Any]:
        return [service(row) for row in rows]

    fn: Any = {"coroutine": coroutine, "inside": inside, "plain": plain, "batch": batch}[kind]
    more: dict[str, Any] = {"batch": Batch(1)} if kind == "batch" else {}
    lines = lines_of(failure_of(async_map(spark.range(1), fn, schema="price double", **more)))
    assert lines is not None
    assert ("async def" if kind == "plain" else "await") in lines[0]


@pytest.mark.contract("A function that never returns a value is named on the driver.")
def test_a_forgotten_return_is_named(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    async def forgets(row: Any) -> Any:
        price = {"price": 1.0}  # noqa: F841

    async def returns_at_times(row: Any) -> Any:
        if row.id:
            return {"price": 1.0}
        return None

    async def only_raises(row: Any) -> Any:
        raise LookupError

    async def yields(row: Any) -> Any:
        yield {"price": 1.0}

    with caplog.at_level(logging.WARNING, "pillarbox"):
        for fn in (returns_at_times, only_raises, yields):
            async_map(spark.range(1), fn, schema="price double")
        assert caplog.messages == []
        async_map(spark.range(1), forgets, schema="price double")
        async_udf("double")(forgets)
    assert len(caplog.messages) == 2
    assert all("forgets never returns a value" in each for each in caplog.messages)
    lines = lines_of(failure_of(async_map(spark.range(1), forgets, schema="price double, place string")))
    assert lines is not None and "is a `return` missing" in lines[0]


SCRIPT = """
from pyspark.sql import SparkSession

from pillarbox.spark import async_map

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")


async def lookup(row):
    return {"price": 1 / row.id}


async_map(spark.range(1), lookup, schema="price double").show()
"""


def run(folder: Path, code: str, **environment: str) -> str:
    script = folder / "job.py"
    script.write_text(code)
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode in (0, 1)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.contract("A script that a worker's error ends shows at most 12 lines of it.")
def test_a_script_ends_with_the_sentence_and_the_users_frames(tmp_path: Path) -> None:
    text = run(tmp_path, SCRIPT)
    shown = text[text.index("CallFailed: ") :].rstrip().splitlines()
    assert len(shown) <= MAX_LINES
    assert "ZeroDivisionError: division by zero" in shown[0]
    assert 'job.py", line 11, in lookup' in shown[1]
    assert 'job.py", line 14, in <module>' in shown[4]
    assert "Traceback" not in text
    full = run(tmp_path, SCRIPT, PILLARBOX_FULL_TRACEBACK="1")
    assert "runners.py" in full and "java_gateway.py" in full


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="NoColor")
first, _, last = open("cells.py").read().partition("async_map(spark")
shell.run_cell(first)
print("BEGIN")
shell.run_cell("async_map(spark" + last)
print("END")
shell.run_cell("1 / 0")
"""


@pytest.mark.slow
@pytest.mark.contract("A notebook shows at most 12 lines of a worker's error.")
def test_a_notebook_shows_few_lines(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="the package IPython is not installed")
    cells = tmp_path / "cells.py"
    cells.write_text(SCRIPT)
    text = run(tmp_path, NOTEBOOK.replace("cells.py", str(cells)))
    shown = text.partition("BEGIN\n")[2].partition("END")[0].strip().splitlines()
    assert "CallFailed: " in shown[0]
    assert len(shown) <= MAX_LINES
    assert any("return {" in line for line in shown)
    # Others are shown as before.
    assert "ZeroDivisionError" in text.partition("END")[2]
