"""Calls that say their usage, ask for another one and know their row, in the workers of Spark."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from pillarbox import AskAgain, Batch, Result, Usage, async_map, async_udf, current_call
from pillarbox.spark import Progress

pytestmark = pytest.mark.spark

USED = Usage(0.5, input_tokens=7, output_tokens=3, operation="chat", provider="openai", model="small")


async def ask(row: Any) -> Result:
    if row.id % 2 and current_call().attempt == 1:
        raise AskAgain("not JSON", usage=USED)
    return Result({"identity": current_call().identity, "attempt": current_call().attempt}, USED)


def blocking(row: Any) -> Result:
    if row.id % 2 and current_call().attempt == 1:
        raise AskAgain("not JSON", usage=USED)
    return Result({"identity": current_call().identity, "attempt": current_call().attempt}, USED)


async def in_batches(rows: list[Any]) -> list[Any]:
    now = current_call()
    return [
        AskAgain("not JSON", usage=USED)
        if row.id % 2 and one.attempt == 1
        else Result({"identity": one.identity, "attempt": one.attempt}, USED)
        for row, one in zip(rows, now.rows, strict=True)
    ]


async def upper(text: str) -> Result:
    return Result(f"{text.upper()} {current_call().attempt}", USED)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 40, 1, 4)


@pytest.mark.contract
@pytest.mark.parametrize("fn", [ask, blocking, in_batches])
def test_calls_of_a_job_know_their_row_and_are_billed_for_all_attempts(rows: DataFrame, fn: Any) -> None:
    batch = Batch(5) if fn is in_batches else None
    with Progress(file=io.StringIO()) as progress:
        answers = async_map(rows, fn, schema="identity string, attempt int", batch=batch, progress=progress)
        found: list[Row] = answers.collect()
    assert [row.attempt for row in found] == [1, 2] * 20
    assert len({row.identity for row in found}) == 40
    totals = progress.totals
    assert (totals.calls, totals.cost, totals.tokens) == (60, 30.0, 600.0)
    used = {tuple(json.loads(key)): tokens for key, tokens in totals.tokens_used.items()}
    names = ("chat", "openai", "small")
    assert used == {(*names, "input"): 420.0, (*names, "output"): 180.0}
    took = {json.loads(key)[3]: found.measurements for key, found in totals.operation_duration.items()}
    assert took == {"": 40, "AskAgain": 20}


def test_a_column_function_may_say_its_usage(spark: SparkSession) -> None:
    texts = spark.createDataFrame([("one",), ("two",)], "text string")
    shout = async_udf(upper, "string")
    assert sorted(row.found for row in texts.select(shout("text").alias("found")).collect()) == [
        "ONE 1",
        "TWO 1",
    ]
