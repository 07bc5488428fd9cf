"""The report between two looks: rates, the limit of the slots, shares."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch
from pillarbox.aio.observe.series import Point, Series, intervals, point
from pillarbox.aio.totals import SPENT, Totals
from pillarbox.mailbox.metrics import LatencyHistogram, LatencySnapshot
from tests.aio.virtual import Job, Service, now, play
from tests.search import examples


def latencies(count: int, seconds: float) -> LatencySnapshot:
    found = LatencyHistogram()
    for _ in range(count):
        found.record(seconds)
    return found.snapshot()


def run(looks: int, *, by_call: int = 1, attempts: int = 1, busy: float = 1.0) -> tuple[list[Point], Totals]:
    """A service of 20 ms with 10 slots for a while: each look, a second, it could do 500 calls."""
    series, totals = Series(), Totals()
    for look in range(looks):
        calls = int(look * 500 * busy)
        totals = Totals(
            results=calls * by_call // attempts,
            calls=calls * by_call,
            batches=calls if by_call > 1 else 0,
            capacity=10,
            in_flight=int(10 * busy),
            latency=latencies(calls * by_call, 0.02),
            call_latency=latencies(calls * by_call // attempts, 0.02 * attempts),
            spent={"calls": look * busy, "input": look * (1 - busy)},
        )
        series.add(float(look), totals)
    return series.points(), totals


@pytest.mark.parametrize(
    ("by_call", "attempts", "limit"),
    [(1, 1, 500), (4, 1, 2000), (1, 2, 250)],
    ids=["plain", "batch", "retry"],
)
def test_the_limit_is_what_the_slots_would_do_if_they_were_always_busy(
    by_call: int, attempts: int, limit: float
) -> None:
    points, totals = run(9, by_call=by_call, attempts=attempts, busy=0.5)
    found = intervals(points, totals, 100)
    for step in found:
        assert step.limit == pytest.approx(limit, rel=1 / 16)
        assert step.rows == pytest.approx(limit / 2)
        assert dict(zip(SPENT, step.spent, strict=True))["calls"] == pytest.approx(0.5)
        assert (step.in_flight, step.capacity) == (5, 10)


def test_before_a_call_has_ended_there_is_no_limit() -> None:
    series = Series()
    for look in range(3):
        series.add(float(look), Totals(in_flight=10, capacity=10))
    assert [step.limit for step in intervals(series.points(), Totals(), 10)] == [None, None]


def test_rows_that_go_back_are_no_negative_rate() -> None:
    series = Series()
    for look, rows in enumerate([0, 100, 40, 90]):
        series.add(float(look), Totals(results=rows))
    assert [step.rows for step in intervals(series.points(), Totals(), 10)] == [100.0, 0.0, 50.0]


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(0, 600), st.integers(1, 130))
def test_steps_are_few_touch_and_cover_the_whole_time(looks: int, most: int) -> None:
    points = [point(i * 0.25, Totals(results=i * 7)) for i in range(looks)]
    found = intervals(points, Totals(), most)
    if looks < 2:
        assert found == []
        return
    assert len(found) <= most + 1
    assert (found[0].begin, found[-1].end) == (0.0, points[-1].seconds)
    assert all(a.end == b.begin for a, b in pairwise(found))
    rows = sum(step.rows * (step.end - step.begin) for step in found)
    assert rows == pytest.approx(points[-1].results)


def test_a_real_operator_with_busy_slots_runs_at_its_limit() -> None:
    async def script() -> None:
        series, job = Series(), Job(Service(0.01), capacity=4, batch=Batch(size=5))
        job.push(*range(3000))
        while len(job.results) < 3000:
            series.add(now(), totals := job.statistics() or Totals())
            await asyncio.sleep(0.02)
        await job.end()
        found = [step for step in intervals(series.points(), totals, 10) if step.limit]
        assert found
        for step in found:
            assert step.limit == pytest.approx(4 * 5 / 0.01, rel=1 / 16)
            assert step.rows == pytest.approx(4 * 5 / 0.01, rel=1 / 16)

    play(script)
