"""The circuit breaker of an operator, its pace and its outages: pure, on a clock that the test moves."""

from __future__ import annotations

import pytest

from pillarbox.aio.errors import ServiceResting
from pillarbox.aio.policies.breaker import REFUSALS_IN_A_ROW, CircuitBreaker
from pillarbox.aio.policies.outage import MAX_OUTAGE_UNSEEN_S, MIN_OUTAGE_CALLS, Outage
from pillarbox.aio.policies.pace import CUTS_TO_BELIEVE, DECREASE, PROBES_PER_S, SETTLED_S, Pace
from pillarbox.testing import FakeClock

MAX_OUTAGE_S = 600.0


def breaker_of(clock: FakeClock, reached: int = 1000) -> CircuitBreaker:
    """A breaker whose cool-downs take 1, 2, 4 s and so on where the service asks for none."""
    return CircuitBreaker(clock, lambda number: 2.0 ** (number - 1), MAX_OUTAGE_S, reached=reached)


def refuse_many(breaker: CircuitBreaker, asked: float | None = None) -> None:
    """Refusals of one moment that are more than chance, of calls that began just now."""
    for _ in range(10):
        breaker.count_granted(breaker._clock())
    for _ in range(10):
        breaker.overloaded(asked, in_flight=10)


def begun(breaker: CircuitBreaker, clock: FakeClock, seconds: float) -> int:
    """The calls that begin within so many seconds, of as many as may."""
    count, until = 0, clock() + seconds
    while clock() < until:
        wait = breaker.ready_in(clock())
        if wait == 0.0:
            breaker.count_granted(clock())
            count += 1
        else:
            clock.advance(min(wait, until - clock()) + 1e-6)
    return count


@pytest.mark.contract(
    "The end of a rest ends the pause for it, and none for which the service has asked.",
    convicts=["return_ends_any_pause"],
)
def test_the_end_of_a_rest_ends_the_pause_for_it_alone() -> None:
    clock = FakeClock(100.0)
    breaker = breaker_of(clock)
    breaker.rest(ServiceResting("none takes calls", 30.0))
    assert breaker.ready_in(clock()) > 29.0
    breaker.end_rest()
    # At once, and one by one until one is answered.
    assert breaker.ready_in(clock()) == 0.0
    assert begun(breaker, clock, 1.0) <= PROBES_PER_S + 1
    breaker.rest(ServiceResting("none takes calls", 30.0))
    breaker.overloaded(50.0)
    breaker.end_rest()
    assert breaker.ready_in(clock()) > 49.0


@pytest.mark.contract(
    "Calls that are in flight when a service dies are one outage, and one pause.",
    convicts=["each_unreached_call_trips"],
)
def test_calls_in_flight_when_a_service_dies_are_one_cool_down() -> None:
    clock = FakeClock(100.0)
    breaker = breaker_of(clock)
    for _ in range(100):
        breaker.unreached(True)
    assert breaker.cool_downs == 1
    assert breaker.ready_in(clock()) == pytest.approx(1.0, abs=0.001)


@pytest.mark.contract(
    "Refusals now and then with answers between hold back no call, however slow calls are.",
    convicts=["refusals_of_a_day_add_up"],
)
def test_refusals_with_answers_between_them_hold_back_no_call() -> None:
    clock = FakeClock(100.0)
    breaker = breaker_of(clock)
    for _ in range(3 * REFUSALS_IN_A_ROW):
        clock.advance(20.0)
        assert not breaker.overloaded(None, in_flight=1)
        clock.advance(20.0)
        breaker.succeeded()
    for _ in range(REFUSALS_IN_A_ROW - 1):
        clock.advance(20.0)
        assert not breaker.overloaded(None, in_flight=1)
    clock.advance(20.0)
    assert breaker.overloaded(None, in_flight=1)


@pytest.mark.contract("A refusal that asks for less, or for nothing, does not shorten a pause.")
def test_a_later_refusal_does_not_shorten_a_cool_down() -> None:
    clock = FakeClock(100.0)
    breaker = breaker_of(clock)
    refuse_many(breaker, 30.0)
    clock.advance(1.0)
    assert not breaker.overloaded(None) and not breaker.overloaded(5.0)
    assert breaker.ready_in(clock()) == pytest.approx(29.0, abs=0.001)
    assert breaker.overloaded(60.0)
    assert breaker.ready_in(clock()) == pytest.approx(60.0, abs=0.001)


@pytest.mark.contract("A pause is as short as the first one once the service has answered between.")
def test_cool_downs_grow_in_a_row_and_begin_anew_after_an_answer() -> None:
    clock = FakeClock(100.0)
    breaker = breaker_of(clock)
    waits = []
    for _ in range(3):
        refuse_many(breaker)
        waits.append(round(breaker.ready_in(clock())))
        clock.advance(waits[-1] + 0.1)
    assert waits == [1, 2, 4]
    breaker.succeeded()
    clock.advance(60.0)
    refuse_many(breaker)
    assert breaker.ready_in(clock()) == pytest.approx(1.0, abs=0.001)


@pytest.mark.contract("A service that does not answer gets ten calls a second to try it, and never more.")
def test_a_service_that_does_not_answer_is_tried_at_one_pace() -> None:
    clock = FakeClock(100.0)
    breaker = breaker_of(clock)
    refuse_many(breaker)
    clock.advance(1.1)
    assert begun(breaker, clock, 10.0) <= 10.0 * PROBES_PER_S + 1


@pytest.mark.contract("An answer to a call from before a pause does not end it.")
def test_an_answer_of_before_does_not_end_a_cool_down() -> None:
    clock = FakeClock(100.0)
    breaker = breaker_of(clock)
    refuse_many(breaker, 10.0)
    clock.advance(1.0)
    breaker.succeeded()
    assert breaker.is_outage and breaker.is_cooling
    clock.advance(9.1)
    breaker.succeeded()
    assert not breaker.is_outage


# -- the pace ----------------------------------------------------------------------------------------


def pace_of(answered: float, now: float) -> Pace:
    """A pace that has begun after probes, of a service that answered so many calls a second before."""
    pace = Pace(0.0)
    pace.learn(answered)
    pace.probe(now - 0.1)
    pace.begin(now)
    return pace


def test_a_pace_begins_below_what_was_answered_and_grows_from_then_on() -> None:
    pace = pace_of(100.0, 1000.0)
    assert pace.per_second == pytest.approx(DECREASE * 100.0)
    pace.ready_in(1000.02, grows=True)
    assert pace.per_second == pytest.approx(DECREASE * 100.0, rel=0.05)
    pace.ready_in(1000.35, grows=True)
    assert pace.per_second == pytest.approx(2.0 * DECREASE * 100.0)


@pytest.mark.contract("Refusals of one moment lower the pace once.")
def test_refusals_of_one_moment_lower_the_pace_once() -> None:
    pace = pace_of(100.0, 10.0)
    pace.slow_down(0.1, 11.0, 100.0)
    once = pace.per_second
    assert once == pytest.approx(DECREASE**2 * 100.0)
    pace.slow_down(0.1, 11.0 + SETTLED_S / 2, 100.0)
    assert pace.per_second == once
    pace.slow_down(0.1, 11.0 + SETTLED_S, 100.0)
    assert pace.per_second is not None and pace.per_second < once


@pytest.mark.contract(
    "After an overload refusals lower the pace also where they came at random before.",
    convicts=["random_refusals_believed_for_good"],
)
def test_what_was_believed_of_refusals_is_forgotten_with_an_overload() -> None:
    pace, now = pace_of(100.0, 10.0), 10.0
    for _ in range(CUTS_TO_BELIEVE + 1):
        now += 1.0
        pace.slow_down(0.1, now, 100.0)
    before = pace.per_second
    pace.slow_down(0.1, now + 1.0, 100.0)
    # Fewer calls have brought no fewer refusals.
    assert pace.per_second == before
    pace.learn(100.0)
    pace.probe(now + 2.0)
    pace.begin(now + 3.0)
    before = pace.per_second
    pace.slow_down(0.1, now + 4.0, 100.0)
    assert before is not None and pace.per_second is not None and pace.per_second < before


@pytest.mark.contract(convicts=["forgotten_pace_keeps_its_curve"])
def test_a_pace_that_is_forgotten_doubles_from_that_of_probes() -> None:
    pace = pace_of(12.0, 10.0)
    pace.learn(12.0)
    pace.forget()
    pace.probe(100.0)
    pace.begin(101.0)
    assert pace.per_second == PROBES_PER_S
    pace.ready_in(102.05, grows=True)
    assert pace.per_second == pytest.approx(8.0 * PROBES_PER_S)


# -- outages -----------------------------------------------------------------------------------------


@pytest.mark.contract(
    "A refusal, too, shows that the service is reached.", convicts=["refused_is_not_reached"]
)
def test_a_refusal_between_calls_that_reach_nothing_shows_that_there_is_no_outage() -> None:
    outage = Outage(MAX_OUTAGE_S, 1000)
    for _ in range(5):
        for _ in range(MIN_OUTAGE_CALLS - 1):
            assert not outage.unreached(True)
        outage.refused()
    assert [outage.unreached(True) for _ in range(MIN_OUTAGE_CALLS)][-1]


@pytest.mark.contract(
    "A second outage of a service is seen as soon as the first.", convicts=["outage_is_what_is_usual"]
)
def test_a_second_outage_is_seen_as_soon_as_the_first() -> None:
    outage = Outage(MAX_OUTAGE_S, 1000)
    for _ in range(2):
        found = [outage.unreached(True) for _ in range(500)]
        assert found.index(True) == MIN_OUTAGE_CALLS - 1
        outage.answered(was_outage=True)
    # Those that reach nothing with the service up are what is usual: more of them are needed then.
    for _ in range(500):
        outage.unreached(True)
        outage.answered(was_outage=False)
    assert [outage.unreached(True) for _ in range(500)].index(True) > 2 * MIN_OUTAGE_CALLS


@pytest.mark.contract(
    "A row that comes when a service is given up does not wait as long again.",
    convicts=["outage_is_never_over"],
)
def test_an_outage_is_given_up_for_all_rows_and_begins_anew_with_an_answer() -> None:
    outage = Outage(MAX_OUTAGE_S, 1000)
    assert not outage.is_hopeless(100.0)
    assert not outage.is_given_up(650.0, 650.0)
    assert outage.is_given_up(700.0, 700.0) and outage.has_given_up(700.0)
    outage.answered(was_outage=True)
    assert outage.lasts(800.0) == 0.0 and not outage.has_given_up(800.0)
    assert not outage.is_hopeless(800.0) and outage.lasts(900.0) == 100.0
    # A row of before has its own time.
    assert outage.is_given_up(200.0, 800.0)


def test_a_service_that_was_never_reached_is_waited_for_half_a_minute() -> None:
    assert Outage(MAX_OUTAGE_S, 0).most == MAX_OUTAGE_UNSEEN_S
    assert Outage(5.0, 0).most == 5.0 and Outage(MAX_OUTAGE_S, 1).most == MAX_OUTAGE_S
