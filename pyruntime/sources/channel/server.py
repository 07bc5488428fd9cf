"""The driver's end of a channel: `SourceChannel`, the services on it, and their peers.

`SourceChannel` and `Peer` are thread-safe. A `Service` is called on the channel's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from pillarbox.sources.channel.client import encoded
from pillarbox.sources.channel.handle import ChannelHandle
from pillarbox.sources.channel.sessions import RECONNECT_GRACE_S, ChannelServer
from pillarbox.wire.hosted import Hosted


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
    """Answers the clients of a channel. Called on the channel's thread: nothing here may block."""

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


class SourceChannel(Hosted[ChannelServer]):
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
        grace: float = RECONNECT_GRACE_S,
    ) -> None:
        super().__init__("channel", host, port, advertise)
        if not grace > 0.0:
            raise ValueError(f"grace={grace!r}: must be more than 0 seconds")
        self._grace = grace
        self._services: dict[str, Service] = {}

    def start(self) -> SourceChannel:
        """Listen. Any thread, once; again after `close`, with the services of before. Raises OSError."""
        self._begin(lambda: ChannelServer(self._secret, self._grace))
        for name, service in self._services.items():
            self._add(name, service)
        return self

    def close(self) -> None:
        """Stop listening and end every connection. Any thread but its own; idempotent."""
        self._end()

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

        self._ask(lambda server: server.add(name, service, peer))

    def withdraw(self, name: str) -> None:
        """End a service: its clients fail. Nothing if there is none. Any thread but the channel's."""
        self._services.pop(name, None)
        if self._hosted is not None:
            self._ask(lambda server: server.remove(name))

    def handle(self, service: str) -> ChannelHandle:
        """Give a task the way to a service. Any thread; raises RuntimeError unless started."""
        return ChannelHandle(self._addresses(), self._secret, service)
