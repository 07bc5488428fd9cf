"""The channel between a source's coordinator and its readers: `SourceChannel`, a server of services."""

from __future__ import annotations

import os
from pathlib import Path

from pillarbox.rpc.client import RemoteError
from pillarbox.rpc.client import RpcClient as ChannelClient
from pillarbox.rpc.client import RpcError as ChannelError
from pillarbox.rpc.client import RpcHandle as ChannelHandle
from pillarbox.rpc.server import Certificate, Hosted, Peer, RpcServer, Service, Sessions

__all__ = [
    "ChannelClient",
    "ChannelError",
    "ChannelHandle",
    "Peer",
    "RemoteError",
    "Service",
    "SourceChannel",
]

RECONNECT_TIMEOUT_S = 5.0
"""Seconds after its connection has broken in which a client may come back."""


class SourceChannel(Hosted[RpcServer]):
    """Listens for the readers of sources. Any number of services, each with a name. Use it in a `with` block.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for readers on others. Whoever
        connects must prove that he knows the secret, which travels in a `ChannelHandle`.
    port: 0 for any that is free.
    advertise: the name or address by which readers reach this machine. None for `host`, or, where that is
        every address, for this machine's name.
    grace: seconds after its connection has broken in which a client may come back. Then it counts as dead,
        and is refused if it comes all the same.
    certificate: a file in PEM with a private key and its certificate, for TLS: readers, who learn of it from
        the handle, take no other. None: nothing is encrypted.

    Raises TypeError or ValueError for a bad argument; `start` raises OSError where it cannot listen or read
    the certificate.
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
        super().__init__("channel", host, port, advertise)
        if not grace > 0.0:
            raise ValueError(f"grace={grace!r}: must be more than 0 seconds")
        self._grace = grace
        self._path = None if certificate is None else Path(certificate)
        self._certificate: Certificate | None = None
        self._services: dict[str, Service] = {}

    def start(self) -> SourceChannel:
        """Listen. Any thread, once; again after `close`, with the services of before. Raises OSError."""

        def make() -> RpcServer:
            self._certificate = None if self._path is None else Certificate(self._path)
            server = RpcServer(self._secret, self._certificate)
            for name, service in self._services.items():
                # Before it listens: who comes for what is not served is refused for good.
                server.add(name, Sessions(name, service, self._grace))
            return server

        self._begin(make)
        return self

    def close(self) -> None:
        """Stop listening and end every connection. Any thread but its own; idempotent."""
        self._end()

    def serve(self, name: str, service: Service) -> ChannelHandle:
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

    def handle(self, service: str) -> ChannelHandle:
        """Give a task the way to a service. Any thread; raises RuntimeError unless started."""
        fingerprint = None if self._certificate is None else self._certificate.fingerprint
        return ChannelHandle(self._addresses(), self._secret, service, fingerprint)
