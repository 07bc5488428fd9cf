"""`python -m bench.limits.shared`: one capacity that 16 tasks share by slots, in virtual time."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
from collections.abc import AsyncIterator

from bench.table import Column, print_table
from pillarbox import Options, Shared, async_map
from tests.limits.unit.virtual_coordinator import VirtualCoordinator, VirtualLimits
from tests.rpc.unit.virtual_network import on_net

TASKS, SLOTS = 16, 20
SECONDS = 120.0


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


def main() -> None:
    parser = argparse.ArgumentParser(description="one capacity for all tasks of a job")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    logging.disable()
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
    main()
