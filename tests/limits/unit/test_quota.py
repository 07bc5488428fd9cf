"""The accounts of a coordinator, without sockets and on a clock that is moved."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pillarbox.aio.limits.messages import UsageReport
from pillarbox.aio.limits.quota import RETURN_TIMEOUT_S, QuotaAllocator
from pillarbox.aio.limits.rate import Limits
from pillarbox.testing import FakeClock
from tests.search import examples

SLOTS = ["a", "b", "c"]
MAX_CALLS = 25


class Task:
    """The actions and the knowledge of a client."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received = 0
        self.used = 0
        self.back = 0
        self.connected = True
        self.lapse_at = math.inf

    @property
    def held(self) -> int:
        return self.received - self.used - self.back

    def report(self) -> UsageReport:
        return UsageReport(self.received, self.used, self.back, 0.5 * self.used)


class Budget(RuleBasedStateMachine):
    """Tasks take, use, give back, lose their connection, die; the coordinator dies and reads what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(100.0)
        self.allocator = QuotaAllocator(Limits(max_calls=MAX_CALLS), self.clock)
        self.tasks: dict[str, Task] = {}
        self.names = 0
        self.begun = 0
        self.all_known = True
        self.write()

    def write(self) -> None:
        self.written = json.loads(json.dumps(self.allocator.to_json()))

    def task(self, slot: str) -> Task:
        if slot not in self.tasks:
            self.names += 1
            self.tasks[slot] = Task(f"{slot}{self.names}")
            self.allocator.register(self.tasks[slot].name, UsageReport())
        return self.tasks[slot]

    @rule(slot=st.sampled_from(SLOTS), calls=st.integers(1, 12), delivered=st.booleans())
    def take(self, slot: str, calls: int, delivered: bool) -> None:
        task = self.task(slot)
        if not task.connected:
            return
        self.allocator.want(task.name, task.received, calls, 0.0)
        grants, _ = self.allocator.grant()
        # Written down before it is said.
        self.write()
        for client, granted in grants.items():
            other = next(each for each in self.tasks.values() if each.name == client)
            if delivered:
                other.received += granted.calls
                other.lapse_at = self.clock() + self.allocator.limits.life
            else:
                # It was on its way when the connection broke.
                other.connected = False
                self.allocator.lost(client)

    @rule(slot=st.sampled_from(SLOTS), times=st.integers(1, 3))
    def use(self, slot: str, times: int) -> None:
        task = self.task(slot)
        for _ in range(times):
            if task.connected and task.held and self.clock() < task.lapse_at:
                task.used += 1
                self.allocator.report(task.name, task.report())
                self.begun += 1

    @rule(slot=st.sampled_from(SLOTS))
    def give_back(self, slot: str) -> None:
        task = self.task(slot)
        task.back += task.held
        if task.connected:
            self.allocator.report(task.name, task.report())
            self.allocator.report(task.name, task.report())

    @rule(slot=st.sampled_from(SLOTS))
    def cut(self, slot: str) -> None:
        task = self.task(slot)
        if task.connected:
            task.connected = False
            self.allocator.lost(task.name)

    @rule(slot=st.sampled_from(SLOTS), unheard=st.integers(0, 3))
    def cut_by_the_net(self, slot: str, unheard: int) -> None:
        task = self.task(slot)
        if task.connected:
            for _ in range(unheard):
                if task.held and self.clock() < task.lapse_at:
                    task.used += 1
                    self.begun += 1
            task.connected = False
            self.allocator.lost(task.name)

    @rule(slot=st.sampled_from(SLOTS))
    def come_back(self, slot: str) -> None:
        task = self.task(slot)
        if not task.connected:
            task.connected = True
            self.allocator.register(task.name, task.report())

    @rule(slot=st.sampled_from(SLOTS))
    def die(self, slot: str) -> None:
        task = self.tasks.pop(slot, None)
        if task is not None:
            # What it held counts as used.
            self.all_known = False
            if task.connected:
                self.allocator.lost(task.name)

    @rule(slot=st.sampled_from(SLOTS))
    def leave(self, slot: str) -> None:
        task = self.tasks.get(slot)
        if task is not None and task.connected:
            task.back += task.held
            self.allocator.leave(task.name, task.report())
            # A farewell whose answer was lost is said again.
            self.allocator.register(task.name, task.report())
            self.allocator.leave(task.name, task.report())
            self.write()
            del self.tasks[slot]

    @rule(seconds=st.floats(0.0, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for task in self.tasks.values():
            if self.clock() >= task.lapse_at:
                task.back += task.held
                if task.connected:
                    self.allocator.report(task.name, task.report())
        self.allocator.expire()

    @rule()
    def restart(self) -> None:
        self.allocator = QuotaAllocator.from_json(self.written, self.clock)
        for task in self.tasks.values():
            task.connected = False

    @invariant()
    def no_more_calls_begin_than_are_allowed(self) -> None:
        assert self.begun <= self.allocator.committed
        assert self.allocator.committed <= MAX_CALLS
        assert self.allocator.used <= self.allocator.committed
        assert all(client.held >= 0 for client in self.allocator.clients.values())

    def teardown(self) -> None:
        """Everybody comes back, or is given up: then nothing is lost."""
        for slot in [*self.tasks]:
            self.come_back(slot)
            self.give_back(slot)
        self.clock.advance(self.allocator.limits.life + RETURN_TIMEOUT_S + 1.0)
        self.allocator.expire()
        self.no_more_calls_begin_than_are_allowed()
        if self.all_known:
            assert self.allocator.used == self.allocator.committed == self.begun
            assert self.allocator.cost == pytest.approx(0.5 * self.begun)


TestBudget = Budget.TestCase
TestBudget.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def drain(
    allocator: QuotaAllocator, clock: FakeClock, seconds: float, wants: dict[str, tuple[int, float]]
) -> dict[str, int]:
    """Let clients want so many calls of so many units all the time; how many calls each can make."""
    got = dict.fromkeys(wants, 0)
    until = clock() + seconds
    units_of = dict.fromkeys(wants, 0.0)
    for name in wants:
        allocator.register(name, UsageReport())
    while clock() < until:
        for name, (calls, units) in wants.items():
            allocator.want(name, got[name], calls, units)
        grants, wait = allocator.grant()
        for client, granted in grants.items():
            got[client] += granted.calls
            units_of[client] += granted.calls * granted.units
            allocator.report(client, UsageReport(got[client], got[client]))
        clock.advance(min(wait, until - clock()) if wait < math.inf else 0.01)
    weights = {name: units for name, (_, units) in wants.items() if units}
    return got | {name: int(units_of[name] / units) for name, units in weights.items()}


@pytest.mark.contract
def test_all_who_want_calls_get_equal_shares_of_the_rate_however_much_one_wants() -> None:
    clock = FakeClock(100.0)
    allocator = QuotaAllocator(Limits(per_second=200.0, burst=0.2), clock)
    got = drain(
        allocator, clock, 10.0, {"greedy": (4000, 0.0), "b": (10, 0.0), "c": (10, 0.0), "d": (10, 0.0)}
    )
    assert sum(got.values()) == pytest.approx(2000, rel=0.03)
    assert all(calls == pytest.approx(500, rel=0.1) for calls in got.values())


@pytest.mark.contract
def test_a_task_with_heavy_calls_is_not_overtaken_for_ever() -> None:
    clock = FakeClock(100.0)
    allocator = QuotaAllocator(Limits(units_per_second=100.0, burst=1.0), clock)
    got = drain(allocator, clock, 60.0, {"heavy": (1, 500.0), "light": (100, 1.0)})
    assert got["heavy"] >= 5
    assert got["light"] >= 2500
    assert 5900 <= got["heavy"] * 500 + got["light"] <= 6000 + 500


@pytest.mark.contract
@pytest.mark.parametrize("rate", [0.5, 30.0, 5000.0])
def test_what_is_granted_stays_below_the_rate_and_reaches_it(rate: float) -> None:
    clock = FakeClock(100.0)
    allocator = QuotaAllocator(Limits(per_second=rate, burst=1.0), clock)
    seconds = min(20.0, 5000.0 / rate)
    got = drain(allocator, clock, seconds, {"a": (500, 0.0), "b": (500, 0.0)})
    assert seconds * rate - 1 <= sum(got.values()) <= max(1.0, rate * 0.75) + seconds * rate + 1e-6


def test_nothing_is_granted_in_a_cool_down_and_then_no_burst() -> None:
    clock = FakeClock(100.0)
    allocator = QuotaAllocator(Limits(per_second=100.0), clock)
    allocator.register("a", UsageReport())
    allocator.want("a", 0, 1000, 0.0)
    assert allocator.cool_down(3.0) == 3.0
    assert allocator.cool_down(None) == 3.0
    clock.advance(2.0)
    assert allocator.grant() == ({}, 1.0)
    clock.advance(1.0)
    grants, _ = allocator.grant()
    assert [granted.calls for granted in grants.values()] == [1]


def test_the_last_calls_of_a_budget_are_spread_over_those_who_want_them() -> None:
    clock = FakeClock(100.0)
    allocator = QuotaAllocator(Limits(max_calls=16), clock)
    for name in "abcd":
        allocator.register(name, UsageReport())
    got = dict.fromkeys("abcd", 0)
    for _ in range(20):
        for name in "abcd":
            allocator.want(name, got[name], 1000, 0.0)
        for client, granted in allocator.grant()[0].items():
            got[client] += granted.calls
    assert sum(got.values()) == 16
    assert max(got.values()) <= 6
    assert allocator.exhausted is None
    for name in "abcd":
        allocator.report(name, UsageReport(got[name], got[name]))
    assert allocator.exhausted == "max_calls=16"


def test_the_cost_of_all_ends_the_calls() -> None:
    allocator = QuotaAllocator(Limits(max_cost=10.0), FakeClock())
    allocator.register("a", UsageReport(3, 3, 0, 4.0))
    allocator.register("b", UsageReport(3, 3, 0, 5.0))
    allocator.report("b", UsageReport(3, 3, 0, 5.0))
    assert allocator.exhausted is None
    allocator.leave("a", UsageReport(3, 3, 0, 5.0))
    assert allocator.exhausted == "max_cost=10.0"
    assert allocator.grant() == ({}, math.inf)


def test_of_a_client_that_stays_away_counts_all_that_it_held_until_it_says_what_it_did() -> None:
    clock = FakeClock(100.0)
    allocator = QuotaAllocator(Limits(max_calls=20), clock)
    allocator.register("a", UsageReport())
    allocator.want("a", 0, 10, 0.0)
    assert [granted.calls for granted in allocator.grant()[0].values()] == [10]
    allocator.report("a", UsageReport(10, 2))
    allocator.lost("a")
    clock.advance(allocator.limits.life + RETURN_TIMEOUT_S + 0.1)
    allocator.expire()
    assert allocator.used == allocator.committed == 10
    # What it says when it is back after all is what counts.
    allocator.register("a", UsageReport(10, 5, 5))
    assert allocator.used == allocator.committed == 5
