"""A service that says back what it is told, and the way to say something to it."""

from __future__ import annotations

import asyncio
from typing import Any

from pillarbox.rpc.connection import Connection, RpcHandle, connect
from pillarbox.rpc.server import RpcServer, Service

SERVICE = "echo"


class Echo(Service):
    """Keeps what it has heard, and how many connections have ended."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended = 0

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        connection.send("opened", *hello)
        try:
            while True:
                kind, body = await connection.receive()
                self.heard.append(body)
                connection.send(kind, body)
        finally:
            self.ended += 1


def serving(echo: Echo | None = None, **options: Any) -> RpcServer:
    """A server of an echo, to be used in a `with` block."""
    return RpcServer(SERVICE, echo or Echo(), **options)


def way_to(host: RpcServer) -> RpcHandle:
    return host.handle()


async def say(handle: RpcHandle, *bodies: Any) -> list[Any]:
    """The echoes of these, said over one connection."""
    async with connect(handle) as connection:
        connection.send("open", handle.service, "about me")
        assert await connection.receive() == ["opened", "about me"]
        echoes = []
        for body in bodies:
            connection.send("say", body)
            echoes.append((await connection.receive())[1])
        return echoes


def echoes_of(handle: RpcHandle, *bodies: Any) -> list[Any]:
    """The same without an event loop around it."""
    return asyncio.run(say(handle, *bodies))
