"""A series of points stays small, keeps counts exact, and loses neither its beginning nor its end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.aio.observe.series import Series
from pillarbox.aio.totals import SPENT, Totals
from pillarbox.mailbox.metrics import LatencyHistogram
from tests.search import examples


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(1, 3000), st.integers(4, 50))
def test_however_many_looks_the_points_are_few_in_order_and_exact(looks: int, most: int) -> None:
    series = Series(most)
    for look in range(looks):
        series.add(look * 0.25, Totals(results=look * 10))
        assert len(series.points()) <= most + 1
    points = series.points()
    assert points[0].seconds == 0.0
    assert points[-1].seconds == (looks - 1) * 0.25
    assert [point.results for point in points] == [point.seconds * 40 for point in points]
    seconds = [point.seconds for point in points]
    assert seconds == sorted(set(seconds))
    # Not thinner than it must be.
    assert len(points) >= min(looks, most // 2)


def test_a_point_has_the_sums_that_rates_are_made_of() -> None:
    histogram = LatencyHistogram()
    histogram.record(0.5)
    latency = histogram.snapshot()
    totals = Totals(calls=3, errors=1, retries=2, cost=1.5, latency=latency, spent={"rate": 7.0})
    series = Series()
    series.add(1.0, totals)
    (point,) = series.points()
    assert (point.calls, point.errors, point.retries, point.cost) == (3, 1, 2, 1.5)
    assert (point.attempts, point.attempt_seconds) == (1, latency.total)
    assert dict(zip(SPENT, point.spent, strict=True))["rate"] == 7.0
