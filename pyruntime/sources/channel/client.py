"""A task's end of a channel: `ChannelClient`. Thread-safe; what is confined to its loop says so."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitTimeout
from typing import Any

from pillarbox.sources.channel.outbox import MAGIC, MAX_FRAME, MAX_MESSAGE, Inbox, Outbox
from pillarbox.wire.connecting import connected
from pillarbox.wire.frames import BEAT, BROKEN, CONNECT, SILENCE, Channel, ProtocolError, encode
from pillarbox.wire.loop_thread import LoopThread

log = logging.getLogger("pillarbox")

CONNECT_TIMEOUT_S = 60.0
"""Seconds without a connection after which a client gives up."""
LAST_MESSAGES_TIMEOUT_S = 5.0
"""Seconds for the last messages to be taken."""
STOP_TIMEOUT_S = 5.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0


class ChannelError(RuntimeError):
    """The channel is closed, or its server cannot be reached or serves this client no more."""


class RemoteError(RuntimeError):
    """The service has raised. `kind` is the name of the class of what it raised."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteError, (self.kind, self.why)


def encoded(body: Any) -> bytes:
    """`body` as JSON. Any thread. Raises TypeError or ValueError for what JSON cannot hold or is too long."""
    text = encode(body)
    if len(text) > MAX_MESSAGE:
        raise ValueError(f"a message of {len(text):,} bytes: at most {MAX_MESSAGE:,}")
    return text


class ChannelClient:
    """Talks to one service of a `SourceChannel`. Thread-safe, but for `close` on its own thread.

    about: what it says of itself, as JSON; the service is given it when the client is new.
    receive: takes the messages of the service, in order, each once, on the client's thread: it must not
        block. What it raises ends the client as a failure.
    failed: called once, on the client's thread, when the client has given up: no connection for `patience`
        seconds, or the service wants it no more. Then every request raises ChannelError.
    patience: seconds for which it tries to connect again.

    It connects again when a connection breaks. A request that has no answer by then is sent again, so a
    service has to give the same answer twice; messages are never said twice. Made by `ChannelHandle.connect`.
    """

    def __init__(
        self,
        addresses: tuple[tuple[str, int], ...],
        secret: bytes,
        service: str,
        about: Any = None,
        *,
        receive: Callable[[Any], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        patience: float = CONNECT_TIMEOUT_S,
    ) -> None:
        if not patience > 0.0:
            raise ValueError(f"patience={patience!r}: must be more than 0 seconds")
        self._addresses = addresses
        self._secret = secret
        self._service = service
        self._about = about
        encoded(about)
        self._receive = receive
        self._told_failure = failed
        self._patience = patience
        self._id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._pending: dict[int, tuple[bytes, Future[Any]]] = {}
        self._channel: Channel | None = None
        self._known = False
        self._failure: ChannelError | None = None
        self._trouble: BaseException | None = None
        self._heard = 0.0
        self._bye = False
        self._closed = False
        self._done: Future[None] = Future()
        self._thread = LoopThread("pillarbox-source-client")
        self._thread.call(self._start)

    # -- any thread ---------------------------------------------------------------------------

    def request(self, body: Any, timeout: float | None = None) -> Any:
        """Ask the service, and wait for its answer.

        Raises RemoteError for what the service raises, ChannelError when the client has given up,
        TimeoutError after `timeout` seconds, TypeError or ValueError for what JSON cannot hold.
        """
        try:
            return self.submit(body).result(timeout)
        except WaitTimeout:
            raise TimeoutError(f"no answer of {self._service!r} for {timeout:g} s") from None

    def submit(self, body: Any) -> Future[Any]:
        """The same without waiting."""
        text = encoded(body)
        future: Future[Any] = Future()
        self._call(self._ask, text, future)
        if self._closed:
            self._cancelled(future)
        return future

    def push(self, body: Any) -> None:
        """Say something to the service, after what was said before. It is not waited for."""
        self._call(self._push, "push", encoded(body))

    def close(self) -> None:
        """Say what is unsaid and go: waits some seconds at most. Idempotent. Not on the client's thread."""
        if self._closed:
            return
        self._call(self._say_bye)
        with contextlib.suppress(WaitTimeout):
            self._done.result(LAST_MESSAGES_TIMEOUT_S)
        self.abandon()

    def abandon(self) -> None:
        """Go without a word, as if the process had died. Idempotent. Not on the client's thread."""
        self._closed = True
        self._thread.close(STOP_TIMEOUT_S)
        pending, self._pending = self._pending, {}
        for _, future in pending.values():
            self._cancelled(future)

    def __enter__(self) -> ChannelClient:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._channel is not None else "not connected"
        return f"<ChannelClient of {self._service!r}, {state}>"

    def _call(self, fn: Callable[..., None], *args: Any) -> None:
        self._thread.call(lambda: fn(*args))

    @staticmethod
    def _cancelled(future: Future[Any]) -> None:
        with contextlib.suppress(Exception):
            future.set_exception(ChannelError("the channel has been closed"))

    # -- the loop's thread --------------------------------------------------------------------

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._guarded())

    def _ask(self, text: bytes, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        number = next(self._numbers)
        ask = b'{"is":"ask","n":%d,"body":%b}' % (number, text)
        self._pending[number] = ask, future
        if self._channel is not None:
            self._channel.send_text(ask)

    def _push(self, kind: str, text: bytes) -> None:
        if self._failure is None and not self._bye:
            try:
                self._outbox.put(kind, text)
            except ProtocolError as error:
                self._fail(str(error))

    def _say_bye(self) -> None:
        self._push("bye", b"null")
        self._bye = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        # Who was never there has nobody to take leave of.
        over = self._failure is not None or self._outbox.is_empty
        if self._bye and over and not self._done.done():
            self._done.set_result(None)

    def _fail(self, why: str, cause: BaseException | None = None) -> None:
        if self._failure is not None:
            return
        self._failure = ChannelError(why)
        self._failure.__cause__ = cause
        pending, self._pending = self._pending, {}
        for _, future in pending.values():
            future.set_exception(self._failure)
        self._end_if_done()
        if self._told_failure is not None:
            self._told_failure(self._failure)

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Exception as error:
            self._fail(f"the channel's client has failed: {error}", error)

    async def _run(self) -> None:
        pause, turn = FIRST_PAUSE_S, 0
        lost_at = self._loop.time()
        while True:
            host, port = self._addresses[turn % len(self._addresses)]
            turn += 1
            try:
                await self._connect(host, port)
            except BROKEN as error:
                self._trouble = error
            if self._channel is not None:
                self._channel = None
                self._outbox.disconnected()
                lost_at, pause = self._loop.time(), FIRST_PAUSE_S
            if self._failure is not None or self._done.done():
                return
            left = lost_at + self._patience - self._loop.time()
            if left <= 0.0:
                self._fail(self._reason())
                return
            # Full jitter, so that all tasks do not come back at once (Brooker, 2015).
            await asyncio.sleep(min(random.uniform(0.0, pause), left))
            pause = min(pause * 2, MAX_PAUSE_S)

    def _reason(self) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        trouble = self._trouble
        detail = "" if trouble is None else f" ({str(trouble) or type(trouble).__name__})"
        return f"the source's channel at {where} was not there for {self._patience:g} s{detail}"

    async def _connect(self, host: str, port: int) -> None:
        async with connected(host, port, self._secret, magic=MAGIC, max_frame=MAX_FRAME) as channel:
            channel.send({
                "is": "open", "service": self._service, "client": self._id, "about": self._about,
                "received": self._inbox.received, "known": self._known,
            })  # fmt: skip
            message = await asyncio.wait_for(channel.receive(), CONNECT)
            if message["is"] == "no":
                self._fail(str(message["why"]))
                return
            if message["is"] != "opened":
                raise ProtocolError("a server that does not open")
            self._known = True
            self._channel = channel
            self._outbox.connected(channel, message["received"])
            for text, _ in self._pending.values():
                channel.send_text(text)
            self._heard = self._loop.time()
            beat = self._loop.create_task(self._beat(channel))
            try:
                while self._failure is None:
                    self._hear(channel, await channel.receive())
            finally:
                beat.cancel()

    def _hear(self, channel: Channel, message: dict[str, Any]) -> None:
        self._heard = self._loop.time()
        kind = message["is"]
        if kind == "answer":
            self._answered(message)
        elif kind == "push":
            if self._inbox.is_new(message) and self._receive is not None:
                try:
                    self._receive(message["body"])
                except Exception as error:
                    self._fail(f"a message of {self._service!r} could not be taken: {error}", error)
                    return
            channel.send({"is": "ack", "n": self._inbox.received})
        elif kind == "ack":
            self._outbox.acknowledged(message["n"])
            self._end_if_done()
        elif kind == "no":
            self._fail(str(message["why"]))

    def _answered(self, message: dict[str, Any]) -> None:
        _, future = self._pending.pop(message["n"], (b"", None))
        if future is None:
            return
        if "kind" in message:
            future.set_exception(RemoteError(str(message["kind"]), str(message["why"])))
        else:
            future.set_result(message["body"])

    async def _beat(self, channel: Channel) -> None:
        while True:
            await asyncio.sleep(BEAT)
            if self._loop.time() - self._heard > SILENCE:
                channel.abort()
                return
            channel.send({"is": "beat"})
