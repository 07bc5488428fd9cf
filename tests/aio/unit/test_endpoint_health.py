"""The breaker of one endpoint and the facts about it: pure objects, times given by hand."""

from __future__ import annotations

import pytest

from pillarbox.aio.endpoint_health import FAULTS_IN_A_ROW, FIRST_REST_S, MAX_REST_S, REFUSALS_IN_A_ROW, Health
from pillarbox.aio.endpoints import ANSWERS_TO_KNOW, Endpoint
from pillarbox.testing import FakeClock


def refuse(health: Health, now: float, asked: float | None = None) -> bool:
    """A request that begins now and is refused at once; True if a rest begins."""
    period = health.begin()
    began = health.refused(period, now, asked)
    health.end(period)
    return began


def answer(health: Health, now: float) -> bool:
    """A request that begins now and is answered at once; True if it ends a rest."""
    period = health.begin()
    ended = health.answered(period, now)
    health.end(period)
    return ended


def fail(health: Health, now: float, others_at: float) -> bool:
    """A request that begins now and ends with a fault; others_at: when another endpoint has answered last."""
    period = health.begin()
    began = health.failed(period, now + 0.1, now, False, others_at)
    health.end(period)
    return began


@pytest.mark.contract(
    "Refusals of an endpoint with answers between them do not have it rest.", convicts=["refusals_add_up"]
)
def test_refusals_with_answers_between_them_begin_no_rest() -> None:
    health = Health()
    for number in range(3 * REFUSALS_IN_A_ROW):
        assert not refuse(health, float(number))
        answer(health, number + 0.5)
    for _ in range(REFUSALS_IN_A_ROW - 1):
        assert not refuse(health, 100.0)
    assert refuse(health, 100.0)


@pytest.mark.contract(
    "A refusal that comes later makes a rest longer, and never shorter.",
    convicts=["later_refusal_shortens_rest"],
)
def test_a_refusal_that_comes_later_never_shortens_a_rest() -> None:
    health = Health()
    before = health.begin(), health.begin()
    assert refuse(health, 0.0, 30.0)
    health.refused(before[0], 1.0, 2.0)
    assert health.ready_in(1.0) == 29.0
    health.refused(before[1], 1.0, 60.0)
    assert health.ready_in(1.0) == 60.0


def test_the_first_rest_is_short_and_each_one_in_a_row_twice_as_long_up_to_a_bound() -> None:
    health, now, rests = Health(), 0.0, []
    for _ in range(10):
        assert health.rest(health.begin(), now)
        rests.append(health.ready_in(now))
        now += rests[-1]
    assert rests == [min(MAX_REST_S, FIRST_REST_S * 2**number) for number in range(10)]


@pytest.mark.contract(
    "An endpoint that has been well for a while begins with a short rest again.",
    convicts=["rests_never_short_again"],
)
def test_an_endpoint_that_was_well_for_a_while_begins_with_a_short_rest_again() -> None:
    health = Health()
    health.rest(health.begin(), 0.0)
    health.rest(health.begin(), 1.0)
    assert answer(health, 2.0)
    # Half a second was its last rest: within a second it is the same illness.
    assert health.rest(health.begin(), 2.9) and health.ready_in(2.9) == 4 * FIRST_REST_S
    assert answer(health, 4.0)
    assert health.rest(health.begin(), 4.0 + 2 * 4 * FIRST_REST_S)
    assert health.ready_in(4.0 + 2 * 4 * FIRST_REST_S) == FIRST_REST_S


@pytest.mark.contract(
    "A call that runs out of time has an endpoint rest only where it answers nothing.",
    convicts=["slow_row_ends_address"],
)
@pytest.mark.parametrize(
    ("own_at", "others_at", "rests"), [(-1.0, 6.0, True), (6.0, 6.0, False), (-1.0, 4.0, False)]
)
def test_a_late_call_is_the_fault_of_an_endpoint_that_answers_nothing_while_others_do(
    own_at: float, others_at: float, rests: bool
) -> None:
    health = Health()
    period = health.begin()
    if own_at > 0.0:
        health.answered(health.begin(), own_at)
    assert health.failed(period, 7.0, 5.0, True, others_at) is rests


@pytest.mark.contract(
    "An endpoint that fails request after request rests, once another one has answered.",
    convicts=["answers_of_others_before_last_fault"],
)
def test_faults_in_a_row_have_an_endpoint_rest_once_another_one_has_answered() -> None:
    for others_at, rests in ((-1.0, False), (1.05, True)):
        health = Health()
        # The other one has answered between the first of the faults and the last.
        found = [fail(health, 1.0 + 0.1 * number, others_at) for number in range(FAULTS_IN_A_ROW)]
        assert found == [False] * (FAULTS_IN_A_ROW - 1) + [rests]


def test_one_request_probes_an_endpoint_that_has_rested_and_another_one_when_that_has_ended() -> None:
    health = Health()
    health.rest(health.begin(), 0.0)
    assert not health.takes(FIRST_REST_S / 2) and health.takes(FIRST_REST_S)
    period = health.begin()
    assert not health.takes(FIRST_REST_S)
    health.end(period)
    assert health.takes(FIRST_REST_S)


# -- the facts of an endpoint ------------------------------------------------------------------------


def endpoint_of(clock: FakeClock) -> Endpoint:
    return Endpoint("http://one", "one", 1.0, clock)


@pytest.mark.contract(
    "The first answer of an endpoint, which has the cost of its connection, counts for no latency.",
    convicts=["connection_counts_as_latency"],
)
def test_the_first_answer_counts_for_no_latency() -> None:
    clock = FakeClock(100.0)
    endpoint = endpoint_of(clock)
    endpoint.answered(clock(), 9.0, False)
    for _ in range(ANSWERS_TO_KNOW - 1):
        assert endpoint.latency is None
        endpoint.answered(clock(), 0.5, False)
    assert endpoint.latency == pytest.approx(0.5)


@pytest.mark.contract(
    "`Endpoint.seconds_in_state` counts from the begin of the first of several rests, and from the return."
)
def test_the_time_in_a_state_counts_from_the_first_rest_and_from_the_return() -> None:
    clock = FakeClock(100.0)
    endpoint = endpoint_of(clock)
    clock.advance(50.0)
    assert endpoint.seconds_in_state == 50.0
    for was_open in (False, True):
        endpoint.health.rest(endpoint.health.period, clock())
        endpoint.rests(clock(), was_open)
        clock.advance(3.0)
    assert endpoint.state == "half open" and endpoint.seconds_in_state == 6.0
    endpoint.answered(clock(), 0.1, True)
    clock.advance(2.0)
    assert endpoint.seconds_in_state == 2.0
