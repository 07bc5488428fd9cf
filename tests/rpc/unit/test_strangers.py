"""Peers of a server that are not what they should be: no secret, garbage, forged frames, silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from pillarbox.rpc.connection import (
    BROKEN,
    CODE_NBYTES,
    MAGIC,
    MAX_FRAME_NBYTES,
    NONCE_NBYTES,
    Connection,
    ProtocolError,
    RefusedError,
    RpcHandle,
    Timing,
    client_handshake,
    connect,
    encode,
)
from pillarbox.rpc.server import MAX_UNAUTHENTICATED
from tests.rpc.unit.echo import SERVICE, Echo, echoes_of, say, serving, way_to
from tests.rpc.unit.virtual_network import HOST, PORT, NetLoop, on_net
from tests.waiting import until


class Known:
    """A connection of somebody who knows the secret, and says what a test wants."""

    async def connect(self, handle: RpcHandle) -> Known:
        self.reader, self.writer = await asyncio.open_connection(*handle.addresses[0])
        self.channel: Connection = await client_handshake(self.reader, self.writer, handle.secret)
        self.sent: list[bytes] = []
        write = self.writer.write

        def keep(data: bytes) -> None:
            self.sent.append(bytes(data))
            write(data)

        self.writer.write = keep  # type: ignore[method-assign, assignment]
        return self

    async def open(self) -> None:
        self.channel.send("open", SERVICE)
        assert (await self.channel.receive())[0] == "opened"

    async def ended(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(4096):
                pass
        self.writer.close()
        return True


async def some_end(readers: list[asyncio.StreamReader], number: int) -> None:
    """Wait until the other side has ended so many connections."""
    reads = [asyncio.ensure_future(reader.read()) for reader in readers]
    while sum(each.done() for each in reads) < number:
        await asyncio.sleep(0.01)
    for each in reads:
        each.cancel()
    await asyncio.gather(*reads, return_exceptions=True)


def with_server(test: Callable[[RpcHandle, Echo], Awaitable[None]], **options: Any) -> None:
    echo = Echo()
    with serving(echo, **options) as host:
        handle = way_to(host)

        async def run() -> None:
            await test(handle, echo)

        asyncio.run(run())
        # Whatever was tried, who belongs here is served.
        assert echoes_of(handle, "still there") == ["still there"]


@pytest.mark.contract
def test_a_client_without_the_secret_is_not_served_and_is_told_why() -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        stranger = RpcHandle(handle.addresses, os.urandom(32), SERVICE)
        with pytest.raises(ProtocolError, match="does not accept this task's secret"):
            await say(stranger, "psst")
        assert echo.heard == []

    with_server(run)


def test_a_client_trusts_no_server_that_does_not_know_the_secret() -> None:
    heard = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(MAGIC + bytes(NONCE_NBYTES))
            heard.extend(await reader.readexactly(NONCE_NBYTES + CODE_NBYTES))
            writer.write(bytes(CODE_NBYTES))
            heard.extend(await reader.read())

    async def run() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        handle = RpcHandle((server.sockets[0].getsockname(),), os.urandom(32), SERVICE)
        with pytest.raises(ProtocolError, match="it does not know the secret"):
            await say(handle, "secret plans")
        server.close()
        await server.wait_closed()
        # It proves itself, and says nothing.
        assert len(heard) == NONCE_NBYTES + CODE_NBYTES

    asyncio.run(run())


def test_the_coordinator_of_limits_serves_nothing_else() -> None:
    # The same secret does not help: each server has a service of its own.
    from pillarbox import Coordinator

    with Coordinator() as coordinator:
        handle = RpcHandle((coordinator.address,), coordinator._secret, SERVICE)
        with pytest.raises(RefusedError, match="nothing called 'echo' is served here"):
            echoes_of(handle)


@pytest.mark.parametrize("size", [1, 64, 300_000])
def test_garbage_ends_its_connection_and_nothing_else(size: int) -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection(*handle.addresses[0])
        writer.write(os.urandom(size))
        if size < NONCE_NBYTES + CODE_NBYTES:
            writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert (await reader.read()).startswith(MAGIC)
        writer.close()
        assert echo.heard == []

    with_server(run)


def test_silent_connections_do_not_keep_others_out_and_are_bounded() -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        opened = [
            await asyncio.open_connection(*handle.addresses[0]) for _ in range(MAX_UNAUTHENTICATED + 20)
        ]
        known = await Known().connect(handle)
        await known.open()
        known.writer.close()
        await some_end([reader for reader, _ in opened], 20)
        for _, writer in opened:
            writer.close()

    with_server(run)


def test_a_frame_that_is_sent_again_is_refused_and_counts_once() -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        known = await Known().connect(handle)
        await known.open()
        known.channel.send("say", "once")
        assert (await known.channel.receive()) == ["say", "once"]
        known.writer.write(known.sent[-1])
        assert await known.ended()
        # Nor in another connection, where it would be the first.
        other = await Known().connect(handle)
        other.writer.write(known.sent[0])
        assert await other.ended()
        assert echo.heard == ["once"]

    with_server(run)


def test_a_changed_frame_is_refused() -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        known = await Known().connect(handle)
        await known.open()
        write = known.writer.write
        frames: list[bytes] = []
        known.writer.write = frames.append  # type: ignore[method-assign, assignment]
        known.channel.send("say", "mine")
        write(frames[0].replace(b"mine", b"thin"))
        assert await known.ended()
        assert echo.heard == []

    with_server(run)


def test_a_frame_of_any_length_is_refused_before_it_is_read() -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        known = await Known().connect(handle)
        await known.open()
        known.writer.write((MAX_FRAME_NBYTES + 1).to_bytes(4, "big"))
        assert await known.ended()

    with_server(run)


@pytest.mark.parametrize("message", [{"kind": "say"}, ["say"], ["say", 1, 2], [1], []])
def test_nonsense_from_who_knows_the_secret_ends_its_connection_and_nothing_else(
    message: list[Any],
) -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        known = await Known().connect(handle)
        await known.open()
        known.channel.send_text(encode(message))
        assert await known.ended()
        assert echo.heard == []

    with_server(run)


@pytest.mark.parametrize("hello", [["say", 1], ["open"], ["open", ["echo"]], ["open", 7]])
def test_who_does_not_open_as_he_should_is_cut_off(hello: list[Any]) -> None:
    async def run(handle: RpcHandle, echo: Echo) -> None:
        known = await Known().connect(handle)
        known.channel.send_text(encode(hello))
        assert await known.ended()

    with_server(run)


@contextlib.asynccontextmanager
async def serving_virtually(echo: Echo, timing: Timing) -> AsyncIterator[RpcHandle]:
    """A server of an echo on a network with virtual time, and the way to it."""
    server = serving(echo, timing=timing)
    await server._listen()
    try:
        yield RpcHandle(((HOST, PORT),), server._secret, SERVICE, timing=timing)
    finally:
        await server._stop()


def test_who_proves_himself_and_then_says_nothing_is_cut_off() -> None:
    async def run() -> None:
        async with serving_virtually(Echo(), Timing(connect_timeout_s=4.0)) as handle:
            known = await Known().connect(handle)
            assert await known.ended()
            assert asyncio.get_running_loop().time() == 4.0
            assert await say(handle, "still there") == ["still there"]

    on_net(run)


def test_a_connection_that_has_gone_silent_is_given_up_by_both() -> None:
    async def run() -> None:
        loop, echo = asyncio.get_running_loop(), Echo()
        assert isinstance(loop, NetLoop)
        timing = Timing(heartbeat_interval_s=5.0, heartbeat_timeout_s=20.0)
        async with serving_virtually(echo, timing) as handle, connect(handle) as connection:
            connection.send("open", SERVICE)
            await connection.receive()
            loop.hold()
            with pytest.raises(BROKEN):
                await connection.receive()
            await until(lambda: echo.ended)
            assert 20.0 < loop.time() <= 26.0

    on_net(run)


def test_beats_keep_a_quiet_connection_up() -> None:
    async def run() -> None:
        timing = Timing(heartbeat_interval_s=5.0, heartbeat_timeout_s=30.0)
        async with serving_virtually(Echo(), timing) as handle, connect(handle) as connection:
            connection.send("open", SERVICE)
            await connection.receive()
            hearing = asyncio.ensure_future(connection.receive())
            # Longer than a silence may be.
            await asyncio.wait([hearing], timeout=100.0)
            connection.send("say", 1)
            assert await hearing == ["say", 1]

    on_net(run)
