"""Tasks that talk to others end when they are told to, also where a cancellation gets lost."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox import Coordinator
from pillarbox.aio.limits.rate import Limits, SharedLimits
from pillarbox.loop_thread import end
from tests.aio.virtual import play


def test_a_task_that_loses_cancellations_is_cancelled_until_it_ends() -> None:
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while lost < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1

    async def run() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await end(task)
        assert task.done()

    play(run)
    assert lost == 3


def test_what_ended_tasks_raised_is_theirs(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise ValueError("theirs")

    async def whole() -> int:
        return 1

    async def run() -> None:
        tasks = [asyncio.create_task(broken()), asyncio.create_task(whole())]
        await asyncio.wait(tasks)
        await end(*tasks, asyncio.create_task(asyncio.sleep(1000)))
        await end()

    asyncio.run(run())
    assert not caplog.messages


@pytest.mark.parametrize("turns", range(5))
def test_a_gate_closes_in_whichever_turn_a_connection_is_refused(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.wait_for` loses a cancellation that comes in the turn in which what it waits for has ended."""
    refuse = asyncio.Event()
    tried = 0

    async def refused(*_: object, **__: object) -> None:
        nonlocal tried
        tried += 1
        await refuse.wait()
        raise ConnectionRefusedError("nobody is there")

    async def run(shared: SharedLimits) -> None:
        monkeypatch.setattr(asyncio, "open_connection", refused)
        gate = shared.open(Limits(per_second=1.0))
        gate.start(asyncio.get_running_loop(), lambda: None)
        while not tried:
            await asyncio.sleep(0)
        refuse.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await gate.close()

    with Coordinator() as coordinator:
        asyncio.run(run(coordinator.named("g")))
