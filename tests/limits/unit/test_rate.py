"""A rate: what it accepts, and that it says what is wrong."""

from __future__ import annotations

import math
import re
from typing import Any

import cloudpickle
import pytest

from pillarbox import Rate
from pillarbox.aio.limits.rate import LocalLimiter, open_limiter


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({}, ValueError, "per_second=None, units_per_minute=None: at least one"),
        ({"per_second": 0}, ValueError, "per_second=0: must be a finite number above 0"),
        ({"per_second": -1.5}, ValueError, "per_second=-1.5"),
        ({"per_second": math.inf}, ValueError, "per_second=inf"),
        ({"per_second": "9"}, TypeError, "per_second='9': must be a number"),
        ({"per_second": True}, TypeError, "per_second=True"),
        ({"units_per_minute": 5}, ValueError, "units_per_minute=5, weight=None: give both or neither"),
        ({"per_second": 1, "weight": len}, ValueError, "give both or neither"),
        ({"units_per_minute": 5, "weight": 7}, TypeError, "weight=7: must be a function"),
        ({"per_second": 1, "burst": 0}, ValueError, "burst=0"),
        ({"per_second": 1, "cool_down": math.nan}, ValueError, "cool_down=nan"),
    ],
)
def test_a_bad_rate_is_refused_by_name_when_it_is_made(
    given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        Rate(**given)


def test_a_rate_pickles_with_its_weight() -> None:
    factor = 3
    rate = Rate(2.5, 60.0, weight=lambda row: factor * len(row), burst=0.5, cool_down=2.0)
    again = cloudpickle.loads(cloudpickle.dumps(rate))
    assert (again.per_second, again.units_per_minute, again.burst, again.cool_down) == (2.5, 60.0, 0.5, 2.0)
    assert again.units_of("ab") == 6.0
    assert Rate(1.0).units_of("ab") == 1.0


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, "a", None])
def test_a_weight_that_is_no_number_of_units_is_an_error_of_its_row(weight: Any) -> None:
    rate = Rate(units_per_minute=60.0, weight=lambda row: weight)
    with pytest.raises((TypeError, ValueError), match="weight gave"):
        rate.units_of("row")


def test_there_is_no_gate_where_nothing_is_bounded() -> None:
    assert open_limiter(None, None, None, None) is None
    assert isinstance(open_limiter(Rate(1.0), None, None, None), LocalLimiter)
    assert isinstance(open_limiter(None, 1, None, None), LocalLimiter)
    assert isinstance(open_limiter(None, None, 1.0, None), LocalLimiter)
