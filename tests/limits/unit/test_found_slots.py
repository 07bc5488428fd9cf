"""A shared capacity that the coordinator finds by the calls of all tasks: its parts, and jobs."""

from __future__ import annotations

import asyncio
import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.limits.crowded import Service
from bench.limits.shared import Busy, find
from pillarbox import Adaptive, Buffer, Coordinator, Options, Shared, async_map
from pillarbox.aio.concurrency import Ended
from pillarbox.aio.limits.outcomes import (
    LAG_S,
    MAX_GROUPS,
    REPORT_S,
    Group,
    JobCapacity,
    Outcomes,
    TaskOutcomes,
)
from pillarbox.aio.limits.rate import CoordinatorError
from pillarbox.aio.limits.shared import MAX_SLOTS
from pillarbox.aio.limits.slots import LEASE_S, SLOTS, TO_SLOTS, OpenSlots, SlotAllocator, SlotService
from pillarbox.rpc.connection import RpcHandle, connect
from pillarbox.testing import FakeClock
from tests.limits.unit.virtual_coordinator import SECRET, VirtualCoordinator, VirtualLimits
from tests.rpc.unit.virtual_network import HOST, PORT, NetLoop, on_net
from tests.search import examples


@pytest.mark.contract("Tasks that share a capacity that is found find the service's own limit together.")
@pytest.mark.parametrize("refuses", [False, True], ids=["queue", "503"])
@pytest.mark.parametrize("tasks", [4, 16])
def test_tasks_find_the_limit_of_a_service_together(refuses: bool, tasks: int) -> None:
    found = find(Service(20, 2.0, refuses=refuses, status=503), tasks, 400.0, 200.0)
    assert found.share >= 0.95
    # Never above 1.5 times the knee for long; and each task has its share.
    assert found.trips <= 10.0 and found.limits[1] <= 1.5 * 20
    assert min(found.counts) >= 0.4 * max(found.counts)


@pytest.mark.contract("A shared capacity that is found stays within its bounds, whatever the service does.")
def test_the_bounds_hold() -> None:
    service = Busy((0.05, 0.1))

    async def job() -> int:
        options = Options(
            capacity=Shared(Adaptive(start=2, least=2, most=5)), limits=VirtualLimits(), ordered=False
        )
        return len([each async for each in async_map(range(400), service, options=options)])

    async def script() -> list[int]:
        async with VirtualCoordinator():
            return [*await asyncio.gather(*[job() for _ in range(3)])]

    assert on_net(script) == [400] * 3
    assert service.most == 5


# -- fewer slots than before ---------------------------------------------------------------------------


def holding(total: int, **held: int) -> tuple[SlotAllocator, FakeClock]:
    """An allocator whose tasks hold and want as many slots."""
    clock = FakeClock(0.0)
    slots = SlotAllocator(total, clock)
    for name, count in held.items():
        slots.register(name, count, count)
    return slots, clock


@pytest.mark.contract(
    "Slots that are too many, since the service takes fewer calls, are asked back, and none is granted.",
    convicts=["slots_shrink_never", "slots_shrink_takes", "slots_granted_as_before", "slots_never_lifted"],
)
def test_slots_that_are_too_many_are_asked_back_and_none_is_granted() -> None:
    slots, _ = holding(12, a=6, b=4, c=2)
    slots.total = 8
    granted, asked, _ = slots.allocate()
    # It is not known where a call ends next.
    assert granted == {} and asked == {"a": 2, "b": 0, "c": 0}
    # Their calls run on until they are given back.
    assert slots.held == 12
    assert slots.allocate()[:2] == ({}, {})
    slots.give_back("a", 1)
    assert slots.allocate()[0] == {} and slots.held == 11
    slots.give_back("b", 3)
    slots.want("a", 5)
    slots.want("b", 1)
    # The others keep theirs.
    granted, asked, _ = slots.allocate()
    assert granted == {} and asked == {"a": MAX_SLOTS, "b": MAX_SLOTS, "c": MAX_SLOTS}
    slots.total = 10
    slots.want("c", 6)
    assert slots.allocate()[0] == {"c": 2}


def test_slots_of_a_task_that_is_gone_are_held_until_its_lease_is_over() -> None:
    slots, clock = holding(8, a=4, b=4)
    slots.lost("a")
    slots.total = 2
    # The other one has to come down by as much as it can.
    assert slots.allocate()[:2] == ({}, {"b": 0})
    slots.give_back("b", 4)
    assert slots.allocate()[0] == {}
    clock.advance(LEASE_S)
    assert slots.allocate()[0] == {"b": 2}


# -- outcomes --------------------------------------------------------------------------------------------


def gathering() -> tuple[TaskOutcomes, FakeClock, list[float]]:
    clock, due = FakeClock(100.0), list[float]()
    return TaskOutcomes(lambda: 7, clock, due.append), clock, due


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 10.0), st.sampled_from(["answered", "refused", "failed"])), max_size=300
    )
)
def test_a_report_has_a_bound_and_loses_no_call(calls: list[tuple[float, str]]) -> None:
    outcomes, clock, _ = gathering()
    for seconds, kind in calls:
        clock.advance(0.001)
        if kind == "answered":
            outcomes.succeeded(seconds)
        else:
            outcomes.failed(kind == "refused", seconds)
    found = outcomes.take()
    for kind, groups in zip(Outcomes._fields, found, strict=True):
        took = [seconds for seconds, each in calls if each == kind]
        assert len(groups) <= MAX_GROUPS
        assert sum(group.calls for group in groups) == len(took)
        assert sum(group.seconds for group in groups) == pytest.approx(sum(took))
        assert sum(group.squares for group in groups) == pytest.approx(sum(each**2 for each in took))
        assert [*groups] == sorted(groups, key=lambda group: -group.age)
        if len(took) <= MAX_GROUPS:
            assert [group.calls for group in groups] == [1] * len(took)
    assert outcomes.take() == ((), (), ())


def test_a_refusal_is_reported_sooner_than_answers() -> None:
    outcomes, _, due = gathering()
    outcomes.succeeded(1.0)
    outcomes.succeeded(1.0)
    outcomes.failed(True, 0.01)
    outcomes.failed(True, 0.01)
    assert len(due) == 2 and due[1] < due[0] == REPORT_S
    assert outcomes.limit == 7 and outcomes.round_trip == 1.0


class Recorded:
    """Stands for a controller; keeps what it is told, in order."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.limit = 4

    def answered(self, ended: Ended) -> None:
        self.ends.append(ended.at)

    def unanswered(self, overloaded: bool, ended: Ended) -> None:
        self.ends.append(ended.at)


def answered(*ages: float) -> Outcomes:
    return Outcomes(tuple([Group(1, age, 0.5, 0.25) for age in ages]), (), ())


@pytest.mark.contract(
    "A capacity is found by the calls of all tasks in the order of their ends, whichever task reports first.",
    convicts=["outcomes_before_their_turn"],
)
def test_outcomes_of_all_tasks_are_counted_in_the_order_of_their_ends() -> None:
    clock = FakeClock(100.0)
    capacity: Any = JobCapacity(Adaptive(), clock)
    capacity._controller = recorded = Recorded()
    capacity.report(answered(0.04, 0.0))
    assert capacity.judge() == pytest.approx(LAG_S - 0.04)
    clock.advance(0.02)
    # Another one had calls before, and between.
    capacity.report(answered(0.05, 0.03))
    clock.advance(LAG_S)
    capacity.judge()
    assert recorded.ends == pytest.approx([99.96, 99.97, 99.99, 100.0])


def test_outcomes_that_are_old_count_for_nothing() -> None:
    clock = FakeClock(100.0)
    capacity: Any = JobCapacity(Adaptive(), clock)
    capacity._controller = recorded = Recorded()
    capacity.report(answered(60.0))
    clock.advance(1.0)
    capacity.judge()
    assert recorded.ends == []


# -- coordinators ------------------------------------------------------------------------------------------


@pytest.mark.contract("Connections that break, and a coordinator that dies, leave tasks the capacity found.")
def test_a_coordinator_that_starts_again_goes_on_from_what_its_tasks_hold() -> None:
    service = Service(20, 2.0)

    async def job() -> None:
        options = Options(capacity=Shared("auto"), limits=VirtualLimits(), ordered=False, buffer=Buffer(1024))
        async for _ in async_map(range(100_000), service, options=options):
            pass

    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator() as coordinator:
            running = [asyncio.ensure_future(job()) for _ in range(4)]
            while coordinator.slots.accounts.get("g") is None or service.in_work < 20:
                await asyncio.sleep(1.0)
            before = coordinator.slots.accounts["g"].allocator.held
            # More than it would begin with.
            assert before > 16
            slots = SlotService(loop.time, quiet_s=LEASE_S)
            coordinator.slots = coordinator._server._others[SLOTS] = slots
            await loop.cut()
            # They are back, and nothing was judged yet.
            await asyncio.sleep(1.5)
            assert slots.accounts["g"].allocator.total >= before
            await asyncio.sleep(LEASE_S / 2)
            # All but a slot that was free just then.
            assert service.in_work >= min(20, before) - 4
            for each in running:
                each.cancel()
            await asyncio.wait(running)

    on_net(script)


def test_tasks_must_agree_on_how_the_number_is_found() -> None:
    async def call(row: int) -> int:
        await asyncio.sleep(1.0)
        return row

    async def job(slots: Any) -> list[int]:
        options = Options(capacity=Shared(slots), limits=VirtualLimits())
        return [each async for each in async_map(range(10), call, options=options)]

    async def script() -> None:
        async with VirtualCoordinator():
            first = asyncio.ensure_future(job("auto"))
            await asyncio.sleep(0.1)
            for other in (5, Adaptive(start=3)):
                with pytest.raises(CoordinatorError, match=r"are Shared\(Adaptive\(16, 1, 1024\)\)"):
                    await job(other)
            assert await first == [*range(10)]

    on_net(script)


def test_outcomes_for_a_number_that_is_given_end_the_connection() -> None:
    handle = RpcHandle(((HOST, PORT),), SECRET, SLOTS)

    async def script() -> None:
        async with VirtualCoordinator(), connect(handle) as connection:
            connection.send("open", SLOTS, *TO_SLOTS.to_json(OpenSlots("g", 5, "c", 0, 0))[1:])
            await connection.receive()
            connection.send(*TO_SLOTS.to_json(answered(0.0)))
            with pytest.raises((EOFError, OSError)):
                await connection.receive()

    on_net(script)


def test_a_real_coordinator_finds_the_capacity_of_two_jobs() -> None:
    async def call(row: int) -> int:
        await asyncio.sleep(0.001)
        return row

    async def run() -> None:
        with Coordinator() as coordinator:
            shared = coordinator.named("service")

            async def job() -> list[int]:
                options = Options(capacity=Shared("auto"), limits=shared)
                return [each async for each in async_map(range(300), call, options=options)]

            assert await asyncio.gather(job(), job()) == [[*range(300)]] * 2

    asyncio.run(run())


# -- the option ----------------------------------------------------------------------------------------------


def test_the_option_is_a_value_that_travels() -> None:
    shared = Shared("auto")
    assert pickle.loads(pickle.dumps(shared)) == shared == Shared(Adaptive())
    assert shared.most == 1024 and Shared(5).most == 5


@pytest.mark.parametrize(
    ("slots", "error", "says"),
    [
        ("fast", ValueError, "calls='fast': must be one of 'auto'"),
        (0, ValueError, "capacity=0"),
        (2.5, TypeError, "capacity=2.5"),
        (20_000, ValueError, "calls=20000: must be at most 10,000"),
        (Adaptive(most=20_000), ValueError, "must be at most 10,000"),
    ],
)
def test_a_bad_option_is_refused(slots: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        Shared(slots)
