"""A thread that calls functions one after the other, for whoever must be called on one. Thread-safe."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class CallingThread:
    """A daemon thread that runs what it is given, in order. It begins with the first call.

    A daemon, because a source whose service does not answer must not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def submit(self, fn: Callable[[], T]) -> Future[T]:
        """Have `fn` called. Any thread, but one that starts it must be alone with it."""
        if not self._started:
            self._started = True
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((future, fn))
        return future

    def call(self, fn: Callable[[], T]) -> T:
        """Have `fn` called, and wait for it; raises what it raises. Any other thread."""
        return self.submit(fn).result()

    def close(self, timeout: float) -> None:
        """End when what was given has been called; waits for that so many seconds."""
        if self._started:
            self._calls.put(None)
            self._thread.join(timeout)

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            future, fn = given
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(fn())
            except BaseException as error:
                future.set_exception(error)
