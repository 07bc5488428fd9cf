"""A server that stops closes every connection, however far it has come."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.loop_thread import LoopThread, new_event_loop
from pillarbox.rpc.connection import Connection, RpcHandle, connect
from pillarbox.rpc.server import RpcServer, Service


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Keep the garbage collector from closing what nobody else closes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Nothing(Service):
    """A service that says nothing."""

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        await connection.receive()


@pytest.mark.contract("A server that stops closes every connection, however far it has come.")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, None], ids=["asyncio", "default"])
@pytest.mark.parametrize("turns", range(8))
@pytest.mark.usefixtures("without_collections")
def test_a_connection_that_comes_while_the_server_stops_is_closed(
    turns: int, new_loop: type[asyncio.AbstractEventLoop] | None
) -> None:
    thread = LoopThread("server") if new_loop is None else LoopThread("server", new_loop)
    listener = RpcServer("nothing", Nothing())
    port = thread.submit(listener._listen()).result()

    async def meet_and_stop() -> socket.socket:
        # The system takes the connection; the loop hears of it in its next turn.
        client = socket.create_connection(("127.0.0.1", port))
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener._stop()
        return client

    def stopped(_: object) -> None:
        # On the loop's thread, so that there is no turn between the last one and the end of the loop.
        thread._stop()

    async def begin() -> asyncio.Task[socket.socket]:
        task = asyncio.ensure_future(meet_and_stop())
        task.add_done_callback(stopped)
        return task

    task = thread.submit(begin()).result()
    thread._thread.join()
    with task.result() as client:
        try:
            while client.recv(4096):
                pass
        except ConnectionError:
            pass


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "default"])
def test_a_server_that_stops_refuses_nobody_for_good(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Another may be started in its place, and clients are to wait for that one."""

    async def open_and_stop(turns: int) -> None:
        server = RpcServer("nothing", Nothing())
        port = await server._listen()
        async with connect(RpcHandle((("127.0.0.1", port),), server._secret, "nothing")) as connection:
            connection.send("open", "nothing")
            for _ in range(turns):
                await asyncio.sleep(0)
            await server._stop()
            with pytest.raises((EOFError, ConnectionError)):
                await connection.receive()

    loop = new_loop()
    for turns in range(8):
        loop.run_until_complete(open_and_stop(turns))
    loop.close()


@pytest.mark.parametrize("turns", range(4))
def test_a_task_that_ends_when_it_is_cancelled_has_ended_before_its_loop_however_busy_the_machine(
    turns: int,
) -> None:
    ended = []

    async def last_words() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(turns):
                await asyncio.sleep(0)
            ended.append(True)

    async def begin() -> None:
        task = asyncio.ensure_future(last_words())
        held.append(task)

    held: list[asyncio.Task[None]] = []
    thread = LoopThread("tasks", asyncio.new_event_loop, last_wait_s=0.0)
    thread.submit(begin()).result()
    assert thread.close(threading.TIMEOUT_MAX)
    assert ended == [True]
