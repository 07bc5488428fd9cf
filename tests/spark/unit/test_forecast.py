"""The forecast out of a sample: what is expected of all rows, and how it is said."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import Batch, Budget, Dedupe, Options, Rate
from pillarbox.aio.totals import Totals
from pillarbox.mailbox.metrics import LatencyHistogram
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
