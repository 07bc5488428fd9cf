"""The report between two looks: rates, the limit of the slots, shares, round ticks, safe markup."""

from __future__ import annotations

import asyncio
import math
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import async_map
from pillarbox.aio.batch import Batch
from pillarbox.aio.meter import SPENT
from pillarbox.aio.observe import Watch
from pillarbox.aio.observe.markup import Markup, join, tag
from pillarbox.aio.observe.series import Point, Series
from pillarbox.aio.observe.steps import rows_by_attempt, steps
from pillarbox.aio.observe.svg import CHARACTER, Frame, clock, ticks, time_axis, time_ticks
from pillarbox.aio.observe.totals import Totals
from pillarbox.mailbox.histogram import LatencyHistogram, LatencySnapshot
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
    found = steps(points, totals, 100)
    for step in found:
        assert step.limit == pytest.approx(limit, rel=1 / 16)
        assert step.rows == pytest.approx(limit / 2)
        assert dict(zip(SPENT, step.spent, strict=True))["calls"] == pytest.approx(0.5)
        assert (step.in_flight, step.capacity) == (5, 10)


def test_before_a_call_has_ended_there_is_no_limit() -> None:
    series = Series()
    for look in range(3):
        series.add(float(look), Totals(in_flight=10, capacity=10))
    assert [step.limit for step in steps(series.points(), Totals(), 10)] == [None, None]
    assert rows_by_attempt(Totals()) == 1.0


def test_rows_that_go_back_are_no_negative_rate() -> None:
    series = Series()
    for look, rows in enumerate([0, 100, 40, 90]):
        series.add(float(look), Totals(results=rows))
    assert [step.rows for step in steps(series.points(), Totals(), 10)] == [100.0, 0.0, 50.0]


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(0, 600), st.integers(1, 130))
def test_steps_are_few_touch_and_cover_the_whole_time(looks: int, most: int) -> None:
    points = [
        Point(i * 0.25, i * 7, *[0] * 6, 0.0, 0.0, (0.0,) * len(SPENT), 0, 0, 0, 0) for i in range(looks)
    ]
    points = [point._replace(attempt_seconds=0.0) for point in points]
    found = steps(points, Totals(), most)
    if looks < 2:
        assert found == []
        return
    assert len(found) <= most + 1
    assert (found[0].begin, found[-1].end) == (0.0, points[-1].seconds)
    assert all(a.end == b.begin for a, b in pairwise(found))
    rows = sum(step.rows * (step.end - step.begin) for step in found)
    assert rows == pytest.approx(points[-1].results)


@given(st.floats(1e-6, 1e15), st.integers(2, 8))
def test_ticks_are_round_equal_steps_that_reach_the_top(high: float, count: int) -> None:
    found = ticks(high, count)
    assert found[0] == 0.0 and found[-1] >= high * (1 - 1e-6)
    assert found[-2] < high
    assert len(found) <= 2 * count + 1
    mantissa = found[1] / 10.0 ** math.floor(math.log10(found[1]) + 1e-9)
    assert min(abs(mantissa - each) for each in (1, 2, 2.5, 5, 10)) < 1e-6


@given(st.floats(1e-3, 1e7), st.integers(2, 10))
def test_ticks_of_time_stay_within_it_and_differ_in_their_labels(high: float, count: int) -> None:
    found = time_ticks(high, count)
    assert found[0] == 0.0 and found[-1] <= high * (1 + 1e-6)
    assert len(found) <= 2 * count + 1
    labels = [clock(each, found[1] if len(found) > 1 else high) for each in found]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("width", [352.0, 1040.0])
@pytest.mark.parametrize("high", [0.001, 0.0037, 0.9, 7.0, 59.0, 3599.0, 43_000.0, 1e6])
def test_labels_of_the_time_axis_have_room(width: float, high: float) -> None:
    labels = time_axis(Frame(width, 200.0, 0.0, high, 1.0))
    found = [re.search(r'x="([\d.]+)".*>(.+)</text>', label) for label in labels]
    places = [(float(each[1]), len(each[2]) * CHARACTER / 2) for each in found if each is not None]
    assert len(places) == len(labels) >= 2
    assert all(b - half_b > a + half_a for (a, half_a), (b, half_b) in pairwise(places))
    assert places[-1][0] + places[-1][1] <= width + 0.1


def test_no_ticks_are_asked_of_nothing() -> None:
    assert ticks(0.0, 4) == ticks(float("nan"), 4) == ticks(float("inf"), 4) == [0.0, 1.0]


@given(st.text())
def test_whatever_a_text_is_it_makes_no_element_and_no_attribute(text: str) -> None:
    made = tag("td", text, title=text)
    assert made.count("<") == made.count(">") == 2
    assert made.count('"') == 2
    made.encode()


def test_what_is_markup_already_is_left_as_it_is() -> None:
    assert tag("b", tag("i", "x")) == "<b><i>x</i></b>"
    assert join(["<", Markup("<br/>"), None, [tag("i", "&")]]) == "&lt;<br/><i>&amp;</i>"
    assert tag("rect", x=1.23456, class_="a", stroke_width=2, rx=None) == (
        '<rect x="1.23" class="a" stroke-width="2"/>'
    )


def test_a_real_operator_with_busy_slots_runs_at_its_limit() -> None:
    async def call(rows: list[int]) -> list[int]:
        await asyncio.sleep(0.01)
        return rows

    batch = Batch(size=5, linger=0.001)
    results = async_map(range(3000), call, capacity=4, batch=batch)
    with results, Watch(results, interval=0.02) as watch:
        assert len(list(results)) == 3000
    found = [step for step in steps(watch.series, watch.totals, 10) if step.limit]
    assert found
    rows = sum(step.rows * (step.end - step.begin) for step in found)
    allowed = sum((step.limit or 0.0) * (step.end - step.begin) for step in found)
    assert 0.6 < rows / allowed < 1.1
