"""`python -m bench.limits.shared`: one capacity that tasks share by slots, given or found, in virtual time.

A number that is found is that of a service with a knee: see `bench.limits.adaptive`. Exits with 1 where such
a job misses its figures.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import random
import sys
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from bench.limits.adaptive import MOST_TRIPS, TARGET, longest_above
from bench.limits.crowded import Service
from bench.table import Column, print_table
from pillarbox import Buffer, Options, Retry, Shared, async_map
from pillarbox.aio.concurrency import MIN_BESIDE
from pillarbox.aio.limits.slots import LEASE_S
from tests.limits.unit.virtual_coordinator import VirtualCoordinator, VirtualLimits
from tests.rpc.unit.virtual_network import on_net

TASKS, SLOTS = 16, 20
SECONDS = 120.0
TRIPS = 400


class Busy:
    """An async function whose calls take `seconds`, from and to; adds up how long how many were in flight."""

    def __init__(self, seconds: tuple[float, float], seed: int = 1) -> None:
        self._seconds = seconds
        self._random = random.Random(seed)
        self.in_flight = self.most = self.calls = 0
        self._slot_seconds = self._at = 0.0

    async def __call__(self, row: int) -> int:
        """Take its time."""
        self.calls += 1
        self._move(1)
        try:
            await asyncio.sleep(self._random.uniform(*self._seconds))
        finally:
            self._move(-1)
        return row

    def _move(self, by: int) -> None:
        now = asyncio.get_running_loop().time()
        self._slot_seconds += self.in_flight * (now - self._at)
        self._at = now
        self.in_flight += by
        self.most = max(self.most, self.in_flight)

    def used(self, slots: int, seconds: float) -> float:
        """The part of the slots that was used."""
        return self._slot_seconds / (slots * seconds)


async def rows(until: float) -> AsyncIterator[int]:
    """Rows without end, until a time."""
    loop = asyncio.get_running_loop()
    row = 0
    while loop.time() < until:
        yield row
        row += 1


def measure(service: Busy, tasks: int, slots: int, seconds: float, most: int | None = None) -> list[int]:
    """Run so many tasks for so long; returns the calls of each. most: rows of a task, None for no end."""
    counts = [0] * tasks

    async def task(place: int, until: float) -> None:
        options = Options(ordered=False, capacity=Shared(slots), limits=VirtualLimits())
        given = rows(until) if most is None else _some(most)
        async for _ in async_map(given, service, options=options):
            counts[place] += 1

    async def script() -> None:
        async with VirtualCoordinator():
            running = [asyncio.ensure_future(task(place, seconds)) for place in range(tasks)]
            done, left = await asyncio.wait(running, timeout=seconds)
            for each in left:
                each.cancel()
            if left:
                await asyncio.wait(left)
            for each in done:
                each.result()

    on_net(script)
    return counts


async def _some(count: int) -> AsyncIterator[int]:
    for row in range(count):
        yield row


class Found(NamedTuple):
    """Counts of a job that finds one capacity for its tasks.

    share: of the service's own limit, in steady state. trips: the longest time above 1.5 times the knee, in
    round trips of that time. refused: share of the calls. limits: the least and the most in steady state.
    counts: the answers of each task in it.
    """

    share: float
    trips: float
    refused: float
    limits: tuple[int, int]
    counts: list[int]

    def is_held(self, seconds: float) -> bool:
        """True if it meets its figures: 0.95, and ten round trips and a lease above 1.5 times the knee.

        seconds: of a call; with so many of them in flight a round trip takes up to twice as long.
        """
        return self.share >= TARGET and self.trips <= MOST_TRIPS + LEASE_S / (2.0 * seconds)


class SomeHang:
    """A service of which so many calls never end, the first of those that begin after a time."""

    def __init__(self, service: Service, hanging: int, after: float) -> None:
        self._service = service
        self._left = hanging
        self._after = after

    async def __call__(self, row: int) -> int:
        """Be called, unless it is one that hangs."""
        if self._left and asyncio.get_running_loop().time() >= self._after:
            self._left -= 1
            await asyncio.get_running_loop().create_future()
        return await self._service(row)


def find(service: Service, tasks: int, seconds: float, settled: float, hanging: int = 0) -> Found:
    """Run so many tasks for so many seconds with `Shared("auto")`; steady state begins after `settled`.

    hanging: calls that never end, the first that begin after half of that time.
    """
    random.seed(5)
    called = SomeHang(service, hanging, settled / 2)

    async def script() -> Found:
        loop = asyncio.get_running_loop()
        service.start()
        counts = [0] * tasks
        limits: list[tuple[float, int, int]] = []

        async def task(place: int) -> None:
            options = Options(
                ordered=False,
                capacity=Shared("auto"),
                limits=VirtualLimits(),
                retry=Retry(4),
                errors="null",
                buffer=Buffer(1024),
            )
            async for _ in async_map(rows(seconds), called, options=options):
                counts[place] += loop.time() >= settled

        async with VirtualCoordinator() as coordinator:
            running = [asyncio.ensure_future(task(place)) for place in range(tasks)]
            while loop.time() < seconds:
                await asyncio.sleep(service.seconds / 4)
                (account,) = coordinator.slots.accounts.values() or (None,)
                if account is not None:
                    limits.append((loop.time(), account.allocator.total, service.knee))
            for each in running:
                each.cancel()
            await asyncio.wait(running)
        served = [at for at, _ in service.served if settled <= at < seconds]
        late = [limit for at, limit, _ in limits if at >= settled]
        return Found(
            len(served) * service.seconds / (service.places * (seconds - settled)),
            longest_above(limits, service),
            service.refused / service.calls,
            (min(late), max(late)),
            counts,
        )

    return on_net(script)


def find_all(tasks: Sequence[int], knees: Sequence[int], trips: int) -> bool:
    """Print the table of numbers that are found; True if all meet their figures."""
    table, held = [], True
    for refuses, seconds, knee, count in itertools.product((False, True), (0.1, 2.0), knees, tasks):
        service = Service(knee, seconds, 0.3, refuses=refuses, status=503)
        found = find(service, count, trips * seconds, trips * seconds / 2)
        held = held and found.is_held(seconds)
        table.append(
            [
                f"{knee} places, {'503 above' if refuses else 'a queue'}, {seconds:g} s, {count} tasks",
                f"{found.share:.3f}",
                f"{found.trips:.1f}",
                f"{found.refused:.3f}",
                f"{found.limits[0]} to {found.limits[1]}",
                f"{min(found.counts)} to {max(found.counts)}",
                "yes" if found.is_held(seconds) else "NO",
            ]
        )
        print(*table[-1], sep="  ", flush=True)
    columns = [Column("the number is found", right=False), Column("share of the knee"), Column("trips above")]
    columns += [Column("refused"), Column("limits"), Column("calls of a task"), Column("held")]
    print_table(columns, table)
    return held


def find_beside_hanging(tasks: Sequence[int], trips: int) -> bool:
    """Print the table of numbers that are found while some calls hang.

    True if all keep the service as busy as without: at least 0.95 times.
    """
    table, held = [], True
    for knee, count in itertools.product((1, 2, 16), tasks):
        without = 0.0
        for hanging in (0, 2, 4, 16):
            if hanging > max(MIN_BESIDE, knee):
                continue
            service = Service(knee, 0.1, 0.3)
            found = find(service, count, trips * 0.1, trips * 0.05, hanging)
            without = without or found.share
            is_held = found.share >= TARGET * min(1.0, without)
            held = held and is_held
            what = f"{knee} places, {hanging} calls hang, {count} tasks"
            limits = f"{found.limits[0]} to {found.limits[1]}"
            table.append([what, f"{found.share:.3f}", limits, "yes" if is_held else "NO"])
            print(*table[-1], sep="  ", flush=True)
    columns = [Column("some calls hang", right=False), Column("share of the knee"), Column("limits")]
    print_table([*columns, Column("held")], table)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description="one capacity for all tasks of a job")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", choices=("given", "found", "hanging"))
    parser.add_argument("--found-tasks", type=int, nargs="+", default=(4, 16))
    parser.add_argument("--knees", type=int, nargs="+", default=(16, 50, 120))
    parser.add_argument("--trips", type=int, default=TRIPS, help="round trips of a job that finds its number")
    given = parser.parse_args()
    logging.disable()
    if given.only in (None, "given"):
        share_given(given)
    held = True
    if given.only in (None, "found"):
        held = find_all(given.found_tasks, given.knees, given.trips)
    if given.only in (None, "hanging"):
        held = find_beside_hanging(given.found_tasks, given.trips) and held
    return 0 if held else 1


def share_given(given: argparse.Namespace) -> None:
    """Print the table of a number that is given."""
    table = []
    for shown, seconds in {"20 to 60 ms": (0.02, 0.06), "0.5 to 1.5 s": (0.5, 1.5)}.items():
        for tasks in (given.tasks, 2 * given.tasks):
            service = Busy(seconds)
            counts = measure(service, tasks, given.slots, given.seconds)
            table.append(
                [
                    f"{tasks} tasks, calls of {shown}",
                    str(service.most),
                    f"{service.used(given.slots, given.seconds):.3f}",
                    f"{min(counts)} to {max(counts)}",
                ]
            )
    columns = [Column(f"{given.slots} slots", right=False), Column("in flight, at most")]
    print_table([*columns, Column("used"), Column("calls of a task")], table)


if __name__ == "__main__":
    sys.exit(main())
