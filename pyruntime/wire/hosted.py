"""A server that listens on a thread of its own, and the life of it: `Hosted`. Any thread but the server's."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.wire.addresses import check_address, ways_to
from pillarbox.wire.loop_thread import LoopThread

SECRET = 32
STOP = 10.0
"""Seconds for a server to answer or to end."""


class Server(Protocol):
    """What listens. Confined to its loop."""

    async def serve(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""

    async def stop(self) -> Any:
        """End everything."""


T = TypeVar("T")
V = TypeVar("V", bound=Server)
H = TypeVar("H", bound="Hosted[Any]")


class Hosted(ABC, Generic[V]):
    """What starts a server and ends it, for a `with` block. Another start has the same port and secret.

    kind: what errors call it. Raises TypeError or ValueError for an address that is none.
    """

    def __init__(self, kind: str, host: str, port: int, advertise: str | None) -> None:
        check_address(host, port, advertise)
        self._kind = kind
        self._host = host
        self._port = port
        self._advertise = advertise
        self._secret = secrets.token_bytes(SECRET)
        self._hosted: tuple[LoopThread, V] | None = None

    @abstractmethod
    def start(self: H) -> H:
        """Listen: `_begin`."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening: `_end`. Idempotent."""

    def __enter__(self: H) -> H:
        return self if self._hosted is not None else self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host and port."""
        return self._host, self._port

    def _begin(self, make: Callable[[], V]) -> None:
        if self._hosted is not None:
            raise RuntimeError(f"the {self._kind} has been started")
        server = make()
        thread = LoopThread(f"pillarbox-{self._kind}")
        try:
            self._port = thread.submit(server.serve(self._host, self._port)).result()
        except BaseException:
            thread.close(STOP)
            raise
        self._hosted = thread, server

    def _end(self) -> Any:
        """What the server's `stop` gives; None if there is no server."""
        hosted, self._hosted = self._hosted, None
        if hosted is None:
            return None
        thread, server = hosted
        try:
            return thread.submit(server.stop()).result(STOP)
        finally:
            thread.close(STOP)

    def _running(self) -> tuple[LoopThread, V]:
        if self._hosted is None:
            raise RuntimeError(f"the {self._kind} is not started: use it in a `with` block")
        return self._hosted

    def _ask(self, fn: Callable[[V], T]) -> T:
        """What `fn` gives or raises on the server's thread."""
        thread, server = self._running()
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(fn(server))
            except Exception as error:
                answer.set_exception(error)

        thread.call(ask)
        return answer.result(STOP)

    def _addresses(self) -> tuple[tuple[str, int], ...]:
        """Where others are to look for the server."""
        self._running()
        return tuple((host, self._port) for host in ways_to(self._host, self._advertise))

    def __repr__(self) -> str:
        state = "stopped" if self._hosted is None else "running"
        return f"<{type(self).__name__} on {self._host}:{self._port}, {state}>"
