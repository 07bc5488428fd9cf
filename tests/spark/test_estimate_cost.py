"""`estimate_cost`: what a sample says about a whole job."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import Budget, Options, Retry
from pillarbox.spark import estimate_cost


@pytest.mark.contract
def test_an_estimate_calls_a_sample_and_prints_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> float:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        await asyncio.sleep(0.02)
        if row.id % 10 == 0:
            raise ValueError(row.id)
        return 0.25

    shown = io.StringIO()
    found = estimate_cost(
        spark.range(0, 20_000, 1, 2),
        call,
        sample=60,
        capacity=10,
        budget=Budget(max_cost=1.0, usage=lambda row, result: result),
        schema="n double",
        errors="null",
        file=shown,
    )
    assert (tmp_path / "calls").read_text() == "x" * 60
    assert (found.rows, found.sample, found.tasks, found.capacity) == (20_000, 60, 2, 10)
    # 20,000 calls of 20 ms or more in 20 slots, and a last one; sleeps end early by as much as clocks tick.
    assert 1000 * 0.018 < found.seconds < 1002 * found.longest
    assert found.calls == 20_000
    # Calls that took nearly the same time are counted under one duration: it may be that of most of them.
    assert 0.018 < found.p50 <= found.p95 <= found.longest
    assert 0.0 < found.error_share < 0.3
    assert found.cost == pytest.approx(20_000 * 0.25 * (1 - found.error_share))
    assert shown.getvalue() == f"{found}\n"
    for word in ("20,000 rows in 2 tasks", "duration", "calls", "cost", "errors", "max_cost=1 may end"):
        assert word in shown.getvalue()


def test_retries_of_the_sample_are_seen(spark: SparkSession) -> None:
    class Flaky:
        def __init__(self) -> None:
            self.seen: set[int] = set()

        async def __call__(self, row: Any) -> int:
            if row.id not in self.seen:
                self.seen.add(row.id)
                raise ConnectionError
            return 0

    shown = io.StringIO()
    retry = Retry(attempts=2, initial=0.001)
    found = estimate_cost(spark.range(40), Flaky(), sample=100, rows=40, tasks=3, retry=retry, file=shown)
    assert (found.sample, found.rows, found.tasks) == (40, 40, 3)
    assert found.calls == pytest.approx(80)


def test_a_part_of_the_data_gives_as_many_rows_as_were_asked_for(spark: SparkSession) -> None:
    found = estimate_cost(
        spark.range(0, 10_000, 1, 2), same, sample=50, rows=1_000_000, tasks=2, file=io.StringIO()
    )
    assert (found.sample, found.rows) == (50, 1_000_000)


@pytest.mark.contract
@pytest.mark.parametrize("where", ["id >= 990", lambda: F.col("id") >= 990])
def test_an_estimate_is_of_the_rows_that_where_leaves_and_calls_no_other(
    spark: SparkSession, where: Any
) -> None:
    async def call(row: Any) -> int:
        assert row.id >= 990
        return 0

    condition = where if isinstance(where, str) else where()
    options = Options(where=condition)
    found = estimate_cost(spark.range(1000), call, tasks=1, options=options, file=io.StringIO())
    assert (found.rows, found.sample, found.error_share) == (10, 10, 0.0)


async def same(row: Any) -> int:
    value: int = row.id
    return value


def test_a_result_that_does_not_fit_is_a_failure_in_the_estimate(spark: SparkSession) -> None:
    text = io.StringIO()
    found = estimate_cost(spark.range(10), same, schema="n string, m string", rows=10, tasks=1, file=text)
    assert found.error_share == 1.0
    assert "rows failed (ResultError), and errors='fail' would end the job" in text.getvalue()


def test_bad_arguments_of_an_estimate_are_named(spark: SparkSession) -> None:
    df = spark.range(5)
    with pytest.raises(ValueError, match="sample=0: must be at least 1"):
        estimate_cost(df, same, sample=0)
    with pytest.raises(ValueError, match="tasks=-1: must be at least 1"):
        estimate_cost(df, same, tasks=-1)
    with pytest.raises(ValueError, match="df: has no rows"):
        estimate_cost(df.where("id < 0"), same)
    with pytest.raises(TypeError, match="where=7: must be a Column or SQL, not int"):
        estimate_cost(df, same, options=Options(where=7))
    with pytest.raises(TypeError, match="must be a Spark DataFrame, .* not int"):
        estimate_cost(5, same)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="df: is a stream"):
        estimate_cost(spark.readStream.format("rate").load(), same)
