"""The slots of calls: who has one, when it is given to another, and what comes after a call was given up."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from pillarbox import Retry, async_map
from tests.aio.overloaded import Overloaded
from tests.aio.virtual import Job, now, play


@pytest.mark.contract(convicts=["abandoned_slot_freed_twice"])
def test_the_slot_of_a_call_that_was_abandoned_is_free_once() -> None:
    running: list[int] = []
    most = 0

    async def call(row: int) -> int:
        nonlocal most
        if row == 0:
            while now() < 10.0:
                try:
                    await asyncio.sleep(10.0 - now())
                except asyncio.CancelledError:
                    continue
            return row
        running.append(row)
        most = max(most, len(running))
        await asyncio.sleep(3.0)
        running.remove(row)
        return row

    async def script() -> None:
        job = Job(call, capacity=1, timeout=4.0, errors="column", ordered=False)
        job.push(*range(6))
        await job.end()
        assert (most, sorted(job.results[1:])) == (1, [1, 2, 3, 4, 5])
        assert job.results[0].type == "CallTimeout"
        assert job.statistics().abandoned == 1

    play(script)


@pytest.mark.contract
def test_while_calls_are_held_back_none_begins_and_those_that_run_end() -> None:
    calls: Counter[int] = Counter()

    async def call(row: int) -> int:
        calls[row] += 1
        if 0 < row <= 10 and calls[row] == 1:
            await asyncio.sleep(0.5)
            raise Overloaded(9.0)
        await asyncio.sleep(1.0)
        return row

    async def script() -> None:
        job = Job(call, capacity=20, retry=Retry(2), ordered=False)
        job.push(*range(11))
        await asyncio.sleep(0.6)
        # Ten of eleven calls were refused.
        job.push(*range(11, 16))
        await asyncio.sleep(8.8)
        assert (calls, job.results) == (dict.fromkeys(range(11), 1), [0])
        await job.end()
        assert sorted(job.results) == [*range(16)]

    play(script)


@pytest.mark.contract(convicts=["cancelled_thread_gives_slot"])
def test_what_a_thread_returns_after_the_time_out_of_its_row_is_late() -> None:
    may_return = threading.Event()

    def call(row: int) -> int:
        may_return.wait()
        return row

    async def script() -> None:
        job = Job(call, timeout=4.0, errors="column")
        job.push(0)
        try:
            await asyncio.sleep(4.5)
            assert len(job.results) == 1
            # Its slot is that of the thread.
            assert job.statistics().in_flight == 1
        finally:
            may_return.set()
        while job.statistics().in_flight:
            await asyncio.sleep(0)
        assert job.statistics().late == 1
        await job.end()

    play(script)


@pytest.mark.contract(convicts=["abandoned_thread_keeps_slot"])
def test_the_slot_of_a_thread_that_does_not_end_goes_to_another_row() -> None:
    other_is_called = threading.Event()

    def call(row: int) -> int:
        if row == 0:
            other_is_called.wait(60)
        else:
            other_is_called.set()
        return row

    def run() -> None:
        list(async_map([0, 1], call, capacity=1, timeout=0.05, errors="column"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert other_is_called.wait(30)
    thread.join()
