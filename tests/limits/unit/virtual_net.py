"""A coordinator and its tasks on one loop with virtual time. Everything is for the thread that runs the loop.

Connections are pairs of sockets within the process: what one side writes is there for the other at once, so
no time passes while something is on its way.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pillarbox.aio.limits.coordinator import DEFAULT_UPKEEP, LimitService, SharedStatistics, Upkeep
from pillarbox.aio.limits.lease import SERVICE, LeasedLimiter
from pillarbox.aio.limits.rate import Limits, Rate, SharedLimits
from pillarbox.rpc.connection import DEFAULT_TIMING, RpcHandle, Timing
from pillarbox.rpc.server import RpcServer
from tests.aio.unit.virtual import VirtualLoop, play

T = TypeVar("T")

HOST, PORT = "virtual", 7077
SECRET = bytes(32)
HANDLE = RpcHandle(((HOST, PORT),), SECRET, SERVICE)


class _Listening:
    """The server of the loop: only what `RpcServer` uses of one."""

    def __init__(self, loop: NetLoop) -> None:
        self._loop = loop
        # Bound to nothing: for its number.
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return HOST, PORT

    def fileno(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        self._loop.accept = None

    async def wait_closed(self) -> None:
        pass


class NetLoop(VirtualLoop):
    """Virtual time; one server may listen, and whoever connects is connected to it."""

    accept: Callable[[], Any] | None = None

    async def create_server(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        self.accept = protocol_factory
        return _Listening(self)

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        if self.accept is None:
            raise ConnectionRefusedError("nobody listens")
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        await self.connect_accepted_socket(self.accept, theirs)
        return await super().create_connection(protocol_factory, sock=ours)


def on_net(script: Callable[[], Awaitable[T]]) -> T:
    """Run `script()` on a `NetLoop`; no task may be left when it has ended."""
    return play(script, NetLoop)


def limiter(limits: Limits, name: str = "g", patience: float = 60.0, **how: Any) -> LeasedLimiter:
    """A task's limiter on the clock of the running loop."""
    clock = asyncio.get_running_loop().time
    return LeasedLimiter(HANDLE, name, limits, patience, clock, **how)


class VirtualCoordinator:
    """A coordinator in memory, in an `async with` block. state: what it goes on from."""

    def __init__(
        self,
        state: dict[str, Any] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.service = LimitService(SECRET, None, state, upkeep, clock)
        self._server = RpcServer(SERVICE, self.service, HOST, PORT, timing=timing)
        self._server._secret = SECRET

    async def __aenter__(self) -> VirtualCoordinator:
        await self._server._listen()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._server._stop()

    def statistics(self) -> dict[str, SharedStatistics]:
        return self.service.statistics()


class VirtualLimits(SharedLimits):
    """The limits of the coordinator that listens on the running loop, for operators."""

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> LeasedLimiter:
        return limiter(Limits.of(rate, max_calls, max_cost))

    def named(self, name: str | None = None) -> VirtualLimits:
        return self
