"""A function on its way to the workers: which Python runs it, what is said where something is missing."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import pillarbox.spark
from pillarbox.spark import async_map, async_udf, estimate_cost
from tests.spark import pythons
from tests.versions import needs_pyspark


@pytest.fixture
def python_without(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Has the workers run a Python that lacks a module; gives its path."""

    def use(module: str) -> str:
        python = pythons.python_without(module, tmp_path)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
        return python

    return use


@pytest.mark.contract
def test_a_local_session_runs_the_functions_in_the_python_of_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def python(row: Any) -> str:
        return sys.executable

    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "a-python-that-is-nowhere")
    (row,) = async_map(spark.range(1), python, schema="python string").collect()
    assert os.path.samefile(row.python, sys.executable)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "a-python-that-is-nowhere")
    (row,) = spark.range(1).select(async_udf("string")(python)("id").alias("python")).collect()
    assert os.path.samefile(row.python, sys.executable)


def test_a_python_that_is_configured_is_left_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(row: Any) -> None:
        return None

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "another")
    async_map(spark.range(1), nothing, schema="n long")
    assert spark.sparkContext.pythonExec == "another"


async def lookup(row: Any) -> int:
    return 1


def by_map(df: DataFrame) -> None:
    async_map(df, lookup, schema="n long").collect()


def by_column(df: DataFrame) -> None:
    df.select(async_udf("long")(lookup)("id")).collect()


def by_estimate(df: DataFrame) -> None:
    estimate_cost(df, lookup, rows=1)


@needs_pyspark(4, 0, "errors without the traceback of Spark's worker")
@pytest.mark.contract
@pytest.mark.parametrize("action", [by_map, by_column, by_estimate])
def test_a_worker_without_pillarbox_says_in_one_line_what_is_missing_where(
    spark: SparkSession, python_without: Callable[[str], str], action: Callable[[DataFrame], None]
) -> None:
    python_without("pillarbox")
    with pytest.raises(PySparkException) as caught:
        action(spark.range(1))
    lines = [line for line in str(caught.value).splitlines() if line.strip()]
    # By this one a program finds the error.
    assert lines.pop() == '[pillarbox] {"error": "ModuleNotFoundError"}'
    assert lines[-1] == (
        f"ModuleNotFoundError: lookup cannot run: the Python of Spark's worker, {sys.executable} on "
        f"{socket.gethostname()}, has no module 'pillarbox'; send it along (`pillarbox pack`), install it "
        "there, or set PYSPARK_PYTHON to a Python that has it"
    )
    # The other line is Spark's: "An exception was thrown from the Python worker".
    assert len(lines) <= 2, lines


def test_a_module_of_the_function_that_is_missing_is_named_too(
    spark: SparkSession, python_without: Callable[[str], str]
) -> None:
    import sqlite3

    connect = sqlite3.connect

    async def count(row: Any) -> int:
        return len(connect(":memory:").execute("select 1").fetchall())

    python_without("_sqlite3")
    with pytest.raises(PySparkException, match=r"count cannot run: .* has no module '_sqlite3'"):
        async_map(spark.range(1), count, schema="n long").collect()


def test_a_plan_and_the_interface_of_spark_name_the_function(spark: SparkSession) -> None:
    df = async_map(spark.range(1), lookup, schema="n long")
    plan = df._jdf.queryExecution().simpleString()
    assert "MapInArrow lookup(id#" in plan


@pytest.mark.contract
def test_the_first_use_warns_of_nothing_whatever_pandas_there_is(spark: SparkSession) -> None:
    with warnings.catch_warnings():
        # As in a process of its own: without the filters of the tests.
        warnings.resetwarnings()
        warnings.simplefilter("error", FutureWarning)
        importlib.reload(pillarbox.spark)
        df = spark.createDataFrame([(1, "a")], "id long, text string")
        assert async_map(df, lookup, schema="n long").collect() == [Row(n=1)]
        assert df.select(async_udf("long")(lookup)("id")).collect() == [Row(**{"lookup(id)": 1})]
