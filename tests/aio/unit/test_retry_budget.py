"""The retry budget: what it allows in any stretch of time, and what it counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Retry, RetryBudget
from pillarbox.aio.policies.retry import RetryPolicy
from pillarbox.testing import FakeClock

STEPS = st.lists(st.tuples(st.sampled_from(["row", "retry"]), st.floats(0, 4)), max_size=80)


def asks(policy: RetryPolicy, times: int) -> int:
    """Retries granted of so many asked for."""
    return sum(policy.pause(1, ConnectionError()) is not None for _ in range(times))


def begin(policy: RetryPolicy, rows: int) -> None:
    for _ in range(rows):
        policy.began(1)


@pytest.mark.contract
@given(steps=STEPS, share=st.floats(0, 2), least=st.integers(0, 5), seconds=st.floats(0.5, 5))
def test_no_stretch_of_time_has_more_retries_than_its_budget(
    steps: list[tuple[str, float]], share: float, least: int, seconds: float
) -> None:
    clock = FakeClock(100.0)
    policy = RetryPolicy(Retry(budget=RetryBudget(share, least, seconds=seconds)), clock)
    rows: list[float] = []
    retries: list[float] = []
    for what, pause in steps:
        clock.advance(pause)
        if what == "row":
            policy.began(1)
            rows.append(clock())
        elif asks(policy, 1):
            retries.append(clock())
    for last in retries:
        # Times are kept to a tenth of the stretch.
        near = sum(last - 0.9 * seconds + 1e-6 < each <= last for each in retries)
        begun = sum(last - seconds - 1e-6 <= each <= last for each in rows)
        assert near <= least + share * begun + 1e-6


@given(steps=STEPS, share=st.floats(0, 2), least=st.integers(0, 5), seconds=st.floats(0.5, 5))
def test_a_retry_is_refused_only_when_the_budget_is_used_up(
    steps: list[tuple[str, float]], share: float, least: int, seconds: float
) -> None:
    clock = FakeClock(100.0)
    policy = RetryPolicy(Retry(budget=RetryBudget(share, least, seconds=seconds)), clock)
    rows: list[float] = []
    retries: list[float] = []
    for what, pause in steps:
        clock.advance(pause)
        now = clock()
        if what == "row":
            policy.began(1)
            rows.append(now)
        elif asks(policy, 1):
            retries.append(now)
        else:
            used = sum(now - seconds - 1e-6 <= each for each in retries)
            begun = sum(now - 0.9 * seconds + 1e-6 < each for each in rows)
            assert used + 1 > least + share * begun - 1e-6


def test_a_task_with_few_rows_has_its_least_and_no_more() -> None:
    policy = RetryPolicy(Retry(budget=RetryBudget(0.2, 3)), FakeClock())
    assert asks(policy, 10) == 3


def test_each_row_begun_adds_its_share_and_a_further_attempt_does_not() -> None:
    policy = RetryPolicy(Retry(budget=RetryBudget(0.2, 0)), FakeClock())
    assert policy.counts_attempts
    assert asks(policy, 1) == 0
    begin(policy, 50)
    for _ in range(1000):
        policy.began(2)
    assert asks(policy, 100) == 10


def test_what_is_used_comes_back_with_time_and_what_is_saved_goes() -> None:
    clock = FakeClock()
    policy = RetryPolicy(Retry(budget=RetryBudget(1.0, 2, seconds=10.0)), clock)
    begin(policy, 100)
    clock.advance(9.0)
    assert asks(policy, 50) == 50
    clock.advance(1.0)
    # The rows are forgotten, the retries are not yet.
    assert asks(policy, 50) == 0
    clock.advance(9.0)
    assert asks(policy, 50) == 2
    clock.advance(1e6)
    assert asks(policy, 50) == 2


def test_only_what_would_be_tried_again_uses_the_budget() -> None:
    policy = RetryPolicy(Retry(2, on=(OSError,), budget=RetryBudget(0.0, 1)), FakeClock())
    assert policy.pause(1, ValueError()) is None
    assert policy.pause(2, OSError()) is None
    assert policy.pause(1, OSError()) is not None
    assert policy.pause(1, OSError()) is None


@pytest.mark.contract
def test_each_operator_has_an_account_of_its_own() -> None:
    retry = Retry(budget=RetryBudget(0.0, 1))
    one, other = RetryPolicy(retry, FakeClock()), RetryPolicy(retry, FakeClock())
    assert (asks(one, 3), asks(other, 3)) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"share": -0.1}, ValueError, "share=-0.1: must be a finite number, at least 0"),
        ({"share": math.nan}, ValueError, "share=nan: must be a finite number"),
        ({"share": True}, TypeError, "share=True: must be a number"),
        ({"least": -1}, ValueError, "least=-1: must be at least 0"),
        ({"least": 1.5}, TypeError, "least=1.5: must be an int"),
        ({"seconds": 0}, ValueError, "seconds=0: must be a finite number above 0"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RetryBudget(**arguments)
