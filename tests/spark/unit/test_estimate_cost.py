"""`estimate_cost`: what a sample says about a whole job, with bounds that hold."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox import Budget, Dedupe, Options, Rate, Retry
from pillarbox.aio.observe.totals import Totals, to_json
from pillarbox.mailbox.metrics import LatencyHistogram
from pillarbox.spark import estimate_cost
from pillarbox.spark.estimate_cost import Range, Sample, bootstrap, forecast, read_sample, wilson

RunScript = Callable[..., list[str]]


def sample(
    *, costs: Sequence[float] = (), units: Sequence[float] = (), seconds: float = 0.1, **counts: Any
) -> Sample:
    """100 rows of 0.1 s each, none of which failed."""
    totals = Totals(**{"rows_in": 100, "calls": 100, "capacity": 100, **counts})
    histogram = LatencyHistogram()
    histogram.record(seconds)
    totals = dataclasses.replace(totals, latency=histogram.snapshot())
    return Sample(totals, [seconds] * totals.calls, [*costs], [*units])


def test_the_duration_is_the_work_over_the_slots_and_one_last_call() -> None:
    found = forecast(sample(), Options(capacity=50), rows=1_000_000, tasks=4)
    assert found.seconds[:2] == pytest.approx([1_000_000 * 0.1 / 200 + 0.1] * 2)
    assert found.bound == "capacity"
    # Fewer rows than slots: each row has its own.
    assert forecast(sample(), Options(capacity=50), rows=100, tasks=4).seconds.expected == pytest.approx(0.2)


def test_a_rate_bounds_the_duration_for_each_task_or_for_all() -> None:
    options = Options(capacity=50, rate=Rate(per_second=10))
    found = forecast(sample(), options, rows=100_000, tasks=4)
    assert (found.bound, found.seconds.expected) == ("rate", pytest.approx(100_000 / 40))
    weighed = Options(rate=Rate(units_per_minute=600, weight=len))
    found = forecast(sample(units=[3.0] * 100), weighed, rows=10_000, tasks=1)
    assert found.seconds.expected == pytest.approx(10_000 * 3 / 10)


def test_retries_are_paid_for_and_counted() -> None:
    found = forecast(sample(calls=125), Options(capacity=10), rows=1000, tasks=1)
    assert found.calls.expected == pytest.approx(1250)
    assert found.calls.low < 1250 < found.calls.high
    assert found.seconds.expected == pytest.approx(1250 * 0.1 / 10 + 0.1)


def test_costs_that_results_say_themselves_are_estimated_by_their_mean() -> None:
    found = forecast(sample(cost=50.0), Options(), rows=1000, tasks=1)
    assert found.cost is not None and found.cost.expected == pytest.approx(500.0)
    assert forecast(sample(), Options(), rows=1000, tasks=1).cost is None


@pytest.mark.contract("The bounds of an estimate hold as often as they say.")
def test_the_bounds_hold_as_often_as_they_say() -> None:
    chance = random.Random(7)
    # Log-normal, with mean 1 and a tail.
    held = sum(
        found.low <= 1.0 <= found.high
        for found in (
            bootstrap([chance.lognormvariate(-0.125, 0.5) for _ in range(100)], chance) for _ in range(200)
        )
    )
    assert 175 <= held <= 200
    shares = [sum(chance.random() < 0.05 for _ in range(100)) for _ in range(500)]
    assert sum(wilson(hits, 100).low <= 0.05 <= wilson(hits, 100).high for hits in shares) >= 460


def test_no_error_in_a_sample_does_not_mean_none_at_all() -> None:
    share = wilson(0, 100)
    assert (share.expected, share.low) == (0.0, 0.0)
    assert 0.03 < share.high < 0.04
    text = str(forecast(sample(), Options(), rows=1000, tasks=2))
    assert "what fewer than 3 % of the rows do may be missing from the sample" in text
    assert "the sample had at most 100 calls in flight, the job has up to 200" in text


def test_the_expected_errors_are_named_where_they_would_end_the_job() -> None:
    broken = sample(errors=2, errors_by_type={"KeyError": 2})
    assert "rows failed (KeyError), and errors='fail' would end the job" in str(
        forecast(broken, Options(), rows=1000, tasks=1)
    )
    assert "end the job" not in str(forecast(broken, Options(errors="null"), rows=1000, tasks=1))


def test_batches_share_a_slot() -> None:
    from pillarbox import Batch

    options = Options(capacity=2, batch=Batch(size=50))
    found = forecast(sample(batches=2), options, rows=10_000, tasks=1)
    assert found.seconds.expected == pytest.approx(10_000 * 0.1 / 100 + 0.1)


@pytest.mark.parametrize("shared", [90, 0])
def test_rows_that_share_calls_are_not_counted_as_calls(shared: int) -> None:
    measured = sample(calls=10, shared=shared, costs=[0.5] * 10)
    found = forecast(measured, Options(capacity=10, dedupe=Dedupe(memo=1000)), rows=1_000_000, tasks=1)
    assert found.calls.expected == pytest.approx(100_000)
    assert found.cost is not None
    assert found.cost.expected == pytest.approx(50_000)
    assert found.seconds.expected == pytest.approx(100_000 * 0.1 / 10 + 0.1)
    # The whole may have no other rows than the sample.
    assert (found.calls.low, found.cost.low) == (10, 5)
    assert 100_000 < found.calls.high < 300_000
    assert "90 of 100 rows shared a call; among more rows more are equal" in str(found)
    retried = forecast(sample(calls=50, shared=60), Options(dedupe=True), rows=1000, tasks=1)
    assert retried.calls.expected == pytest.approx(500)


def test_a_budget_is_named_in_full() -> None:
    options = Options(
        budget=Budget(max_calls=1_234_567, max_cost=0.5, usage=lambda row, result: 1), errors="null"
    )
    text = str(forecast(sample(), options, rows=1000, tasks=1))
    assert "max_calls=1,234,567 may end the calls" in text
    assert "max_cost=0.5 may end the calls" in text


def test_durations_of_a_sample_are_right_to_a_sixteenth_and_none_is_above_the_longest() -> None:
    histogram = LatencyHistogram()
    histogram.record_all([0.1, 0.2, 0.2])
    totals = Totals(rows_in=3, calls=3, latency=histogram.snapshot(), errors_by_type={"E": 1})
    found = read_sample(json.dumps({"totals": to_json(totals), "costs": [0.5], "units": []}))
    assert found.totals == totals
    assert found.costs == [0.5]
    assert found.durations == pytest.approx([0.1, 0.2, 0.2], rel=1 / 16)
    assert max(found.durations) <= 0.2


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
    assert 1000 * 0.018 < found.seconds.expected < 1002 * found.longest
    assert found.seconds.low <= found.seconds.expected <= found.seconds.high
    assert found.calls.expected == 20_000
    # Calls that took nearly the same time are counted under one duration: it may be that of most of them.
    assert 0.018 < found.p50 <= found.p95 <= found.longest
    assert found.error_share.low <= 0.1 <= found.error_share.high
    assert found.cost is not None
    assert found.cost.expected == pytest.approx(20_000 * 0.25 * (1 - found.error_share.expected))
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
    assert found.calls.expected == pytest.approx(80)


def test_a_part_of_the_data_gives_as_many_rows_as_were_asked_for(spark: SparkSession) -> None:
    found = estimate_cost(
        spark.range(0, 10_000, 1, 2), same, sample=50, rows=1_000_000, tasks=2, file=io.StringIO()
    )
    assert (found.sample, found.rows) == (50, 1_000_000)


async def same(row: Any) -> int:
    value: int = row.id
    return value


def test_a_result_that_does_not_fit_is_a_failure_in_the_estimate(spark: SparkSession) -> None:
    text = io.StringIO()
    found = estimate_cost(spark.range(10), same, schema="n string, m string", rows=10, tasks=1, file=text)
    assert found.error_share.expected == 1.0
    assert "rows failed (ResultError), and errors='fail' would end the job" in text.getvalue()


def test_bad_arguments_of_an_estimate_are_named(spark: SparkSession) -> None:
    df = spark.range(5)
    with pytest.raises(ValueError, match="sample=0: must be at least 1"):
        estimate_cost(df, same, sample=0)
    with pytest.raises(ValueError, match="tasks=-1: must be at least 1"):
        estimate_cost(df, same, tasks=-1)
    with pytest.raises(ValueError, match="df: has no rows"):
        estimate_cost(df.where("id < 0"), same)
    with pytest.raises(TypeError, match="must be a Spark DataFrame, not int"):
        estimate_cost(5, same)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="df: is a stream"):
        estimate_cost(spark.readStream.format("rate").load(), same)
    assert Range(1.0, 0.5, 2.0).times(2.0) == (2.0, 1.0, 4.0)
