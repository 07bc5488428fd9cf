"""The client's side: `RpcHandle` is the way to a service, `RpcClient` a client of it for threads that block.

`Reconnector` connects for both `RpcClient` and clients that live on a loop of their own. Thread-safe, but for
what is confined to a loop and says so.
"""

# A client of a service blocks in its callers' threads and talks in the thread of connections. The other
# way, a loop in each caller's thread, would have a reader of Spark run a loop beside its own; and without a
# thread of its own a client could not answer heartbeats while its caller computes, and would be taken for
# dead.
#
# It connects again without its callers seeing it. They could do so themselves, but each would have to know
# which of its requests were heard before the connection broke, and a request that assigns splits must not
# be made twice. `MessageStream` knows; what it takes is memory for what is unacknowledged, and that is
# bounded.

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitTimeout
from dataclasses import dataclass
from typing import Any

from pillarbox.rpc.connection import (
    BROKEN,
    CONNECT_TIMEOUT_S,
    Connection,
    MessageStream,
    ProtocolError,
    RefusedError,
    connect,
    encode_body,
)
from pillarbox.rpc.loop_thread import acquire_loop, end, post, release_loop
from pillarbox.validate import check_duration

log = logging.getLogger("pillarbox")

ABSENCE_TIMEOUT_S = 60.0
"""Seconds without a connection, after which a client gives up."""
LAST_MESSAGES_TIMEOUT_S = 5.0
"""Seconds for the last messages to be taken."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 1.0
"""Seconds before a client connects again, at most: first, and after many attempts."""


class RpcError(RuntimeError):
    """The client is closed, or its server cannot be reached or serves this client no more."""


class RemoteError(RuntimeError):
    """The service has raised. `kind` is the name of the class of what it raised."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteError, (self.kind, self.why)


@dataclass(frozen=True, repr=False)
class RpcHandle:
    """The place where a server listens, the secret that it asks for, and a service of it. A plain value.

    Pickles with the secret in it, as it must to reach the tasks. Its text does not show the secret.
    fingerprint: the SHA-256 of the server's certificate, for TLS; None for none.
    """

    addresses: tuple[tuple[str, int], ...]
    secret: bytes
    service: str
    fingerprint: bytes | None = None

    def connect(
        self,
        about: Any = None,
        *,
        receive: Callable[[Any], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        patience: float = ABSENCE_TIMEOUT_S,
    ) -> RpcClient:
        """A client of the service. See `RpcClient`. Does not block."""
        return RpcClient(self, about, receive=receive, failed=failed, patience=patience)

    def __repr__(self) -> str:
        return f"<service {self.service!r} at {self.where}>"

    @property
    def where(self) -> str:
        """The addresses, as errors show them."""
        return ", ".join(f"{host}:{port}" for host, port in self.addresses)


class Reconnector:
    """Connects to a service, at one of its addresses after the other. Confined to a loop."""

    def __init__(self, handle: RpcHandle) -> None:
        self.trouble: BaseException | None = None
        """The error that has ended the last connection."""
        self._handle = handle
        self._addresses = itertools.cycle(handle.addresses)
        self._pause_s = FIRST_PAUSE_S

    async def attempt(
        self,
        talk: Callable[[Connection], Awaitable[None]],
        hello: Callable[[], list[Any]],
        direct: bool = False,
    ) -> None:
        """Connect once, say `hello`, and have `talk` use the connection. `trouble` says how it broke.

        direct: see `connect`. Raises RefusedError if the service will not have this client.
        """
        handle = self._handle
        host, port = next(self._addresses)
        try:
            opening = connect(host, port, handle.secret, handle.fingerprint, direct=direct)
            async with opening as connection:
                connection.send("open", handle.service, *hello())
                await talk(connection)
        except BROKEN as error:
            self.trouble = error

    async def pause(self, longest_s: float) -> None:
        """Wait before the next attempt, a little longer each time."""
        # Full jitter, so that all clients do not come back at once (Brooker, 2015).
        await asyncio.sleep(min(random.uniform(0.0, self._pause_s), longest_s))
        self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)

    def connected(self) -> None:
        """The service was there: begin with short pauses."""
        self._pause_s = FIRST_PAUSE_S

    def __str__(self) -> str:
        trouble = self.trouble
        detail = "" if trouble is None else f" ({str(trouble) or type(trouble).__name__})"
        return f"{self._handle.where}{detail}"


class RpcClient:
    """Talks to one `Service`. Thread-safe; `close` and `abandon` not on the thread of the connections.

    about: what it says of itself, as JSON; the service is given it when the client is new.
    receive: takes the messages of the service, in order, each once, on the thread of the connections: it must
        not block. What it raises ends the client as a failure.
    failed: called once, on that thread, when the client has given up: no connection for `patience` seconds,
        or the service wants it no more. Then every request raises RpcError.
    patience: seconds for which it tries to connect again.

    It connects again when a connection breaks. Requests, answers and messages are heard once each, in order,
    however often that happens. Made by `RpcHandle.connect`.
    """

    def __init__(
        self,
        handle: RpcHandle,
        about: Any = None,
        *,
        receive: Callable[[Any], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        patience: float = ABSENCE_TIMEOUT_S,
    ) -> None:
        encode_body(about)
        self._handle = handle
        self._about = about
        self._receive = receive
        self._told_failure = failed
        self._patience = check_duration("patience", patience, above_zero=True)
        self._id = uuid.uuid4().hex
        self._way = Reconnector(handle)
        self._stream = MessageStream()
        self._pending: dict[int, Future[Any]] = {}
        self._connection: Connection | None = None
        self._known = False
        self._failure: RpcError | None = None
        self._leaving = False
        self._done: Future[None] = Future()
        self._guard = threading.Lock()
        self._closed = False
        self._thread = acquire_loop()
        self._loop = self._thread.loop
        post(self._loop, self._start)

    # -- any thread ---------------------------------------------------------------------------

    def request(self, body: Any, timeout: float | None = None) -> Any:
        """Ask the service, and wait for its answer.

        Raises RemoteError for what the service raises, RpcError when the client has given up, TimeoutError
        after `timeout` seconds, TypeError or ValueError for what JSON cannot hold.
        """
        try:
            return self.submit(body).result(timeout)
        except WaitTimeout:
            raise TimeoutError(f"no answer of {self._handle.service!r} for {timeout:g} s") from None

    def submit(self, body: Any) -> Future[Any]:
        """The same without waiting."""
        text = encode_body(body)
        future: Future[Any] = Future()
        post(self._loop, self._ask, text, future)
        if self._closed or not self._thread.is_alive:
            # Perhaps too late for the loop to answer.
            _cancel(future)
        return future

    @property
    def trouble(self) -> str | None:
        """The addresses tried, and why in vain; None while it is connected or tries for the first time."""
        is_lost = self._connection is None and self._way.trouble is not None
        return str(self._way) if is_lost else None

    def push(self, body: Any) -> None:
        """Say something to the service, after what was said before. It is not waited for."""
        post(self._loop, self._push, b"push", encode_body(body))

    def close(self) -> bool:
        """Say what is unsaid and go; False if it was not taken in some seconds. Idempotent."""
        if not self._closed and self._thread.is_alive:
            post(self._loop, self._leave)
            with contextlib.suppress(WaitTimeout):
                self._done.result(LAST_MESSAGES_TIMEOUT_S)
        self.abandon()
        return self._done.done()

    def abandon(self) -> None:
        """Go without a word, as if the process had died. Idempotent."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        if self._thread.is_alive:
            with contextlib.suppress(WaitTimeout):
                self._thread.submit(self._stop()).result(LAST_MESSAGES_TIMEOUT_S)
        release_loop(self._thread)

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def __repr__(self) -> str:
        connected = self._connection is not None
        state = "closed" if self._closed else "connected" if connected else "not connected"
        return f"<{type(self).__name__} of {self._handle.service!r}, {state}>"

    # -- the thread of the connections ----------------------------------------------------------

    def _start(self) -> None:
        self._task = self._loop.create_task(self._guarded())

    async def _stop(self) -> None:
        await end(self._task)
        pending, self._pending = self._pending, {}
        for future in pending.values():
            _cancel(future)

    def _ask(self, text: bytes, future: Future[Any]) -> None:
        if self._closed or not future.set_running_or_notify_cancel():
            _cancel(future)
            return
        number = self._push(b"ask", text)
        if self._failure is not None:
            future.set_exception(self._failure)
        elif number is None:
            _cancel(future)
        else:
            self._pending[number] = future

    def _push(self, kind: bytes, text: bytes) -> int | None:
        if self._failure is None and not self._leaving:
            try:
                return self._stream.put(kind, text)
            except ProtocolError as error:
                self._fail(str(error))
        return None

    def _leave(self) -> None:
        self._push(b"leave", b"null")
        self._leaving = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        # Who was never there has nobody to take leave of.
        over = self._failure is not None or self._stream.is_empty
        if self._leaving and over and not self._done.done():
            self._done.set_result(None)

    def _fail(self, why: str, cause: BaseException | None = None) -> None:
        if self._failure is not None:
            return
        self._failure = RpcError(why)
        self._failure.__cause__ = cause
        pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(self._failure)
        self._end_if_done()
        if self._told_failure is not None:
            self._told_failure(self._failure)

    async def _guarded(self) -> None:
        try:
            await self._run()
        except RefusedError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"the client of {self._handle.service!r} has failed: {error}", error)

    async def _run(self) -> None:
        way = self._way
        lost_at = self._loop.time()
        while True:
            try:
                await way.attempt(self._talk, self._hello)
            finally:
                if self._connection is not None:
                    self._connection = None
                    self._stream.disconnected()
                    lost_at = self._loop.time()
                    way.connected()
            if self._failure is not None or self._done.done():
                return
            left = lost_at + self._patience - self._loop.time()
            if left <= 0.0:
                name, patience = self._handle.service, self._patience
                self._fail(f"the service {name!r} at {way} was not there for {patience:g} s")
                return
            await way.pause(left)

    def _hello(self) -> list[Any]:
        return [self._id, self._about, self._stream.received, self._known]

    async def _talk(self, connection: Connection) -> None:
        opened = await asyncio.wait_for(connection.receive(), CONNECT_TIMEOUT_S)
        if opened[0] != "opened":
            raise ProtocolError("a server that does not open")
        self._known = True
        self._connection = connection
        self._stream.connected(connection, opened[1])
        while self._failure is None:
            self._hear(*await connection.receive())

    def _hear(self, kind: str, number: int, *fields: Any) -> None:
        if kind == "ack":
            self._stream.acknowledged(number)
            self._end_if_done()
            return
        if self._stream.is_new(number):
            (body,) = fields
            if kind == "push":
                self._heard(body)
            elif kind == "answer":
                self._pending.pop(body[0]).set_result(body[1])
            elif kind == "error":
                self._pending.pop(body[0]).set_exception(RemoteError(*body[1]))
        self._stream.acknowledge_soon()

    def _heard(self, body: Any) -> None:
        if self._receive is not None:
            try:
                self._receive(body)
            except Exception as error:
                self._fail(f"a message of {self._handle.service!r} could not be taken: {error}", error)


def _cancel(future: Future[Any]) -> None:
    with contextlib.suppress(Exception):
        future.set_exception(RpcError("the client has been closed, or belongs to another process"))
