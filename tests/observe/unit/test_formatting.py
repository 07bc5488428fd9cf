"""Numbers and durations as a person reads them."""

from __future__ import annotations

import pytest

from pillarbox.aio.totals import compact, number, seconds


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
