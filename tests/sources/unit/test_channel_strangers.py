"""Peers of a channel that are not what they should be: no secret, garbage, forged frames, silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pillarbox.rpc import connection as connection_module
from pillarbox.rpc.client import RpcError, RpcHandle
from pillarbox.rpc.connection import (
    CODE_NBYTES,
    MAGIC,
    MAX_FRAME_NBYTES,
    NONCE_NBYTES,
    Connection,
    client_handshake,
    encode,
)
from pillarbox.rpc.server import MAX_UNAUTHENTICATED, Peer, ServiceHost


class Count:
    """A service that counts what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def opened(self, peer: Peer, about: Any) -> None:
        pass

    def request(self, peer: Peer, body: Any) -> Any:
        return len(self.heard)

    def pushed(self, peer: Peer, body: Any) -> None:
        self.heard.append(body)

    def gone(self, peer: Peer, said_so: bool) -> None:
        pass


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

    async def open(self, client: str = "c") -> None:
        self.channel.send("open", "count", client, None, 0, False)
        assert (await self.channel.receive())[0] == "opened"

    async def ended(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(4096), 10):
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


def with_channel(test: Callable[[RpcHandle, Count], Awaitable[None]]) -> None:
    with ServiceHost() as channel:
        count = Count()
        handle = channel.serve("count", count)

        async def run() -> None:
            await asyncio.wait_for(test(handle, count), 60)

        asyncio.run(run())
        # Whatever was tried, who belongs here is served.
        with handle.connect() as client:
            assert client.request("how many", timeout=30) == len(count.heard)


@pytest.mark.contract
def test_a_reader_without_the_secret_is_not_served_and_its_task_says_why() -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        stranger = RpcHandle(handle.addresses, os.urandom(32), "count")
        with stranger.connect(patience=0.5) as client:
            client.push("psst")
            future = client.submit(1)
            with pytest.raises(RpcError, match="does not accept this task's secret"):
                await asyncio.to_thread(future.result, 30)
        assert count.heard == []

    with_channel(run)


def test_a_reader_trusts_no_server_that_does_not_know_the_secret() -> None:
    heard = bytearray()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            writer.write(MAGIC + bytes(NONCE_NBYTES))
            heard.extend(await reader.readexactly(NONCE_NBYTES + CODE_NBYTES))
            writer.write(bytes(CODE_NBYTES))
            heard.extend(await reader.read())

    async def run() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        handle = RpcHandle((server.sockets[0].getsockname(),), os.urandom(32), "count")
        client = handle.connect("secret plans", patience=0.3)
        client.push("more of them")
        future = client.submit(1)
        with pytest.raises(RpcError, match="it does not know the secret"):
            await asyncio.to_thread(future.result, 30)
        await asyncio.to_thread(client.close)
        server.close()
        await server.wait_closed()
        # It proves itself, and says nothing.
        assert len(heard) % (NONCE_NBYTES + CODE_NBYTES) == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_the_coordinator_of_limits_is_no_source_channel() -> None:
    # The same secret does not help: each server has services of its own.
    from pillarbox import Coordinator

    with Coordinator() as coordinator:
        handle = RpcHandle((coordinator.address,), coordinator._secret, "count")
        with (
            handle.connect(patience=0.3) as client,
            pytest.raises(RpcError, match="nothing called 'count' is served here"),
        ):
            client.request(1)


@pytest.mark.parametrize("size", [1, 64, 300_000])
def test_garbage_ends_its_connection_and_nothing_else(size: int) -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        reader, writer = await asyncio.open_connection(*handle.addresses[0])
        writer.write(os.urandom(size))
        if size < NONCE_NBYTES + CODE_NBYTES:
            writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert (await asyncio.wait_for(reader.read(), 10)).startswith(MAGIC)
        writer.close()
        assert count.heard == []

    with_channel(run)


def test_silent_connections_do_not_keep_others_out_and_are_bounded() -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        opened = [
            await asyncio.open_connection(*handle.addresses[0]) for _ in range(MAX_UNAUTHENTICATED + 20)
        ]
        known = await Known().connect(handle)
        await known.open()
        known.writer.close()
        await asyncio.wait_for(some_end([reader for reader, _ in opened], 20), 3)
        for _, writer in opened:
            writer.close()

    with_channel(run)


def test_a_frame_that_is_sent_again_is_refused_and_counts_once() -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        known = await Known().connect(handle)
        await known.open()
        known.channel.send("push", 1, "once")
        assert (await known.channel.receive()) == ["ack", 1]
        known.writer.write(known.sent[-1])
        assert await known.ended()
        # Nor in another connection, where it would be the first.
        other = await Known().connect(handle)
        other.writer.write(known.sent[0])
        assert await other.ended()
        assert count.heard == ["once"]

    with_channel(run)


@pytest.mark.contract
def test_a_message_that_is_said_again_is_acknowledged_and_heard_once() -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        known = await Known().connect(handle)
        await known.open()
        for number in (1, 1, 2, 1):
            known.channel.send("push", number, number)
        while (await known.channel.receive())[1] < 2:
            # All that is heard within a moment is acknowledged at once.
            continue
        assert count.heard == [1, 2]
        known.writer.close()

    with_channel(run)


def test_a_changed_frame_is_refused() -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        known = await Known().connect(handle)
        await known.open()
        write = known.writer.write
        frames: list[bytes] = []
        known.writer.write = frames.append  # type: ignore[method-assign, assignment]
        known.channel.send("push", 1, "mine")
        write(frames[0].replace(b"mine", b"thin"))
        assert await known.ended()
        assert count.heard == []

    with_channel(run)


def test_a_frame_of_any_length_is_refused_before_it_is_read() -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        known = await Known().connect(handle)
        await known.open()
        known.writer.write((MAX_FRAME_NBYTES + 1).to_bytes(4, "big"))
        assert await known.ended()

    with_channel(run)


@pytest.mark.parametrize(
    "message",
    [
        ["open", "count", "d", 1, 0, False],
        ["push", 2, "x"],
        ["push", "1", "x"],
        ["push", "x"],
        ["ack", 1],
        ["ack", -1],
        ["ack", None],
        ["ask", 1],
        ["ask", "x", 1],
        ["what"],
        [1],
        [],
    ],
)
def test_nonsense_from_who_knows_the_secret_ends_its_connection_and_nothing_else(
    message: list[Any],
) -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        known = await Known().connect(handle)
        await known.open()
        known.channel.send_text(encode(message))
        assert await known.ended()
        assert count.heard == []

    with_channel(run)


@pytest.mark.parametrize(
    "hello",
    [
        ["ask", 1, 1],
        ["open", ["count"], "c", 1, 0, False],
        ["open", "count", 7, 1, 0, False],
        ["open", "count", "c", 1, 5, False],
        ["open", "count", "c"],
    ],
)
def test_who_does_not_open_as_he_should_is_cut_off(hello: list[Any]) -> None:
    async def run(handle: RpcHandle, count: Count) -> None:
        known = await Known().connect(handle)
        known.channel.send_text(encode(hello))
        assert await known.ended()

    with_channel(run)


def test_who_proves_himself_and_then_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", 0.2)

    async def run(handle: RpcHandle, count: Count) -> None:
        known = await Known().connect(handle)
        assert await known.ended()

    with_channel(run)
