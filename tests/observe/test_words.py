"""Numbers, durations and rates as a person reads them."""

from __future__ import annotations

import pytest

from pillarbox.aio.observe.series import Point, point
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.observe.words import compact, left, number, parts, rate_of_late, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (1234567, "1,234,567"),
        (123.4, "123"),
        (12.345, "12.3"),
        (0.5, "0.5"),
        (0.00123, "0.00123"),
        (-3.25, "-3.25"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_a_number_has_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (1e-7, "100 ns"),
        (0.00025, "250 µs"),
        (0.0123, "12.3 ms"),
        (0.99999, "1 s"),
        (4.56, "4.56 s"),
        (59.99, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (100_000, "28 h"),
        (float("nan"), "nan"),
    ],
)
def test_a_duration_has_a_unit_that_fits(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_tile_has_room_for_any_number() -> None:
    values = (7, 0.123, 123456, 999_499, 999_999, 12_345_678, 1.2e12)
    assert [compact(value) for value in values] == [
        "7",
        "0.123",
        "123,456",
        "999,499",
        "1 M",
        "12.35 M",
        "1.2 T",
    ]


def test_bytes_have_a_unit_that_fits() -> None:
    assert [size(value) for value in (0, 1023, 5e6, 1e13)] == ["0 B", "1,023 B", "4.77 MiB", "9,313 GiB"]


def points(*results: int, step: float = 1.0) -> list[Point]:
    return [point(i * step, Totals(results=count)) for i, count in enumerate(results)]


def test_the_rate_is_that_of_late_and_never_negative() -> None:
    assert rate_of_late([]) == rate_of_late(points(5)) == 0.0
    assert rate_of_late(points(0, 1000, *range(1000, 1100, 5)), window=10.0) == 5.0
    assert rate_of_late(points(0, 30, step=30.0), window=10.0) == 1.0
    assert rate_of_late(points(100, 40)) == 0.0


def test_the_time_left_is_known_only_with_a_total_and_a_rate() -> None:
    some = Totals(results=40)
    assert left(some, 100, 6.0) == 10.0
    assert left(some, None, 6.0) is None
    assert left(some, 100, 0.0) is None
    assert left(some, 30, 6.0) is None


def test_a_bar_says_rate_calls_retries_errors_cost_and_time_left() -> None:
    some = Totals(in_flight=3, capacity=64, retries=2, errors=1, cost=0.25)
    assert [text for _, text in parts(some, 1234.5, 12.4)] == [
        "1,234 rows/s",
        "3/64 in flight",
        "2 retries",
        "1 errors",
        "cost 0.25",
        "12 s left",
    ]
    assert [name for name, _ in parts(Totals(), 0.0, 5.0)] == ["rate", "in_flight", "retries", "errors"]
