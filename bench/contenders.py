"""The contenders without Spark: hand-written asyncio, and the operator.

Each is a function of (rows, capacity) that calls the service once for each of the rows 0..rows-1, never with
more than `capacity` calls in flight, and returns the list of answers: in order, or as they finished.
Run one at a time, on the main thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench import service
from pillarbox import Buffer, Options, async_map

Run = Callable[[int, int], list[int]]


@dataclass(frozen=True)
class Contender:
    """One way to do the job. `ours`: it is Pillarbox; `ordered`: answers are in the order of the rows."""

    name: str
    run: Run
    ordered: bool
    spark: bool = False
    ours: bool = False


def fixed_workers(rows: int, capacity: int) -> list[int]:
    """As many tasks as slots, each calling for one row after the other: the least that asyncio can do."""
    answers: list[int] = []

    async def worker(todo: deque[int]) -> None:
        while todo:
            answers.append(await service.call(todo.popleft()))

    async def main() -> None:
        todo = deque(range(rows))
        await asyncio.gather(*[worker(todo) for _ in range(capacity)])

    asyncio.run(main())
    return answers


def semaphore_window(rows: int, capacity: int) -> list[int]:
    """A task a row, admitted by a semaphore, answers as they finish."""
    answers: list[int] = []

    async def main() -> None:
        slots = asyncio.Semaphore(capacity)
        running: set[asyncio.Task[int]] = set()

        def finished(task: asyncio.Task[int]) -> None:
            running.discard(task)
            slots.release()
            answers.append(task.result())

        for row in range(rows):
            await slots.acquire()
            task = asyncio.create_task(service.call(row))
            running.add(task)
            task.add_done_callback(finished)
        await asyncio.gather(*running)

    asyncio.run(main())
    return answers


def ordered_window(rows: int, capacity: int) -> list[int]:
    """A task a row, answers taken from the oldest; with this window a slow head idles the slots."""
    answers: list[int] = []

    async def main() -> None:
        window: deque[asyncio.Task[int]] = deque()
        for row in range(rows):
            if len(window) == capacity:
                answers.append(await window.popleft())
            window.append(asyncio.create_task(service.call(row)))
        answers.extend([await task for task in window])

    asyncio.run(main())
    return answers


def operator(ordered: bool, factor: int | None = None) -> Run:
    """`pillarbox.async_map`; `factor` is the reorder window in capacities, None for the default."""

    def run(rows: int, capacity: int) -> list[int]:
        reorder = None if factor is None else factor * capacity
        results = async_map(
            range(rows),
            service.call,
            ordered=ordered,
            capacity=capacity,
            options=Options(buffer=Buffer(reorder)),
        )
        return list(results)

    return run


LOCAL = [
    Contender("asyncio, fixed workers", fixed_workers, ordered=False),
    Contender("asyncio, semaphore window", semaphore_window, ordered=False),
    Contender("asyncio, ordered window", ordered_window, ordered=True),
    Contender("pillarbox.async_map, unordered", operator(False), ordered=False, ours=True),
    Contender("pillarbox.async_map, ordered", operator(True), ordered=True, ours=True),
]

WINDOW_FACTORS = (1, 2, 4, 8, 16)
"""Reorder windows to compare, in capacities."""
