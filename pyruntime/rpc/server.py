"""The server's side: `RpcServer` listens, `Sessions` answers clients, `ServiceHost` gives it its life.

A server has any number of services by name. One that serves connections itself is a `ConnectionService`;
one that has to outlive them, so that no message is lost or comes twice, is a `Service`, served by `Sessions`.
`Peer` and `Hosted` are thread-safe; the others are confined to the server's loop.
"""

# Two kinds of services, because two kinds of clients ask for different things. A reader of a source must
# not lose a message or get one twice, over broken connections too: `Sessions` keeps its numbered messages
# for a grace, and tells the service once when the client has gone for good. A task of shared limits says
# all of its counts each time, so for it a session would be state to keep in step for nothing: it is a
# `ConnectionService`.
#
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
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.rpc import connection as connections
from pillarbox.rpc.client import RpcHandle
from pillarbox.rpc.connection import (
    BROKEN,
    MAX_BUFFER_NBYTES,
    Connection,
    MessageStream,
    ProtocolError,
    RefusedError,
    encode,
    encode_body,
    server_handshake,
)
from pillarbox.rpc.loop_thread import LoopThread, acquire_loop, end, post, release_loop
from pillarbox.validate import check_duration, check_int, check_text

log = logging.getLogger("pillarbox")

MAX_UNAUTHENTICATED = 64
"""Connections whose peer is not known yet. One more, and any of them is cut off."""
SECRET_NBYTES = 32
MAX_REASON_LENGTH = 16 * 1024
"""Of what a client is told of an error: it is a message then, also where each character is twelve bytes."""
RECONNECT_TIMEOUT_S = 5.0
"""Seconds after its connection has broken in which a client may come back."""
STOP_TIMEOUT_S = 10.0
"""Seconds for a server to answer or to end."""


class ConnectionService(Protocol):
    """Serves the connections of one name. Confined to the server's loop."""

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """Serve until the connection is to end. hello: what the client said besides the name.

        What is in `BROKEN` may be raised, of what the client says.
        """

    def close(self) -> None:
        """End it: nobody is served under the name any more."""


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
    """Listens on a port, and has each peer that knows `secret` served by the service that it names."""

    def __init__(self, secret: bytes, certificate: Certificate | None = None) -> None:
        self._secret = secret
        self._certificate = certificate
        self._services: dict[str, ConnectionService] = {}
        self._unauthenticated: dict[asyncio.StreamWriter, None] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._stopping = False

    def add(self, name: str, service: ConnectionService) -> None:
        """Serve under `name`. Raises ValueError if that is served already."""
        if name in self._services:
            raise ValueError(f"name={name!r}: is served already")
        self._services[name] = service

    def remove(self, name: str) -> None:
        """End the service `name`, if there is one."""
        service = self._services.pop(name, None)
        if service is not None:
            service.close()

    async def listen(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_BUFFER_NBYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no other connections, cut off those that are there, wait for their ends."""
        self._stopping = True
        for name in [*self._services]:
            self.remove(name)
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
            service = self._services.get(name)
            if service is not None:
                await service.serve(connection, hello)
            elif not self._stopping:
                connection.send("no", f"nothing called {name!r} is served here")
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


# -- services whose clients outlive their connections -------------------------------------------


class Peer:
    """A client as its service sees it, for as long as it is there. Thread-safe.

    Its state, over all its connections, is for `Sessions` alone.
    """

    def __init__(self, name: str, sessions: Sessions) -> None:
        self.name = name
        """Its number, unique, of no other meaning."""
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._stream = MessageStream()
        self._connection: Connection | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._is_gone = False

    def push(self, body: Any) -> None:
        """Say something to it, after what was said before; it is not waited for. Once it has gone, nothing.

        Raises TypeError or ValueError for what JSON cannot hold or is longer than 255 KiB.
        """
        post(self._loop, self._sessions.push, self, b"push", encode_body(body))

    def drop(self, why: str) -> None:
        """Want it no more: it fails with `why`, and is gone."""
        post(self._loop, self._sessions.drop, self, why)

    def drop_if_fails(self, future: Future[Any], what: str) -> None:
        """Want it no more if the future fails: it fails with `what`, and why."""

        def done(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                self.drop(f"{what}: {error}")

        future.add_done_callback(done)

    def __repr__(self) -> str:
        return f"<Peer {self.name}>"


class Service(Protocol):
    """Answers the clients of a server. Called on the server's thread: nothing here may block."""

    def opened(self, peer: Peer, about: Any) -> None:
        """A new client. What this raises is told to it, and it is not taken."""

    def request(self, peer: Peer, body: Any) -> Any:
        """Its answer, which JSON can hold, or a `concurrent.futures.Future` of it.

        What it raises is raised by the client's `request` as a RemoteError. Each request comes once.
        """

    def pushed(self, peer: Peer, body: Any) -> None:
        """A client says something: in order, each message once. What this raises drops the client."""

    def gone(self, peer: Peer, said_so: bool) -> None:
        """A client has taken its leave (`said_so`), or is not heard of any more: it has died. Once each."""


class Sessions:
    """The clients of one service, over all their connections. Confined to the server's loop."""

    def __init__(self, name: str, service: Service, grace: float) -> None:
        self._name = name
        self._service = service
        self._grace = grace
        self._peers: dict[str, Peer] = {}

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `ConnectionService`."""
        client, about, received, known = hello
        if type(client) is not str:
            raise ProtocolError("a client without a name")
        peer = self._peers.get(client) or self._new(connection, client, about, known)
        if peer is None:
            return
        if peer._connection is not None:
            peer._connection.abort()
        if peer._grace is not None:
            peer._grace.cancel()
        peer._connection = connection
        try:
            connection.send("opened", peer._stream.received)
            peer._stream.connected(connection, received)
            while peer._connection is connection:
                self._hear(peer, connection, *await connection.receive())
        finally:
            if peer._connection is connection:
                self._lost(peer)

    def close(self) -> None:
        """See `ConnectionService`. Every client that is there counts as gone."""
        for peer in [*self._peers.values()]:
            self.drop(peer, f"the service {self._name!r} has ended")

    # -- clients come and go --------------------------------------------------------------------

    # A client that was given up is refused when it comes back, though its session could be made anew. Its
    # splits are others' by then; with a new session it would go on reading them, and their rows would come
    # twice.
    def _new(self, connection: Connection, client: str, about: Any, known: bool) -> Peer | None:
        if known:
            why = f"it was not heard of for {self._grace:g} s and counts as dead"
            connection.send("no", f"this client of {self._name!r} was given up: {why}")
            return None
        peer = self._peers[client] = Peer(client, self)
        try:
            self._service.opened(peer, about)
        except Exception as error:
            del self._peers[client]
            peer._is_gone = True
            connection.send("no", f"{type(error).__name__}: {error}"[:MAX_REASON_LENGTH])
            return None
        return peer

    def _lost(self, peer: Peer) -> None:
        peer._connection = None
        peer._stream.disconnected()
        if not peer._is_gone:
            peer._grace = peer._loop.call_later(self._grace, self._gone, peer, False)

    def _gone(self, peer: Peer, said_so: bool) -> None:
        if peer._is_gone:
            return
        peer._is_gone = True
        del self._peers[peer.name]
        if peer._grace is not None:
            peer._grace.cancel()
        try:
            self._service.gone(peer, said_so)
        except Exception:
            log.exception("a service failed to let a client go")

    def push(self, peer: Peer, kind: bytes, text: bytes) -> None:
        """Say something to a client, if it is there."""
        if not peer._is_gone:
            try:
                peer._stream.put(kind, text)
            except ProtocolError as error:
                self.drop(peer, str(error))

    def drop(self, peer: Peer, why: str) -> None:
        """Want a client no more."""
        if peer._is_gone:
            return
        connection, peer._connection = peer._connection, None
        if connection is not None:
            connection.send("no", why[:MAX_REASON_LENGTH])
            # It closes when it has read that. If this side did, with bytes unread, the system would reset the
            # connection, and the reason might never arrive.
            peer._loop.call_later(connections.CONNECT_TIMEOUT_S, connection.abort)
        self._gone(peer, False)

    # -- messages -------------------------------------------------------------------------------

    def _hear(self, peer: Peer, connection: Connection, kind: str, number: int, *fields: Any) -> None:
        if kind == "ack":
            peer._stream.acknowledged(number)
            return
        (body,) = fields
        if kind not in ("ask", "push", "leave"):
            raise ProtocolError(f"{kind!r} is not a message")
        if peer._stream.is_new(number) and not peer._is_gone:
            if kind == "ask":
                self._answer(peer, number, lambda: self._service.request(peer, body))
            elif kind == "push":
                self._pushed(peer, body)
            else:
                self._gone(peer, True)
        if kind != "leave":
            peer._stream.acknowledge_soon()
        elif peer._connection is connection:
            connection.send("ack", peer._stream.received)
            peer._connection = None

    def _pushed(self, peer: Peer, body: Any) -> None:
        try:
            self._service.pushed(peer, body)
        except Exception as error:
            log.exception("a message of a client could not be taken")
            self.drop(peer, f"{type(error).__name__}: {error}")

    def _answer(self, peer: Peer, number: int, ask: Callable[[], Any]) -> None:
        # A future is answered when it is done, on whatever thread that is: a service that has to ask
        # somebody else must not hold up the thread of all connections.
        try:
            answer = ask()
            if isinstance(answer, Future):
                answer.add_done_callback(
                    lambda done: post(peer._loop, self._answer, peer, number, done.result)
                )
                return
            kind, text = b"answer", encode_body(answer)
        except BaseException as error:
            # Also what ended the thread that was to find the answer: somebody waits for it.
            kind, text = b"error", encode([type(error).__name__, str(error)[:MAX_REASON_LENGTH]])
        self.push(peer, kind, b"[%d,%b]" % (number, text))


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
    """Serves any number of services, each with a name, to clients that outlive their connections.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for clients on others. Whoever
        connects must prove that he knows the secret, which travels in a `RpcHandle`.
    port: 0 for any that is free. advertise: the name or address by which clients reach this machine; None for
        `host`, or, where that is every address, for this machine's name.
    grace: seconds after its connection has broken in which a client may come back.
    certificate: a file in PEM with a private key and its certificate, for TLS; None: nothing is encrypted.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        grace: float = RECONNECT_TIMEOUT_S,
        certificate: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__("channel", host, port, advertise, certificate)
        self._grace = check_duration("grace", grace, above_zero=True)
        self._services: dict[str, Service] = {}

    def _make(self) -> RpcServer:
        server = RpcServer(self._secret, self._certificate)
        for name, service in self._services.items():
            # Before it listens: a client of a service that is not there is refused for good.
            server.add(name, Sessions(name, service, self._grace))
        return server

    def serve(self, name: str, service: Service) -> RpcHandle:
        """Have `service` answer under `name`; gives the way to it. Any thread.

        Raises ValueError for a name that is served already, RuntimeError unless started.
        """
        self._ask(lambda server: server.add(name, Sessions(name, service, self._grace)))
        self._services[name] = service
        return self.handle(name)

    def withdraw(self, name: str) -> None:
        """End a service: its clients fail. Nothing if there is none. Any thread but the server's."""
        self._services.pop(name, None)
        if self._hosted is not None:
            self._ask(lambda server: server.remove(name))
