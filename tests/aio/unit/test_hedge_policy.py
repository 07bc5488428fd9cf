"""The decisions about hedges alone: what they cost, and after how long a call is slow."""

from __future__ import annotations

import math

import pytest

from pillarbox import Hedge
from pillarbox.aio.policies.hedge import MOST_CREDIT, RECENT_CALLS, HedgePolicy
from pillarbox.aio.policy import CallSuperseded
from tests.aio.unit.test_policies_alone import Fake, call


def test_calls_pay_for_hedges_up_to_what_may_be_saved() -> None:
    policy = HedgePolicy(Hedge(1.0, 0.25), 8, Fake().time)
    assert policy.affordable == 2
    for _ in range(2):
        policy.begin([call(hedges=call())])
    assert (policy.affordable, policy.hedged) == (0, 2)
    for _ in range(3):
        policy.begin([call()])
    assert policy.affordable == 0
    policy.begin([call()])
    assert policy.affordable == 1
    for _ in range(1000):
        policy.begin([call()])
    assert policy.affordable == MOST_CREDIT
    # Where more of those in flight may be hedged, so much.
    many = HedgePolicy(Hedge(1.0, 0.5), 100, Fake().time)
    for _ in range(1000):
        many.begin([call()])
    assert many.affordable == 50


@pytest.mark.contract(convicts=["credit_is_rounded_down"])
@pytest.mark.parametrize(("budget", "paying"), [(0.05, 20), (0.1, 10), (0.3, 10), (1.0, 1)])
def test_a_hedge_is_paid_for_by_as_many_calls_as_its_budget_says(budget: float, paying: int) -> None:
    policy = HedgePolicy(Hedge(1.0, budget), 8, Fake().time)
    for _ in range(2):
        policy.begin([call(hedges=call())])
    for _ in range(paying):
        policy.begin([call()])
    assert policy.affordable == round(paying * budget)


@pytest.mark.parametrize(("quantile", "least"), [("p50", 20), ("p95", 20), ("p96", 25), ("p99", 100)])
def test_a_quantile_is_known_after_enough_calls(quantile: str, least: int) -> None:
    policy = HedgePolicy(Hedge(quantile), 8, Fake().time)
    for number in range(least - 1):
        policy.ended([call()], None, number + 1.0)
    assert policy.after is None
    policy.ended([call()], None, float(least))
    assert policy.after == math.ceil(int(quantile[1:]) / 100 * least)


def test_a_quantile_follows_the_last_calls_and_no_errors() -> None:
    policy = HedgePolicy(Hedge("p90"), 8, Fake().time)
    for seconds in (1.0, 5.0):
        for _ in range(RECENT_CALLS):
            policy.ended([call()], None, seconds)
            policy.ended([call()], OSError(), 100.0)
            policy.ended([call()], CallSuperseded(), 100.0)
        assert policy.after == seconds


def test_where_a_hedge_was_faster_the_time_of_its_row_counts() -> None:
    fake = Fake(now=107.0)
    policy = HedgePolicy(Hedge("p50"), 8, fake.time)
    for _ in range(20):
        policy.ended([call(hedges=call(began=100.0))], None, 1.0)
    assert policy.after == 7.0
