"""One read that gives out splits by need: `DriverRead`. Thread-safe; in the driver.

Spark plans a DataFrame's read once: all actions on it, and whatever is computed again, are attempts of the
same partitions. So what was given out is kept. The enumerator is there only while somebody reads: it is
suspended when nobody has for a while, and goes on where it was when somebody asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pillarbox.sources.channel import Peer
from pillarbox.sources.enumerating import Checkpoint, EnumeratorThread
from pillarbox.sources.events import SourceEvent, event_to_json
from pillarbox.sources.link import Event, Message
from pillarbox.sources.remote_link import pieces
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split_coordinator import Delivery, SplitCoordinator
from pillarbox.spark.source.named import AnySource

T = TypeVar("T")


def aside(fn: Callable[[], T]) -> Future[T]:
    """Call `fn` on a thread of its own: a source whose service does not answer must hold up nobody else.

    A daemon, for it must not keep the process from ending either.
    """
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(fn())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="pillarbox-source-read", daemon=True).start()
    return future


class PeerEnd:
    """The way to an attempt of a task on Spark: it hears events and nothing else. See `ReaderEnd`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def deliver(self, message: Message[Any]) -> None:
        """See `ReaderEnd`."""
        if isinstance(message, Event):
            self._peer.push(event_to_json(message.event))


class DriverRead:
    """A read of `source` in `partitions` partitions. It begins with the first task that asks.

    None of its methods blocks, but `suspend` and `close`. Raises ValueError for a source without an end.
    """

    def __init__(self, source: AnySource, partitions: int) -> None:
        if source.boundedness is not Boundedness.BOUNDED:
            raise ValueError(f"{source!r} has no end: it cannot be read as a whole, only as a stream")
        self._source = source
        self._serializer = source.split_serializer
        self.coordinator: SplitCoordinator[Any] = SplitCoordinator(partitions, Delivery.REPLAYED)
        """Its logs and who is there outlive the enumerator. Elsewhere only what is for any thread."""
        self._lock = threading.Lock()
        self._thread: EnumeratorThread[Any, Any] | None = None
        self._suspended: Future[Checkpoint[Any, Any]] | None = None
        self._failure: BaseException | None = None

    @property
    def running(self) -> bool:
        """True if its enumerator is there."""
        return self._thread is not None

    def known(self, partition: int, index: int) -> list[Any]:
        """Give what the partition reads from number `index` on, as far as that is known: [] is the end."""
        version = self._serializer.version
        entries = self.coordinator.logged(partition, index)
        written = [[] if each is None else [version, self._serializer.to_json(each)] for each in entries]
        # As many as a message holds.
        return next(pieces(written), [])

    def ask(self, partition: int, index: int, host: str, most: int) -> Future[list[Any]]:
        """The same, found out if need be: `most` new ones at most. Fails with what ended the enumerator."""
        answer: Future[list[Any]] = Future()

        def answered(done: Future[Any]) -> None:
            try:
                done.result()
                answer.set_result(self.known(partition, index))
            except BaseException as error:
                answer.set_exception(error)

        self._submit(self.coordinator.next, partition, index, host, most).add_done_callback(answered)
        return answer

    def hear(self, partition: int, event: SourceEvent) -> Future[None]:
        """A task says something to the enumerator."""
        return self._submit(self.coordinator.hear, partition, event)

    def suspend(self) -> None:
        """Let the enumerator go, unless an attempt is there, and remember where it was. May block."""
        with self._lock:
            thread = self._thread
            if thread is None or self.coordinator.attended:
                return
            self._thread = None
            suspended = thread.submit(self.coordinator.suspend)
            if thread.failure is None:
                self._suspended = suspended
            elif self.coordinator.size or self._suspended is not None:
                # What it knew is gone; what was given out must not be found again.
                self._failure = thread.failure
        thread.close()

    def close(self) -> None:
        """End the enumerator for good. May block."""
        over = RuntimeError(
            "this read was planned too long ago, and many others were since: make its DataFrame anew"
        )
        with self._lock:
            thread, self._thread, self._failure = self._thread, None, over
        if thread is not None:
            thread.close(over)

    def _submit(self, ask: Callable[..., Any], *args: Any) -> Future[Any]:
        """The answer of the enumerator's thread, which is begun if it is not there. Waits for nothing."""
        with self._lock:
            try:
                return self._begun().submit(ask, *args)
            except BaseException as error:
                failed: Future[Any] = Future()
                failed.set_exception(error)
                return failed

    def _begun(self) -> EnumeratorThread[Any, Any]:
        if self._failure is not None:
            raise self._failure
        thread = self._thread
        if thread is not None and thread.failure is not None:
            if self.coordinator.size:
                # Which splits those that were given out were taken from, nobody knows any more.
                raise thread.failure
            thread = None
        if thread is None:
            restored = None if self._suspended is None else self._suspended.result
            thread = self._thread = self.coordinator.thread(self._source, restored=restored).begin()
        return thread
