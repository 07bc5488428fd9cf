"""Limits that are shared through a coordinator: real sockets and real processes; rates on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Budget, Coordinator, Options, Rate
from pillarbox.aio.limits.coordinator import CoordinatorHandle, SharedStatistics
from pillarbox.aio.limits.lease import Statements
from pillarbox.aio.limits.messages import Open
from pillarbox.aio.limits.rate import (
    CoordinatorError,
    Limits,
    RunBudget,
    SharedLimits,
    open_limiter,
)
from pillarbox.aio.options import resolve_options
from tests.limits.unit.calling import Caller, impatient, most_in, start
from tests.limits.unit.virtual_coordinator import VirtualCoordinator, VirtualLimits, limiter
from tests.rpc.unit.virtual_network import on_net
from tests.waiting import until, wait_until

NOBODY = SharedStatistics(0, 0, 0.0, 0, 0)


def callers(shared: CoordinatorHandle, limits: Limits, number: int) -> list[Caller]:
    return [Caller(shared.open(limits)) for _ in range(number)]


async def all_call(them: list[Caller], **how: Any) -> list[int]:
    async def one(caller: Caller) -> int:
        async with caller:
            return await caller.calls(**how)

    return await asyncio.gather(*(one(caller) for caller in them))


def together(them: list[Caller]) -> list[float]:
    return sorted(at for caller in them for at in caller.begun)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"host": ""}, ValueError, "host=''"),
        ({"host": None}, TypeError, "host=None"),
        ({"port": "1"}, TypeError, "port='1': must be an int"),
        ({"port": 70000}, ValueError, "port=70000: must be from 0"),
        ({"patience": 0}, ValueError, "patience=0"),
        ({"patience": None}, TypeError, "patience=None"),
        ({"advertise": 5}, TypeError, "advertise=5"),
    ],
)
def test_a_bad_argument_is_refused_by_name(given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        Coordinator(**given)


@pytest.mark.contract("A coordinator of limits listens on loopback unless asked, and only while it runs.")
def test_it_listens_on_loopback_unless_asked_and_only_while_it_runs() -> None:
    coordinator = Coordinator()
    with pytest.raises(RuntimeError, match="not started"):
        pickle.dumps(coordinator)
    with coordinator as started:
        assert started is coordinator
        host, port = coordinator.address
        assert host == "127.0.0.1" and port > 0
        with pytest.raises(RuntimeError, match="has been started"):
            coordinator.start()
    coordinator.close()
    with pytest.raises(RuntimeError, match="not started"):
        coordinator.named()


def test_what_travels_finds_the_coordinator_and_its_text_does_not_show_the_secret() -> None:
    with Coordinator() as coordinator:
        handle = pickle.loads(pickle.dumps(coordinator))
        assert handle.handle.addresses == (coordinator.address,)
        secret = coordinator._secret
        for text in (repr(handle), repr(coordinator), repr(handle.named("a"))):
            assert secret.hex() not in text and repr(secret) not in text
        assert pickle.loads(pickle.dumps(handle.named("mine"))).name == "mine"
        assert handle.named().name != handle.named().name
        named = handle.named("x")
        assert named.named() is named


SECRET_ENV = "PILLARBOX_TEST_LIMITS_SECRET"


@pytest.mark.contract("Applications that know a coordinator's address and secret share its limits.")
def test_whoever_knows_the_address_and_the_secret_shares_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_ENV, "a-secret-" * 4)
    limits = Limits(max_calls=50)

    async def test(coordinator: Coordinator) -> None:
        host, port = coordinator.address
        there = Coordinator.at(host, port, secret_env=SECRET_ENV)
        assert "a-secret-" not in repr(there)
        assert sum(await all_call(callers(there.named("g"), limits, 2), number=20)) == 40
        # Another application, in a process of its own.
        program = start(pickle.loads(pickle.dumps(there.named("g"))), limits)
        said, _ = await asyncio.to_thread(program.communicate)
        assert len(said.split()) == 10
        monkeypatch.setenv(SECRET_ENV, "another-secret-" * 4)
        stranger = Coordinator.at(host, port, secret_env=SECRET_ENV, patience=30.0).named("g")
        with pytest.raises(CoordinatorError, match="secret"):
            await all_call([Caller(impatient(stranger.open(limits), "secret"))], number=1)

    with Coordinator(secret_env=SECRET_ENV) as coordinator:
        asyncio.run(test(coordinator))


def test_a_secret_that_is_too_short_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_ENV, "hunter2")
    for make in (
        lambda: Coordinator(secret_env=SECRET_ENV),
        lambda: Coordinator.at("127.0.0.1", 7077, secret_env=SECRET_ENV),
    ):
        with pytest.raises(ValueError, match=f"secret_env='{SECRET_ENV}': .* 7 characters") as raised:
            make()
        assert "hunter2" not in str(raised.value)


@pytest.mark.contract("A coordinator holds the rate of all tasks together, and each gets its share.")
def test_the_rate_of_all_tasks_together_is_held_and_each_gets_its_share() -> None:
    limits = Limits(per_second=400.0, burst=0.25)

    async def run() -> tuple[list[float], list[int]]:
        async with VirtualCoordinator():
            them = [Caller(limiter(limits)) for _ in range(8)]
            counts = await all_call(them, seconds=2.0)
        return together(them), counts

    begun, counts = on_net(run)
    for window in (0.25, 0.5, 1.0, 2.0):
        assert most_in(begun, window) <= 400 * (0.25 + window) + 1
    # After the burst, for the rest of the time.
    assert len(begun) >= 0.9 * 400 * 2.0
    assert min(counts) >= 0.5 * sum(counts) / 8


@pytest.mark.contract("A budget of a whole job leaves the rate and the cool-downs to each task.")
def test_where_only_the_budget_is_shared_each_task_has_the_whole_rate() -> None:
    # Twenty at once, and then one in a hundred seconds.
    rate = Rate(0.01, burst=2000.0)

    async def tasks(shared: SharedLimits) -> list[int]:
        counts = []
        them = [Caller(open_limiter(rate, 50, None, shared)) for _ in range(3)]  # type: ignore[arg-type]
        async with them[0], them[1], them[2]:
            for caller in them:
                while len(caller.begun) < 20 and await caller.call():
                    pass
                counts.append(len(caller.begun))
            them[1].gate.cool_down(5.0)
            assert [caller.gate.statistics().cool_downs for caller in them] == [0, 1, 0]
        return counts

    with Coordinator() as coordinator:
        shared = pickle.loads(pickle.dumps(replace(coordinator.named("job"), shares_rate=False)))
        assert asyncio.run(tasks(shared)) == [20, 20, 10]
        assert coordinator.statistics()["job"].calls == 50


@pytest.mark.contract("What a run has spent before counts once against a budget that tasks share.")
def test_what_a_run_has_spent_before_counts_once(tmp_path: Path) -> None:
    def tasks(number: int, before: int, name: str = "run") -> list[Caller]:
        shared = pickle.loads(pickle.dumps(RunBudget(coordinator.named("job"), name, before, 0.5)))
        return [Caller(shared.open_for(None, 100, None)) for _ in range(number)]

    with Coordinator(state=tmp_path / "state") as coordinator:
        assert sum(asyncio.run(all_call(tasks(3, 60), number=10))) == 30
        # By then its ledger has what was done in the meantime as well.
        assert sum(asyncio.run(all_call(tasks(2, 90), number=2))) == 4
        assert sum(asyncio.run(all_call(tasks(1, 3, "other"), number=1))) == 1
    with Coordinator(state=tmp_path / "state") as coordinator:
        assert sum(asyncio.run(all_call(tasks(1, 94), number=10))) == 2
        assert coordinator.statistics()["job"].calls == 100
        assert coordinator.statistics()["job"].cost == 1.0


def test_the_rate_is_held_over_processes() -> None:
    # A burst of sixty calls, and days until the next one.
    limits = Limits(per_second=1e-6, burst=60.5e6)
    with Coordinator() as coordinator:
        programs = [start(coordinator.named("all"), limits, 35) for _ in range(2)]
        try:
            wait_until(lambda: coordinator.statistics().get("all", NOBODY).calls >= 60)
        finally:
            for program in programs:
                program.kill()
            counts = [len(program.communicate()[0].split()) for program in programs]
    # One that has all that it wants leaves the rest to the other.
    assert sum(counts) == 60 and min(counts) >= 25


def test_units_are_shared_and_a_heavy_call_pays_for_itself() -> None:
    limits = Limits.of(Rate(units_per_minute=60_000.0, weight=float, burst=0.25), None, None)

    async def one(caller: Caller, units: float) -> int:
        async with caller:
            return await caller.calls(seconds=2.0, units=units)

    async def run() -> None:
        async with VirtualCoordinator():
            them = [Caller(limiter(limits)) for _ in range(3)]
            counts = await asyncio.gather(one(them[0], 600.0), one(them[1], 5.0), one(them[2], 20.0))
            spent = 600.0 * counts[0] + 5.0 * counts[1] + 20.0 * counts[2]
            assert spent <= 1000.0 * (0.25 + 2.0) + 600.0
            assert spent >= 0.7 * 1000.0 * 2.0
            assert all(counts)
            assert [caller.gate.statistics().units for caller in them] == [
                600.0 * counts[0],
                5.0 * counts[1],
                20.0 * counts[2],
            ]

    on_net(run)


@pytest.mark.contract("Light calls reach the rate of units that they share, and never more than it allows.")
def test_light_calls_reach_the_units_that_they_share_and_no_more() -> None:
    limits = Limits(units_per_second=2000.0, burst=0.25)
    begun: list[tuple[float, float]] = []

    async def one(caller: Caller, weights: list[float]) -> None:
        async with caller:
            for number in itertools.count():
                units = weights[number % len(weights)]
                if not await caller.call(units, 2.0):
                    return
                begun.append((caller.begun[-1], units))
                if number % 8 == 0:
                    await asyncio.sleep(0)

    async def run() -> None:
        async with VirtualCoordinator():
            weights = [[1.0], [0.1, 2.5, 0.4], [5.0, 0.0, 1.0, 300.0]]
            await asyncio.gather(*(one(Caller(limiter(limits)), each) for each in weights))

    on_net(run)
    begun.sort()
    for window in (0.1, 0.25, 1.0, 2.0):
        first, units = 0, 0.0
        for at, weight in begun:
            units += weight
            while at - begun[first][0] > window:
                units -= begun[first][1]
                first += 1
            assert units <= 2000 * (0.25 + window) + 1e-6
    assert sum(weight for _, weight in begun) >= 0.7 * 2000 * 2.0


@pytest.mark.contract("With a coordinator max_calls holds for all tasks together, to the last one.")
def test_max_calls_holds_for_all_together_to_the_last_one() -> None:
    with Coordinator() as coordinator:
        them = callers(coordinator.named("g"), Limits(max_calls=503), 7)
        counts = asyncio.run(all_call(them))
        assert sum(counts) == 503
        assert {caller.gate.exhausted for caller in them} == {"max_calls=503"}
        statistics = coordinator.statistics()["g"]
        assert statistics[:2] == (503, 0)
        # Who comes later finds it used up.
        late = callers(coordinator.named("g"), Limits(max_calls=503), 1)
        assert asyncio.run(all_call(late)) == [0]


def test_what_a_task_holds_and_does_not_use_is_there_for_the_others() -> None:
    async def run(coordinator: Coordinator) -> None:
        shared = coordinator.named("g")
        limits = Limits(max_calls=20)
        async with Caller(shared.open(limits)) as idle, Caller(shared.open(limits)) as busy:
            assert await idle.call()
            assert await busy.calls() == 19
            assert idle.gate.exhausted is not None or not await idle.call()

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator))


@pytest.mark.contract("With a coordinator max_cost ends the calls of all tasks.")
def test_max_cost_ends_the_calls_of_all() -> None:
    async def run(coordinator: Coordinator) -> None:
        shared = coordinator.named("g")
        limits = Limits(max_cost=10.0)
        async with Caller(shared.open(limits)) as one, Caller(shared.open(limits)) as other:
            assert await one.call() and await other.call()
            one.gate.spend(6.0)
            await until(lambda: coordinator.statistics()["g"].cost == 6.0)
            assert one.gate.exhausted is None
            other.gate.spend(4.0)
            await until(lambda: one.gate.exhausted is not None and other.gate.exhausted is not None)
            assert one.gate.exhausted == "max_cost=10.0"
            assert not await one.call()

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator))


@pytest.mark.contract
def test_one_overload_cools_all_down_within_a_round_trip() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        limits = Limits(per_second=1000.0)
        async with VirtualCoordinator(), Caller(limiter(limits)) as one, Caller(limiter(limits)) as other:
            assert await one.call() and await other.call()
            began = loop.time()
            one.gate.cool_down(0.8)
            assert 0.0 < one.gate.admit() <= 0.81
            # Time passes when all has been said that is to be said.
            await asyncio.sleep(1e-3)
            assert other.gate.statistics().cool_downs == 1
            assert 0.0 < other.gate.admit() <= 0.81
            # A task that comes later hears of it too.
            async with Caller(limiter(limits)) as late:
                assert await late.call()
                assert 0.8 <= late.begun[0] - began <= 0.81
            assert await other.call()
            assert other.begun[-1] - began >= 0.8

    on_net(run)


@pytest.mark.contract
def test_tasks_with_other_limits_under_one_name_are_refused_with_the_difference() -> None:
    async def run(coordinator: Coordinator) -> None:
        shared = coordinator.named("g")
        async with Caller(shared.open(Limits(per_second=5.0))) as first:
            assert await first.call()
            async with Caller(shared.open(Limits(per_second=7.0))) as second:
                with pytest.raises(CoordinatorError, match=re.escape("per_second=5.0 (not 7.0)")):
                    await second.call()

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator))


def test_operators_with_names_of_their_own_do_not_share() -> None:
    with Coordinator() as coordinator:
        for _ in range(2):
            them = callers(coordinator.named(), Limits(max_calls=5), 1)
            assert asyncio.run(all_call(them)) == [5]


def test_options_give_each_operator_limits_of_its_own_that_its_tasks_share() -> None:
    with Coordinator() as coordinator:
        options = [Options(limits=coordinator, budget=Budget(max_calls=5), errors="null") for _ in range(2)]
        gates = []
        for each in options:
            job = resolve_options(each, {})
            tasks = [pickle.loads(pickle.dumps(job)) for _ in range(2)]
            gates.append(
                [open_limiter(task.rate, task.budget.max_calls, None, task.limits) for task in tasks]
            )

        async def run() -> None:
            for shared in gates:
                counts = await all_call([Caller(gate) for gate in shared if gate is not None])
                assert len(counts) == 2 and sum(counts) == 5

        asyncio.run(run())
        assert len(coordinator.statistics()) == 2


def test_a_gate_that_is_closed_gives_everything_back_at_once() -> None:
    async def run(coordinator: Coordinator) -> None:
        caller = Caller(coordinator.named("g").open(Limits(max_calls=100)))
        async with caller:
            assert await caller.call()
            assert coordinator.statistics()["g"].held > 0
        assert coordinator.statistics()["g"] == (1, 0, 0.0, 0, 0)
        await caller.gate.close()
        names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
        assert not [name for name in names if "CoordinatorLink" in name]

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator))


def test_a_fault_that_nobody_thought_of_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Statements) -> Open:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Statements, "opening", broken)

    async def run(coordinator: Coordinator) -> None:
        async with Caller(coordinator.open_for(None, 1, None)) as caller:
            with pytest.raises(CoordinatorError, match="ZeroDivisionError: by zero"):
                await caller.call()

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator))


def test_open_gate_shares_what_a_coordinator_is_given_for() -> None:
    async def run(coordinator: Coordinator) -> None:
        shared = coordinator.named("g")
        gates = [open_limiter(Rate(1000.0), 6, None, shared) for _ in range(2)]
        counts = await all_call([Caller(gate) for gate in gates if gate is not None])
        assert len(counts) == 2 and sum(counts) == 6

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator))


@pytest.mark.parametrize("limits", [Limits(per_second=1e6), Limits(units_per_second=1e6)])
def test_a_call_costs_no_round_trip_once_the_demand_is_known(limits: Limits) -> None:
    async def run() -> None:
        async with VirtualCoordinator(), Caller(limiter(limits)) as caller:
            await caller.calls(number=2000)
            waits = 0
            for number in range(2000):
                while caller.gate.admit() > 0.0:
                    waits += 1
                    await asyncio.sleep(0.001)
                if number % 20 == 0:
                    await asyncio.sleep(0.001)
            assert waits < 200

    on_net(run)


def test_the_program_of_the_tests_says_what_went_wrong() -> None:
    # Otherwise a program that never starts would look like one that was never let through.
    with Coordinator() as coordinator:
        program = start(coordinator.named(), Limits(max_calls=2))
        output, _ = program.communicate()
        assert program.returncode == 0 and len(output.split()) == 2
        assert isinstance(program, subprocess.Popen)


@pytest.mark.contract("With a coordinator an overload of one task cools down all, also without a rate.")
def test_an_overload_cools_all_down_where_nothing_else_is_bounded() -> None:
    async def run() -> None:
        loop, shared = asyncio.get_running_loop(), VirtualLimits()
        assert open_limiter(Rate(learn=False), None, None, shared) is None
        gates = [open_limiter(None, None, None, shared, cools=True) for _ in range(2)]
        assert gates[0] is not None and gates[1] is not None
        async with VirtualCoordinator(), Caller(gates[0]) as one, Caller(gates[1]) as other:
            assert await one.call() and await other.call()
            began = loop.time()
            one.gate.cool_down(0.7)
            await asyncio.sleep(1e-3)
            assert other.gate.statistics().cool_downs == 1
            assert await other.call() and await one.call()
            for caller in (one, other):
                assert 0.7 <= caller.begun[-1] - began <= 0.71

    on_net(run)


def test_the_tasks_of_a_run_agree_where_they_share_their_budget() -> None:
    with Coordinator() as coordinator:
        of_run = RunBudget(coordinator.named("job"), "run", 0, 0.0).agreement("length")
        assert of_run == coordinator.agreement("length")
    assert RunBudget(None, "run", 0, 0.0).agreement("length") is None
