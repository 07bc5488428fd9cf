"""A bounded read that partitions share by need: an enumerator, and a log of splits for each partition.

`SharedRead` is thread-safe. It stands in the driver; the partitions ask it, in its process or over a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from pillarbox.sources.enumerating import EnumeratorThread
from pillarbox.sources.enumerator import ReaderInfo
from pillarbox.sources.events import SourceEvent
from pillarbox.sources.partition_log import Entry, PartitionLog
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)


class _Context(Generic[S]):
    """What the enumerator of a shared read may ask and order: its readers are the partitions."""

    def __init__(self, read: SharedRead[S]) -> None:
        self._read = read
        self.readers: Mapping[int, ReaderInfo] = read._readers

    @property
    def parallelism(self) -> int:
        return self._read.partitions

    def assign(self, splits: Collection[S], subtask: int) -> None:
        for split in splits:
            self._read._thread.pool.remove(split.split_id)
            self._read._log.append(subtask, split)
        self._read._thread.execute(self._read._answer)

    def no_more_splits(self, subtask: int) -> None:
        self._read._end(subtask)
        self._read._thread.execute(self._read._answer)

    def send(self, subtask: int, event: SourceEvent) -> None:
        self._read._send(subtask, event)


class SharedRead(Generic[S]):
    """Reads `source`, which must be bounded, in `partitions` partitions.

    send: takes what the enumerator says to a partition; called on the enumerator's thread. None: events of
        the enumerator raise TypeError.

    Discovery goes on while the partitions are read. A partition that asks too early waits.
    Raises ValueError for a source without an end.
    """

    def __init__(
        self,
        source: Source[S, Any],
        partitions: int,
        *,
        send: Callable[[int, SourceEvent], None] | None = None,
    ) -> None:
        if source.boundedness is not Boundedness.BOUNDED:
            raise ValueError(f"{source!r} has no end: it cannot be read as a whole, only as a stream")
        self._events = send
        self._log: PartitionLog[S] = PartitionLog(partitions, self._take, self._is_over)
        self._readers: dict[int, ReaderInfo] = {}
        self._waiting: list[tuple[int, int, str, Future[Entry[S]]]] = []
        self._thread: EnumeratorThread[S, Any] = EnumeratorThread(
            source, lambda _: _Context(self), changed=self._answer, failed=self._give_up
        )

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return self._log.partitions

    def start(self) -> SharedRead[S]:
        """Begin to discover. Any thread, once. Raises what the source raises in making its enumerator."""
        self._thread.start()
        return self

    def next(self, partition: int, index: int, host: str) -> Future[Entry[S]]:
        """Entry `index` of a partition's log, which is appended to if need be: see `PartitionLog.next`.

        Any thread. The future fails with ValueError for a bad place, with what has ended the enumerator, or
        with RuntimeError after `close`.
        """
        return self._thread.promise(partial(self._next, partition, index, host))

    def hear(self, partition: int, event: SourceEvent) -> Future[None]:
        """A partition says something to the enumerator. Any thread."""
        return self._thread.submit(self._hear, partition, event)

    def close(self) -> None:
        """End the enumerator. Any thread but its own; idempotent. Who waits gets RuntimeError."""
        self._thread.close()
        self._give_up(RuntimeError("the read has been closed"))

    def __enter__(self) -> SharedRead[S]:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    # -- the enumerator's thread --------------------------------------------------------------

    def _next(self, partition: int, index: int, host: str, future: Future[Entry[S]]) -> None:
        entry = self._ask(partition, index, host)
        if entry is None:
            self._waiting.append((partition, index, host, future))
        else:
            future.set_result(entry)
        self._thread.need()

    def _ask(self, partition: int, index: int, host: str) -> Entry[S] | None:
        known = self._readers.get(partition)
        if known is None or known.host != host:
            self._log.splits(partition)
            info = ReaderInfo(partition, host)
            self._readers[partition] = info
            if known is None:
                self._thread.enumerator.add_reader(info)
        at_end = index == len(self._log.splits(partition))
        if at_end and not self._log.is_closed(partition):
            self._thread.enumerator.handle_split_request(partition)
        return self._log.next(partition, index, host)

    def _answer(self) -> None:
        """There is something new: who waits may get it."""
        for partition in range(self.partitions):
            ruled = self._thread.pool.ruled(partition)
            if ruled and self._log.is_closed(partition):
                raise RuntimeError(f"partition {partition} has ended, and {ruled} splits wait for it")
        waiting, self._waiting = self._waiting, []
        for partition, index, host, future in waiting:
            entry = self._log.next(partition, index, host)
            if entry is None:
                self._waiting.append((partition, index, host, future))
            else:
                future.set_result(entry)
        self._thread.need()

    def _take(self, partition: int, host: str) -> S | None:
        waiting = self._thread.pool.take(ReaderInfo(partition, host))
        return None if waiting is None else waiting.split

    def _is_over(self, partition: int) -> bool:
        return self._thread.exhausted

    def _end(self, partition: int) -> None:
        """The enumerator's own will. What nobody could read any more must not go missing without a word."""
        pool = self._thread.pool
        if pool.ruled(partition):
            raise RuntimeError(
                f"partition {partition} cannot end: {pool.ruled(partition)} splits wait for it"
            )
        if all(self._log.is_closed(each) for each in range(self.partitions) if each != partition):
            if len(pool):
                raise RuntimeError(f"partition {partition} is the last one, and {len(pool)} splits wait")
            if not self._thread.exhausted:
                raise RuntimeError(f"partition {partition} is the last one, and others may be found")
        self._log.close(partition)

    def _hear(self, partition: int, event: SourceEvent) -> None:
        self._thread.enumerator.handle_source_event(partition, event)

    def _send(self, subtask: int, event: SourceEvent) -> None:
        if self._events is None:
            raise TypeError(f"event {event.kind!r}: this read has no way to say something to its partitions")
        self._events(subtask, event)

    def _give_up(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
        for *_, future in waiting:
            future.set_exception(error)
