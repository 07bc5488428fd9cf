"""Calls that never end, where the tasks of a job share a capacity that a coordinator finds."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox import Adaptive, Coordinator, Options, Shared, async_map
from tests.waiting import until

TASKS, ROWS = 3, 80


@pytest.mark.contract(
    "A job goes on beside calls that never end, at a coordinator that has found a capacity of few calls."
)
def test_a_job_goes_on_beside_calls_that_never_end() -> None:
    # The service works on one call at a time: two are in flight at most, and these two never end.
    hanging = {(0, 40), (1, 40)}

    async def script() -> None:
        place, end = asyncio.Semaphore(1), asyncio.Event()
        answered = set()

        async def call(row: tuple[int, int]) -> tuple[int, int]:
            if row in hanging:
                await end.wait()
            async with place:
                await asyncio.sleep(0.001)
            answered.add(row)
            return row

        with Coordinator() as coordinator:
            options = Options(
                capacity=Shared(Adaptive(start=1, most=16)), limits=coordinator.named("g"), ordered=False
            )

            async def task(number: int) -> int:
                rows = [(number, row) for row in range(ROWS)]
                return len([each async for each in async_map(rows, call, options=options)])

            running = asyncio.gather(*[task(number) for number in range(TASKS)])
            await until(lambda: len(answered) == TASKS * ROWS - len(hanging))
            assert not answered & hanging
            end.set()
            assert await running == [ROWS] * TASKS

    asyncio.run(script())
