"""Calls that never end in slots of a number that is found: the accounts, and tasks in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bench.limits.crowded import Service
from bench.limits.shared import find
from pillarbox import Adaptive, Batch, Collector, Options, Shared, async_map
from pillarbox.aio.limits.slot_lease import SlotLease
from pillarbox.aio.limits.slots import LEASE_S, ROUND_S, SLOTS, TO_SLOTS, OpenSlots, SlotAllocator, SlotsStuck
from pillarbox.rpc.connection import RpcHandle, connect
from pillarbox.testing import FakeClock
from tests.limits.unit.virtual_coordinator import SECRET, VirtualCoordinator, VirtualLimits
from tests.rpc.unit.virtual_network import HOST, PORT, NetLoop, on_net

FOUND = Adaptive(start=1, least=1, most=16)


# -- the accounts --------------------------------------------------------------------------------------


def found(total: int, **held: int) -> tuple[SlotAllocator, FakeClock]:
    """The accounts of a number that was found, with tasks that hold so many slots and want more."""
    clock = FakeClock(0.0)
    slots = SlotAllocator(total, clock, beside=lambda stuck: min(stuck, 4))
    for name, count in held.items():
        slots.register(name, count, 8)
    return slots, clock


def obey(slots: SlotAllocator, asked: dict[str, int]) -> None:
    """Have each task give back what it was asked for."""
    for name, count in asked.items():
        slots.give_back(name, slots.holders[name].held - count)


@pytest.mark.contract(
    "A call that hangs has a slot beside the number found, which goes when it ends after all.",
    convicts=["hanging_calls_of_tasks_keep_slots", "hanging_calls_are_a_share"],
)
def test_a_call_that_hangs_has_a_slot_beside_the_number_until_it_ends() -> None:
    slots, clock = found(1, a=1, b=0)
    assert slots.allocate()[:2] == ({}, {})
    clock.advance(ROUND_S / 2)
    slots.hang("a", 1)
    # Its slot does not count as a share, and cannot be asked for: both have turns in the other one.
    turns = [*slots.allocate()[0]]
    for _ in range(3):
        clock.advance(ROUND_S)
        _, asked, _ = slots.allocate()
        obey(slots, asked)
        turns += [*slots.allocate()[0]]
    assert turns == ["b", "a"] * 2 and slots.held == 2
    slots.hang("a", 0)
    assert slots.allocate()[:2] == ({}, {"a": 1})
    slots.give_back("a", 1)
    assert slots.allocate()[0] == {} and slots.held == 1


def test_slots_beside_the_number_have_a_bound() -> None:
    slots, _ = found(8, a=8, b=0)
    slots.hang("a", 8)
    assert slots.allocate()[0] == {"b": 4}
    assert (slots.room, slots.held) == (12, 12)


@pytest.mark.contract(
    "A task whose calls hang is asked no more for a slot that only these could give back.",
    convicts=["request_for_a_hanging_call"],
)
def test_a_request_that_only_calls_that_hang_could_meet_is_dropped() -> None:
    slots, clock = found(1, a=1, b=0)
    clock.advance(ROUND_S)
    assert slots.allocate()[1] == {"a": 0}
    slots.hang("a", 1)
    assert slots.holders["a"].asked == math.inf
    assert slots.allocate()[0] == {"b": 1}
    # It has its turn again, which is asked for anew.
    clock.advance(ROUND_S)
    obey(slots, slots.allocate()[1])
    assert slots.allocate()[0] == {"a": 1}
    clock.advance(ROUND_S)
    assert slots.allocate()[1] == {"a": 1}


@pytest.mark.contract(
    "Slots beside the number found go with the task whose calls hang, when its lease is over."
)
def test_slots_beside_the_number_go_with_their_task() -> None:
    slots, clock = found(2, a=2, b=0)
    slots.hang("a", 2)
    slots.want("a", 0)
    assert slots.allocate()[0] == {"b": 2}
    slots.lost("a")
    clock.advance(LEASE_S - 0.1)
    slots.allocate()
    assert (slots.room, slots.held) == (4, 4)
    clock.advance(0.1)
    assert slots.allocate()[0] == {}
    assert (slots.room, slots.held) == (2, 2)
    slots.hang("b", 1)
    assert slots.allocate()[0] == {"b": 1}
    slots.leave("b")
    assert (slots.room, slots.held) == (2, 0)


def test_a_task_that_comes_back_says_which_of_its_slots_hang() -> None:
    slots, _ = found(2, a=2, b=0)
    slots.hang("a", 1)
    assert slots.allocate()[0] == {"b": 1}
    slots.lost("a")
    # Otherwise it would be asked for a slot that it may keep.
    assert slots.register("a", 2, 8, 1) is None
    assert slots.room == 3


# -- tasks ---------------------------------------------------------------------------------------------


class Hanging:
    """A service that works on one call at a time, with calls that never end; notes the calls in work."""

    def __init__(self, hang: Callable[[int], bool], seconds: float = 0.01) -> None:
        self._hang = hang
        self._seconds = seconds
        self._place = asyncio.Semaphore(1)
        self.end = asyncio.Event()
        self.in_flight = self.most = self.hanging = 0

    async def __call__(self, row: int) -> int:
        """Take a place, unless the row hangs until `end` is set."""
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if self._hang(row):
                self.hanging += 1
                await self.end.wait()
                self.hanging -= 1
            async with self._place:
                await asyncio.sleep(self._seconds)
        finally:
            self.in_flight -= 1
        return row


class Job:
    """One task of a job; keeps the results as they come."""

    def __init__(self, fn: Any, rows: range, capacity: Adaptive | int = FOUND, **more: Any) -> None:
        self.results: list[int] = []
        options = Options(capacity=Shared(capacity), limits=VirtualLimits(), ordered=False, **more)
        self.running = asyncio.ensure_future(self._run(async_map(rows, fn, options=options)))

    async def _run(self, results: Any) -> None:
        async for each in results:
            self.results.append(each)


def with_coordinator(script: Callable[[VirtualCoordinator], Awaitable[None]]) -> None:
    """Run `script` beside a coordinator."""

    async def run() -> None:
        async with VirtualCoordinator() as coordinator:
            await script(coordinator)

    on_net(run)


@pytest.mark.contract(
    "Calls that never end keep no task from making others, where tasks share a capacity that is found.",
    convicts=["hanging_calls_of_tasks_keep_slots", "hanging_task_asks_for_nothing"],
)
@pytest.mark.parametrize("kind", ["coroutines", "batches", "collectors"])
@pytest.mark.parametrize("tasks", [1, 3])
def test_calls_that_never_end_keep_no_task_from_making_others(tasks: int, kind: str) -> None:
    stuck = {60, 61, 160} & {*range(100 * tasks)}

    async def script(coordinator: VirtualCoordinator) -> None:
        service = Hanging(stuck.__contains__)

        async def batch(rows: list[int]) -> list[int]:
            return [await service(row) for row in rows]

        def collect(row: int, collector: Collector[int]) -> None:
            async def answer() -> None:
                collector.complete(await service(row))

            kept.append(asyncio.ensure_future(answer()))

        kept: list[Any] = []
        fn = {"coroutines": service, "batches": batch, "collectors": collect}[kind]
        more = {"batch": Batch(1)} if kind == "batches" else {}
        jobs = [Job(fn, range(100 * place, 100 * place + 100), **more) for place in range(tasks)]
        await asyncio.sleep(120.0)
        results = [row for job in jobs for row in job.results]
        assert sorted(results) == [row for row in range(100 * tasks) if row not in stuck]
        # They had slots beside the number; now there are no more than that.
        service.end.set()
        for job in jobs:
            await job.running
        (account,) = coordinator.slots.accounts.values()
        assert (account.allocator.held, account.allocator.room) == (0, account.allocator.total)

    with_coordinator(script)


@pytest.mark.contract(
    "A task whose first call hangs makes others, as it is told how long calls of other tasks take.",
    convicts=["round_trip_is_not_told"],
)
@pytest.mark.parametrize("after", [0.0, 2.0])
def test_a_task_whose_first_call_hangs_makes_others(after: float) -> None:
    async def script(coordinator: VirtualCoordinator) -> None:
        service = Hanging(lambda row: row == 1000)
        # It has rows for longer than the other one.
        first = Job(service, range(10_000, 20_000))
        await asyncio.sleep(after)
        second = Job(service, range(1000, 1050))
        await asyncio.sleep(20.0)
        assert sorted(second.results) == [*range(1001, 1050)] and not first.running.done()
        first.running.cancel()
        await asyncio.wait([first.running])
        service.end.set()
        await second.running

    with_coordinator(script)


@pytest.mark.contract(
    "Calls that hang are found by the round trip of now, though the first calls of a job waited for long.",
    convicts=["round_trip_of_the_start"],
)
def test_calls_that_hang_are_found_by_the_round_trip_of_now() -> None:
    # It begins with 16 calls in flight, of which the service works on one.
    assert find(Service(1, 0.1, 0.3), 4, 40.0, 20.0, hanging=2).share >= 0.95


@pytest.mark.contract(
    "A call that ends after all gives up its slot beside the number found.",
    convicts=["ended_calls_still_hang"],
)
def test_a_call_that_ends_after_all_gives_up_its_slot_beside_the_number() -> None:
    async def script(coordinator: VirtualCoordinator) -> None:
        service = Hanging(lambda row: row in {60, 61, 10_060})
        jobs = [Job(service, range(place * 10_000, place * 10_000 + 10_000)) for place in range(2)]
        await asyncio.sleep(30.0)
        (account,) = coordinator.slots.accounts.values()
        allocator = account.allocator
        assert service.hanging == 3 and allocator.room == allocator.total + 3
        service.end.set()
        await asyncio.sleep(2.0)
        assert allocator.room == allocator.total and allocator.held <= allocator.total
        for job in jobs:
            job.running.cancel()
        await asyncio.wait([job.running for job in jobs])

    with_coordinator(script)


@pytest.mark.contract("Of a shared capacity that is given no more calls are ever in flight, whichever hang.")
def test_a_number_that_is_given_is_kept_to_whatever_hangs() -> None:
    async def script(coordinator: VirtualCoordinator) -> None:
        service = Hanging(lambda row: row in {20, 70})
        jobs = [Job(service, range(place * 50, place * 50 + 50), 2) for place in range(2)]
        await asyncio.sleep(120.0)
        assert service.hanging == service.in_flight == service.most == 2
        service.end.set()
        await asyncio.wait([job.running for job in jobs])
        assert sorted(row for job in jobs for row in job.results) == [*range(100)] and service.most == 2

    with_coordinator(script)


@pytest.mark.contract("Connections that break leave tasks their slots beside the number found.")
def test_connections_that_break_leave_tasks_their_slots_beside_the_number() -> None:
    async def script(coordinator: VirtualCoordinator) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        service = Hanging(lambda row: row in {60, 160})
        jobs = [Job(service, range(place * 100, place * 100 + 100)) for place in range(2)]
        for _ in range(10):
            await asyncio.sleep(6.0)
            await loop.cut()
        await asyncio.sleep(60.0)
        assert sum(len(job.results) for job in jobs) == 198
        service.end.set()
        await asyncio.wait([job.running for job in jobs])

    with_coordinator(script)


class Lease:
    """The slots of one task, which begins a call in each that it may use; the test says which hang."""

    def __init__(self, rule: Adaptive = FOUND) -> None:
        self.in_flight = 0
        clock = asyncio.get_running_loop().time
        self.slots = SlotLease(RpcHandle(((HOST, PORT),), SECRET, SLOTS), "g", rule, 60.0, clock)
        self.slots.start(lambda: self.in_flight, self._begin, lambda error: None)

    def _begin(self) -> None:
        self.in_flight = max(self.in_flight, self.slots.limit)


@pytest.mark.contract(
    "A task that is asked for a slot in which a call hangs uses the next one that it gets.",
    convicts=["request_for_a_hanging_call_stands"],
)
def test_a_task_that_is_asked_for_a_slot_of_a_call_that_hangs_uses_the_next() -> None:
    async def script(coordinator: VirtualCoordinator) -> None:
        lease = Lease()
        lease.slots.want()
        await asyncio.sleep(1.0)
        assert lease.slots.limit == lease.in_flight == 1
        other = Lease()
        other.slots.want()
        await asyncio.sleep(2.0 * ROUND_S)
        # It is asked for the only slot, whose call does not end.
        assert lease.slots.limit == 0
        lease.slots.hang(1)
        await asyncio.sleep(0.02)
        assert other.slots.limit == 1
        lease.slots.want()
        await other.slots.close()
        await asyncio.sleep(0.02)
        assert lease.slots.limit == 2
        await lease.slots.close()

    with_coordinator(script)


def test_calls_that_hang_are_not_reported_of_a_number_that_is_given() -> None:
    handle = RpcHandle(((HOST, PORT),), SECRET, SLOTS)

    async def script(coordinator: VirtualCoordinator) -> None:
        async with connect(handle) as connection:
            connection.send("open", SLOTS, *TO_SLOTS.to_json(OpenSlots("g", 5, "c", 0, 0))[1:])
            await connection.receive()
            connection.send(*TO_SLOTS.to_json(SlotsStuck(1)))
            with pytest.raises((EOFError, OSError)):
                await connection.receive()

    with_coordinator(script)
