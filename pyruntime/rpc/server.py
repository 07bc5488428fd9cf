"""The server's side: `RpcServer` listens and has connections served, `ServiceHost` gives it its life.

`Hosted` is thread-safe; the others are confined to the server's loop.
"""

# A peer that has not proved itself costs a file descriptor and a few hundred bytes, so their number is
# bounded. When it is reached, one of them goes at random. Refusing the newest would let 64 idle strangers
# keep everybody out; cutting off the oldest would favour strangers who connect fast over friends who are
# far away.

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import os
import random
import secrets
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.rpc import connection as connections
from pillarbox.rpc.client import RpcHandle
from pillarbox.rpc.connection import (
    BROKEN,
    MAX_BUFFER_NBYTES,
    Connection,
    ProtocolError,
    RefusedError,
    server_handshake,
)
from pillarbox.rpc.loop_thread import LoopThread, acquire_loop, end, release_loop
from pillarbox.validate import check_int, check_text

log = logging.getLogger("pillarbox")

MAX_UNAUTHENTICATED = 64
"""Connections whose peer is not known yet. One more, and any of them is cut off."""
SECRET_NBYTES = 32
STOP_TIMEOUT_S = 10.0
"""Seconds for a server to answer or to end."""


class ConnectionService(Protocol):
    """Serves the connections of one name. Confined to the server's loop."""

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """Serve until the connection is to end. hello: what the client said besides the name.

        What is in `BROKEN` may be raised, of what the client says.
        """

    def close(self) -> None:
        """End it: the server stops, and takes nobody any more."""


def digest_of(path: Path) -> bytes:
    """The digest of the certificate in a file in PEM, by which clients know a server. Raises OSError."""
    _, header, rest = path.read_text().partition("-----BEGIN CERTIFICATE-----")
    body, footer, _ = rest.partition("-----END CERTIFICATE-----")
    if not footer:
        raise ValueError(f"certificate={str(path)!r}: has no certificate in PEM")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(header + body + footer)).digest()


class Certificate:
    """A file in PEM with a server's private key and its certificate, and the digest by which clients know it.

    Raises OSError or ssl.SSLError for a file that is none.
    """

    def __init__(self, path: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(path)
        self.fingerprint = digest_of(path)


class RpcServer:
    """Listens on a port, and has each peer that knows `secret` and asks for `name` served by `service`."""

    def __init__(
        self, secret: bytes, name: str, service: ConnectionService, certificate: Certificate | None = None
    ) -> None:
        self._secret = secret
        self._name = name
        self._service = service
        self._certificate = certificate
        self._unauthenticated: dict[asyncio.StreamWriter, None] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._stopping = False

    async def listen(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_BUFFER_NBYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no other connections, cut off those that are there, wait for their ends."""
        self._stopping = True
        self._service.close()
        if self._server is not None and self._server.sockets:
            loop = asyncio.get_running_loop()
            # asyncio takes a connection in two turns, and does not close it if its server is closed between
            # them.
            with contextlib.suppress(NotImplementedError):
                for each in self._server.sockets:
                    loop.remove_reader(each.fileno())
            loop.call_soon(self._server.close)
        # One turn, in which also what was written last goes out.
        await asyncio.sleep(0)
        for writer in self._writers:
            writer.transport.abort()
        await end(*self._tasks)
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: a task that is cancelled before its first step would leave the connection open.
        if self._stopping:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._admit(reader, writer))
        self._tasks.add(task)
        self._writers.add(writer)

        def ended(task: asyncio.Task[None]) -> None:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

        task.add_done_callback(ended)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = await self._authenticate(reader, writer)
            opening = await asyncio.wait_for(connection.receive(), connections.CONNECT_TIMEOUT_S)
            kind, name, *hello = opening
            if kind != "open" or type(name) is not str:
                raise ProtocolError("a client that does not open")
            if name != self._name:
                connection.send("no", f"nothing called {name!r} is served here")
            elif not self._stopping:
                await self._service.serve(connection, hello)
            # What was said last still goes out.
            connection.close()
            await asyncio.wait_for(connection.wait_closed(), connections.CONNECT_TIMEOUT_S)
        except (*BROKEN, RefusedError) as error:
            log.debug("a connection has ended: %r", error)

    async def _authenticate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Connection:
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            # Not the oldest: strangers that come fast enough would keep out each friend who is far away.
            one = random.choice([*self._unauthenticated])
            del self._unauthenticated[one]
            one.transport.abort()
        self._unauthenticated[writer] = None
        try:
            tls = None if self._certificate is None else self._certificate.context
            proof = server_handshake(reader, writer, self._secret, tls)
            return await asyncio.wait_for(proof, connections.CONNECT_TIMEOUT_S)
        finally:
            self._unauthenticated.pop(writer, None)


# -- the life of a server -----------------------------------------------------------------------


def addresses_of(host: str, advertise: str | None) -> list[str]:
    """The names or addresses to try, in this order, for a server that listens on `host`."""
    if advertise is not None:
        return [advertise]
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return [socket.getfqdn(), socket.gethostname(), "127.0.0.1"]
    return [host]


class HostedServer(Protocol):
    """A server that `Hosted` gives a life. Confined to its loop."""

    async def listen(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""

    async def stop(self) -> Any:
        """End everything."""


T = TypeVar("T")
V = TypeVar("V", bound=HostedServer)
H = TypeVar("H", bound="Hosted[Any]")


class Hosted(ABC, Generic[V]):
    """Starts a server and ends it, for a `with` block. Another start has the same port and secret.

    kind: the word for it in errors. certificate: see `Certificate`; None for no TLS.
    Raises TypeError or ValueError for an address that is not one.
    """

    def __init__(
        self,
        kind: str,
        host: str,
        port: int,
        advertise: str | None,
        certificate: str | os.PathLike[str] | None = None,
    ) -> None:
        self._kind = kind
        self._host = check_text("host", host)
        self._port = check_int("port", port, 0, 65_535)
        self._advertise = None if advertise is None else check_text("advertise", advertise)
        self._certificate_path = None if certificate is None else Path(certificate)
        self._certificate: Certificate | None = None
        self._secret = secrets.token_bytes(SECRET_NBYTES)
        self._hosted: tuple[LoopThread, V] | None = None

    @abstractmethod
    def _make(self) -> V:
        """A server that is to listen, with the secret and the certificate of this moment."""

    def start(self: H) -> H:
        """Listen. Any thread, once; again after `close`. Raises OSError, also for the certificate."""
        if self._hosted is not None:
            raise RuntimeError(f"the {self._kind} has been started")
        if self._certificate_path is not None:
            self._certificate = Certificate(self._certificate_path)
        server = self._make()
        thread = acquire_loop()
        listening = thread.submit(server.listen(self._host, self._port))
        try:
            self._port = listening.result()
        except BaseException:
            listening.cancel()
            release_loop(thread)
            raise
        self._hosted = thread, server
        return self

    def close(self) -> None:
        """Stop listening and end every connection. Any thread but the server's own; idempotent."""
        self._end()

    def __enter__(self: H) -> H:
        return self if self._hosted is not None else self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port where it listens."""
        return self._host, self._port

    def handle(self, service: str) -> RpcHandle:
        """Give a task the way to a service. Any thread; raises RuntimeError unless started."""
        self._running()
        addresses = tuple((host, self._port) for host in addresses_of(self._host, self._advertise))
        fingerprint = None if self._certificate is None else self._certificate.fingerprint
        return RpcHandle(addresses, self._secret, service, fingerprint)

    def _end(self) -> Any:
        """The result of the server's `stop`; None if there is no server."""
        hosted, self._hosted = self._hosted, None
        if hosted is None or not hosted[0].is_alive:
            return None
        thread, server = hosted
        try:
            return thread.submit(server.stop()).result(STOP_TIMEOUT_S)
        finally:
            release_loop(thread)

    def _running(self) -> tuple[LoopThread, V]:
        if self._hosted is None:
            raise RuntimeError(f"the {self._kind} is not started: use it in a `with` block")
        return self._hosted

    def _ask(self, fn: Callable[[V], T]) -> T:
        """The result of `fn` on the server's thread, or what it raises there."""
        thread, server = self._running()

        async def ask() -> T:
            return fn(server)

        return thread.submit(ask()).result(STOP_TIMEOUT_S)

    def __repr__(self) -> str:
        state = "stopped" if self._hosted is None else "running"
        return f"<{type(self).__name__} on {self._host}:{self._port}, {state}>"


class ServiceHost(Hosted[RpcServer]):
    """Serves one service, called `name`, to clients on this machine or others.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for clients on others. Whoever
        connects must prove that he knows the secret, which travels in a `RpcHandle`.
    port: 0 for any that is free. advertise: the name or address by which clients reach this machine; None for
        `host`, or, where that is every address, for this machine's name.
    certificate: a file in PEM with a private key and its certificate, for TLS; None: nothing is encrypted.
    """

    def __init__(
        self,
        name: str,
        service: ConnectionService,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        certificate: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(f"server of {name!r}", host, port, advertise, certificate)
        self._name = name
        self._service = service

    def _make(self) -> RpcServer:
        return RpcServer(self._secret, self._name, self._service, self._certificate)
