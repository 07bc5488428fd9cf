"""`max_calls` and `max_cost` over a whole Spark job, and rows that were not done, resumed."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import Budget, Coordinator, Errors, Ledger
from pillarbox.aio import errors
from pillarbox.aio.limits import coordinator as coordinator_module
from pillarbox.ledger import Scope
from pillarbox.spark import async_map, async_udf, failed_rows, skipped_rows


@pytest.mark.contract
@pytest.mark.parametrize("partitions", [1, 4])
def test_max_calls_counts_over_all_partitions_and_marks_the_rest(
    spark: SparkSession, tmp_path: Path, partitions: int
) -> None:
    async def call(row: Any) -> int:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        await asyncio.sleep(0.001)
        if row.id % 7 == 3:
            raise ValueError(row.id)
        value: int = row.id
        return value

    df = spark.range(0, 400, 1, partitions)
    out = async_map(
        df, call, schema="n long", keep="*", errors="column", budget=Budget(max_calls=100), capacity=8
    )
    folder = str(tmp_path / "out")
    out.write.parquet(folder)
    assert (tmp_path / "calls").read_text() == "x" * 100

    done = spark.read.parquet(folder)
    rest = skipped_rows(done, keep=["id"])
    assert rest.columns == ["id"]
    assert rest.count() == 300
    error = done.where("_error.type = 'NotCalled'").first()["_error"]  # type: ignore[index]
    assert (error.attempts, error.latency, error.status) == (0, 0.0, None)
    assert "max_calls=100" in error.message
    called = {row.id for row in done.where("_error is null or _error.type != 'NotCalled'").collect()}
    assert {row.id for row in failed_rows(done).collect()} == {i for i in called if i % 7 == 3}

    # What was not done is done now: each row once, over both runs.
    again = async_map(
        rest, call, schema="n long", keep="*", errors="column", budget=Budget(max_calls=300), capacity=8
    )
    assert sorted([*called, *(row.id for row in again.collect())]) == list(range(400))
    assert skipped_rows(again).columns == ["id", "n"]


@pytest.mark.contract
def test_max_cost_ends_a_job_before_it_costs_more_than_what_was_in_flight(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def call(row: Any) -> int:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        await asyncio.sleep(0.005)
        return 0

    df = async_map(
        spark.range(0, 4000, 1, 2),
        call,
        schema="n long",
        errors="column",
        capacity=4,
        budget=Budget(max_cost=10.0, usage=lambda row, result: 0.5),
    )
    assert skipped_rows(df).count() > 0
    calls = len((tmp_path / "calls").read_text())
    assert 20 <= calls < 400


@pytest.mark.contract
def test_rows_not_called_are_among_the_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        return 0

    df = spark.range(0, 30, 1, 2).selectExpr("id", "id * 2 as twice")
    out = async_map(
        df, call, schema="n long", budget=Budget(max_calls=10), errors=Errors(dead_letter=tmp_path / "l")
    )
    assert len(out.collect()) == 10
    rest = skipped_rows(spark.read.parquet(str(tmp_path / "l")))
    assert rest.columns == ["id", "twice"]
    assert rest.count() == 20


def test_two_operators_have_a_budget_each(spark: SparkSession) -> None:
    @async_udf("long", errors="null", budget=Budget(max_calls=10))
    async def call(n: int) -> int:
        return n

    df = spark.range(0, 50, 1, 2)
    assert df.select(call("id").alias("n")).where("n is not null").count() == 10
    assert df.select(call("id").alias("n")).where("n is not null").count() == 10


@pytest.mark.contract
def test_a_budget_leaves_the_rate_to_each_task(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        return 0

    # Each of two tasks may begin all of its twenty calls at once. Both together could not within their time.
    given: dict[str, Any] = {
        "rate": pillarbox.Rate(0.01, burst=2000.0),
        "budget": Budget(max_calls=100),
        "errors": "null",
    }
    df = async_map(spark.range(0, 40, 1, 2), call, schema="n long", **given)
    assert df.where("n = 0").count() == 40


@pytest.mark.contract
def test_with_a_ledger_a_budget_of_a_job_belongs_to_the_run(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        return 0

    def again(max_calls: int, limits: Coordinator | None = None) -> int:
        given: dict[str, Any] = {
            "ledger": dataclasses.replace(ledger, uid="uid", run="run"),
            "errors": "null",
            "budget": Budget(max_calls=max_calls),
        }
        df = async_map(spark.range(0, 400, 1, 2), call, schema="n long", limits=limits, **given)
        df.collect()
        return len((tmp_path / "calls").read_text())

    ledger = pillarbox.Ledger(str(tmp_path / "ledger"))
    assert again(max_calls=100) == 100
    assert again(max_calls=100) == 100
    # As in another process, whose coordinator knows nothing.
    coordinator, coordinator_module._local = coordinator_module._local, None
    try:
        assert again(max_calls=100) == 100
        assert again(max_calls=130) == 130
    finally:
        assert coordinator_module._local is not None and coordinator is not None
        coordinator.close()
    with Coordinator() as given:
        assert again(max_calls=150, limits=given) == 150


@pytest.mark.parametrize(("max_seconds", "called"), [(3600.0, False), (4000.0, True)])
def test_with_a_ledger_the_seconds_of_a_budget_of_a_job_belong_to_the_run(
    spark: SparkSession, tmp_path: Path, max_seconds: float, called: bool
) -> None:
    async def call(row: Any) -> int:
        value: int = row.id
        return value

    ledger = Ledger(str(tmp_path), run="night", uid="call")
    with ledger.writer(Scope("night", "call")) as writer:
        writer.append(b"k" * 16, "an answer", latency=3600.0)
    df = spark.range(0, 4, 1, 2)
    budget = Budget(max_seconds=max_seconds)
    out = async_map(df, call, schema="n long", errors="null", ledger=ledger, budget=budget)
    assert [row.n for row in out.collect()] == ([0, 1, 2, 3] if called else [None] * 4)


def test_a_coordinator_that_is_given_is_used(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        return 0

    with Coordinator() as coordinator:
        given: Any = {"errors": "column", "budget": Budget(max_calls=15), "limits": coordinator.named("both")}
        first = async_map(spark.range(0, 10, 1, 1), call, schema="n long", **given)
        second = async_map(spark.range(0, 10, 1, 1), call, schema="n long", **given)
        assert skipped_rows(first).count() == 0
        assert skipped_rows(second).count() == 5


def test_an_error_of_the_functions_by_the_name_of_the_mark_is_a_failure(spark: SparkSession) -> None:
    class NotCalled(Exception):
        pass

    async def call(row: Any) -> int:
        raise NotCalled if row.id else errors.NotCalled("not called, max_calls=1 is used up")

    df = async_map(
        spark.range(2), call, schema="n long", keep="*", errors="column", budget=Budget(max_calls=10)
    ).cache()
    assert failed_rows(df).count() == 2
    assert skipped_rows(df).count() == 0
    assert {row["_error"].type for row in df.collect()} == {"NotCalled (raised)"}


def test_rows_whose_retry_is_cut_off_are_resumed_as_well(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        raise ConnectionError("busy")

    retry = pillarbox.Retry(attempts=3, initial=0.001)
    df = spark.range(0, 6, 1, 1)
    out = async_map(
        df, call, schema="n long", keep="*", errors="column", budget=Budget(max_calls=4), retry=retry
    ).cache()
    assert sorted(row.id for row in skipped_rows(out, keep=["id"]).collect()) == list(range(6))
    assert failed_rows(out).count() == 0
