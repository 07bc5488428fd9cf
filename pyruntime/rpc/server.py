"""The server's side: an `RpcServer` listens, and has connections served by its `Service`.

The server is thread-safe; the service is confined to its loop, that of all connections of the process.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pillarbox.loop_thread import LoopThread, acquire_loop, end, release_loop
from pillarbox.rpc.codec import Codec
from pillarbox.rpc.connection import (
    BROKEN,
    DEFAULT_TIMING,
    MAX_BUFFER_NBYTES,
    Connection,
    ProtocolError,
    RefusedError,
    RpcHandle,
    Timing,
    server_handshake,
)
from pillarbox.validate import check_int, check_text

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("pillarbox")

MAX_UNAUTHENTICATED = 64
"""Connections whose peer is not known yet. One more, and any of them is cut off."""
SECRET_NBYTES = 32
STOP_TIMEOUT_S = 10.0
"""Seconds for a server to answer or to end."""

T = TypeVar("T")


class Service:
    """Serves the connections of one name. Confined to the server's loop. Derive one and write `serve`."""

    async def begin(self, port: int) -> None:
        """The server listens on `port`. What is raised here ends it."""

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """Serve until the connection is to end. hello: what the client said besides the name.

        What is in `BROKEN` may be raised, of what the client says.
        """
        raise NotImplementedError

    async def end(self) -> None:
        """The server stops, and takes nobody any more; its connections are cut off next."""


async def next_message(
    connection: Connection, connections: Mapping[str, Connection], client: str, codec: Codec, opening: type
) -> Any:
    """Receive the next message of a client, whose last connection is in `connections`.

    Raises what `receive` and `codec` raise, and ValueError for a message over a connection that another one
    has replaced, and for a second `opening`.
    """
    message = codec.from_json(await connection.receive())
    if connections.get(client) is not connection or isinstance(message, opening):
        raise ValueError(f"{message!r:.200} out of turn")
    return message


def digest_of(path: Path) -> bytes:
    """The digest of the certificate in a file in PEM, by which clients know a server. Raises OSError."""
    _, header, rest = path.read_text().partition("-----BEGIN CERTIFICATE-----")
    body, footer, _ = rest.partition("-----END CERTIFICATE-----")
    if not footer:
        raise ValueError(f"certificate={str(path)!r}: has no certificate in PEM")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(header + body + footer)).digest()


def addresses_of(host: str, advertise: str | None) -> list[str]:
    """The names or addresses to try, in this order, for a server that listens on `host`."""
    if advertise is not None:
        return [advertise]
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            loopback = "127.0.0.1" if address.version == 4 else "::1"
            return [socket.getfqdn(), socket.gethostname(), loopback]
    return [host]


class RpcServer:
    """Has each peer that knows the secret and asks for `name` served by `service`, in a `with` block.

    Any thread. Another start after `close` has the same port and secret.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for clients on others. Whoever
        connects must prove that he knows the secret, which travels in a `RpcHandle`.
    port: 0 for any that is free. advertise: the name or address by which clients reach this machine; None for
        `host`, or, where that is every address, for this machine's name.
    certificate: a file in PEM with a private key and its certificate, for TLS; None: nothing is encrypted.

    Raises TypeError or ValueError for a bad argument.
    """

    def __init__(
        self,
        name: str,
        service: Service,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        certificate: str | os.PathLike[str] | None = None,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self._host = check_text("host", host)
        self._port = check_int("port", port, 0, 65_535)
        self._advertise = None if advertise is None else check_text("advertise", advertise)
        self._certificate = None if certificate is None else Path(os.fspath(certificate)).absolute()
        self._tls: ssl.SSLContext | None = None
        self._fingerprint: bytes | None = None
        self._secret = secrets.token_bytes(SECRET_NBYTES)
        self._timing = timing
        self._name = name
        self._service = service
        self._others: dict[str, Service] = {}
        """Services beside it, by their names: without a beginning and an end of their own."""
        self._thread: LoopThread | None = None
        """None while it is stopped."""
        # On the server's loop.
        self._unauthenticated: dict[asyncio.StreamWriter, None] = {}
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server
        self._stopping = False

    def start(self) -> Self:
        """Listen. Raises OSError where that is not possible, or the certificate cannot be read."""
        if self._thread is not None:
            raise RuntimeError(f"the server of {self._name!r} has been started")
        if self._certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(self._certificate)
            self._fingerprint = digest_of(self._certificate)
        thread = acquire_loop()
        listening = thread.submit(self._listen())
        try:
            self._port = listening.result()
        except BaseException:
            listening.cancel()
            release_loop(thread)
            raise
        self._thread = thread
        return self

    def close(self) -> None:
        """Stop listening and end every connection. Any thread but the server's own; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or not thread.is_alive:
            return
        try:
            thread.submit(self._stop()).result(STOP_TIMEOUT_S)
        finally:
            release_loop(thread)

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port where it listens."""
        return self._host, self._port

    def handle(self) -> RpcHandle:
        """Give a task the way to the service. Any thread; raises RuntimeError unless started."""
        self._running()
        addresses = tuple((host, self._port) for host in addresses_of(self._host, self._advertise))
        return RpcHandle(addresses, self._secret, self._name, self._fingerprint, self._timing)

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError(f"the server of {self._name!r} is not started: use it in a `with` block")
        return self._thread

    def _ask(self, fn: Callable[[], T]) -> T:
        """The result of `fn` on the server's thread, or what it raises there."""

        async def ask() -> T:
            return fn()

        return self._running().submit(ask()).result(STOP_TIMEOUT_S)

    def __repr__(self) -> str:
        state = "stopped" if self._thread is None else "running"
        return f"<{type(self).__name__} on {self._host}:{self._port}, {state}>"

    # -- the server's loop ---------------------------------------------------------------------

    async def _listen(self) -> int:
        self._stopping = False
        self._server = await asyncio.start_server(
            self._connected, self._host, self._port, limit=MAX_BUFFER_NBYTES
        )
        port = int(self._server.sockets[0].getsockname()[1])
        try:
            await self._service.begin(port)
        except BaseException:
            await self._stop()
            raise
        return port

    async def _stop(self) -> None:
        """Take no other connections, cut off those that are there, wait for their ends."""
        self._stopping = True
        try:
            await self._service.end()
        finally:
            loop = asyncio.get_running_loop()
            # asyncio takes a connection in two turns, and does not close it if its server is closed between
            # them.
            with contextlib.suppress(NotImplementedError):
                for each in self._server.sockets:
                    loop.remove_reader(each.fileno())
            loop.call_soon(self._server.close)
            # One turn, in which also what was written last goes out.
            await asyncio.sleep(0)
            for writer in self._tasks.values():
                writer.transport.abort()
            await end(*self._tasks)
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: a task that is cancelled before its first step would leave the connection open.
        if self._stopping:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._admit(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Held until its transport is closed: a writer that goes before is said to be left open, from 3.13 on.
        writer = self._tasks.pop(task)
        writer.transport.abort()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = await self._authenticate(reader, writer)
            opening = await asyncio.wait_for(connection.receive(), self._timing.connect_timeout_s)
            kind, name, *hello = opening
            if kind != "open" or type(name) is not str:
                raise ProtocolError("a client that does not open")
            service = self._service if name == self._name else self._others.get(name)
            if service is None:
                connection.send("no", f"nothing called {name!r} is served here")
            elif not self._stopping:
                await service.serve(connection, hello)
            # What was said last still goes out.
            connection.close()
            await asyncio.wait_for(connection.wait_closed(), self._timing.connect_timeout_s)
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
            proof = server_handshake(reader, writer, self._secret, self._tls, self._timing)
            return await asyncio.wait_for(proof, self._timing.connect_timeout_s)
        finally:
            self._unauthenticated.pop(writer, None)
