"""The policies of keys and of time alone: fake calls, a fake clock, services made by hand."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest

from pillarbox import Budget, Limit
from pillarbox.aio.policies.per_key import KeyPolicy
from pillarbox.aio.policies.time_budget import TimeBudgetPolicy
from tests.aio.unit.test_policies_alone import Fake, call


def keyed(at_once: int = 1) -> tuple[KeyPolicy, Fake, list[Any], list[list[Any]]]:
    """A policy by the first letter of a row, with what it holds and what it has go on."""
    fake, held, resumed = Fake(), [], []

    def resume(rows: Sequence[Any], is_behind: bool) -> None:
        resumed.append(["behind", *rows] if is_behind else [*rows])

    policy = KeyPolicy(Limit(lambda row: row[0], at_once), held.append, resume)
    policy.open(fake.services())
    return policy, fake, held, resumed


def test_rows_of_a_key_go_on_in_their_order_each_in_the_next_turn_of_the_loop() -> None:
    policy, fake, held, resumed = keyed()
    rows = [call(row=row) for row in ("a1", "a2", "b1", "a3")]
    assert [policy.let_through(each) for each in rows] == [True, False, True, False]
    assert held == [rows[1], rows[3]] and policy.statistics() == {"queued_by_key": 2.0}
    policy.finish(rows[0], "result")
    assert resumed == []
    fake.turn()
    policy.finish(rows[1], "result")
    # Behind its result it may be told of again: a ledger has it.
    policy.leave(rows[1])
    fake.turn()
    assert resumed == [[rows[1]], [rows[3]]] and policy.statistics() == {}
    policy.finish(rows[3], "result")
    assert policy.let_through(call(row="a4"))


def test_what_is_let_through_in_one_turn_goes_on_together() -> None:
    policy, fake, _, resumed = keyed(at_once=2)
    rows = [call(row=f"a{number}") for number in range(5)]
    assert [policy.let_through(each) for each in rows] == [True, True, False, False, False]
    policy.finish(rows[1], "result")
    policy.finish(rows[0], "result")
    fake.turn()
    assert resumed == [rows[2:4]]


@pytest.mark.contract(convicts=["row_of_key_overtakes"])
def test_a_row_does_not_overtake_one_of_its_key_that_has_not_begun() -> None:
    policy, fake, _, resumed = keyed(at_once=2)
    rows = [call(row=f"a{number}", attempt=number == 0) for number in range(3)]
    assert [policy.let_through(each) for each in rows] == [True, True, False]
    policy.finish(rows[0], "result")
    fake.turn()
    assert resumed == [["behind", rows[2]]]


@pytest.mark.contract(convicts=["queued_row_takes_another_out"])
def test_a_row_that_ends_in_the_queue_of_its_key_lets_nobody_through() -> None:
    policy, fake, _, resumed = keyed()
    rows = [call(row=f"a{number}") for number in range(4)]
    for each in rows:
        policy.let_through(each)
    policy.leave(rows[2])
    fake.turn()
    assert resumed == []
    for each in rows[:2]:
        policy.finish(each, "result")
        fake.turn()
    assert resumed == [[rows[1]], [rows[3]]]


@pytest.mark.contract(convicts=["keys_are_kept"])
def test_a_key_whose_rows_have_all_left_is_forgotten() -> None:
    policy, fake, _, _ = keyed()
    for number in range(100):
        rows = [call(row=f"{chr(number)}{place}") for place in range(2)]
        for each in rows:
            policy.let_through(each)
        for each in rows:
            policy.finish(each, "result")
            fake.turn()
    assert policy._keys == policy._through == policy._queued == {}


def test_a_row_is_taken_out_behind_its_completion() -> None:
    policy, fake, _, resumed = keyed()
    rows = [call(row=f"a{number}") for number in range(2)]
    for each in rows:
        policy.let_through(each)
    completed: list[Any] = []
    policy.completing(lambda row, result: completed.append((row, result)))(rows[0], "found")
    fake.turn()
    assert completed == [(rows[0], "found")] and resumed == [[rows[1]]]


# -- time --------------------------------------------------------------------------------


def test_the_policy_sets_one_timer_and_cancels_it() -> None:
    class Loop:
        def __init__(self) -> None:
            self.timers: list[tuple[float, Any]] = []
            self.cancelled = 0

        def call_later(self, seconds: float, fn: Any, *words: Any) -> Loop:
            self.timers.append((seconds, lambda: fn(*words)))
            return self

        def cancel(self) -> None:
            self.cancelled += 1

    class Services:
        loop = Loop()

    said: list[str] = []
    policy = TimeBudgetPolicy(Budget(max_seconds=7.0), said.append, lambda: 0.0)
    services: Any = Services()
    policy.open(services)
    policy.start()
    ((seconds, over),) = services.loop.timers
    assert seconds == 7.0 and said == []
    over()
    assert said == ["max_seconds=7"]
    policy.close()
    assert services.loop.cancelled == 1


@pytest.mark.parametrize("left", [-0.5, 0.0])
def test_no_call_begins_where_the_time_is_over_at_the_start(left: float) -> None:
    until = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
    said: list[str] = []
    fake = Fake()
    policy = TimeBudgetPolicy(Budget(until=until), said.append, lambda: until.timestamp() - left)
    policy.open(fake.services())
    policy.start()
    # Before any turn of the loop.
    assert said == ["until=2030-01-01T00:00:00+00:00"]
