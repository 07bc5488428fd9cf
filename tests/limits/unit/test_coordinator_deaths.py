"""Tasks that die or are cut off, on either kind of loop: how many calls begin, and what the others get."""

from __future__ import annotations

import asyncio
import importlib
import socket
import struct
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Coordinator
from pillarbox.aio.limits.coordinator import CoordinatorHandle, Upkeep
from pillarbox.aio.limits.messages import Opened, Update, UsageReport
from pillarbox.aio.limits.rate import Limits
from tests.limits.unit import calling
from tests.limits.unit.calling import Caller
from tests.limits.unit.coordinating import Hasty
from tests.limits.unit.peers import Peer
from tests.limits.unit.virtual_coordinator import VirtualCoordinator
from tests.rpc.unit.virtual_network import on_net
from tests.waiting import until

LOOPS = ("asyncio", "uvloop")
LIMITS = Limits(max_calls=1000)


class Gathering(Hasty):
    """Writes down late what it has granted: there is time enough to leave."""

    _upkeep = Upkeep(return_timeout_s=0.05, commit_delay_s=0.1)


def run_on(loop: str, test: Coroutine[Any, Any, None]) -> None:
    new_loop = importlib.import_module(loop).new_event_loop()
    try:
        new_loop.run_until_complete(test)
    finally:
        new_loop.close()


def killed(program: subprocess.Popen[str]) -> int:
    """The number of calls that it began until one of them killed it."""
    output, _ = program.communicate()
    assert program.returncode == -9
    return len(output.splitlines())


async def given_up(coordinator: Coordinator | VirtualCoordinator, name: str = "g") -> None:
    await until(lambda: coordinator.statistics()[name].held == 0)


@pytest.mark.contract
@pytest.mark.parametrize("loop", LOOPS)
def test_calls_that_kill_their_processes_are_never_more_than_are_allowed(loop: str) -> None:
    pytest.importorskip(loop)
    limits = Limits(max_calls=4)

    async def more(shared: CoordinatorHandle) -> int:
        async with Caller(shared.open(limits)) as caller:
            return await caller.calls()

    with Hasty() as coordinator:
        shared = coordinator.named("g")
        begun = 0
        for _ in range(2):
            program = calling.start(shared, limits, loop=loop, fatal=2)
            begun += len(program.communicate()[0].splitlines())
            asyncio.run(given_up(coordinator))
            assert 2 <= begun <= coordinator.statistics()["g"].calls <= 4
        assert begun + asyncio.run(more(shared)) <= 4
        assert coordinator.statistics()["g"].calls == 4


@pytest.mark.contract
def test_what_a_killed_process_held_counts_as_called_and_the_rest_is_granted() -> None:
    with Hasty() as coordinator:
        shared = coordinator.named("g")
        begun = killed(calling.start(shared, LIMITS, fatal=-100))
        assert 100 <= begun < 1000
        asyncio.run(given_up(coordinator))
        counted = coordinator.statistics()["g"].calls
        assert begun <= counted < 1000

        async def rest() -> int:
            async with Caller(shared.open(LIMITS)) as caller:
                return await caller.calls()

        assert asyncio.run(rest()) == 1000 - counted


async def holding(coordinator: Coordinator | VirtualCoordinator) -> Peer:
    """A task that was granted calls and has begun none."""
    peer = await Peer().connect(coordinator)
    peer.open(limits=LIMITS)
    assert await peer.hear() == Opened()
    peer.say(Update(UsageReport(), 10, 0.0))
    granted = 0
    while granted < 10:
        granted += (await peer.hear()).calls
    return peer


@pytest.mark.parametrize("end", ["close", "reset", "silence", "nonsense"])
def test_a_task_that_is_cut_off_and_stays_away_may_have_used_all_that_it_held(end: str) -> None:
    async def test(coordinator: Coordinator | VirtualCoordinator) -> None:
        peer = await holding(coordinator)
        peer.say(Update(UsageReport(10, 3)))
        if end == "close":
            peer.writer.close()
        elif end == "reset":
            theirs = peer.writer.get_extra_info("socket")
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.writer.transport.abort()
        elif end == "silence":
            peer.fall_silent()
            assert await peer.ended()
        else:
            peer.writer.write(bytes(1000))
            assert await peer.ended()
        await given_up(coordinator)
        assert coordinator.statistics()["g"].calls == 10
        # One that comes back after all says what is true.
        again = await Peer().connect(coordinator)
        again.open(limits=LIMITS, report=UsageReport(10, 3, 7))
        await until(lambda: coordinator.statistics()["g"].calls == 3)
        again.writer.close()

    async def virtually() -> None:
        async with VirtualCoordinator() as coordinator:
            await test(coordinator)

    if end == "reset":
        with Hasty() as real:
            asyncio.run(test(real))
    else:
        on_net(virtually)


def test_a_task_that_leaves_between_a_grant_and_its_writing_down_takes_nothing_from_the_others(
    tmp_path: Path,
) -> None:
    async def test(coordinator: Coordinator) -> None:
        async with Caller(coordinator.named("g").open(LIMITS)) as caller:
            peer = await Peer().connect(coordinator)
            peer.open(limits=LIMITS)
            assert await peer.hear() == Opened()
            peer.say(Update(UsageReport(), 4, 0.0))
            await until(lambda: coordinator.statistics()["g"].held == 4)
            peer.writer.transport.abort()
            assert await caller.call()

    with Gathering(state=tmp_path / "state") as coordinator:
        asyncio.run(test(coordinator))
