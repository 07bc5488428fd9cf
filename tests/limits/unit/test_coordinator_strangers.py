"""Peers that are not what they should be: no secret, nonsense, frames that were recorded, silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pillarbox import Coordinator
from pillarbox.aio.limits.coordinator import CoordinatorHandle
from pillarbox.aio.limits.messages import SERVICE, Opened, Update, UsageReport
from pillarbox.aio.limits.rate import CoordinatorError
from pillarbox.rpc.connection import CODE_NBYTES, MAGIC, MAX_FRAME_NBYTES, NONCE_NBYTES, RpcHandle, Timing
from pillarbox.rpc.server import MAX_UNAUTHENTICATED
from tests.limits.unit.calling import Caller, impatient
from tests.limits.unit.peers import LIMITS, Peer
from tests.limits.unit.virtual_coordinator import VirtualCoordinator, limiter
from tests.rpc.unit.test_strangers import some_end
from tests.rpc.unit.virtual_network import on_net


async def works(coordinator: Coordinator) -> None:
    async with Caller(coordinator.named().open(LIMITS)) as caller:
        assert await caller.call()


class Waiting(Coordinator):
    """Is not impatient with those who are slow to say who they are."""

    _own_timing = Timing(connect_timeout_s=1000.0)


def with_coordinator(test: Callable[[Coordinator], Awaitable[None]]) -> None:

    async def run(coordinator: Coordinator) -> None:
        await test(coordinator)
        # Whatever was tried, who belongs here is served.
        await works(coordinator)

    with Waiting() as coordinator:
        asyncio.run(run(coordinator))


@pytest.mark.contract
def test_a_task_without_the_secret_is_not_served_and_its_job_says_why() -> None:
    async def run(coordinator: Coordinator) -> None:
        handle = CoordinatorHandle(RpcHandle((coordinator.address,), os.urandom(32), SERVICE), "g", 30.0)
        async with Caller(impatient(handle.open(LIMITS), "secret")) as caller:
            with pytest.raises(CoordinatorError, match="does not accept this task's secret"):
                await caller.call()
        assert coordinator.statistics() == {}

    with_coordinator(run)


def test_a_task_trusts_no_server_that_does_not_know_the_secret() -> None:
    heard = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(MAGIC + bytes(NONCE_NBYTES))
            heard.extend(await reader.readexactly(NONCE_NBYTES + CODE_NBYTES))
            writer.write(bytes(CODE_NBYTES))
            heard.extend(await reader.read())

    async def run() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        handle = CoordinatorHandle(
            RpcHandle((server.sockets[0].getsockname(),), os.urandom(32), SERVICE), "g", 30.0
        )
        async with Caller(impatient(handle.open(LIMITS), "it does not know")) as caller:
            with pytest.raises(CoordinatorError, match="it does not know the secret"):
                await caller.call()
        server.close()
        await server.wait_closed()
        assert len(heard) % (NONCE_NBYTES + CODE_NBYTES) == 0

    asyncio.run(run())


@pytest.mark.contract("Garbage to a coordinator ends its connection and nothing else.")
@pytest.mark.parametrize("size", [1, 64, 100_000])
def test_garbage_ends_its_connection_and_nothing_else(size: int) -> None:
    async def run(coordinator: Coordinator) -> None:
        reader, writer = await asyncio.open_connection(*coordinator.address)
        writer.write(os.urandom(size))
        if size < NONCE_NBYTES + CODE_NBYTES:
            writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert (await reader.read()).startswith(MAGIC)
        writer.close()

    with_coordinator(run)


def test_silent_connections_do_not_keep_others_out_and_are_bounded() -> None:
    async def run(coordinator: Coordinator) -> None:
        number = MAX_UNAUTHENTICATED + 20
        connections = [await asyncio.open_connection(*coordinator.address) for _ in range(number)]
        await works(coordinator)
        await some_end([reader for reader, _ in connections], 20)
        for _, writer in connections:
            writer.close()

    with_coordinator(run)


def test_who_is_slow_to_say_who_he_is_is_cut_off() -> None:
    async def run() -> None:
        timing = Timing(connect_timeout_s=5.0)
        async with VirtualCoordinator(timing=timing) as coordinator, Caller(limiter(LIMITS)) as caller:
            reader, writer = await asyncio.open_connection(*coordinator.address)
            assert len(await _all(reader)) == len(MAGIC) + NONCE_NBYTES
            assert asyncio.get_running_loop().time() == 5.0
            writer.close()
            assert await caller.call()

    on_net(run)


async def _all(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while data := await reader.read(4096):
            found += data
    except ConnectionError:
        pass
    return found


@pytest.mark.contract("A frame to a coordinator that is sent again is refused and counts once.")
def test_a_frame_that_is_sent_again_is_refused_and_counts_once() -> None:
    async def run(coordinator: Coordinator) -> None:
        peer = await Peer().connect(coordinator)
        peer.open()
        assert await peer.hear() == Opened()
        peer.say(Update(UsageReport(5, 5, 0, 1.0)))
        peer.writer.write(peer.sent[-1])
        assert await peer.ended()
        assert coordinator.statistics()["g"].calls == 5
        # Nor in another connection, where it would be the first.
        other = await Peer().connect(coordinator)
        other.writer.write(peer.sent[0])
        assert await other.ended()

    with_coordinator(run)


def test_a_changed_frame_is_refused() -> None:
    async def run(coordinator: Coordinator) -> None:
        peer = await Peer().connect(coordinator)
        peer.open()
        peer.sent.clear()
        recorded = peer.writer.write
        frames: list[bytes] = []
        peer.writer.write = frames.append  # type: ignore[method-assign, assignment]
        peer.say(Update(UsageReport(5, 5, 0, 1.0)))
        recorded(frames[0].replace(b"[5,5,", b"[5,0,"))
        assert await peer.ended()
        assert coordinator.statistics()["g"].calls == 0

    with_coordinator(run)


def test_a_frame_of_any_length_is_refused_before_it_is_read() -> None:
    async def run(coordinator: Coordinator) -> None:
        peer = await Peer().connect(coordinator)
        peer.writer.write((MAX_FRAME_NBYTES + 1).to_bytes(4, "big"))
        assert await peer.ended()

    with_coordinator(run)


LIMITS_JSON = [*LIMITS]
NOTHING_DONE = [0, 0, 0, 0.0]


@pytest.mark.parametrize(
    "message",
    [
        ["Update", NOTHING_DONE, 1, 1],
        ["open", "limits", "g", [1], "c", None, NOTHING_DONE],
        ["open", "limits", "g", [*LIMITS_JSON[:-2], 0, None], "c", None, NOTHING_DONE],
        ["open", "limits", 7, LIMITS_JSON, "c", None, NOTHING_DONE],
        ["open", "limits", "g", LIMITS_JSON, "c", None, [-1, 0, 0, 0.0]],
        ["open", "limits", "g", LIMITS_JSON, "c", None, "x"],
        ["open", "limits", "g", LIMITS_JSON, "c", ["before", 1], NOTHING_DONE],
        ["open", "limits", "g", LIMITS_JSON, "", None, NOTHING_DONE],
        ["g"],
    ],
)
def test_nonsense_from_who_knows_the_secret_ends_its_connection_and_nothing_else(message: list[Any]) -> None:
    async def run(coordinator: Coordinator) -> None:
        peer = await Peer().connect(coordinator)
        peer.channel.send(*message)
        assert await peer.ended()

    with_coordinator(run)


@pytest.mark.parametrize(
    ("field", "value"),
    # Without a number of calls a task wants what it wanted before.
    [(0, -1), (0, "many"), (0, 1e400), (1, -1), (1, "many"), (1, None), (1, 1e400)],
)
def test_a_want_that_makes_no_sense_harms_nobody(field: int, value: Any) -> None:
    async def run(coordinator: Coordinator) -> None:
        peer = await Peer().connect(coordinator)
        peer.open(client="odd")
        assert await peer.hear() == Opened()
        wanted: list[Any] = [1, 1.0]
        wanted[field] = value
        try:
            peer.channel.send("Update", NOTHING_DONE, *wanted)
        except ValueError:
            # A number that JSON does not know is not sent at all.
            peer.writer.close()
            return
        assert await peer.ended()

    with_coordinator(run)
