"""Totals add up over tasks, exactly, and come back from JSON as they were."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import async_map
from pillarbox.aio.observe.series import read_totals
from pillarbox.aio.totals import (
    ROWS,
    SPENT,
    Totals,
    ended,
    instruments,
    merge,
    without_rows,
)
from pillarbox.mailbox.metrics import (
    BOUNDS_S,
    LatencyHistogram,
    LatencySnapshot,
    merge_snapshots,
    snapshot_of,
)
from pillarbox.rpc.totals_json import from_json, to_json
from tests.search import examples

LEVELS = instruments("level")
DURATIONS = st.lists(st.floats(0.0, 2e4), max_size=20)


def histogram(durations: list[float]) -> LatencySnapshot:
    found = LatencyHistogram()
    for seconds in durations:
        found.record(seconds)
    return found.snapshot()


@st.composite
def totals(draw: st.DrawFn) -> Totals:
    fields: dict[str, Any] = {
        name: draw(st.integers(0, 2**40)) for name in instruments("row", "count", "level")
    }
    for name in instruments("table", "most", "least"):
        fields[name] = draw(st.dictionaries(st.text(max_size=4), st.integers(0, 2**40), max_size=4))
    for name in instruments("histogram"):
        fields[name] = histogram(draw(DURATIONS))
    return Totals(**fields)


def test_of_limits_that_all_tasks_see_the_largest_and_the_least_left_count() -> None:
    one = Totals(limits_named={"a tokens": 60}, limits_left={"a tokens": 7, "b tokens": 1})
    two = Totals(limits_named={"a tokens": 90}, limits_left={"a tokens": 9})
    both = merge([one, two])
    assert both.limits_named == {"a tokens": 90} and both.limits_left == {"a tokens": 7, "b tokens": 1}


# ---- histograms


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(DURATIONS, max_size=4))
def test_merged_histograms_are_the_histogram_of_all_measurements(parts: list[list[float]]) -> None:
    whole = histogram([seconds for part in parts for seconds in part])
    assert merge_snapshots(histogram(part) for part in parts) == whole


@settings(deadline=None, max_examples=examples(50))
@given(DURATIONS)
def test_the_sum_of_a_histogram_is_right_to_a_sixteenth(durations: list[float]) -> None:
    # Whole buckets of nanoseconds are off by more than that, and by less than a nanosecond.
    durations = [min(seconds, 1e4) for seconds in durations]
    estimate, exact = histogram(durations).total, sum(durations)
    assert estimate == pytest.approx(exact, rel=1 / 16 + 1e-9, abs=1e-9 * len(durations))


@settings(deadline=None, max_examples=examples(50))
@given(DURATIONS, DURATIONS)
def test_the_sum_of_a_histogram_never_falls(first: list[float], more: list[float]) -> None:
    assert histogram(first + more).total >= histogram(first).total


def test_buckets_of_another_scale_are_refused() -> None:
    with pytest.raises(ValueError, match="bound=0.5: is not a bound of this scale"):
        snapshot_of([(0.5, 1)], 0.4)
    assert snapshot_of([(BOUNDS_S[9], 2), (BOUNDS_S[9], 1)], 1e-9).measurements == 3


# ---- totals


@pytest.mark.contract("Totals of tasks merge in any order and in any groups.")
@settings(deadline=None, max_examples=examples(50))
@given(totals(), totals(), totals())
def test_merging_may_go_in_any_order_and_in_any_groups(a: Totals, b: Totals, c: Totals) -> None:
    whole = merge([a, b, c])
    assert whole == merge([c, a, b]) == merge([merge([a, b]), c]) == merge([a, merge([b, c])])
    assert merge([a]) == merge([a, Totals()]) == a
    assert whole.calls == a.calls + b.calls + c.calls


@pytest.mark.contract
@settings(deadline=None, max_examples=examples(50))
@given(totals())
def test_json_gives_the_same_totals_back(some: Totals) -> None:
    assert from_json(json.loads(json.dumps(to_json(some)))) == some


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("calls", "7", "Totals.calls='7': must be of type int"),
        ("calls", True, "Totals.calls=True: must be of type int"),
        ("spent", 7, "Totals.spent=7: must be an object"),
        ("latency", [1.0], "Totals.latency="),
        ("latency", [1, 0.5, 0.5, 0.5, 1.0, [[0.5, 1]]], "not a bound"),
    ],
)
def test_what_are_no_totals_is_refused(name: str, value: Any, message: str) -> None:
    written = json.loads(json.dumps(to_json(Totals())))
    written[1 + [*Totals.__dataclass_fields__].index(name)] = value
    with pytest.raises(ValueError, match=message):
        from_json(written)
    for other in (None, [], "x", {}):
        with pytest.raises(ValueError, match="is not one of the messages Totals"):
            from_json(other)


def test_a_field_that_is_missing_is_no_zero() -> None:
    with pytest.raises(ValueError, match="must be a list of"):
        from_json(to_json(Totals(calls=1))[:-1])


@settings(deadline=None, max_examples=examples(50))
@given(totals())
def test_an_operator_that_has_ended_keeps_counts_and_no_levels(some: Totals) -> None:
    after = ended(some)
    assert [getattr(after, name) for name in LEVELS] == [0] * len(LEVELS)
    tables = instruments("levels", "most", "least")
    assert [getattr(after, name) for name in tables] == [{}] * len(tables)
    assert dataclasses.replace(after, **{name: getattr(some, name) for name in [*LEVELS, *tables]}) == some
    after = without_rows(some)
    assert [getattr(after, name) for name in ROWS] == [0] * len(ROWS)
    assert (after.calls, after.in_flight, after.latency) == (some.calls, some.in_flight, some.latency)


def test_the_mean_latency_is_that_of_attempts() -> None:
    assert Totals().mean_latency == 0.0
    some = Totals(latency=histogram([0.01, 0.03]), call_latency=histogram([5.0]))
    assert some.mean_latency == pytest.approx(0.02, rel=1 / 16)


def test_the_statistics_of_a_real_operator_become_totals() -> None:
    async def call(n: int) -> int:
        if n == 3:
            raise ValueError
        return n

    with async_map(range(50), call, errors="null", capacity=5) as results:
        assert len(list(results)) == 50
        some = results.statistics()
    assert some is not None and read_totals(results) == some
    assert (some.rows_in, some.results, some.calls, some.errors) == (50, 50, 50, 1)
    assert dict(some.errors_by_type) == {"ValueError": 1}
    assert some.latency.measurements == 50
    assert set(some.spent) == set(SPENT)
    assert 0 < some.elapsed == pytest.approx(sum(some.spent.values()), abs=0.1)
