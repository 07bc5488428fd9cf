"""The slots of a shared capacity: the accounts on a clock that is moved, and tasks in virtual time."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bench.limits.shared import Busy, measure
from pillarbox import CallFailed, Coordinator, Options, Shared, async_map
from pillarbox.aio.limits.rate import CoordinatorError
from pillarbox.aio.limits.slot_lease import CUT_OFF_S, LOOK_S, SlotLease
from pillarbox.aio.limits.slots import LEASE_S, ROUND_S, SLOTS, SlotAllocator
from pillarbox.rpc.connection import RpcHandle
from pillarbox.testing import FakeClock
from tests.limits.unit.virtual_coordinator import SECRET, VirtualCoordinator, VirtualLimits
from tests.rpc.unit.virtual_network import HOST, PORT, NetLoop, on_net
from tests.search import examples

TOTAL = 5
NAMES = ["a", "b", "c", "d", "e", "f", "g"]


class Slots(RuleBasedStateMachine):
    """Tasks take slots, call in them, give them back, lose their connections, die and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(100.0)
        # Calls that hang have slots beside, as many as the number at most.
        self.allocator = SlotAllocator(
            TOTAL, self.clock, beside=lambda stuck: min(stuck, self.allocator.total)
        )
        self.most = TOTAL
        self.held: dict[str, int] = {}
        self.gone: dict[str, float] = {}

    def allocate(self) -> None:
        granted, asked, _ = self.allocator.allocate()
        for name, count in granted.items():
            self.held[name] += count
        for name, count in asked.items():
            assert count >= self.allocator.holders[name].stuck
            # Its calls have ended.
            self.give_back(name, max(0, self.held[name] - count))

    def give_back(self, name: str, count: int) -> None:
        self.held[name] -= count
        self.allocator.give_back(name, count)

    @rule(name=st.sampled_from(NAMES), wanted=st.integers(0, 2 * TOTAL))
    def want(self, name: str, wanted: int) -> None:
        if name not in self.held or name in self.gone:
            held = self.held.get(name, 0) if self.gone.get(name, 0.0) > self.clock() else 0
            self.gone.pop(name, None)
            self.held[name] = held
            stuck = self.allocator.holders[name].stuck if held else 0
            self.allocator.register(name, held, wanted, stuck)
        self.allocator.want(name, wanted)
        self.allocate()

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([each for each, held in self.held.items() if held]))
        if name not in self.gone:
            self.give_back(name, data.draw(st.integers(1, self.held[name])))
            self.allocate()

    @rule(name=st.sampled_from(NAMES))
    def lose(self, name: str) -> None:
        if name in self.held and name not in self.gone:
            self.allocator.lost(name)
            self.gone[name] = self.clock() + LEASE_S

    @rule(seconds=st.floats(0.1, LEASE_S))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.allocate()

    @rule(total=st.integers(1, TOTAL))
    def resize(self, total: int) -> None:
        self.allocator.total = total
        self.most = max(self.allocator.room, self.allocator.held)
        self.allocate()

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def hang(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([each for each, held in self.held.items() if held]))
        if name not in self.gone:
            self.allocator.hang(name, data.draw(st.integers(0, self.held[name])))
            self.most = max(self.allocator.room, self.allocator.held)
            self.allocate()

    @invariant()
    def never_more_are_held_than_there_are(self) -> None:
        leased = [held for name, held in self.held.items() if self.gone.get(name, math.inf) > self.clock()]
        if self.allocator.held <= self.allocator.room:
            self.most = self.allocator.room
        assert sum(leased) <= self.most
        assert self.allocator.held <= self.most
        assert self.allocator.room <= 2 * self.allocator.total
        assert all(0 <= holder.stuck <= holder.held for holder in self.allocator.holders.values())


Slots.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestSlots = Slots.TestCase


def allocator_of(total: int) -> tuple[SlotAllocator, FakeClock]:
    clock = FakeClock(0.0)
    return SlotAllocator(total, clock), clock


def test_free_slots_go_to_those_who_have_least() -> None:
    slots, _ = allocator_of(6)
    for name in "ab":
        slots.register(name, 0, 6)
    granted, asked, _ = slots.allocate()
    assert granted == {"a": 3, "b": 3} and asked == {}


@pytest.mark.contract("A task that comes late is given slots of those that have more.")
def test_a_task_that_comes_late_is_given_slots_of_those_that_have_more() -> None:
    slots, _ = allocator_of(6)
    slots.register("a", 0, 6)
    assert slots.allocate()[0] == {"a": 6}
    slots.register("b", 0, 6)
    for _ in range(10):
        _, asked, _ = slots.allocate()
        for name, count in asked.items():
            slots.give_back(name, slots.holders[name].held - count)
    assert {name: holder.held for name, holder in slots.holders.items()} == {"a": 3, "b": 3}


@pytest.mark.contract("With more tasks than slots each task has its turn.")
def test_with_more_tasks_than_slots_each_has_its_turn() -> None:
    slots, clock = allocator_of(2)
    served = set()
    for name in "abcde":
        slots.register(name, 0, 1)
    for _ in range(40):
        granted, asked, wait = slots.allocate()
        served |= granted.keys()
        for name, count in asked.items():
            slots.give_back(name, slots.holders[name].held - count)
        if not asked:
            clock.advance(min(wait, ROUND_S))
    assert served == {*"abcde"}


@pytest.mark.contract("The slots of a task that was killed come back when its lease is over, and not before.")
def test_slots_of_a_lost_task_come_back_when_its_lease_is_over() -> None:
    slots, clock = allocator_of(4)
    slots.register("a", 0, 4)
    slots.allocate()
    slots.lost("a")
    slots.register("b", 0, 4)
    clock.advance(LEASE_S - 0.1)
    assert slots.allocate()[0] == {}
    clock.advance(0.2)
    assert slots.allocate()[0] == {"b": 4}


def test_a_task_whose_slots_others_have_got_is_asked_to_come_down() -> None:
    slots, clock = allocator_of(4)
    slots.register("a", 0, 4)
    slots.allocate()
    slots.lost("a")
    clock.advance(LEASE_S)
    assert slots.register("b", 0, 3) is None
    assert slots.allocate()[0] == {"b": 3}
    assert slots.register("a", 3, 3) == 1
    slots.give_back("a", 2)
    assert slots.held == 4


def test_a_coordinator_that_starts_again_grants_nothing_for_the_time_of_a_lease() -> None:
    clock = FakeClock(0.0)
    slots = SlotAllocator(4, clock, quiet_s=LEASE_S)
    slots.register("a", 0, 4)
    granted, _, wait = slots.allocate()
    assert granted == {} and wait == LEASE_S
    clock.advance(LEASE_S)
    assert slots.allocate()[0] == {"a": 4}


def shared(slots: SlotAllocator, rounds: int = 20) -> dict[str, int]:
    """The slots that each task holds once those that are asked have given theirs back."""
    for _ in range(rounds):
        _, asked, _ = slots.allocate()
        for name, count in asked.items():
            slots.give_back(name, slots.holders[name].held - count)
    return {name: holder.held for name, holder in slots.holders.items()}


@pytest.mark.contract("A task that gave back what it was asked for is asked again when another one comes.")
def test_a_task_that_was_asked_once_is_asked_again_for_the_next_one() -> None:
    slots, _ = allocator_of(4)
    slots.register("a", 0, 4)
    slots.allocate()
    slots.register("b", 0, 4)
    assert shared(slots) == {"a": 2, "b": 2}
    slots.leave("b")
    assert shared(slots) == {"a": 4}
    slots.register("c", 0, 4)
    assert shared(slots) == {"a": 2, "c": 2}


def test_tasks_of_nearly_equal_shares_are_asked_for_nothing() -> None:
    slots, _ = allocator_of(5)
    for name in "ab":
        slots.register(name, 0, 5)
    slots.allocate()
    assert slots.allocate()[:2] == ({}, {})


@pytest.mark.contract(
    "A task that comes back without the request for its slots is asked again.",
    convicts=["lost_request_stands"],
)
def test_a_task_that_comes_back_is_asked_again_for_what_others_lack() -> None:
    slots, _ = allocator_of(4)
    slots.register("a", 0, 4)
    slots.allocate()
    slots.register("b", 0, 1)
    assert slots.allocate()[1] == {"a": 3}
    # The message was lost with its connection.
    slots.lost("a")
    assert slots.register("a", 4, 4) is None
    assert slots.allocate()[1] == {"a": 3}


@pytest.mark.contract(
    "A task whose connection is lost is neither granted slots nor asked for any.",
    convicts=["lost_task_is_asked"],
)
def test_a_task_that_is_lost_is_neither_granted_slots_nor_asked_for_any() -> None:
    slots, clock = allocator_of(4)
    slots.register("a", 0, 4)
    slots.allocate()
    slots.lost("a")
    slots.register("b", 0, 4)
    clock.advance(2.0 * ROUND_S)
    granted, asked, wait = slots.allocate()
    # Nothing can be done before the end of its lease: that is the time to come back.
    assert (granted, asked, wait) == ({}, {}, LEASE_S - 2.0 * ROUND_S)
    slots, _ = allocator_of(4)
    slots.register("a", 0, 1)
    slots.allocate()
    slots.want("a", 4)
    slots.lost("a")
    assert slots.allocate()[0] == {}


# -- tasks ---------------------------------------------------------------------------------------------


@pytest.mark.contract("Tasks that share a capacity never have more calls in flight, and use all of it.")
@pytest.mark.parametrize("tasks", [1, 4, 12])
def test_tasks_never_exceed_a_shared_capacity_and_use_it(tasks: int) -> None:
    service = Busy((0.2, 0.6))
    counts = measure(service, tasks, 5, 60.0)
    assert service.most == 5
    assert service.used(5, 60.0) >= 0.95
    assert min(counts) > 0


@pytest.mark.contract("A task without rows leaves its slots to the others.")
def test_every_row_is_called_and_no_slot_is_lost() -> None:
    service = Busy((0.05, 0.1))
    counts = measure(service, 6, 3, 1000.0, most=40)
    assert counts == [40] * 6 and service.most <= 3


@pytest.mark.contract("The slots of a task whose connection breaks are used by others only after its lease.")
def test_slots_of_a_task_that_is_cut_off_are_not_used_by_others() -> None:
    service = Busy((500.0, 500.0))

    async def job(rows: int) -> list[int]:
        options = Options(capacity=Shared(2), limits=VirtualLimits(), ordered=False)
        return [each async for each in async_map(range(rows), service, options=options)]

    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator(slot_lease_s=20.0) as coordinator:
            first = asyncio.ensure_future(job(2))
            await asyncio.sleep(1.0)
            assert service.in_flight == 2
            await loop.cut()
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.ensure_future(job(2))
            await asyncio.sleep(10.0)
            assert service.in_flight == 0
            await asyncio.sleep(15.0)
            assert service.in_flight == 2
            second.cancel()
            await asyncio.wait([second])
            await asyncio.sleep(3.0)
            assert all(not account.allocator.held for account in coordinator.slots.accounts.values())

    on_net(script)


class Lease:
    """A `SlotLease` of the coordinator of the running loop; the test says which calls are in flight."""

    def __init__(self, total: int, in_flight: int = 0, patience: float = 60.0) -> None:
        self.in_flight = in_flight
        self.failed: list[str] = []
        clock = asyncio.get_running_loop().time
        self.slots = SlotLease(RpcHandle(((HOST, PORT),), SECRET, SLOTS), "g", total, patience, clock)
        self.slots.start(lambda: self.in_flight, lambda: None, lambda error: self.failed.append(str(error)))

    @property
    def limit(self) -> int:
        return self.slots.limit


async def connected(*leases: Lease) -> None:
    """Wait until each has a connection, and its first slots if there are some."""
    for lease in leases:
        lease.slots.want()
    await asyncio.sleep(1.0)
    for lease in leases:
        # What it asked for before it had a connection.
        lease.slots.want()
    await asyncio.sleep(0.01)


@pytest.mark.contract(
    "A task that loses the coordinator goes on in its slots for five seconds, and no longer.",
    convicts=["cut_off_at_once"],
)
def test_a_task_that_is_cut_off_goes_on_for_some_seconds() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            lease = Lease(2, in_flight=2)
            await connected(lease)
            await asyncio.sleep(100.0)
            assert lease.limit == 2
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        await loop.cut()
        await asyncio.sleep(CUT_OFF_S - 0.5)
        assert lease.limit == 2
        await asyncio.sleep(1.0)
        assert lease.limit == 0
        await lease.slots.close()

    on_net(script)


@pytest.mark.contract(
    "A task that waits for no slot does not fail while the coordinator is away.",
    convicts=["content_task_loses_patience"],
)
def test_a_task_that_waits_for_no_slot_outlasts_a_coordinator_that_is_away() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            lease = Lease(2, in_flight=2, patience=60.0)
            await connected(lease)
            assert lease.limit == 2
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        await loop.cut()
        await asyncio.sleep(100.0)
        assert lease.failed == []
        # From the time on at which a call waits, its patience counts.
        lease.slots.want()
        await asyncio.sleep(59.0)
        assert lease.failed == []
        await asyncio.sleep(2.0)
        assert len(lease.failed) == 1 and "no coordinator for patience=60 s" in lease.failed[0]
        await lease.slots.close()

    on_net(script)


@pytest.mark.contract(
    "A task that has its slots again waits for none, although it did while it was cut off.",
    convicts=["regained_slots_are_waited_for"],
)
def test_a_task_that_has_its_slots_again_waits_for_none() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator():
            lease = Lease(2, in_flight=2, patience=60.0)
            await connected(lease)
        await loop.cut()
        await asyncio.sleep(CUT_OFF_S + 1.0)
        lease.slots.want()
        async with VirtualCoordinator():
            await asyncio.sleep(5.0)
            assert lease.limit == 2
        await loop.cut()
        await asyncio.sleep(100.0)
        assert lease.failed == []
        await lease.slots.close()

    on_net(script)


@pytest.mark.contract(
    "A request of a coordinator for slots ends with its connection.",
    convicts=["request_outlives_its_connection"],
)
def test_what_a_coordinator_asked_for_ends_with_its_connection() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator():
            lease, other = Lease(2, in_flight=2), Lease(2)
            await connected(lease)
            await connected(other)
            assert (lease.limit, other.limit) == (1, 0)
            await other.slots.close()
            await loop.cut()
            await asyncio.sleep(1.0)
            assert lease.limit == 2
            await lease.slots.close()

    on_net(script)


@pytest.mark.contract(
    "Slots between two calls stay with their task; those that were free for long go back.",
    convicts=["busy_slots_go_back", "granted_what_it_gives_back"],
)
def test_slots_that_are_in_use_now_and_then_stay_with_their_task() -> None:
    async def script() -> None:
        async with VirtualCoordinator() as coordinator:
            lease = Lease(4, in_flight=4)
            await connected(lease)
            (account,) = coordinator.slots.accounts.values()
            for _ in range(20):
                lease.in_flight = 2
                await asyncio.sleep(LOOK_S)
                lease.in_flight = 4
                await asyncio.sleep(LOOK_S)
            assert (lease.limit, account.allocator.held) == (4, 4)
            lease.in_flight = 3
            await asyncio.sleep(3.0 * LOOK_S)
            assert (lease.limit, account.allocator.held) == (3, 3)
            await lease.slots.close()

    on_net(script)


@pytest.mark.contract(
    "The slots of a killed task come back although no other task says anything.",
    convicts=["lost_lease_has_no_timer"],
)
def test_slots_of_a_killed_task_come_back_without_a_message_of_another_one() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator(slot_lease_s=20.0):
            killed = Lease(2, in_flight=2)
            await connected(killed)
            ends = [*loop._both_ends]
            other = Lease(2)
            await connected(other)
            # It does not come back, and says nothing.
            killed.slots._task.cancel()  # type: ignore[union-attr]
            for each in ends:
                each.abort()
            await asyncio.sleep(19.0)
            assert other.limit == 0
            other.in_flight = 1
            await asyncio.sleep(1.5)
            assert other.limit > 0
            await other.slots.close()
            await killed.slots.close()

    on_net(script)


@pytest.mark.contract("Connections that break leave tasks their slots, and no others get them.")
def test_connections_that_break_leave_tasks_their_slots() -> None:
    service = Busy((0.2, 0.6))

    async def job() -> list[int]:
        options = Options(capacity=Shared(5), limits=VirtualLimits(), ordered=False)
        return [each async for each in async_map(range(100), service, options=options)]

    async def script() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator() as coordinator:
            running = [asyncio.ensure_future(job()) for _ in range(6)]
            for _ in range(10):
                await asyncio.sleep(3.0)
                await loop.cut()
            for results in await asyncio.gather(*running):
                assert sorted(results) == [*range(100)]
            ended = loop.time()
            # A task that was cut off as it ended has its lease still.
            await asyncio.sleep(LEASE_S)
            for account in coordinator.slots.accounts.values():
                account.allocator.allocate()
                assert account.allocator.held == 0
            return ended

    seconds = on_net(script)
    assert service.most <= 5
    assert service.used(5, seconds) >= 0.85


@pytest.mark.contract("A shared capacity without a coordinator fails at the call, and says how to start one.")
def test_a_shared_capacity_needs_a_coordinator() -> None:
    async def call(row: int) -> int:
        return row

    with pytest.raises(ValueError, match="with Coordinator\\(\\) as coordinator"):
        async_map([1], call, capacity=Shared(5))
    with pytest.raises(ValueError, match="capacity=0"):
        Shared(0)


def test_tasks_must_agree_on_the_number_of_slots() -> None:
    async def call(row: int) -> int:
        await asyncio.sleep(0.2)
        return row

    async def run() -> None:
        with Coordinator() as coordinator:
            shared = coordinator.named("service")

            async def job(slots: int) -> list[int]:
                options = Options(capacity=Shared(slots), limits=shared)
                return [each async for each in async_map(range(10), call, options=options)]

            found = await asyncio.gather(job(2), _later(job(3)), return_exceptions=True)
            assert found[0] == [*range(10)]
            assert isinstance(found[1], CoordinatorError) and "Shared(3)" in str(found[1])

    asyncio.run(run())


async def _later(job: Any) -> Any:
    await asyncio.sleep(0.3)
    return await job


def test_a_row_that_fails_gives_its_slot_back() -> None:
    async def call(row: int) -> int:
        raise OSError(row)

    with Coordinator() as coordinator, pytest.raises(CallFailed):
        list(async_map([1], call, capacity=Shared(1), limits=coordinator.named("s")))
    with Coordinator() as coordinator:
        outcomes = [*async_map(range(5), call, capacity=Shared(1), limits=coordinator, errors="column")]
    assert len(outcomes) == 5
