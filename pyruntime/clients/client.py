"""The part that all clients share: one transport for each event loop, and the keys in the headers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

from pillarbox.clients.secret import SecretHeaders
from pillarbox.clients.transport import Http, Response, Transport, open_transport

UNAUTHORIZED = 401

Self = TypeVar("Self", bound="Client")


class Connections:
    """The transport and the headers of one client on one event loop, for as many as have entered it there."""

    def __init__(self, transport: Transport, headers: SecretHeaders) -> None:
        self.transport = transport
        self.headers = headers
        self.users = 0


class Client:
    """The base of clients: a value with options, which is entered on the event loop of its calls.

    May be entered several times, on several loops: each loop has one transport, opened by the first and
    closed by the last that leaves. What is open does not pickle.
    """

    http: Http
    _connections: dict[asyncio.AbstractEventLoop, Connections]

    def _headers(self) -> SecretHeaders:
        """The headers of all requests, not read yet."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}}

    async def __aenter__(self: Self) -> Self:
        """Open the connections and read the keys. Raises what `open_transport` and `Secret.read` raise."""
        loop = asyncio.get_running_loop()
        opened = self._connections.get(loop)
        if opened is None:
            opened = self._connections[loop] = Connections(open_transport(self.http), self._headers())
        opened.users += 1
        try:
            if not opened.headers.current:
                await opened.headers.read()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections, if nobody else uses them on this loop."""
        loop = asyncio.get_running_loop()
        opened = self._connections[loop]
        opened.users -= 1
        if not opened.users:
            del self._connections[loop]
            await opened.transport.close()

    async def _send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        vectors: int = 0,
    ) -> Response:
        """Send one request and return its answer, whatever its status; `headers` are added to the client's.

        vectors: as in `Transport.request`.
        A request that is refused with 401 is sent once more if the keys have changed meanwhile. Raises what
        `Transport.request` raises, and RuntimeError if the client is not open on this loop.
        """
        opened = self._connections.get(asyncio.get_running_loop())
        if opened is None:
            raise RuntimeError(
                f"{type(self).__name__}: is not open on this event loop: give it to the operator as "
                "the function, or use `async with client:` around its calls"
            )
        used = opened.headers.current
        response = await self._request(opened, method, url, headers, body, vectors)
        if response.status == UNAUTHORIZED and await opened.headers.renew(used):
            response = await self._request(opened, method, url, headers, body, vectors)
        return response

    async def _request(
        self,
        opened: Connections,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        vectors: int,
    ) -> Response:
        sent = opened.headers.current if not headers else {**headers, **opened.headers.current}
        return await opened.transport.request(method, url, headers=sent, body=body, vectors=vectors)
