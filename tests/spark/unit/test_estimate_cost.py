"""`estimate_cost`: what a sample says about a whole job."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch, Budget, Dedupe, Options, Rate, Retry
from pillarbox.aio.totals import Totals
from pillarbox.mailbox.metrics import LatencyHistogram
from pillarbox.spark import estimate_cost
from pillarbox.spark.cost_estimate import Estimate, forecast

CALL = 0.1
"""Seconds of a call of the sample, which a histogram knows to a sixteenth."""


def estimated(
    options: Options, *, rows: int, tasks: int = 1, units: float = 100.0, **counts: Any
) -> Estimate:
    """The estimate of 100 rows of 0.1 s each, none of which failed."""
    histogram = LatencyHistogram()
    histogram.record_all([CALL] * counts.get("calls", 100))
    totals = Totals(
        **{"rows_in": 100, "calls": 100, "capacity": 100, "latency": histogram.snapshot(), **counts}
    )
    return forecast(totals, options, rows=rows, tasks=tasks, units=units)


def test_the_duration_is_the_work_over_the_slots_and_one_last_call() -> None:
    found = estimated(Options(capacity=50), rows=1_000_000, tasks=4)
    assert found.seconds == pytest.approx(1_000_000 * CALL / 200 + CALL, rel=1 / 16)
    assert found.bound == "capacity"
    # Fewer rows than slots: each row has its own.
    assert estimated(Options(capacity=50), rows=100, tasks=4).seconds == pytest.approx(2 * CALL, rel=1 / 16)


def test_a_rate_bounds_the_duration_for_each_task_or_for_all() -> None:
    found = estimated(Options(capacity=50, rate=Rate(per_second=10)), rows=100_000, tasks=4)
    assert (found.bound, found.seconds) == ("rate", pytest.approx(100_000 / 40))
    weighed = Options(rate=Rate(units_per_minute=600, weight=len))
    assert estimated(weighed, rows=10_000, units=300.0).seconds == pytest.approx(10_000 * 3 / 10)


def test_retries_are_paid_for_and_counted() -> None:
    found = estimated(Options(capacity=10), rows=1000, calls=125)
    assert found.calls == pytest.approx(1250)
    assert found.seconds == pytest.approx(1250 * CALL / 10 + CALL, rel=1 / 16)


def test_a_cost_is_that_of_the_sample_for_each_row() -> None:
    assert estimated(Options(), rows=1000, cost=50.0).cost == pytest.approx(500.0)
    assert estimated(Options(), rows=1000).cost is None


def test_what_a_sample_cannot_know_is_said() -> None:
    text = str(estimated(Options(), rows=1000, tasks=2))
    assert "what fewer than 3 % of the rows do may be missing from the sample" in text
    assert "the sample had at most 100 calls in flight, the job has up to 200" in text


def test_the_expected_errors_are_named_where_they_would_end_the_job() -> None:
    broken: dict[str, Any] = {"errors": 2, "errors_by_type": {"KeyError": 2}}
    text = str(estimated(Options(), rows=1000, **broken))
    assert "rows failed (KeyError), and errors='fail' would end the job" in text
    assert "end the job" not in str(estimated(Options(errors="null"), rows=1000, **broken))


def test_batches_share_a_slot() -> None:
    found = estimated(Options(capacity=2, batch=Batch(size=50)), rows=10_000, batches=2)
    assert found.seconds == pytest.approx(10_000 * CALL / 100 + CALL, rel=1 / 16)


def test_rows_that_share_calls_are_not_counted_as_calls() -> None:
    options = Options(capacity=10, dedupe=Dedupe(memo=1000))
    found = estimated(options, rows=1_000_000, calls=10, shared=90, cost=5.0)
    assert (found.calls, found.cost) == (pytest.approx(100_000), pytest.approx(50_000))
    assert "90 of 100 rows shared a call; among more rows more are equal" in str(found)


def test_a_budget_is_named_in_full() -> None:
    options = Options(
        budget=Budget(max_calls=1_234_567, max_cost=0.5, usage=lambda row, result: 1), errors="null"
    )
    text = str(estimated(options, rows=1000))
    assert "max_calls=1,234,567 may end the calls" in text
    assert "max_cost=0.5 may end the calls" in text


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
