"""A loop on a thread of its own ends whole, whatever tasks raise when they are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from pillarbox.loop_thread import LoopThread

WAIT_TIMEOUT_S = threading.TIMEOUT_MAX
"""Seconds: the test's own time-out is the limit."""


@pytest.mark.contract("A loop thread ends and closes its loop also if cancelled tasks exit or interrupt.")
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_loop_ends_whole_if_cancelled_tasks_exit(raised: type[BaseException]) -> None:
    thread = LoopThread("pillarbox-exits")
    cancelled: list[int] = []
    closed: list[str] = []

    async def exits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(number)
            raise raised

    async def generated() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.append("generator")
            raise raised

    async def begin() -> tuple[list[asyncio.Task[None]], AsyncIterator[int]]:
        tasks = [asyncio.ensure_future(exits(number)) for number in range(3)]
        numbers = generated()
        assert await anext(numbers) == 1
        return tasks, numbers

    tasks, _numbers = thread.run(begin())
    assert thread.close(WAIT_TIMEOUT_S)
    assert thread.loop.is_closed()
    assert sorted(cancelled) == [0, 1, 2]
    assert closed == ["generator"]
    assert {type(task.exception()) for task in tasks} == {raised}


@pytest.mark.contract("A loop thread that is told to end does so although a task exits in the same turn.")
def test_a_loop_that_is_told_to_end_does_so_although_a_task_exits_in_the_same_turn() -> None:
    thread = LoopThread("pillarbox-exits")

    def exits() -> None:
        raise SystemExit

    async def in_one_turn() -> None:
        thread.loop.call_soon(thread._stop)
        thread.loop.call_soon(exits)

    thread.run(in_one_turn())
    thread._thread.join(WAIT_TIMEOUT_S)
    assert not thread._thread.is_alive()
    assert thread.loop.is_closed()
