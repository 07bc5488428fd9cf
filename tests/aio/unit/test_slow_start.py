"""A task's first results leave at once, its output grows, and what nobody takes is not called for."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from pillarbox import Options
from pillarbox.aio.row_inputs import CollectionInput
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import ChunkOutput, TaskRun
from pillarbox.task.protocols import RowBatch
from tests.aio.virtual import play

ROWS = 2048
LINGER = 0.1
MINUTE = 60.0


class Task:
    """An operator with 20 ms a call at capacity 100, whose results go out in chunks."""

    def __init__(self, rows: int = 30_000) -> None:
        self.calls = 0
        loop = asyncio.get_running_loop()
        options = Options(capacity=100)
        self.output = ChunkOutput(loop, rows=min(ROWS, options.window), linger=LINGER)
        self.run = TaskRun(
            [Stage(self._call, options)],
            CollectionInput(range(rows)),
            self.output,
            loop=loop,
            context=contextvars.copy_context(),
        )

    async def _call(self, row: Any) -> Any:
        self.calls += 1
        await asyncio.sleep(0.02)
        return row

    async def stop(self) -> None:
        self.run.stop()
        await self.run.ended


@pytest.mark.contract
def test_the_first_results_of_a_task_leave_after_the_first_call_and_not_after_a_pause() -> None:
    async def script() -> None:
        task = Task()
        task.run.start()
        await asyncio.sleep(0.0201)
        assert len(await task.output.take_async() or ()) >= 1
        assert task.calls <= 200
        await task.stop()

    play(script)


@pytest.mark.contract
def test_a_task_whose_results_nobody_takes_stops_calling() -> None:
    async def script() -> None:
        task = Task()
        task.run.start()
        await asyncio.sleep(MINUTE)
        # Two small chunks on their way, and what waits for its turn: 8 x capacity.
        assert task.calls <= 800 + 1 + 2
        await task.stop()

    play(script)


@pytest.mark.contract
def test_a_reader_that_is_slow_at_first_costs_no_calls_however_long_it_takes() -> None:
    async def script() -> None:
        task = Task()
        task.run.start()
        taken = 0
        for size in (1, 2, 4, 8):
            await asyncio.sleep(MINUTE)
            chunk = await task.output.take_async()
            assert chunk is not None and len(chunk) == size
            taken += size
            # What waits for its turn, the chunk that waits to be taken, and the one behind it.
            assert task.calls <= 800 + taken + 6 * size
        await task.stop()

    play(script)


@pytest.mark.contract(
    "A small task gives its results in two steps: behind the last row no call is saved by more of them."
)
def test_behind_the_last_row_all_that_has_finished_leaves_at_once() -> None:
    async def script() -> None:
        task = Task(rows=50)
        task.run.start()
        await asyncio.sleep(MINUTE)
        sizes = [len(await task.output.take_async() or ()) for _ in range(2)]
        assert sum(sizes) == 50
        assert await task.output.take_async() is None
        await task.stop()

    play(script)


def test_each_chunk_that_is_taken_doubles_the_next_one() -> None:
    async def script() -> list[int]:
        loop = asyncio.get_running_loop()
        sink = ChunkOutput(loop, rows=16, linger=LINGER)
        sizes = []
        for _ in range(200):
            if sink.is_available:
                sink.collect(RowBatch([(None, 0)]))
            if sink._handover:
                sizes.append(len(await sink.take_async() or ()))
                await asyncio.sleep(0)
        return sizes

    sizes = play(script)
    assert sizes[:6] == [1, 2, 4, 8, 16, 16]
    assert max(sizes) == 16


def test_a_few_results_wait_no_longer_than_the_linger_time_while_the_output_grows() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        sink = ChunkOutput(loop, rows=16, linger=LINGER)
        for _ in range(3):
            sink.collect(RowBatch([(None, 0)]))
            sink.collect(RowBatch([(None, 0)]))
            await sink.take_async()
            await asyncio.sleep(0)
        sink.collect(RowBatch([(None, 0)]))
        await asyncio.sleep(LINGER * 1.01)
        assert await sink.take_async() is not None

    play(script)
