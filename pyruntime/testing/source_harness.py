"""`SourceHarness`: runs a source in one process, in steps, for tests of connectors. Confined to one thread.

Its enumerator, its readers and the coordinator of every use between them, without Spark, and without a
task. What is written down goes through JSON, as it would in a checkpoint.
"""

# Why not the coordinator of tasks with its two threads. A test that steps must know what has happened when
# a step returns: with a thread that discovers and one that deals out it would wait, for a time that is too
# long on most days and too short on one. So the harness has the same `SplitCoordinator` and calls it
# itself, in the place of the enumerator's thread.
#
# Why what is written down goes through JSON each time: a split that holds more than JSON can is right in
# every test that keeps the object, and lost in the first restart.
#
# Why a reader that restarts loses what it had fetched: a process that dies does too. A harness that handed
# the rows on would pass a connector whose positions run ahead of its rows.

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from pillarbox.sources import Fetched, Source, Split, SplitEnumerator
from pillarbox.sources.enumerating import Checkpoint, PendingSplits, Waiting
from pillarbox.sources.enumerator import (
    AddSplits,
    Failed,
    Message,
    ReaderInfo,
    ReadLimit,
    SourceEvent,
)
from pillarbox.sources.reader import ReaderContext, SourceReader, read_splits
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split_coordinator import SplitCoordinator, checkpoint_from_json, checkpoint_to_json
from pillarbox.task.failures import Failures

S = TypeVar("S", bound=Split)
C = TypeVar("C")

READ_TIMEOUT_S = 10.0
MAX_SPLITS_PER_DISCOVERY = 1000
NO_LIMIT = ReadLimit()


def rows_of(records: Any) -> list[Any]:
    """The rows of an Arrow batch as tuples, those of a sequence as they are. Any thread."""
    columns = getattr(records, "columns", None)
    if columns is None:
        return list(records)
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


class SourceHarness(Generic[S, C]):
    """Run of `source` with several readers, for a test. Made, used and closed on one thread.

        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> from pillarbox.testing import SourceHarness
        >>> source = GeneratorSource(rows=60, splits=3, batch_rows=10)
        >>> with SourceHarness(source, readers=2) as harness:
        ...     first = harness.read(20)
        ...     snapshot = harness.snapshot()
        >>> with SourceHarness(source, readers=3, snapshot=snapshot) as harness:
        ...     rest = harness.read_all()
        >>> len(first) + len(rest)
        60

    Other steps are `discover`, `step`, and `micro_batch`, as in Spark. It continues from a snapshot, also
    with another number of readers.

    readers: their number. timeout: seconds that a wait for rows may take before TimeoutError. host: the
        readers'
    name for their machine. Methods raise the errors of the source.
    """

    def __init__(
        self,
        source: Source[S, C],
        *,
        readers: int = 1,
        snapshot: object = None,
        timeout: float = READ_TIMEOUT_S,
        host: str = "localhost",
    ) -> None:
        if isinstance(readers, bool) or not isinstance(readers, int) or readers < 1:
            raise ValueError(f"readers={readers!r}: must be an int of at least 1")
        self.source = source
        self.rows: list[Any] = []
        """All rows that `step` and what uses it have read, in the order in which they came."""
        self.fetched: list[Fetched] = []
        """The same as it came."""
        self.events: list[tuple[int, SourceEvent]] = []
        """The events that the readers have sent to the enumerator, with their numbers."""
        self._timeout = timeout
        self._host = host
        self._exhausted = False
        self._discovered_at = -1e9
        self._heard: deque[tuple[int, SourceEvent]] = deque()
        self._open: dict[str, S] = {}
        self._closed = False
        self.context: SplitCoordinator[S] = SplitCoordinator(readers)
        """The enumerator's view of its framework."""
        self.enumerator: SplitEnumerator[S, C]
        """The source's enumerator."""
        self.readers: dict[int, SourceReader[S]] = {}
        """The readers, by their numbers."""
        self._make_enumerator(snapshot)
        for subtask in range(readers):
            self._make_reader(subtask)
            way: Any = _Readers(self, subtask)
            self.context.open(way, subtask, host, None)

    @property
    def pending(self) -> list[S]:
        """The splits that were found and that no reader has."""
        return [each.split for each in self._thread.pending.waiting()]

    def take_pending(self) -> list[S]:
        """Those, for a test that gives them out itself: no reader is given them then."""
        taken = self.pending
        for split in taken:
            self._thread.pending.remove(split.split_id)
        return taken

    # -- reading -----------------------------------------------------------------------------------

    def read_all(self) -> list[Any]:
        """Return the rows of a bounded source, to its end. Raises ValueError for one without an end."""
        if self.source.boundedness is not Boundedness.BOUNDED:
            raise ValueError("the source is unbounded: read(rows), or read_until(condition)")
        return self.read_until(lambda: False)

    def read(self, rows: int) -> list[Any]:
        """Return at least `rows` more rows, or all up to the end. Raises TimeoutError."""
        wanted = len(self.rows) + rows
        return self.read_until(lambda: len(self.rows) >= wanted)

    def read_until(self, condition: Callable[[], bool]) -> list[Any]:
        """Return the rows read until `condition()` is true or the end is reached. Raises TimeoutError."""
        before = len(self.rows)
        deadline = time.monotonic() + self._timeout
        while not condition() and not self.ended:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{len(self.rows) - before} rows in {self._timeout} s, and the condition does not hold"
                )
            if not self.step() and not condition() and not self.ended:
                self.wait(max(0.0, deadline - time.monotonic()))
        return self.rows[before:]

    def step(self) -> bool:
        """Discover splits if no reader has any, assign them, poll each reader once; True if rows arrived."""
        self._hear()
        if not self.pending and self._due():
            self.discover()
        self._give_out()
        came = False
        for subtask, reader in list(self.readers.items()):
            fetched = reader.poll()
            if fetched is not None:
                came = True
                self.fetched.append(fetched)
                self.rows.extend(rows_of(fetched.records))
                if fetched.finished:
                    self.context.finished(subtask, [fetched.split_id])
        self._hear()
        return came

    def wait(self, seconds: float) -> None:
        """Wait until a reader has something, or it is time to look for splits, at most so long."""
        interval = self.enumerator.discovery_interval
        if interval is not None:
            seconds = min(seconds, max(0.0, self._discovered_at + interval - time.monotonic()))
        futures: list[Future[Any]] = []
        for reader in self.readers.values():
            future = reader.available()
            if future is None:
                return
            futures.append(future)
        wait(futures, seconds, FIRST_COMPLETED)

    @property
    def ended(self) -> bool:
        """True if everything has been read, and nothing new can come."""
        return (
            self._thread.exhausted and not self.pending and not any(r.splits() for r in self.readers.values())
        )

    def read_split(self, split: S) -> list[Any]:
        """The rows of one split, or of a piece of one, read by a reader of its own to the end."""
        reader = self.source.create_reader(self._reader_context(0))
        return [row for fetched in read_splits(reader, [split]) for row in rows_of(fetched.records)]

    def discover(self, most: int = MAX_SPLITS_PER_DISCOVERY) -> list[S]:
        """Call `discover` once and apply its result. `most`: splits, at most."""
        enumerator = self.enumerator
        found, checkpoint = enumerator.discover(enumerator.checkpoint, most)
        if len(found) > most:
            raise AssertionError(f"discover was asked for at most {most} splits and gave {len(found)}")
        self._discovered_at = time.monotonic()
        self._exhausted = not found
        self._thread.exhausted = not found and (
            self.source.boundedness is Boundedness.BOUNDED or enumerator.discovery_interval is None
        )
        # One step: a snapshot has both or neither.
        enumerator.checkpoint = checkpoint
        self._thread.pending.add(Waiting(self.written(split)) for split in found)
        return list(found)

    # -- micro-batches -------------------------------------------------------------------------------

    def micro_batch(self, limit: ReadLimit = NO_LIMIT) -> list[Any]:
        """Read a micro-batch: of each split the part that `advance` returns, within `limit`.

        Do not mix it with `step`, which assigns the splits to readers instead.
        """
        return [row for piece in self.plan(limit) for row in self.read_split(piece)]

    def plan(self, limit: ReadLimit = NO_LIMIT) -> list[S]:
        """The pieces of splits that a micro-batch would read; the splits then start behind them.

        Splits that the enumerator lets go of are open no more.
        """
        while self.discover():
            continue
        self._open.update((split.split_id, split) for split in self.take_pending())
        pieces = []
        for split in list(self._open.values()):
            if any(part is not None and part <= 0 for part in limit):
                break
            piece = self.enumerator.advance(split, limit)
            if piece is None:
                continue
            pieces.append(self.written(piece))
            limit = _less(limit, piece)
            if piece.stop == split.stop:
                del self._open[split.split_id]
            else:
                self._open[split.split_id] = split.starting_at(piece.stop)
        read = {piece.split_id for piece in pieces}
        waiting = [split for split in self._open.values() if split.split_id not in read]
        for split_id in self.enumerator.let_go(waiting):
            del self._open[split_id]
        return pieces

    # -- checkpoints and failures --------------------------------------------------------------------

    def snapshot(self) -> Any:
        """Return the position after the rows so far, as JSON values that went through JSON."""
        self._hear()
        splits = [split for reader in self.readers.values() for split in reader.splits()]
        waiting = [Waiting(split) for split in (*splits, *self._open.values(), *self.pending)]
        checkpoint = Checkpoint(self.enumerator.snapshot(), waiting)
        return json.loads(json.dumps(checkpoint_to_json(self.source, checkpoint)))

    def restart_reader(self, subtask: int = 0) -> None:
        """Make a new reader continue after the last row that this one returned. Its fetched rows are lost."""
        reader = self.readers.pop(subtask)
        splits = [self.written(split) for split in reader.splits()]
        reader.close()
        self._make_reader(subtask).add_splits(splits)
        self.enumerator.add_reader(ReaderInfo(subtask, self._host))

    def close(self) -> None:
        """Close the readers and the enumerator. Idempotent. Raises their first error."""
        self._close(None)

    def __enter__(self) -> SourceHarness[S, C]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    # -- inside ----------------------------------------------------------------------------------------

    def _close(self, cause: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        failures = Failures(cause)
        for subtask, reader in self.readers.items():
            failures.run(f"closing reader {subtask}", reader.close)
        failures.run("closing the enumerator", self.enumerator.close)
        if failures.first is not None and failures.first is not cause:
            raise failures.first

    def _make_enumerator(self, snapshot: Any) -> None:
        self._thread: _TestThread[S] = _TestThread(self.source)
        self.context._thread = self._thread  # type: ignore[assignment]
        waiting: list[S] = []
        if snapshot is None:
            self.enumerator = self.source.create_enumerator(self.context)
        else:
            checkpoint = checkpoint_from_json(self.source, snapshot)
            self.enumerator = self.source.restore_enumerator(self.context, checkpoint.checkpoint)
            waiting = [each.split for each in checkpoint.waiting]
            self.enumerator.handle_restored(waiting)
        self._thread.enumerator = self.enumerator
        self._thread.pending = PendingSplits(self.enumerator)
        self._thread.pending.add(map(Waiting, waiting))

    def _reader_context(self, subtask: int) -> ReaderContext:
        return ReaderContext(subtask=subtask, host=self._host, send=partial(self._say, subtask))

    def _make_reader(self, subtask: int) -> SourceReader[S]:
        reader = self.source.create_reader(self._reader_context(subtask))
        reader.start()
        self.readers[subtask] = reader
        return reader

    def written(self, split: S) -> S:
        """The split as it comes out of a checkpoint. Raises AssertionError if it comes back otherwise."""
        serializer = self.source.split_serializer
        written = json.loads(json.dumps(serializer.to_json(split)))
        read = serializer.from_json(serializer.version, written)
        if read != split:
            raise AssertionError(f"{split!r} comes back from its serializer as {read!r}")
        return read

    def _due(self) -> bool:
        if not self._exhausted:
            return True
        interval = self.enumerator.discovery_interval
        return interval is not None and time.monotonic() - self._discovered_at >= interval

    def _give_out(self) -> None:
        self.context.serve()
        # Splits without an end must all be read at the same time; of others each reader takes one by one.
        at_once = self.source.boundedness is not Boundedness.BOUNDED
        while True:
            waiting = len(self._thread.pending)
            for subtask, reader in self.readers.items():
                if not reader.splits() or (at_once and len(self._thread.pending)):
                    self.context.request(subtask)
            if not at_once or len(self._thread.pending) in (0, waiting):
                return

    def _say(self, subtask: int, event: SourceEvent) -> None:
        """A reader says something. Any thread."""
        self._heard.append((subtask, _through_json(event)))

    def _hear(self) -> None:
        while self._heard:
            subtask, event = self._heard.popleft()
            self.events.append((subtask, event))
            self.context.hear(subtask, event)


class _TestThread(Generic[S]):
    """The enumerator's thread as its coordinator sees it, where that is the test's own."""

    enumerator: SplitEnumerator[S, Any]
    pending: PendingSplits[S]

    def __init__(self, source: Source[S, Any]) -> None:
        self.source = source
        self.exhausted = False

    def execute(self, fn: Callable[..., object], *args: object) -> bool:
        fn(*args)
        return True


class _Readers(Generic[S]):
    """The way to the reader of a place, whichever that is."""

    def __init__(self, harness: SourceHarness[S, Any], subtask: int) -> None:
        self._harness, self._subtask = harness, subtask

    def deliver(self, message: Message[S]) -> None:
        reader = self._harness.readers[self._subtask]
        if isinstance(message, AddSplits):
            reader.add_splits([self._harness.written(split) for split in message.splits])
        elif isinstance(message, SourceEvent):
            reader.handle_source_event(_through_json(message))
        elif isinstance(message, Failed):
            raise message.error


def _through_json(event: SourceEvent) -> SourceEvent:
    return SourceEvent(event.kind, json.loads(json.dumps(event.payload)))


def _less(limit: ReadLimit, piece: Split) -> ReadLimit:
    """The rest of a limit after a piece. One that knows no rows counts for none."""
    parts: Sequence[int | None] = (piece.rows, piece.nbytes, piece.files)
    return ReadLimit(
        *(None if most is None else most - (part or 0) for most, part in zip(limit, parts, strict=True))
    )
