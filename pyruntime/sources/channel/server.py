"""The driver's end of a channel: `SourceChannel`, the services on it, and their peers.

`SourceChannel` and `Peer` are thread-safe. A `Service` is called on the channel's thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from pillarbox.sources.channel.client import encoded
from pillarbox.sources.channel.handle import ChannelHandle
from pillarbox.sources.channel.sessions import GRACE, ChannelServer
from pillarbox.wire.addresses import check_address, ways_to
from pillarbox.wire.loop_thread import LoopThread

SECRET = 32
STOP = 10.0


class Peer:
    """A client as its service sees it, for as long as it is there. Thread-safe."""

    def __init__(self, name: str, call: Callable[..., None], server: ChannelServer) -> None:
        self.name = name
        """Its number, unique, of no other meaning."""
        self._call = call
        self._server = server

    def push(self, body: Any) -> None:
        """Say something to it, after what was said before; it is not waited for. Once it has gone, nothing.

        Raises TypeError or ValueError for what JSON cannot hold or is longer than 255 KiB.
        """
        self._call(self._server.push, self.name, encoded(body))

    def drop(self, why: str) -> None:
        """Want it no more: it fails with `why`, and is gone."""
        self._call(self._server.drop, self.name, why)

    def __repr__(self) -> str:
        return f"<Peer {self.name}>"


class Service(Protocol):
    """What answers the clients of a channel. Called on the channel's thread: nothing here may block."""

    def opened(self, peer: Peer, about: Any) -> None:
        """A new client. What this raises is told to it, and it is not taken."""

    def request(self, peer: Peer, body: Any) -> Any:
        """Its answer, which JSON can hold, or a `concurrent.futures.Future` of it.

        What it raises is raised by the client's `request` as a RemoteError. The same request may come twice,
        after a connection has broken.
        """

    def pushed(self, peer: Peer, body: Any) -> None:
        """A client says something: in order, each message once. What this raises drops the client."""

    def gone(self, peer: Peer, said_so: bool) -> None:
        """A client has taken its leave (`said_so`), or is not heard of any more: it has died. Once each."""


class SourceChannel:
    """Listens for the readers of sources. Any number of services, each with a name. Use it in a `with` block.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for readers on others. Whoever
        connects must prove that he knows the secret, which travels in a `ChannelHandle`. Nothing is
        encrypted.
    port: 0 for any that is free.
    advertise: the name or address by which readers reach this machine. None for `host`, or, where that is
        every address, for this machine's name.
    grace: seconds after its connection has broken in which a client may come back. Then it counts as dead,
        and is refused if it comes all the same.

    Raises TypeError or ValueError for a bad argument; `start` raises OSError where it cannot listen.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        grace: float = GRACE,
    ) -> None:
        check_address(host, port, advertise)
        if not grace > 0.0:
            raise ValueError(f"grace={grace!r}: must be more than 0 seconds")
        self._host = host
        self._port = port
        self._advertise = advertise
        self._grace = grace
        self._secret = secrets.token_bytes(SECRET)
        self._thread: LoopThread | None = None
        self._server: ChannelServer | None = None
        self._services: dict[str, Service] = {}

    def start(self) -> SourceChannel:
        """Listen. Any thread, once; again after `close`, with the services of before. Raises OSError."""
        if self._thread is not None:
            raise RuntimeError("the channel has been started")
        thread = LoopThread("pillarbox-source-channel")
        server = ChannelServer(self._secret, self._grace)
        try:
            self._port = thread.submit(server.serve(self._host, self._port)).result()
        except BaseException:
            thread.close(STOP)
            raise
        self._thread, self._server = thread, server
        for name, service in self._services.items():
            self._add(name, service)
        return self

    def close(self) -> None:
        """Stop listening and end every connection. Any thread but its own; idempotent."""
        thread, server = self._thread, self._server
        self._thread = self._server = None
        if thread is None or server is None:
            return
        try:
            thread.submit(server.stop()).result(STOP)
        finally:
            thread.close(STOP)

    def __enter__(self) -> SourceChannel:
        return self if self._thread is not None else self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host and port."""
        return self._host, self._port

    def serve(self, name: str, service: Service) -> ChannelHandle:
        """Have `service` answer under `name`; gives the way to it. Any thread.

        Raises ValueError for a name that is served already, RuntimeError unless started.
        """
        self._add(name, service)
        self._services[name] = service
        return self.handle(name)

    def _add(self, name: str, service: Service) -> None:
        thread, server = self._running()

        def peer(client: str) -> Peer:
            return Peer(client, lambda fn, *args: thread.call(lambda: fn(*args)), server)

        async def add() -> None:
            server.add(name, service, peer)

        thread.submit(add()).result(STOP)

    def withdraw(self, name: str) -> None:
        """End a service: its clients fail. Nothing if there is none. Any thread but the channel's."""
        self._services.pop(name, None)
        if self._thread is None or self._server is None:
            return
        server = self._server

        async def remove() -> None:
            server.remove(name)

        self._thread.submit(remove()).result(STOP)

    def handle(self, service: str) -> ChannelHandle:
        """What a task needs to reach a service. Any thread; raises RuntimeError unless started."""
        self._running()
        addresses = tuple((host, self._port) for host in ways_to(self._host, self._advertise))
        return ChannelHandle(addresses, self._secret, service)

    def _running(self) -> tuple[LoopThread, ChannelServer]:
        if self._thread is None or self._server is None:
            raise RuntimeError("the channel is not started: use it in a `with` block")
        return self._thread, self._server

    def __repr__(self) -> str:
        state = "stopped" if self._thread is None else "running"
        return f"<source channel on {self._host}:{self._port}, {state}>"
