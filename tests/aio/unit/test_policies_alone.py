"""Each policy of the operator alone: a fake call, a fake clock, services made by hand."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pillarbox import (
    Adaptive,
    AskAgain,
    Budget,
    CallFailed,
    Endpoints,
    Errors,
    NothingSucceeded,
    Options,
    Rate,
    Result,
    Retry,
    RetryBudget,
    Timeout,
    TooManyFailures,
    Usage,
)
from pillarbox.aio.endpoint_pool import EndpointPool
from pillarbox.aio.errors import CallTimeout, Failed, ResultRejected
from pillarbox.aio.limits.used_up import IN_A_ROW
from pillarbox.aio.meter import Meter
from pillarbox.aio.policies.cost import CostPolicy
from pillarbox.aio.policies.endpoints import EndpointPolicy
from pillarbox.aio.policies.errors import ErrorPolicy
from pillarbox.aio.policies.fit import FitPolicy
from pillarbox.aio.policies.hedge import HedgePolicy
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policies.per_key import KeyPolicy
from pillarbox.aio.policies.retry import RepeatPolicy, RetryPolicy
from pillarbox.aio.policies.returns import ReturnPolicy
from pillarbox.aio.policies.service_limits import ServiceLimitsPolicy
from pillarbox.aio.policies.slots import SlotPolicy
from pillarbox.aio.policies.time_budget import TimeBudgetPolicy
from pillarbox.aio.policy import FINAL, MOMENTS, Again, CallPolicy, CallSuperseded, HookFailed, PolicyServices
from pillarbox.aio.policy_parts import OptionPolicy
from pillarbox.aio.usage import UsageMissing
from tests.aio.overloaded import Overloaded


@dataclass(eq=False)
class FakeCall:
    """A row as policies see it; its last attempt is number `attempt`."""

    row: Any = "row"
    attempt: int = 1
    uncharged: int = 0
    repeats: int = 0
    refusals: int = 0
    refused_since: float | None = None
    units: float | None = None
    cost: float = 0.0
    began: float = 0.0
    error: BaseException | None = None
    execution: Any = None
    hedges: Any = None
    avoided: tuple[Any, ...] = ()

    @property
    def charged(self) -> int:
        return self.attempt - self.uncharged

    @property
    def is_first(self) -> bool:
        return self.charged == 1

    def elapsed(self, now: float) -> float:
        return now - self.began


@dataclass
class Fake:
    """A clock that is set by hand, and what a policy has asked of its operator."""

    now: float = 100.0
    asked: list[str] = field(default_factory=list)
    soon: list[Callable[[], object]] = field(default_factory=list)
    finished: int = 0
    begun: int = 0
    in_flight: int = 0
    stuck: int = 0
    limit: int = 10

    def time(self) -> float:
        return self.now

    def call_soon(self, fn: Callable[[], object]) -> None:
        self.soon.append(fn)

    def turn(self) -> None:
        """Call what was to be called in the next turn of the loop."""
        soon, self.soon = self.soon, []
        for fn in soon:
            fn()

    def services(self) -> PolicyServices:
        loop: Any = self
        return PolicyServices(
            loop=loop,
            clock=self.time,
            redact=Errors().redaction,
            wake=lambda: self.asked.append("wake"),
            stop=lambda error: self.asked.append(f"stop {error}"),
            finished=lambda: self.finished,
            begun=lambda: self.begun,
            in_flight=lambda: self.in_flight,
            running_since=lambda moment: self.stuck,
            limit=lambda: self.limit,
            changed=lambda: self.asked.append("changed"),
            gate_appears=lambda: self.asked.append("gate"),
        )


def call(**more: Any) -> Any:
    return FakeCall(**more)


def calls(count: int) -> Sequence[Any]:
    return [FakeCall(row) for row in range(count)]


TRIED = {
    RetryPolicy: {"begin", "accept", "again"},
    RepeatPolicy: {"again"},
    LoadPolicy: {"may_begin", "ended", "again"},
    ServiceLimitsPolicy: {"may_begin", "ended", "again"},
    SlotPolicy: {"may_begin", "ended"},
    CostPolicy: {"accept"},
    FitPolicy: {"accept"},
    KeyPolicy: {"finish"},
    TimeBudgetPolicy: set(),
    HedgePolicy: {"begin", "ended"},
    EndpointPolicy: {"may_begin", "choose", "ended", "again", "finish"},
    ReturnPolicy: set(),
}
"""The moments of each policy, which the tests below call; those of endpoints `test_endpoint_policy.py`,
those of hedges `test_hedge_policy.py`."""


def test_each_moment_that_a_policy_overrides_is_tried_here() -> None:
    for kind, tried in TRIED.items():
        overridden = {each for each in MOMENTS if getattr(kind, each) is not getattr(CallPolicy, each)}
        assert overridden == tried, kind
    derived = {*CallPolicy.__subclasses__(), *OptionPolicy.__subclasses__()} - {OptionPolicy}
    assert {each for each in derived if each.__module__.startswith("pillarbox.aio.")} == {*TRIED}


# -- limits of the service ---------------------------------------------------------------------------


def service_limits(mode: Any) -> tuple[ServiceLimitsPolicy, LoadPolicy, Fake]:
    fake, options = Fake(), Options(errors=mode)
    load = LoadPolicy(options, None, fake.time)
    policy = ServiceLimitsPolicy(options, load)
    for each in (load, policy):
        each.open(fake.services())
    return policy, load, fake


class PaymentRequired(Exception):
    status = 402


def test_refusals_that_agree_exhaust_the_load_and_are_made_again_for_nothing() -> None:
    policy, load, fake = service_limits("column")
    for _ in range(IN_A_ROW):
        assert load.exhausted is None and policy.again([call()], PaymentRequired()) is None
        policy.ended([call()], PaymentRequired(), 1.0)
    assert load.exhausted == "the credit of the account" and "gate" in fake.asked
    assert load.may_begin(calls(1)) == math.inf
    assert policy.again([call()], PaymentRequired()) == Again(0.0, "refusal")
    assert policy.again([call()], ValueError()) is None


def test_a_row_that_finishes_between_refusals_begins_their_count_anew() -> None:
    policy, load, fake = service_limits("column")
    for _ in range(2 * IN_A_ROW):
        fake.finished += 1
        policy.ended([call()], PaymentRequired(), 1.0)
    assert load.exhausted is None


def test_limits_in_an_error_of_one_of_several_addresses_are_not_learned() -> None:
    policy, load, fake = service_limits("column")
    refused = Overloaded(3.0)
    refused.headers |= {"ratelimit-limit": "60", "ratelimit-remaining": "0", "ratelimit-reset": "30"}
    refused._pillarbox_failed_at = "http://other/"  # type: ignore[attr-defined]
    policy.ended([call(began=fake.now)], refused, 1.0)
    assert load.limiter is None
    del refused._pillarbox_failed_at  # type: ignore[attr-defined]
    policy.ended([call(began=fake.now)], refused, 1.0)
    assert load.limiter is not None


def test_limits_in_an_answer_make_a_limiter_that_holds_calls_back() -> None:
    policy, load, fake = service_limits("column")
    headers = {"ratelimit-limit": "60", "ratelimit-remaining": "0", "ratelimit-reset": "30"}
    first = call(began=fake.now)
    policy.report_limits([first], {"ratelimit-limit": "60"})
    assert load.limiter is None and fake.asked == []
    policy.report_limits([first], headers)
    assert load.limiter is not None and fake.asked == ["gate"]
    assert 0.0 < load.may_begin(calls(1)) <= 60.0


def test_calls_are_held_back_while_the_quotas_of_all_endpoints_are_used_up() -> None:
    policy, _, fake = service_limits("column")
    pool = EndpointPool(Endpoints(["http://one", "http://two"]).spread, fake.time)
    policy.follow(pool)
    assert "may_begin" in policy.skips
    headers = {"ratelimit-limit": "60", "ratelimit-remaining": "0", "ratelimit-reset": "30"}
    for endpoint in pool.all:
        assert policy.may_begin(calls(1)) == 0.0
        answered = call(began=fake.now)
        answered.endpoint = endpoint
        policy.report_limits([answered], headers)
    assert fake.asked == ["gate"] and policy.skips == frozenset()
    assert 0.0 < policy.may_begin(calls(1)) <= 60.0
    fake.now += 32.0
    assert policy.may_begin(calls(1)) == 0.0


def long_refusal(remaining: int | None = None) -> Overloaded:
    """A refusal that asks for seven hours, beside a limit of which so many calls are left."""
    refused = Overloaded(25_200.0)
    if remaining is not None:
        refused.headers |= {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": f"{remaining}",
            "x-ratelimit-reset-requests": "7h0m0s",
        }
    return refused


@pytest.mark.contract(convicts=["one_call_left_is_none"])
def test_a_refusal_beside_a_limit_of_which_nothing_is_left_needs_no_second_one() -> None:
    for remaining, is_gone in ((0, True), (1, False), (None, False)):
        policy, load, fake = service_limits("column")
        policy.ended([call(began=fake.now)], long_refusal(remaining), 1.0)
        assert (load.exhausted is not None) is is_gone


@pytest.mark.contract(convicts=["long_refusals_add_up"])
def test_a_refusal_that_asks_for_seconds_begins_the_count_of_long_ones_anew() -> None:
    policy, load, fake = service_limits("column")
    for asked in (*[25_200.0] * (IN_A_ROW - 1), 3.0, *[25_200.0] * (IN_A_ROW - 1)):
        policy.ended([call(began=fake.now)], Overloaded(asked), 1.0)
        assert load.exhausted is None
    policy.ended([call(began=fake.now)], long_refusal(), 1.0)
    assert load.exhausted is not None


@pytest.mark.contract(convicts=["usage_without_age"])
def test_usage_is_counted_at_the_time_at_which_its_call_began() -> None:
    class Told:
        """Stands for a limiter; keeps what it is told of usage."""

        def use(self, *told: object) -> None:
            used.append(told)

    policy, load, fake = service_limits("column")
    used: list[Any] = []
    load.limiter = Told()  # type: ignore[assignment]
    policy.use([call(began=fake.now - 7.0), call(began=fake.now - 7.0)], Usage(input_tokens=3, tokens=5))
    assert used == [(2.0, (3, 0, 5), 7.0)]


# -- slots -------------------------------------------------------------------------------------------------


class FakeSlots:
    """Slots that are given by hand; keeps what was asked of them."""

    def __init__(self) -> None:
        self.limit = self.stuck = 0
        self.asked: list[str] = []

    def start(self, in_flight: Any, changed: Any, fail: Any) -> None:
        self.asked.append("start")
        self.changed = changed

    def want(self) -> None:
        self.asked.append("want")

    def release(self) -> None:
        self.asked.append("release")

    async def close(self) -> None:
        self.asked.append("close")


def test_calls_wait_for_a_slot_and_ask_for_more_with_the_last_one() -> None:
    slots, fake = FakeSlots(), Fake()
    policy = SlotPolicy(slots)
    policy.open(fake.services())
    policy.start()
    assert policy.may_begin(calls(1)) == math.inf and policy.limit == 1
    slots.limit = 3
    slots.changed()
    assert fake.asked == ["changed", "wake"]
    assert policy.may_begin(calls(1)) == 0.0 and policy.limit == 3
    assert slots.asked == ["start", "want"]
    fake.in_flight = 2
    assert policy.may_begin(calls(1)) == 0.0
    assert slots.asked == ["start", "want", "want"]


def test_a_call_waits_and_asks_for_a_slot_where_all_that_there_are_hang() -> None:
    slots, fake = FakeSlots(), Fake()
    policy = SlotPolicy(slots)
    policy.open(fake.services())
    slots.limit = slots.stuck = fake.in_flight = 2
    # So that the gate is asked.
    assert policy.limit == 3
    assert policy.may_begin(calls(1)) == math.inf and slots.asked == ["want"]
    slots.limit = 3
    assert policy.limit == 3 and policy.may_begin(calls(1)) == 0.0


def test_a_slot_is_given_back_once_its_call_is_no_longer_in_flight() -> None:
    slots, fake = FakeSlots(), Fake()
    policy = SlotPolicy(slots)
    policy.open(fake.services())
    policy.ended(calls(1), None, 1.0)
    assert slots.asked == []
    fake.turn()
    assert slots.asked == ["release"]


# -- retry ------------------------------------------------------------------------------------------


def test_retry_decides_by_the_charged_attempts_and_the_error() -> None:
    policy = RetryPolicy(Retry(3, initial=1.0, multiplier=2.0, jitter=False), Fake().time)
    assert policy.again([call(attempt=1)], OSError()) == Again(1.0)
    assert policy.again([call(attempt=2)], OSError()) == Again(2.0)
    assert policy.again([call(attempt=3)], OSError()) is None
    assert policy.again([call(attempt=9, uncharged=8)], OSError()) == Again(1.0)
    assert policy.again([call(attempt=1)], NameError()) is None


def test_retry_refuses_a_result_and_has_it_asked_for_again() -> None:
    policy = RetryPolicy(Retry(2, result=lambda result: result == "bad", jitter=False), Fake().time)
    assert policy.accept(call(), "good") == "good"
    with pytest.raises(ResultRejected) as rejected:
        policy.accept(call(), "bad")
    assert policy.again([call(attempt=1)], rejected.value) == Again(0.1)
    assert policy.again([call(attempt=2)], rejected.value) is None


def test_a_hook_of_retry_that_raises_is_told_apart_from_a_bad_result() -> None:
    policy = RetryPolicy(Retry(2, result=lambda result: 1 / 0), Fake().time)
    with pytest.raises(HookFailed) as failed:
        policy.accept(call(), "any")
    assert isinstance(failed.value.cause, ZeroDivisionError)


def test_retry_without_a_hook_for_results_or_a_budget_has_no_such_moments() -> None:
    assert RetryPolicy(Retry(2), Fake().time).skips == {"accept", "begin"}
    assert RetryPolicy(Retry(2, result=bool, budget=RetryBudget()), Fake().time).skips == frozenset()


def test_the_budget_of_retry_is_a_share_of_the_rows_begun_in_its_time() -> None:
    fake = Fake()
    budget = RetryBudget(0.5, 0, seconds=10.0)
    policy = RetryPolicy(Retry(9, initial=0.0, budget=budget), fake.time)
    for each in calls(4):
        policy.begin([each])
    # A batch that is called again adds no row.
    policy.begin([call(attempt=2), call(attempt=3)])
    assert [policy.again([call()], OSError()) is not None for _ in range(3)] == [True, True, False]
    fake.now += 11.0
    policy.begin([call()])
    policy.begin([call()])
    assert [policy.again([call()], OSError()) is not None for _ in range(2)] == [True, False]


def test_the_budget_of_retry_goes_on_from_its_snapshot_as_if_no_time_had_passed() -> None:
    fake, budget = Fake(), RetryBudget(0.5, 0, seconds=10.0)
    before = RetryPolicy(Retry(9, initial=0.0, budget=budget), fake.time)
    for each in calls(4):
        before.begin([each])
    assert before.again([call()], OSError()) is not None
    state = before.snapshot()
    fake.now += 1000.0
    after = RetryPolicy(Retry(9, initial=0.0, budget=budget), fake.time)
    after.restore(state)
    assert [after.again([call()], OSError()) is not None for _ in range(2)] == [True, False]
    assert RetryPolicy(Retry(2), fake.time).snapshot() is None


def test_a_pause_is_as_long_as_the_service_asked_for_up_to_the_limit() -> None:
    policy = RetryPolicy(Retry(3, initial=1.0, max_retry_after=60.0, jitter=False), Fake().time)
    assert policy.again([call()], Overloaded(7.0)) == Again(7.0)
    assert policy.again([call()], Overloaded(7000.0)) == Again(60.0)


def test_a_function_that_asks_again_is_repeated_uncharged_as_often_as_it_asks() -> None:
    policy = RepeatPolicy(None)
    asks = AskAgain("no JSON", times=2)
    assert policy.again([call(repeats=0)], asks) == Again(0.0, "repeat")
    assert policy.again([call(repeats=1)], asks) == Again(0.0, "repeat")
    assert policy.again([call(repeats=2)], asks) is None
    assert policy.again([call(), call(repeats=2)], asks) is None
    assert policy.again([call()], OSError()) is None


def test_a_request_that_was_not_read_is_repeated_once_where_retry_wants_it() -> None:
    error = ConnectionResetError(errno.ECONNRESET, "reset")
    assert RepeatPolicy(None).again([call()], error) is None
    wants = RepeatPolicy(RetryPolicy(Retry(1), Fake().time))
    assert wants.again([call()], error) == Again(0.0, "repeat")
    assert wants.again([call(repeats=1)], error) is None
    assert RepeatPolicy(RetryPolicy(Retry(2, on=(ValueError,)), Fake().time)).again([call()], error) is None


# -- load -------------------------------------------------------------------------------------------


def load(fake: Fake, retry: Retry | None = None, **options: Any) -> LoadPolicy:
    decides = None if retry is None else RetryPolicy(retry, fake.time)
    policy = LoadPolicy(Options(retry=retry, **options), decides, fake.time)
    policy.open(fake.services())
    return policy


def test_load_without_limits_has_no_moment() -> None:
    assert load(Fake()).skips == {"may_begin", "ended"}
    assert load(Fake(), Retry(2, max_outage=0.0)).skips == {"may_begin", "ended"}


def test_a_rate_lets_calls_begin_at_its_pace() -> None:
    fake = Fake()
    policy = load(fake, rate=Rate(2.0, burst=0.5))
    assert policy.may_begin(calls(1)) == 0.0
    assert policy.may_begin(calls(1)) == pytest.approx(0.5, abs=1e-5)
    fake.now += 0.5
    assert policy.may_begin(calls(1)) == 0.0


def test_the_weights_of_rows_count_at_the_rate() -> None:
    fake = Fake()
    rate = Rate(units_per_minute=60.0, weight=lambda row: 30.0, burst=60.0)
    policy = load(fake, rate=rate)
    assert policy.weighs and policy.units_of("row") == 30.0
    assert policy.may_begin([call(units=30.0), call(units=30.0)]) == 0.0
    assert policy.may_begin([call(units=30.0)]) == pytest.approx(30.0, abs=1e-5)


def test_a_budget_of_calls_is_used_up_for_good_and_given_back_is_not() -> None:
    fake = Fake()
    policy = load(fake, budget=Budget(max_calls=2), errors="null")
    assert [policy.may_begin(calls(1)) for _ in range(2)] == [0.0, 0.0]
    assert policy.exhausted == "max_calls=2"
    assert policy.may_begin(calls(1)) == math.inf
    assert policy.spent() == (2, 0.0)


def test_a_budget_of_cost_counts_what_is_spent_in_lives_before_too() -> None:
    fake = Fake()
    policy = load(fake, budget=Budget(max_cost=1.0), errors="null")
    policy.restore_spent(3, 0.4)
    assert policy.may_begin(calls(1)) == 0.0
    policy.spend(0.7)
    assert policy.exhausted is not None
    assert policy.spent() == (4, pytest.approx(1.1))


def refuse(policy: LoadPolicy, error: BaseException, times: int) -> None:
    for _ in range(times):
        policy.ended(calls(1), error, 0.1)


def test_an_overload_opens_a_breaker_and_holds_back_its_own_row_only() -> None:
    fake = Fake(limit=10, in_flight=1)
    policy = load(fake, Retry(1, initial=1.0, jitter=False))
    assert policy.breaker is None and "may_begin" in policy.skips
    refused = Overloaded(5.0)
    refuse(policy, refused, 1)
    assert policy.breaker is not None and fake.asked == ["gate"]
    assert policy.needs_answers and "may_begin" not in policy.skips
    assert not policy.breaker.is_cooling and policy.may_begin(calls(1)) == 0.0
    assert policy.again([call()], refused) == Again(5.0, "refusal")
    assert policy.again([call()], OSError()) is None


def test_overloads_that_are_many_hold_back_all_calls_for_as_long_as_the_service_asks() -> None:
    fake = Fake(limit=10, in_flight=1)
    policy = load(fake, Retry(1, initial=1.0, jitter=False))
    refused = Overloaded(5.0)
    refuse(policy, refused, 4)
    assert policy.breaker is not None and policy.breaker.is_cooling
    assert policy.may_begin(calls(1)) == pytest.approx(5.0, abs=1e-5)
    fake.now += 5.1
    # One call tries whether the service is well again.
    assert policy.may_begin(calls(1)) == 0.0
    assert 0.0 < policy.may_begin(calls(1)) <= 0.1 + 1e-5
    policy.ended(calls(1), None, 0.1)
    assert not policy.breaker.is_outage
    counts = policy.limiter_statistics()
    assert counts is not None and (counts.granted, counts.cool_downs) == (1, 1)


def test_slow_calls_that_are_refused_one_after_the_other_hold_back_all_calls() -> None:
    fake = Fake(limit=1)
    policy = load(fake, Retry(1))
    for count in range(5):
        assert policy.breaker is None or not policy.breaker.is_cooling, count
        fake.now += 20.0
        policy.ended(calls(1), Overloaded(60.0), 20.0)
    assert policy.breaker is not None and policy.breaker.is_cooling


def test_a_rate_leaves_the_adaptive_limit_as_it_is_and_a_full_server_cuts_it() -> None:
    for status, cut in ((429, False), (503, True)):
        fake = Fake(limit=16, in_flight=16)
        policy = load(fake, Retry(1), capacity=Adaptive(start=16))
        fake.now += 1.0
        # More than chance for the limit, and an answer between, so that the service is there.
        for _ in range(8):
            policy.ended(calls(1), None, 0.5)
            policy.ended(calls(1), Overloaded(None, status), 0.5)
        assert policy.found is not None and (policy.found < 16) is cut
        assert policy.breaker is not None and policy.breaker.is_cooling is not cut


def test_a_full_server_without_any_answer_is_an_outage() -> None:
    fake = Fake(limit=16, in_flight=16)
    policy = load(fake, Retry(1), capacity=Adaptive(start=16))
    refuse(policy, Overloaded(None, 503), 8)
    assert policy.breaker is not None and policy.breaker.is_cooling


def test_a_row_that_was_refused_for_too_long_is_final() -> None:
    fake = Fake(finished=1)
    policy = load(fake, Retry(1, max_outage=60.0))
    refused = Overloaded(None)
    policy.ended(calls(1), refused, 0.1)
    late = call(refused_since=fake.now)
    decision = policy.again([late], refused)
    assert decision is not None and decision.pause is not None
    fake.now += 61.0
    assert policy.again([late], refused) == FINAL._replace(charge="refusal")
    error = CallFailed(1, refused)
    policy.explain(late, error)
    assert error.detail == "the service was overloaded for longer than max_outage=60 s of Retry"


def test_rows_in_a_row_that_reach_no_service_are_an_outage() -> None:
    fake = Fake()
    policy = load(fake, Retry(2, initial=1.0, jitter=False))
    away = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    for each in calls(100):
        policy.ended([each], away, 0.0)
        if policy.breaker is not None and policy.breaker.is_outage:
            break
    else:
        pytest.fail("no outage after a hundred calls that reach nothing")
    assert policy.is_refusal(away) and policy.may_begin(calls(1)) > 0.0
    fake.now += 31.0
    # It was never reached: its address may be wrong.
    assert not policy.waits_for_service()


def test_an_error_that_is_an_answer_ends_an_outage_and_a_timeout_does_not() -> None:
    fake = Fake()
    policy = load(fake, Retry(2))
    refuse(policy, Overloaded(1.0), 4)
    fake.now += 1.1
    assert policy.breaker is not None and policy.may_begin(calls(1)) == 0.0
    policy.ended(calls(1), TimeoutError(), 0.1)
    assert policy.breaker.is_outage
    policy.ended(calls(1), ValueError("a row of its own"), 0.1)
    assert not policy.breaker.is_outage


def test_an_adaptive_limit_follows_the_ends_of_attempts() -> None:
    fake = Fake()
    policy = load(fake, capacity=Adaptive(start=2, most=8))
    assert policy.found == 2 and policy.needs_answers
    # Two that begin at once, two behind them that are measured, and one more, by which they are known.
    for _ in range(5):
        fake.now += 0.1
        policy.ended(calls(1), None, 0.2)
    assert policy.found == 4 and fake.asked == ["changed"] * 5
    assert load(Fake()).found is None


def test_a_limiter_with_a_rate_is_cooled_down_by_refusals_that_are_more_than_chance() -> None:
    fake = Fake(begun=10)
    policy = load(fake, rate=Rate(1e6, cool_down=3.0))
    assert not policy.can_break
    refuse(policy, Overloaded(1.0), 2)
    assert policy.may_begin(calls(1)) == 0.0
    refuse(policy, Overloaded(None), 2)
    assert policy.may_begin(calls(1)) == pytest.approx(3.0, abs=1e-5)


# -- cost -------------------------------------------------------------------------------------------


def cost(fake: Fake, budget: Budget) -> tuple[CostPolicy, Meter, list[float]]:
    meter, spent = Meter(), []  # type: ignore[var-annotated]
    return CostPolicy(budget, meter, spent.append, fake.time), meter, spent


def test_a_result_with_its_usage_is_billed_and_unwrapped() -> None:
    policy, meter, spent = cost(Fake(), Budget())
    row = call()
    assert policy.accept(row, Result("value", Usage(0.5, tokens=10))) == "value"
    assert (meter.cost, meter.tokens, row.cost, spent) == (0.5, 10, 0.5, [0.5])
    assert policy.accept(row, "plain") == "plain" and spent == [0.5]


def test_the_hook_says_what_a_result_cost_and_fails_its_row_where_it_raises() -> None:
    policy, meter, _ = cost(Fake(), Budget(usage=lambda row, result: len(result) * 0.1))
    assert policy.looks and policy.accept(call(), "abc") == "abc"
    assert meter.cost == pytest.approx(0.3)
    raising, _, _ = cost(Fake(), Budget(usage=lambda row, result: 1 / 0))
    with pytest.raises(HookFailed):
        raising.accept(call(), "abc")


def test_a_bounded_cost_that_nobody_knows_ends_the_job() -> None:
    policy, _, _ = cost(Fake(), Budget(max_cost=1.0))
    with pytest.raises(UsageMissing):
        policy.accept(call(), "plain")
    policy, _, spent = cost(Fake(), Budget(max_cost=1.0))
    row = call()
    policy.bill_request([row], Usage(0.2), 0.1, True)
    assert policy.bills_requests and policy.accept(row, "plain") == "plain" and spent == [0.2]
    policy.bill_request([row], Usage(0.0), 0.1, False)
    assert not policy.bills_requests
    with pytest.raises(UsageMissing):
        policy.accept(row, "plain")


def test_a_batch_shares_its_cost_and_an_error_bills_what_it_says() -> None:
    policy, meter, spent = cost(Fake(), Budget())
    rows = calls(4)
    assert policy.bill_batch(rows, Usage(1.0))
    assert [each.cost for each in rows] == [0.25] * 4
    error: Any = OSError()
    error.usage = Usage(0.5)
    assert policy.bill_error([rows[0]], error) is None
    assert policy.bill_error([rows[0]], OSError()) is None
    assert (meter.cost, spent) == (1.5, [1.0, 0.5])


def test_a_late_result_is_paid_for_and_none_of_the_cost_of_its_row() -> None:
    policy, meter, _ = cost(Fake(), Budget())
    row = call(cost=0.25)
    assert policy.bill_late(row, Result("late", 0.5)) == ("late", 0.5)
    assert (row.cost, meter.cost) == (0.25, 0.5)


# -- errors -----------------------------------------------------------------------------------------


def errors(fake: Fake, **options: Any) -> tuple[ErrorPolicy, Meter]:
    meter = Meter()
    return ErrorPolicy(Options(**options), meter, fake.time), meter


def test_a_failed_row_ends_the_job_or_has_its_error_as_the_options_say() -> None:
    policy, _ = errors(Fake(), errors="fail")
    with pytest.raises(CallFailed):
        policy.of_failure(call(), CallFailed(1, OSError("away")), 1)
    fake = Fake()
    policy, meter = errors(fake, errors="null")
    row = call(began=fake.now - 2.0)
    failed = policy.of_failure(row, CallFailed(1, OSError("away")), 1)
    assert type(failed) is Failed
    assert (failed.info.type, failed.info.latency) == ("OSError", pytest.approx(2.0))
    assert (meter.errors, meter.errors_by_type) == (1, {"OSError": 1})
    assert policy.first is not None and policy.first.error.attempts == 1


def test_more_failures_than_are_allowed_end_the_job() -> None:
    policy, _ = errors(Fake(), errors=Errors("null", stop_after=1, floor=None))
    policy.of_failure(call(), CallFailed(1, OSError()), 1)
    with pytest.raises(TooManyFailures):
        policy.of_failure(call(), CallFailed(1, OSError()), 2)
    policy, _ = errors(Fake(), errors=Errors("null", stop_after=0.5, floor=None))
    policy.of_failure(call(), CallFailed(1, OSError()), 1)
    policy.check_end(2)
    policy.count_shared(Failed(policy.snapshot().last), 1, 2)  # type: ignore[arg-type]
    with pytest.raises(TooManyFailures):
        policy.check_end(2)


def test_rows_that_all_fail_for_one_cause_end_the_job_at_the_floor() -> None:
    policy, _ = errors(Fake(), errors=Errors("null", floor=3))
    for finished in (1, 2):
        policy.of_failure(call(), CallFailed(1, OSError("away")), finished)
    with pytest.raises(NothingSucceeded):
        policy.of_failure(call(), CallFailed(1, OSError("away")), 3)
    policy, _ = errors(Fake(), errors=Errors("null", floor=3))
    for finished in (1, 3, 4, 5):
        policy.of_failure(call(), CallFailed(1, OSError("away")), finished)


def test_a_timeout_has_its_fallback_and_counts_as_no_error() -> None:
    policy, meter = errors(Fake(), errors="null", timeout=Timeout(1.0, fallback=lambda row: f"no {row}"))
    assert policy.of_failure(call(), CallTimeout("timeout", 1.0, 1), 1) == "no row"
    assert meter.errors == 0


def test_a_row_that_is_not_called_is_no_error() -> None:
    policy, meter = errors(Fake(), errors="null")
    failed = policy.of_no_call(call(attempt=0), "max_calls=2")
    assert failed.not_called and "max_calls=2 is used up" in failed.info.message
    policy.count_shared(failed, 2, 3)
    assert (meter.not_called, meter.errors) == (3, 0)


def test_failures_go_on_from_their_snapshot() -> None:
    before, _ = errors(Fake(), errors=Errors("null", stop_after=1, floor=None))
    before.of_failure(call(), CallFailed(1, OSError("away")), 1)
    after, meter = errors(Fake(), errors=Errors("null", stop_after=1, floor=None))
    after.restore(before.snapshot())
    assert (meter.errors, meter.errors_by_type) == (1, {"OSError": 1})
    with pytest.raises(TooManyFailures):
        after.of_failure(call(), CallFailed(1, OSError("away")), 2)


# -- fit --------------------------------------------------------------------------------------------


class Numbers:
    """Converts results to numbers."""

    def convert(self, result: Any) -> Any:
        return int(result)

    def convert_all(self, results: list[Any]) -> list[Any]:
        return [*map(int, results)]

    def rows_of(self, results: Any) -> list[Any] | None:
        return None

    elements_of = rows_of


def test_fit_converts_a_result_and_refuses_one_that_does_not_fit() -> None:
    policy = FitPolicy(Numbers())
    assert policy.skips == frozenset() and policy.accept(call(), "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        policy.accept(call(), "seven")
    assert policy.convert_fallback is not None and policy.convert_fallback("8") == 8


def test_fit_without_a_converter_has_no_moment() -> None:
    policy = FitPolicy(None)
    assert policy.skips == {"accept"} and policy.convert is None


def test_a_superseded_call_says_nothing_of_the_load() -> None:
    policy = load(Fake(), capacity=Adaptive(start=4, most=64))
    before = policy.found
    for _ in range(100):
        policy.ended([call()], CallSuperseded(), 100.0)
    assert policy.found == before
