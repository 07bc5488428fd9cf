"""A network in one process, on a loop with virtual time. Everything is for the thread that runs the loop.

Connections are pairs of sockets: what one side writes is there for the other at once, so no time passes while
something is on its way.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pillarbox.testing import VirtualTimeLoop
from tests.aio.virtual import LONG, played

T = TypeVar("T")

HOST, PORT = "virtual", 7077


class _Listening:
    """The server of the loop: as much as `RpcServer` uses of one."""

    def __init__(self, loop: NetLoop) -> None:
        self._loop = loop
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return HOST, PORT

    def fileno(self) -> int:
        raise NotImplementedError("no socket of the system listens")

    def close(self) -> None:
        self._loop.accept = None

    async def wait_closed(self) -> None:
        pass


class NetLoop(VirtualTimeLoop):
    """Virtual time; one server may listen, and whoever connects is connected to it."""

    def __init__(self) -> None:
        super().__init__(longest=LONG)
        self.accept: Callable[[], Any] | None = None
        self._both_ends: list[Any] = []

    async def create_server(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        self.accept = protocol_factory
        return _Listening(self)

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        if self.accept is None:
            raise ConnectionRefusedError("nobody listens")
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        accepted, _ = await self.connect_accepted_socket(self.accept, theirs)
        transport, protocol = await super().create_connection(protocol_factory, sock=ours)
        self._both_ends += [accepted, transport]
        return transport, protocol

    def hold(self) -> None:
        """Let nothing more come through, in either direction: as when a cable is pulled."""
        for each in self._both_ends:
            if not each.is_closing():
                each.pause_reading()

    async def cut(self) -> None:
        """Cut off what is connected."""
        for each in self._both_ends:
            each.abort()
        # A transport closes its socket in its next turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def on_net(script: Callable[[], Awaitable[T]]) -> T:
    """Run `script()` on a `NetLoop`; no task may be left when it has ended."""

    async def whole() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        try:
            return await script()
        finally:
            await loop.cut()

    net = NetLoop()
    try:
        return net.run_until_complete(played(whole))
    finally:
        net.close()
