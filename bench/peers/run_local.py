"""Without Spark: asyncio written by hand, and `pillarbox.async_map`. Run in the project's environment."""

from __future__ import annotations

import asyncio
import platform
from collections import deque
from collections.abc import Callable

from bench.peers.http import AskRow
from bench.peers.jobs import Call, Job, call_for
from bench.peers.serve import Answers, Collect, serve
from pillarbox import Buffer, Options

REORDER_FACTOR = 8
Pairs = list[tuple[int, int]]


async def fixed_workers(job: Job, call: Call) -> Pairs:
    """As many tasks as slots, each calling for one row after the other: the least that asyncio can do."""
    todo = deque(range(job.rows))
    answers: Pairs = []

    async def worker() -> None:
        while todo:
            row = todo.popleft()
            answers.append((row, await call(row)))

    await asyncio.gather(*[worker() for _ in range(job.capacity)])
    return answers


async def semaphore_window(job: Job, call: Call) -> Pairs:
    """A task a row, admitted by a semaphore, answers as they finish."""
    answers: Pairs = []
    slots = asyncio.Semaphore(job.capacity)
    running: set[asyncio.Task[tuple[int, int]]] = set()

    async def one(row: int) -> tuple[int, int]:
        return row, await call(row)

    def finished(task: asyncio.Task[tuple[int, int]]) -> None:
        running.discard(task)
        slots.release()
        answers.append(task.result())

    for row in range(job.rows):
        await slots.acquire()
        task = asyncio.create_task(one(row))
        running.add(task)
        task.add_done_callback(finished)
    await asyncio.gather(*running)
    return answers


async def ordered_window(job: Job, call: Call) -> Pairs:
    """A task a row, answers taken from the oldest of a window that may be larger than the capacity."""
    answers: Pairs = []
    slots = asyncio.Semaphore(job.capacity)
    window: deque[asyncio.Task[tuple[int, int]]] = deque()
    limit = job.reorder or job.capacity

    async def one(row: int) -> tuple[int, int]:
        try:
            return row, await call(row)
        finally:
            slots.release()

    for row in range(job.rows):
        await slots.acquire()
        window.append(asyncio.create_task(one(row)))
        if len(window) == limit:
            answers.append(await window.popleft())
    answers.extend([await task for task in window])
    return answers


def by_hand(main: Callable[[Job, Call], object]) -> Callable[[Job], Collect]:
    """A job of a coroutine function above."""

    def run(job: Job) -> Collect:
        pairs = asyncio.run(main(job, call_for(job)))  # type: ignore[arg-type]
        return lambda: _split(pairs)  # type: ignore[arg-type]

    return run


def _split(pairs: Pairs) -> Answers:
    return [row for row, _ in pairs], [answer for _, answer in pairs]


def ours(job: Job) -> Collect:
    """`pillarbox.async_map`."""
    from pillarbox import async_map

    results = async_map(
        range(job.rows),
        call_for(job),
        ordered=job.ordered,
        capacity=job.capacity,
        options=Options(buffer=Buffer(job.reorder)),
    )
    answers = list(results)
    return lambda: (None, answers)


def http_by_hand(job: Job) -> Collect:
    """The fixed workers with an HTTP session."""

    async def main() -> Pairs:
        async with AskRow(job.url, job.capacity) as ask:
            return await fixed_workers(job, ask)

    pairs = asyncio.run(main())
    return lambda: _split(pairs)


def http_ours(job: Job) -> Collect:
    """`pillarbox.async_map` with an HTTP session as a resource."""
    from pillarbox import async_map

    ask = AskRow(job.url, job.capacity)
    answers = list(async_map(range(job.rows), ask, ordered=job.ordered, capacity=job.capacity))
    return lambda: (None, answers)


CONTENDERS = {
    "fixed workers": by_hand(fixed_workers),
    "semaphore window": by_hand(semaphore_window),
    "ordered window": by_hand(ordered_window),
    "async_map": ours,
    "HTTP by hand": http_by_hand,
    "HTTP async_map": http_ours,
}

if __name__ == "__main__":
    serve(lambda job: CONTENDERS[job.contender](job), f"Python {platform.python_version()}")
