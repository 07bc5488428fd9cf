"""Limits that are learned from answers, without a clock: a user of a service's account, or several."""

from __future__ import annotations

import heapq
import random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.limits.metered import Account
from pillarbox.aio.limits.headers import WHOLE_SECOND_S, LimitReading
from pillarbox.aio.limits.learned import CHANGES_S, MAX_CHANGES, UNPROVEN_HOLD_S, LearnedLimits
from tests.search import examples

Form = Literal["bucket", "window"]


def calls(limit: float, remaining: float, reset: float | None, window: float | None = None) -> LimitReading:
    return LimitReading("requests", limit, remaining, reset, 0.05, window)


class World:
    """Users of one account of calls, which all call as fast as they may, and answers after `latency`."""

    def __init__(self, form: Form, limit: float, users: int, latency: float, seed: int = 1) -> None:
        self.account = Account(limit, form)
        self.users = [LearnedLimits(is_alone=users == 1) for _ in range(users)]
        self.latency = latency
        self.random = random.Random(seed)
        self.taken: list[tuple[float, int]] = []
        self.refused: list[float] = []

    def run(self, seconds: float, most: int = 20) -> None:
        running = [0] * len(self.users)
        waiting = [False] * len(self.users)
        events: list[tuple[float, int, int, str, float, LimitReading | None]] = []
        number = 0

        def later(
            at: float, user: int, what: str, began: float = 0.0, said: LimitReading | None = None
        ) -> None:
            nonlocal number
            number += 1
            heapq.heappush(events, (at, number, user, what, began, said))

        def begin(user: int, now: float) -> None:
            limits = self.users[user]
            while running[user] < most:
                wait = limits.ready_in(1.0, now)
                if wait > 0.0:
                    if not waiting[user]:
                        waiting[user] = True
                        later(now + max(1e-4, min(wait, 1.0)), user, "again")
                    return
                limits.begin(1.0, now)
                running[user] += 1
                self.account.look(now)
                is_taken = self.account.left >= 1.0
                if is_taken:
                    self.account.left -= 1.0
                    self.taken.append((now, user))
                else:
                    self.refused.append(now)
                said = calls(self.account.limit, self.account.left, self.account.reset(now))
                later(now + self.latency * self.random.uniform(0.5, 1.5), user, "answer", now, said)

        for user in range(len(self.users)):
            later(0.0, user, "again")
        while events and events[0][0] < seconds:
            now, _, user, what, began, said = heapq.heappop(events)
            if what == "again":
                waiting[user] = False
            else:
                assert said is not None
                running[user] -= 1
                self.users[user].observe([said], began, now)
            begin(user, now)

    def used(self, since: float, until: float) -> float:
        count = sum(since <= at < until for at, _ in self.taken)
        return count / (self.account.limit * (until - since) / 60.0)


@pytest.mark.contract("A task uses a limit of calls that it was not told, and is not refused.")
@pytest.mark.parametrize("form", ["bucket", "window"])
def test_one_user_uses_a_limit_that_answers_name(form: Form) -> None:
    world = World(form, 600.0, 1, 0.4)
    world.run(300.0)
    assert world.used(60.0, 300.0) >= 0.97
    assert [at for at in world.refused if at >= 60.0] == []


@pytest.mark.contract("Tasks that know nothing of each other use a limit together, in even shares.")
@pytest.mark.parametrize("form", ["bucket", "window"])
def test_several_users_use_one_limit_together(form: Form) -> None:
    world = World(form, 1200.0, 8, 0.6)
    world.run(360.0)
    late = [at for at in world.refused if at >= 60.0]
    assert world.used(60.0, 360.0) >= 0.95
    assert len(late) <= 0.002 * len(world.taken)
    shares = [sum(user == each for at, user in world.taken if at > 180.0) for each in range(8)]
    assert min(shares) >= 0.3 * max(shares)


@pytest.mark.contract("Others that use an account are left their part.")
def test_a_user_that_ends_leaves_its_share_to_the_others() -> None:
    world = World("bucket", 600.0, 2, 0.3)
    world.run(120.0)
    alone = World("bucket", 600.0, 1, 0.3)
    alone.account, alone.users = world.account, world.users[:1]
    # Its clock goes on where the other's ended.
    alone.account.at, alone.account.left = 0.0, 30.0
    fresh = alone.users[0] = LearnedLimits()
    alone.run(240.0)
    assert fresh.quotas[0].share > 0.9
    assert alone.used(60.0, 240.0) >= 0.97


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(["bucket", "window"]),
    st.floats(120.0, 3000.0),
    st.floats(0.05, 2.0),
    st.integers(0, 1000),
)
def test_whatever_the_limit_one_user_is_hardly_refused(
    form: Form, limit: float, latency: float, seed: int
) -> None:
    world = World(form, round(limit), 1, latency, seed)
    world.run(200.0)
    late = [at for at in world.refused if at >= 60.0]
    assert len(late) <= max(2.0, 0.005 * len(world.taken))


def test_without_a_limit_that_is_known_nothing_waits() -> None:
    limits = LearnedLimits()
    for _ in range(100):
        assert limits.ready_in(1.0, 0.0) == 0.0
        limits.begin(1.0, 0.0)


@pytest.mark.contract("Tokens are reserved by estimate, and given back when the usage is known.")
def test_tokens_are_reserved_by_estimate_and_given_back() -> None:
    limits = LearnedLimits(is_alone=True)
    limits.begin(1.0, 0.0)
    limits.use(1.0, (100.0, 300.0, 400.0), 0.0, 1.0)
    tokens = LimitReading("tokens", 10_000.0, 5_000.0, 30.0, 0.05)
    answers = LimitReading("output-tokens", 10_000.0, 5_000.0, 30.0, 0.05)
    limits.observe([tokens, answers], 0.0, 1.0)
    both = {quota.kind: quota for quota in limits.quotas}
    before = {kind: quota.level(1.0) for kind, quota in both.items()}
    limits.begin(1.0, 1.0)
    assert before["tokens"] - both["tokens"].level(1.0) == pytest.approx(400.0)
    assert before["output-tokens"] - both["output-tokens"].level(1.0) == pytest.approx(300.0)
    limits.use(1.0, (50.0, 100.0, 150.0), 1.0, 2.0)
    assert before["tokens"] - both["tokens"].level(2.0) == pytest.approx(150.0)
    assert before["output-tokens"] - both["output-tokens"].level(2.0) == pytest.approx(100.0)


def test_a_call_that_was_not_made_gives_back_what_it_had_reserved() -> None:
    limits = LearnedLimits(is_alone=True)
    limits.observe([calls(100.0, 50.0, 30.0)], 0.0, 0.0)
    before = limits.quotas[0].level(0.0)
    limits.reserve(1.0, 0.0, 3)
    limits.give_back(1.0, 0.0, 3)
    assert limits.quotas[0].level(0.0) == pytest.approx(before)


def test_a_call_heavier_than_the_limit_begins_when_nothing_else_does() -> None:
    limits = LearnedLimits(is_alone=True)
    limits.use(1.0, (0.0, 0.0, 5_000.0), 0.0, 0.0)
    limits.observe([LimitReading("tokens", 1_000.0, 1_000.0, 0.0, 0.05)], 0.0, 0.0)
    assert limits.ready_in(1.0, 0.1) == 0.0


@pytest.mark.contract(
    "Limits that change from answer to answer are those of several services: none is followed."
)
def test_limits_in_turn_are_not_followed() -> None:
    limits = LearnedLimits()
    for number in range(2 * MAX_CHANGES + 2):
        limit = 100.0 if number % 2 else 5.0
        limits.observe([calls(limit, 0.0, 3000.0)], float(number), float(number))
    assert limits.quotas == []
    assert limits.ready_in(1.0, 20.0) == 0.0


@pytest.mark.contract("Headers alone hold calls back for a minute at most; then one finds out.")
def test_headers_alone_hold_calls_back_for_a_minute_at_most() -> None:
    limits = LearnedLimits()
    limits.begin(1.0, 0.0)
    limits.observe([calls(100.0, 0.0, 86_400.0)], 0.0, 1.0)
    assert 0.0 < limits.ready_in(1.0, 1.0) <= UNPROVEN_HOLD_S
    assert limits.ready_in(1.0, UNPROVEN_HOLD_S) == 0.0
    limits.begin(1.0, UNPROVEN_HOLD_S)
    assert limits.ready_in(1.0, UNPROVEN_HOLD_S + 1.0) > 0.0


def test_a_limit_with_a_window_and_no_time_fills_step_by_step() -> None:
    limits = LearnedLimits(is_alone=True)
    limits.begin(1.0, 0.0)
    limits.observe([calls(60.0, 0.0, None, 60.0)], 0.0, 0.0)
    assert 0.0 < limits.ready_in(1.0, 0.0) < 6.0


# -- what is held against a limit ------------------------------------------------------------------


def known(remaining: float, *, is_alone: bool = True) -> LearnedLimits:
    """Limits of 100 calls, of which so many are left at 0 s; all are there again at 30 s."""
    limits = LearnedLimits(is_alone=is_alone)
    limits.observe([calls(100.0, remaining, 30.0)], 0.0, 0.0)
    return limits


@pytest.mark.contract(
    "Calls that were let through and not made are held against a limit no longer.",
    convicts=["unmade_calls_are_held"],
)
def test_calls_that_were_not_made_are_not_held_against_the_next_answer() -> None:
    limits = known(50.0)
    before = limits.quotas[0].level(0.0)
    limits.reserve(1.0, 0.0, 10)
    limits.observe([calls(100.0, 50.0, 30.0)], 0.0, 0.1)
    assert limits.quotas[0].level(0.1) == pytest.approx(before - 10.0)
    limits.give_back(1.0, 0.1, 10)
    limits.observe([calls(100.0, 50.0, 30.0)], 0.0, 0.2)
    assert limits.quotas[0].level(0.2) == pytest.approx(before)


@pytest.mark.contract(
    "An answer to a call that began before those that were answered since tells nothing.",
    convicts=["old_answer_tells_the_level"],
)
def test_a_slow_answer_does_not_put_an_old_level_back() -> None:
    limits = known(90.0)
    limits.observe([calls(100.0, 40.0, 20.0)], 5.0, 10.0)
    level = limits.quotas[0].level(11.0)
    limits.observe([calls(100.0, 89.0, 20.0)], 1.0, 11.0)
    assert limits.quotas[0].level(11.0) == level


@pytest.mark.contract(
    "A limit that changes now and then, however often, is followed.", convicts=["changes_of_a_limit_add_up"]
)
def test_a_limit_that_changes_now_and_then_is_followed() -> None:
    limits = LearnedLimits(is_alone=True)
    for number in range(3 * MAX_CHANGES):
        at = (CHANGES_S + 1.0) * number
        limits.observe([calls(100.0 + number, 0.0, 30.0)], at, at)
        assert limits.ready_in(1.0, at) > 0.0, number


@pytest.mark.contract(
    "Usage that an answer has counted already is not counted a second time.",
    convicts=["told_usage_counts_again"],
)
def test_usage_that_an_answer_has_counted_is_not_counted_again() -> None:
    limits = LearnedLimits(is_alone=True)
    limits.use(1.0, (0.0, 0.0, 100.0), 0.0, 0.0)
    limits.begin(1.0, 1.0)
    limits.begin(1.0, 2.0)
    limits.observe([LimitReading("tokens", 10_000.0, 5_000.0, 30.0, 0.05)], 1.0, 3.0)
    level = limits.quotas[0].level(3.0)
    limits.use(1.0, (0.0, 0.0, 900.0), 1.0, 3.0)
    assert limits.quotas[0].level(3.0) == level
    # That of the other one has not been told yet; its estimate is the mean of the two by now.
    reserved = limits.estimate(limits.quotas[0], 1.0)
    limits.use(1.0, (0.0, 0.0, 900.0), 2.0, 4.0)
    assert limits.quotas[0].level(4.0) == pytest.approx(level - (900.0 - reserved))


@pytest.mark.contract(
    "The usage of several calls gives back what was reserved for them, and no more.",
    convicts=["usage_of_several_given_back_often"],
)
def test_the_usage_of_several_calls_is_compared_with_what_was_reserved_for_all() -> None:
    limits = LearnedLimits(is_alone=True)
    limits.use(1.0, (0.0, 0.0, 100.0), 0.0, 0.0)
    limits.observe([LimitReading("tokens", 10_000.0, 5_000.0, 30.0, 0.05)], 0.0, 0.0)
    level = limits.quotas[0].level(0.0)
    limits.reserve(1.0, 1.0, 4)
    limits.note_begun(1.0, 1.0, 4)
    assert limits.quotas[0].level(1.0) == pytest.approx(level - 400.0)
    limits.use(4.0, (0.0, 0.0, 400.0), 1.0, 2.0, 4)
    assert limits.quotas[0].level(2.0) == pytest.approx(level - 400.0)


@pytest.mark.contract(convicts=["calls_of_a_lease_are_others"])
def test_calls_that_begin_together_are_a_user_s_own() -> None:
    limits = LearnedLimits()
    for second in range(60):
        limits.reserve(1.0, float(second), 5)
        limits.note_begun(1.0, float(second), 5)
        left = 1000.0 - 5.0 * (second + 1)
        limits.observe([calls(1000.0, left, 3600.0 - second)], float(second), second + 0.1)
    assert limits.quotas[0].share > 0.9


@pytest.mark.contract(
    "At the time at which a window turns a tenth of it begins, until an answer names the next.",
    convicts=["window_turns_for_each_call"],
)
def test_where_a_window_turns_a_tenth_begins_before_an_answer() -> None:
    limits = known(0.0)
    begun = 0
    for tenth in range(305, 500):
        if limits.ready_in(1.0, tenth / 10) == 0.0:
            limits.begin(1.0, tenth / 10)
            begun += 1
    assert 9 <= begun <= 10


@pytest.mark.contract(
    "A time in whole seconds may be too short by one: no call begins in that second.",
    convicts=["window_turns_too_early"],
)
def test_no_call_begins_in_the_second_by_which_a_time_may_be_too_short() -> None:
    limits = LearnedLimits(is_alone=True)
    limits.observe([LimitReading("requests", 100.0, 0.0, 10.0, WHOLE_SECOND_S)], 0.0, 0.0)
    assert limits.ready_in(1.0, 10.9) > 0.0
    assert limits.ready_in(1.0, 11.0) == 0.0


@pytest.mark.contract(
    "A limit whose calls come back one by one is not gone, however little of it is left.",
    convicts=["empty_bucket_is_gone"],
)
def test_only_a_window_of_which_nothing_is_left_is_gone() -> None:
    window = known(0.0)
    assert window.gone_for(0.0) == pytest.approx(30.0, abs=0.1)
    assert known(1.0).gone_for(0.0) == 0.0
    bucket = LearnedLimits(is_alone=True)
    # One call a second comes back: the time is that until all have.
    for at, left in ((0.0, 30.0), (4.0, 20.0), (8.0, 0.0)):
        bucket.observe([calls(60.0, left, 60.0 - left)], at, at)
    assert bucket.quotas[0].is_bucket and bucket.gone_for(8.0) == 0.0
