"""The part that all clients share: one transport for each event loop, and the keys in the headers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from pillarbox.aio.current_call import running_call
from pillarbox.aio.limits.headers import LIMITS_WORD
from pillarbox.clients.fields import values_by_name
from pillarbox.clients.late_address import AddressLease, LateAddress
from pillarbox.clients.secret import UNAUTHORIZED, Secret, SecretHeaders
from pillarbox.clients.transport import Http, Response, Transport, open_transport

Self = TypeVar("Self", bound="Client")


def _told(value: object, *, in_order: bool = False) -> Any:
    """A field in plain values, without secrets. in_order: names count in their order."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, Mapping):
        told = {str(name): _told(each, in_order=in_order) for name, each in value.items()}
        # A tuple, as no other value is told as one.
        return tuple(told.items()) if in_order and len(told) > 1 else told
    if isinstance(value, list | tuple | set | frozenset):
        ordered = value if isinstance(value, list | tuple) else sorted(value, key=repr)
        return [_told(each, in_order=in_order) for each in ordered]
    if isinstance(value, Secret):
        return "a secret"
    named: Any = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


class Connections:
    """The transport and the headers of one client on one event loop, for as many as have entered it there.

    lease: of a server beside the worker, where its address is that of one.
    """

    def __init__(self, transport: Transport, headers: SecretHeaders) -> None:
        self.transport = transport
        self.headers = headers
        self.users = 0
        self.lease: AddressLease | None = None


class Client:
    """The base of clients: a value with options, which is entered on the event loop of its calls.

    May be entered several times, on several loops: each loop has one transport, opened by the first and
    closed by the last that leaves. What is open does not pickle.
    """

    http: Http
    has_own_endpoints: ClassVar[bool] = True
    """Requests go to its own addresses, and to no endpoint of the options."""
    gives_one_row: ClassVar[bool] = True
    """A list that a call gives is a value, not several rows, as that of a function is."""
    _beside_results: ClassVar[frozenset[str]] = frozenset({"base_url", "key", "http"})
    """The fields that decide nothing about results: keys, addresses and most of transport."""
    _in_order: ClassVar[frozenset[str]] = frozenset({"body", "params"})
    """The fields whose names are sent in the order in which they are given."""
    _connections: dict[asyncio.AbstractEventLoop, Connections]

    @property
    def configuration(self) -> dict[str, Any]:
        """The part of the client that decides about its results, for a cache.

        That is what it sends, and what it makes of an answer: all fields but those that only say where and
        how requests go. Without keys: a `Secret` among headers or parameters counts by its name alone. A
        function or another object counts by the name of its type: one that has changed needs another
        `Ledger.version`.
        """
        fields = {
            each.name: _told(getattr(self, each.name), in_order=each.name in self._in_order)
            for each in dataclasses.fields(self)  # type: ignore[arg-type]
            if each.init and each.name not in self._beside_results
        }
        if self.http.surrogates != "error":
            # Other texts are sent, and other values are made of answers.
            fields["surrogates"] = self.http.surrogates
        return {"client": type(self).__qualname__, **fields}

    def values_of(self, row: object) -> dict[str, Any]:
        """The fields of a row that a call would read, by their names: a cache knows the row by them.

        Any thread. Raises ValueError for a row that lacks one.
        """
        return values_by_name((row,), getattr(self, "fields", ()))

    def _headers(self) -> SecretHeaders:
        """The headers of all requests, not read yet."""
        raise NotImplementedError

    def _use_address(self, url: str) -> None:
        """Send requests to this address, which is known now, in place of a `LateAddress`."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": {}}

    async def __aenter__(self: Self) -> Self:
        """Open the connections and read the keys. Raises what `open_transport` and `Secret.read` raise.

        And what `LateAddress.lease` raises, where the address is one.
        """
        loop = asyncio.get_running_loop()
        opened = self._connections.get(loop)
        if opened is None:
            opened = self._connections[loop] = Connections(open_transport(self.http), self._headers())
        opened.users += 1
        try:
            address = getattr(self, "base_url", None)
            if opened.lease is None and isinstance(address, LateAddress):
                lease = await address.lease()
                if opened.lease is None:
                    opened.lease = lease
                    self._use_address(lease.url)
                else:
                    # Of another that has entered meanwhile.
                    lease.release()
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
            opened.headers.stop()
            if opened.lease is not None:
                opened.lease.release()
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
        # Few services name limits: of the others no header is parsed.
        mention = getattr(response.headers, "mention", None)
        if (mention is None or mention(LIMITS_WORD)) and (call := running_call()) is not None:
            # Of several addresses they are those of the one that answered.
            call.report_limits(response.headers)
        return response

    def _request(
        self,
        opened: Connections,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        vectors: int,
    ) -> Coroutine[Any, Any, Response]:
        sent = opened.headers.current if not headers else {**headers, **opened.headers.current}
        return opened.transport.request(method, url, headers=sent, body=body, vectors=vectors)
