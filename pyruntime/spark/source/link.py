"""A task's way to the enumerator of its source: `TaskLink`; and the reader that hears from it.

A link connects when it is first needed, so that a source without events costs its tasks no connection.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from pillarbox.sources.channel import ChannelClient, ChannelHandle
from pillarbox.sources.events import SourceEvent, event_from_json, event_to_json
from pillarbox.sources.reader import Fetched, SourceReader
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)

NO_WAY = (
    "this read has no way to its enumerator, so that it has no events: read the source under a name that "
    "pillarbox.spark.register_source has given it"
)


class TaskLink:
    """The channel between one task and the enumerator. Thread-safe, but for `close`.

    handle: the way; None where there is none. subtask: the number of the task's partition. read: which one,
    of a process that has several. receive: takes the enumerator's events, and failed what has ended the
    connection, if anything has; on another thread.
    """

    def __init__(self, handle: ChannelHandle | None, subtask: int, read: str | None = None) -> None:
        self._handle = handle
        self._about = {"subtask": subtask, "host": socket.gethostname(), "read": read}
        self._lock = threading.Lock()
        self._client: ChannelClient | None = None
        self._closed = False
        self.receive: Callable[[SourceEvent], None] | None = None
        self.failed: Callable[[Exception], None] | None = None
        self.has_sent = False
        self._failure: Exception | None = None

    def connect(self) -> ChannelClient:
        """The client, connected now if it was not. Raises RuntimeError where there is no way, or no more."""
        if self._handle is None:
            raise RuntimeError(NO_WAY)
        with self._lock:
            if self._closed:
                raise RuntimeError("the task has ended")
            if self._client is None:
                self._client = self._handle.connect(self._about, receive=self._hear, failed=self._fail)
            return self._client

    def request(self, body: Any) -> Any:
        """Ask, and wait for the answer."""
        return self.connect().request(body)

    def send(self, event: SourceEvent) -> None:
        """Say something to the enumerator. Any thread.

        Raises what has ended the connection, and what `event_to_json` raises.
        """
        self.check()
        body = event_to_json(event)
        self.has_sent = True
        self.connect().push(body)

    def check(self) -> None:
        """Raise what has ended the connection, if anything has: the enumerator may have refused an event."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Let go of the connection; what was said still goes out. Idempotent."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if self.failed is not None:
            self.failed(error)

    def _hear(self, body: Any) -> None:
        if self.receive is not None:
            self.receive(event_from_json(body))


def hears(reader: SourceReader[Any]) -> bool:
    """Return True if a reader wants the enumerator's events."""
    return type(reader).handle_source_event is not SourceReader.handle_source_event


class EventReader(SourceReader[S]):
    """A reader, and the events for it: each is handed over on the task's thread, before the next rows."""

    def __init__(self, reader: SourceReader[S]) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._events: deque[SourceEvent] = deque()
        self._waiting: Future[Any] | None = None
        self._failure: Exception | None = None

    def hear(self, event: SourceEvent) -> None:
        """Keep an event for the task. Any thread."""
        with self._lock:
            self._events.append(event)
        self._ring()

    def fail(self, error: Exception) -> None:
        """No event comes any more, and one may be waited for: `poll` raises. Any thread."""
        with self._lock:
            self._failure = error
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            _wake(waiting)

    def start(self) -> None:
        """As the reader."""
        self._reader.start()

    def poll(self) -> Fetched | None:
        """The events, then as the reader."""
        while self._events:
            self._reader.handle_source_event(self._events.popleft())
        if self._failure is not None:
            raise self._failure
        return self._reader.poll()

    def available(self) -> Future[Any] | None:
        """As the reader, and when there is an event."""
        theirs = self._reader.available()
        if theirs is None:
            return None
        future: Future[Any] = Future()
        with self._lock:
            if self._events or self._failure is not None:
                return None
            self._waiting = future
        theirs.add_done_callback(lambda _: _wake(future))
        return future

    def add_splits(self, splits: Sequence[S]) -> None:
        """As the reader."""
        self._reader.add_splits(splits)

    def remove_splits(self, split_ids: Collection[str]) -> None:
        """As the reader."""
        self._reader.remove_splits(split_ids)

    def splits(self) -> list[S]:
        """As the reader."""
        return self._reader.splits()

    def close(self) -> None:
        """As the reader."""
        self._reader.close()


def _wake(future: Future[Any]) -> None:
    # Two may come at the same time.
    with suppress(InvalidStateError):
        future.set_result(None)
