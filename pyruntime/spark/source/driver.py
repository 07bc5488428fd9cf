"""The driver's end of reads: a service for their tasks, and the reads that give out splits by need.

A read is planned in a process of Spark's, which opens it here; its tasks ask here for one split after the
other. Spark plans a DataFrame's read once: all actions on it, and whatever is computed again, are attempts of
the same partitions. So what was given out is kept. The enumerator is there only while somebody reads: it is
suspended when nobody has for a while, and goes on where it was when somebody asks again. Thread-safe.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pillarbox.rpc.connection import pieces
from pillarbox.rpc.server import Peer
from pillarbox.sources.enumerating import Checkpoint, EnumeratorThread
from pillarbox.sources.link import Event, Message, event_from_json, event_to_json
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split_coordinator import Delivery, SplitCoordinator
from pillarbox.spark.source.options import AnySource, Read, Registered, schema_from_text

if TYPE_CHECKING:
    from pillarbox.spark.source.planning import MicroBatches

    ServedRead: TypeAlias = "MicroBatches[Any, Any] | DriverRead"

T = TypeVar("T")

SUSPEND_AFTER_S = 10.0
"""Seconds without a task after which a read is suspended."""
MAX_KNOWN_READS, MAX_KNOWN_SPLITS = 1000, 300_000
"""Reads whose tasks can still be run again, and the splits of all of them: some 400 bytes each."""
MAX_PARTITIONS = 100_000


def call_in_thread(fn: Callable[[], T]) -> Future[T]:
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


class TaskService:
    """Serves the tasks of the reads that `find` knows by their names. A service, on the channel's thread."""

    def __init__(self, find: Callable[[str], ServedRead]) -> None:
        self._find = find
        self._tasks: dict[str, tuple[ServedRead, int, str, PeerEnd]] = {}

    def opened(self, peer: Peer, about: Any) -> None:
        """A task is there; or a planner, which says nothing of itself."""
        if about is None:
            return
        read, subtask, host, end = self._find(about["read"]), about["subtask"], about["host"], PeerEnd(peer)
        read.coordinator.attach(subtask, end)
        self._tasks[peer.name] = read, subtask, host, end
        taken = read.joined(subtask, host)
        if taken is not None:
            peer.drop_if_fails(taken, f"the enumerator could not take reader {subtask}")

    def request(self, peer: Peer, body: Any) -> Any:
        """A task asks."""
        read, subtask, host, _ = self._tasks[peer.name]
        return read.answer(subtask, host, body)

    def pushed(self, peer: Peer, body: Any) -> None:
        """A task has an event for the enumerator. What that raises ends the task."""
        read, subtask, *_ = self._tasks[peer.name]
        event = event_from_json(body)
        heard = read.submit(read.coordinator.hear, subtask, event)
        peer.drop_if_fails(heard, f"the enumerator could not take event {event.kind!r}")

    def gone(self, peer: Peer, said_so: bool) -> None:
        """A task has ended, or a planner."""
        task = self._tasks.pop(peer.name, None)
        if task is not None:
            read, subtask, _, end = task
            read.coordinator.detach(subtask, end)
            self.left(read)

    def left(self, read: Any) -> None:
        """A task of `read` has ended."""


class DriverReads(TaskService):
    """The sources that were registered in this process, and their reads. A service: nothing here blocks."""

    def __init__(self) -> None:
        super().__init__(self._known)
        self._lock = threading.Lock()
        self.registered: dict[str, Registered] = {}
        """By registration, for a name may be given anew. Any thread."""
        self._reads: OrderedDict[str, DriverRead] = OrderedDict()

    def request(self, peer: Peer, body: Any) -> Any:
        """A planner opens a read, or a task asks for its next split."""
        if "open" in body:
            return call_in_thread(lambda: self._open(**body))
        return super().request(peer, body)

    def left(self, read: DriverRead) -> None:
        """A task of `read` has ended: the next one may come in a moment; or, after `take`, never."""
        if read.running and not read.coordinator.attended:
            wait = 0.0 if read.coordinator.over else SUSPEND_AFTER_S
            asyncio.get_running_loop().call_later(wait, call_in_thread, read.suspend)

    def _known(self, name: str) -> DriverRead:
        with self._lock:
            if name not in self._reads:
                raise RuntimeError(
                    f"this read is not known here any more: {MAX_KNOWN_READS:,} were planned since, or this "
                    "is another process; make its DataFrame anew"
                )
            self._reads.move_to_end(name)
            return self._reads[name]

    # -- a thread of its own ---------------------------------------------------------------------------

    def _open(self, open: str, of: str, partitions: int, options: dict[str, str], schema: str) -> None:
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ValueError(f"partitions={partitions!r}: must be from 1 to {MAX_PARTITIONS:,}")
        made = Read.of(self.registered[of], options, schema_from_text(schema)).source
        forgotten = []
        with self._lock:
            self._reads[open] = DriverRead(made, partitions)
            known = sum(read.coordinator.size for read in self._reads.values())
            while len(self._reads) > 1 and (known > MAX_KNOWN_SPLITS or len(self._reads) > MAX_KNOWN_READS):
                forgotten.append(self._reads.popitem(last=False)[1])
                known -= forgotten[-1].coordinator.size
        for read in forgotten:
            call_in_thread(read.close)


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

    def joined(self, subtask: int, host: str) -> None:
        """An attempt is there. The enumerator hears of it when it asks for what no other has had."""

    def answer(self, subtask: int, host: str, body: Any) -> Any:
        """The answer to a task, or a future of it: the splits that it reads from number `next` on."""
        if "times" in body:
            # Nothing is aligned here; but all events before it have been heard then.
            return self.submit(lambda: None)
        return self.known(subtask, body["next"]) or self.ask(subtask, body["next"], host)

    def known(self, partition: int, index: int) -> list[Any]:
        """Give what the partition reads from number `index` on, as far as that is known: [] is the end."""
        version = self._serializer.version
        entries = self.coordinator.logged(partition, index)
        written = [[] if each is None else [version, self._serializer.to_json(each)] for each in entries]
        # As many as a message holds.
        return next(pieces(written), [])

    def ask(self, partition: int, index: int, host: str) -> Future[list[Any]]:
        """The same, found out if need be. Raises or fails with what ended the enumerator."""
        answer: Future[list[Any]] = Future()

        def answered(done: Future[Any]) -> None:
            try:
                done.result()
                answer.set_result(self.known(partition, index))
            except BaseException as error:
                answer.set_exception(error)

        asked = self.submit(self.coordinator.next, partition, index, host)
        asked.add_done_callback(answered)
        return answer

    def submit(self, fn: Callable[..., T | Future[T]], *args: Any) -> Future[T]:
        """Have `fn` called on the enumerator's thread, which is begun if it is not there. Waits for nothing.

        Raises or fails with what ended it.
        """
        with self._lock:
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
            return thread.submit(fn, *args)

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
