"""The sessions of a channel: connections, messages, clients that are dead. Confined to its loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pillarbox.sources.channel.client import encoded
from pillarbox.sources.channel.outbox import MAGIC, MAX_FRAME, Inbox, Outbox
from pillarbox.wire.frames import BEAT, BROKEN, CONNECT, SILENCE, Channel, ProtocolError
from pillarbox.wire.listener import Listener

if TYPE_CHECKING:
    from pillarbox.sources.channel.server import Peer, Service

log = logging.getLogger("pillarbox")

RECONNECT_GRACE_S = 5.0
"""Seconds after its connection has broken in which a client may come back."""


class Served:
    """A service, and how a peer of it is made."""

    def __init__(self, name: str, service: Service, peer: Callable[[str], Peer]) -> None:
        self.name = name
        self.service = service
        self.peer = peer


class Client:
    """The state of one client over all its connections."""

    def __init__(self, peer: Peer, served: Served) -> None:
        self.peer = peer
        self.served = served
        self.outbox = Outbox()
        self.inbox = Inbox()
        self.channel: Channel | None = None
        self.heard = 0.0
        self.grace: asyncio.TimerHandle | None = None
        self.is_gone = False


class ChannelServer:
    """The connections of a `SourceChannel`."""

    def __init__(self, secret: bytes, grace: float) -> None:
        self._grace = grace
        self._services: dict[str, Served] = {}
        self._clients: dict[str, Client] = {}
        self._listener = Listener(secret, self._listen, magic=MAGIC, max_frame=MAX_FRAME, connect=CONNECT)

    async def serve(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        found = await self._listener.listen(host, port)
        self._sweeper = self._loop.call_later(BEAT, self._sweep)
        return found

    async def stop(self) -> None:
        """End everything; every client that is there counts as gone."""
        self._sweeper.cancel()
        for name in [*self._services]:
            self.remove(name)
        # One turn, so that what was written last goes out.
        await asyncio.sleep(0)
        await self._listener.stop()

    def add(self, name: str, service: Service, peer: Callable[[str], Peer]) -> None:
        """Serve under `name`. Raises ValueError if that is served already."""
        if name in self._services:
            raise ValueError(f"name={name!r}: is served already")
        self._services[name] = Served(name, service, peer)

    def remove(self, name: str) -> None:
        """Serve no more under `name`."""
        if self._services.pop(name, None) is not None:
            for client in [*self._clients.values()]:
                if client.served.name == name:
                    self.drop(client.peer.name, f"the service {name!r} has ended")

    # -- connections --------------------------------------------------------------------------

    async def _listen(self, channel: Channel, writer: asyncio.StreamWriter) -> None:
        client: Client | None = None
        try:
            client = self._open(channel, await asyncio.wait_for(channel.receive(), CONNECT))
            while client is not None and client.channel is channel:
                message = await channel.receive()
                client.heard = self._loop.time()
                self._hear(client, channel, message)
            # What was said last still goes out.
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), CONNECT)
        except BROKEN as error:
            log.debug("a connection has ended: %r", error)
        finally:
            if client is not None and client.channel is channel:
                self._lost(client)

    def _open(self, channel: Channel, message: dict[str, Any]) -> Client | None:
        if message["is"] != "open":
            raise ProtocolError("a client that does not open")
        name, service = message["client"], message["service"]
        if type(name) is not str or type(service) is not str:
            raise ProtocolError("a client without a name")
        served = self._services.get(service)
        client = self._clients.get(name)
        if served is None:
            channel.send({"is": "no", "why": f"nothing called {service!r} is served here"})
            return None
        if client is None and message["known"]:
            why = f"it was not heard of for {self._grace:g} s and counts as dead"
            channel.send({"is": "no", "why": f"this client of {service!r} was given up: {why}"})
            return None
        if client is None:
            client = Client(served.peer(name), served)
            self._clients[name] = client
            try:
                served.service.opened(client.peer, message["about"])
            except Exception as error:
                del self._clients[name]
                client.is_gone = True
                channel.send({"is": "no", "why": f"{type(error).__name__}: {error}"})
                return None
        elif client.channel is not None:
            client.channel.abort()
        if client.grace is not None:
            client.grace.cancel()
        client.channel, client.heard = channel, self._loop.time()
        channel.send({"is": "opened", "received": client.inbox.received})
        client.outbox.connected(channel, message["received"])
        return client

    def _lost(self, client: Client) -> None:
        client.channel = None
        client.outbox.disconnected()
        if not client.is_gone:
            client.grace = self._loop.call_later(self._grace, self._gone, client, False)

    def _gone(self, client: Client, said_so: bool) -> None:
        if client.is_gone:
            return
        client.is_gone = True
        del self._clients[client.peer.name]
        if client.grace is not None:
            client.grace.cancel()
        try:
            client.served.service.gone(client.peer, said_so)
        except Exception:
            log.exception("a service failed to let a client go")

    def _sweep(self) -> None:
        for client in self._clients.values():
            if client.channel is not None and self._loop.time() - client.heard > SILENCE:
                client.channel.abort()
        self._sweeper = self._loop.call_later(BEAT, self._sweep)

    # -- messages -----------------------------------------------------------------------------

    def push(self, name: str, text: bytes) -> None:
        """Say something to a client, if it is there."""
        client = self._clients.get(name)
        if client is not None:
            try:
                client.outbox.put("push", text)
            except ProtocolError as error:
                self.drop(name, str(error))

    def drop(self, name: str, why: str) -> None:
        """Want a client no more."""
        client = self._clients.get(name)
        if client is None:
            return
        if client.channel is not None:
            client.channel.send({"is": "no", "why": why})
            client.channel.close()
        self._gone(client, False)

    def _hear(self, client: Client, channel: Channel, message: dict[str, Any]) -> None:
        kind = message["is"]
        if kind == "ask":
            self._asked(client, channel, message)
        elif kind == "ack":
            client.outbox.acknowledged(message["n"])
        elif kind == "beat":
            channel.send({"is": "beat"})
        elif kind in ("push", "bye"):
            if client.inbox.is_new(message):
                self._heard(client, kind, message)
            if client.channel is channel:
                channel.send({"is": "ack", "n": client.inbox.received})
                if client.is_gone:
                    client.channel = None
        else:
            raise ProtocolError(f"{kind!r} is no message")

    def _heard(self, client: Client, kind: str, message: dict[str, Any]) -> None:
        if client.is_gone:
            return
        if kind == "bye":
            self._gone(client, True)
            return
        try:
            client.served.service.pushed(client.peer, message["body"])
        except Exception as error:
            log.exception("a message of a client could not be taken")
            self.drop(client.peer.name, f"{type(error).__name__}: {error}")

    def _asked(self, client: Client, channel: Channel, message: dict[str, Any]) -> None:
        number, body = message["n"], message["body"]
        if type(number) is not int:
            raise ProtocolError("a request without a number")
        try:
            answer = client.served.service.request(client.peer, body)
        except Exception as error:
            self._refuse(channel, number, error)
            return
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._call(self._answer_later, channel, number, done))
        else:
            self._answer(channel, number, answer)

    def _call(self, fn: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(fn, *args)

    def _answer_later(self, channel: Channel, number: int, done: Future[Any]) -> None:
        if done.cancelled():
            self._refuse(channel, number, RuntimeError("the service has ended"))
            return
        error = done.exception()
        if error is not None:
            self._refuse(channel, number, error)
        else:
            self._answer(channel, number, done.result())

    def _answer(self, channel: Channel, number: int, answer: Any) -> None:
        try:
            text = encoded(answer)
        except (TypeError, ValueError) as error:
            self._refuse(channel, number, error)
            return
        channel.send_text(b'{"is":"answer","n":%d,"body":%b}' % (number, text))

    def _refuse(self, channel: Channel, number: int, error: BaseException) -> None:
        why = str(error)[: MAX_FRAME // 8]
        channel.send({"is": "answer", "n": number, "kind": type(error).__name__, "why": why})
