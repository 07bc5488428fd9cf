"""A bounded read that partitions share by need: an enumerator, and a log of splits for each partition.

`SharedRead` is thread-safe. It stands in the driver; the partitions ask it, in its process or over a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple, TypeVar

from pillarbox.sources.enumerating import EnumeratorThread, Restored
from pillarbox.sources.enumerator import ReaderInfo, SplitEnumerator
from pillarbox.sources.events import SourceEvent
from pillarbox.sources.partition_log import Entry, PartitionLog
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)

MOST = 64
"""Splits of one answer."""
SHARE = 8
"""A partition is given at once at most this part of what would be its own, were all that waits dealt out."""


class Rested(NamedTuple):
    """A read whose threads have ended and that can go on: what was known, what waits, what was given out."""

    restored: Restored[Any, Any]
    log: PartitionLog[Any]


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
    rested: what to go on from, of a read of the same source that has been put to rest.

    Discovery goes on while the partitions are read. A partition that asks too early waits.
    Raises ValueError for a source without an end.
    """

    def __init__(
        self,
        source: Source[S, Any],
        partitions: int,
        *,
        send: Callable[[int, SourceEvent], None] | None = None,
        rested: Rested | None = None,
    ) -> None:
        if source.boundedness is not Boundedness.BOUNDED:
            raise ValueError(f"{source!r} has no end: it cannot be read as a whole, only as a stream")
        self._events = send
        before = None if rested is None else rested.log
        self._log: PartitionLog[S] = PartitionLog(partitions, self._take, self._is_over, before)
        self._readers: dict[int, ReaderInfo] = {}
        self._waiting: list[tuple[int, int, str, int, Future[list[Entry[S]]]]] = []
        self._thread: EnumeratorThread[S, Any] = EnumeratorThread(
            source,
            lambda _: _Context(self),
            restored=None if rested is None else rested.restored,
            changed=self._answer,
            failed=self._give_up,
        )

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return self._log.partitions

    def start(self) -> SharedRead[S]:
        """Begin to discover. Any thread, once. Raises what the source raises in making its enumerator."""
        self._thread.start()
        return self

    def next(self, partition: int, index: int, host: str, most: int = 1) -> Future[list[Entry[S]]]:
        """The entries of a partition's log from `index` on, one to `most` of them, at most 64.

        The log is appended to if need be: see `PartitionLog.next`. More than one split is appended only
        while many wait, so that near the end each goes to whoever has nothing to do. The idea is guided
        self-scheduling (Polychronopoulos and Kuck, 1987). A source that handles requests itself is asked for
        each.

        Any thread. The future fails with ValueError for a bad place, with what has ended the enumerator, or
        with RuntimeError after `close`.
        """
        return self._thread.promise(partial(self._next, partition, index, host, most))

    def hear(self, partition: int, event: SourceEvent) -> Future[None]:
        """A partition says something to the enumerator. Any thread."""
        return self._thread.submit(self._hear, partition, event)

    @property
    def failure(self) -> BaseException | None:
        """What has ended the enumerator, if anything has. Any thread."""
        return self._thread.failure

    def rest(self) -> Rested:
        """As `close`; gives what another one goes on from. Any thread but the enumerator's, when nobody asks.

        Raises what has ended the enumerator, or what its `snapshot` raises.
        """
        rested = self._thread.submit(self._state).result()
        self.close()
        return rested

    def close(self) -> None:
        """End the enumerator. Any thread but its own; idempotent. Who waits gets RuntimeError."""
        self._thread.close()
        self._give_up(RuntimeError("the read has been closed"))

    def __enter__(self) -> SharedRead[S]:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    # -- the enumerator's thread --------------------------------------------------------------

    def _state(self) -> Rested:
        # In one step, as a checkpoint. A discovery that is under way has changed nothing yet: it finds the
        # same again.
        restored = Restored(self._thread.enumerator.snapshot(), tuple(self._thread.pool.waiting()))
        return Rested(restored, PartitionLog(self.partitions, self._take, self._is_over, self._log))

    def _next(self, partition: int, index: int, host: str, most: int, future: Future[list[Entry[S]]]) -> None:
        self._ask(partition, index, host)
        self._give(partition, index, host, most, future)
        self._thread.need()

    def _give(self, partition: int, index: int, host: str, most: int, future: Future[list[Entry[S]]]) -> None:
        entries = self._entries(partition, index, host, most)
        if entries:
            future.set_result(entries)
        else:
            self._waiting.append((partition, index, host, most, future))

    def _entries(self, partition: int, index: int, host: str, most: int) -> list[Entry[S]]:
        """What stands in the log, and as many new ones as are due; none if there is nothing yet."""
        log = self._log
        due = max(1, len(self._thread.pool) // (SHARE * self.partitions)) if self._deals else 1
        entries: list[Entry[S]] = []
        for at in range(index, index + max(1, min(most, MOST))):
            is_new = at >= log.length(partition)
            if is_new and not due:
                break
            entry = log.next(partition, at, host)
            if entry is None:
                break
            entries.append(entry)
            if entry.split is None:
                break
            due -= is_new
        return entries

    @cached_property
    def _deals(self) -> bool:
        kind = type(self._thread.enumerator)
        return kind.handle_split_request is SplitEnumerator.handle_split_request

    def _ask(self, partition: int, index: int, host: str) -> None:
        known = self._readers.get(partition)
        length = self._log.length(partition)
        if known is None or known.host != host:
            info = ReaderInfo(partition, host)
            self._readers[partition] = info
            if known is None:
                self._thread.enumerator.add_reader(info)
        if index == length and not self._log.is_closed(partition):
            self._thread.enumerator.handle_split_request(partition)

    def _answer(self) -> None:
        """There is something new: who waits may get it."""
        for partition in range(self.partitions):
            ruled = self._thread.pool.ruled(partition)
            if ruled and self._log.is_closed(partition):
                raise RuntimeError(f"partition {partition} has ended, and {ruled} splits wait for it")
        waiting, self._waiting = self._waiting, []
        for at, each in enumerate(waiting):
            try:
                self._give(*each)
            except BaseException:
                # What the source raises ends the read, for all that wait.
                self._waiting += waiting[at:]
                raise
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
