"""Readers of splits: `SplitReader`, on a fetcher's thread, and `SourceReader`, on the task's; their contract.

A connector writes a `SplitReader`; the framework's `FetchingReader` runs it on threads that it owns and is
the `SourceReader` of a task. The two parts are those of Flink's source reader (FLIP-27).

What they hand out is held to their contract batch by batch, in the words of the contract: a fetcher checks
its `SplitReader`, `read_splits` and `SourceInput` check a `SourceReader`. So a connector that breaks a rule
fails in a batch, a stream and a task alike. No row is looked at.
"""

# Why there are two interfaces. Most clients of brokers, files and databases block, and a task's thread must
# not: it has the mailbox and, as a guest, the event loop. So what a connector writes may block and is called
# by a thread of the framework, and what a task has never blocks. One interface for both left threads and
# locks to each connector, a reason why FLIP-27 replaced Flink's `SourceFunction`.
#
# Why `available` gives a future and takes no callback. A callback runs on the thread that has news, so each
# reader would have to know how its task is woken; a future is waited for by a plain loop (`read_splits`), by
# a mailbox or by an event loop, each in its own way.
#
# Why a position must be JSON. It goes into Spark's offsets, into savepoints and snapshots, which are read by
# other processes, later, with other versions; and reading a pickle from a checkpoint's folder runs what
# somebody has put there.

from __future__ import annotations

import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

from pillarbox.sources.enumerator import SourceEvent
from pillarbox.sources.split import JSON_SCALARS, Split, is_json

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=Split)

Records = Union["pa.RecordBatch", Sequence[Any]]
"""Rows: an Arrow record batch, or a sequence of rows as tuples in the order of the schema."""
FETCH_RETURNS = "it must return a list of Fetched, one for each split that it has rows of, or [] for none"
POSITION_RULE = (
    "JSON must hold a position, as it goes into checkpoints: None, a bool, a finite number, a str, or lists "
    "and dicts of these"
)
STOP_RULE = (
    "it must hand out no row at or after `stop`, and say finished=True when it has come there, with the last "
    "rows or with none"
)
SPLIT_RULE = (
    "it must return only what is of splits that it was given, by their split_id, and nothing of one that is "
    "finished"
)
RECORDS_RULE = "records must be an Arrow RecordBatch, or a list or tuple of rows"


class Fetched(NamedTuple):
    """Rows that a fetch has read of one split, and the position after them.

        >>> from pillarbox.sources import Fetched
        >>> fetched = Fetched("part-1", ["a", "b"], 2)
        >>> fetched.position, fetched.finished
        (2, False)

    split_id: the split. records: a sequence of rows or an Arrow batch. position: the position from which
        reading
    continues. finished: True at the end of the split. timestamp: their event time, in seconds since 1970.
    idle: True if the split has no rows now. An immutable tuple; any thread may use it.
    """

    split_id: str
    records: Records
    position: Any
    """The position behind `records`: what `Split.start` may be. Ignored if `finished`."""
    finished: bool = False
    """True if the split has been read to its end. Then nothing of it may follow."""
    timestamp: float | None = None
    """The latest event time in `records`, in seconds, where the reader knows it better than the strategy.

    Without records: a watermark, that nothing earlier follows."""
    idle: bool = False
    """True if nobody need wait for the split until its next records, whatever `idle_after` is."""


@dataclass(frozen=True)
class SplitsAdded(Generic[S]):
    """Splits that the reader is to read besides those that it has."""

    splits: tuple[S, ...]


class SplitReader(ABC, Generic[S]):
    """Reader of splits with a client that may block. One thread, its fetcher, calls all but `wake_up`.

        >>> from pillarbox.sources import Fetched, SplitReader
        >>> class Numbers(SplitReader):
        ...     splits = ()
        ...     def handle_splits_changes(self, change):
        ...         self.splits = [*self.splits, *change.splits]
        ...     def fetch(self):
        ...         splits, self.splits = self.splits, ()
        ...         return [Fetched(s.split_id, range(s.start, s.stop), s.stop, True) for s in splits]
        >>> Numbers().fetch()
        []

    It must never return rows at or after a split's `stop`, if that is not None, and reports `finished`
    there: with the last rows, or with an empty sequence. Its errors end the task.
    """

    @abstractmethod
    def fetch(self) -> Sequence[Fetched]:
        """Return the next rows of its splits that are not paused; blocks until there are some.

        May return nothing from time to time, and must after a wake-up. Rows already taken from the service
        must not be lost then: this call returns them, or the next. One call should take seconds at most, and
        return a batch: thousands of rows or about a megabyte. An error ends the task.
        """

    @abstractmethod
    def handle_splits_changes(self, change: SplitsAdded[S]) -> None:
        """Add splits, before the next `fetch`."""

    def wake_up(self) -> None:
        """Make a blocking `fetch` return soon; the next one, if none is running. Any thread.

        It must not wait for its fetcher.
        """

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Fetch nothing of the splits `pause` until they are in `resume`. Both are ids.

        Needed for event-time alignment of a reader that has more than one split at a time: it is then called
        before the first fetch without ids, so that a reader without it is refused at once. Raises
        NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot pause splits, as max_drift needs it")

    def close(self) -> None:
        """Release all resources. Called once, after the last `fetch`, also after a failure."""


@dataclass(frozen=True)
class ReaderContext:
    """The place of a reader, as it knows it. A plain value.

    subtask: its number among the readers of its source, from 0. host: the name of its machine. send: takes a
    `SourceEvent` to the enumerator, from any thread. schema: the columns that are asked for, where somebody
    asked, as with Spark.
    """

    subtask: int = 0
    host: str = field(default_factory=socket.gethostname)
    send: Callable[[SourceEvent], None] | None = None
    schema: pa.Schema | None = None


class SourceReader(ABC, Generic[S]):
    """Reads the splits of one task. Confined to its thread. Nothing blocks but `close`, and that not long.

    Most sources return a `FetchingReader`; derive from this one for a client that is asynchronous itself. One
    method is optional, for event time, of one that does not have what there is when it is polled:
    `looked(split_id)`, the seconds for which it has looked for rows of a split since `poll` gave some, and
    found none.
    """

    def start(self) -> None:
        """Called once, before everything else."""

    @abstractmethod
    def poll(self) -> Fetched | None:
        """The next rows of any of its splits; None if there are none now. Raises what reading has raised."""

    @abstractmethod
    def available(self) -> Future[Any] | None:
        """A future that is done when `poll` should be called again; None means now."""

    @abstractmethod
    def add_splits(self, splits: Sequence[S]) -> None:
        """Read these too."""

    @abstractmethod
    def splits(self) -> list[S]:
        """The splits that it has, each starting where the rows end that `poll` has given: its snapshot."""

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Give nothing of the splits `pause` until they are in `resume`. Named by their ids.

        Called with none where alignment begins. Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot pause splits, as max_drift needs it")

    def handle_source_event(self, event: SourceEvent) -> None:
        """Hear what the enumerator says. Raises TypeError here: one with events has a reader for them."""
        raise TypeError(f"{type(self).__name__} knows no event {event.kind!r}")

    @abstractmethod
    def close(self) -> None:
        """End its threads and let go of everything. Idempotent; also after a failure."""


class Doorbell:
    """A future for one thread that waits, which any thread may ring.

    Whoever waits asks for the future first, and then looks whether there is anything: what comes after the
    look finds the future. So there is no lock.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: Future[None] | None = None

    def future(self) -> Future[None]:
        """The future that the next `ring` completes: the same one until then. The thread that waits."""
        future = self._future
        if future is None or future.done():
            future = self._future = Future()  # spec: SplitPerThread!Ask
        return future

    def ring(self) -> bool:
        """Have whoever waits look again. Returns True, as an `Alarm` goes on then. Any thread."""
        # It stays where it is: whoever took it away might take one that was made since it was read.
        future = self._future
        if future is not None:
            # Several threads may come at the same time.
            with suppress(InvalidStateError):
                future.set_result(None)  # spec: SplitPerThread!CallArmed
        return True


class Progress(Generic[S]):
    """A split, and the position up to which it was read. Confined."""

    __slots__ = ("position", "split")

    def __init__(self, split: S) -> None:
        self.split = split
        self.position: Any = split.start


P = TypeVar("P", bound=Progress[Any])


def approximate_nbytes(records: Records) -> int:
    """Bytes that rows hold: an Arrow batch knows; others are judged by their first row. Any thread."""
    nbytes: int | None = getattr(records, "nbytes", None)
    if nbytes is not None:
        return nbytes
    if not records:
        return 0
    row = records[0]
    fields = row if isinstance(row, tuple) else ()
    return len(records) * (sys.getsizeof(row) + sum(map(sys.getsizeof, fields)))


def rest_of(split: S, position: object) -> S:
    """`split` from `position` on; as it is, with all that is known of it, where it starts there."""
    return split if position == split.start else split.starting_at(position)


class ReaderContract:
    """Checks what `method` of `reader` gives. Confined to the thread that calls that method."""

    def __init__(self, reader: object, method: str) -> None:
        self._method = f"{type(reader).__name__}.{method}"
        # Kinds of records that were found good: a source has one or two, and `issubclass` of an abstract
        # class is slow beside a look into a set.
        self._fitting: set[type[Any]] = {list, tuple}

    def check_list(self, fetched: object) -> None:
        """Raise TypeError for what is not a sequence of `Fetched`."""
        if type(fetched) is list:
            return
        if isinstance(fetched, Fetched) or not _is_sequence(type(fetched)):
            what = "one Fetched" if isinstance(fetched, Fetched) else _told(fetched)
            raise TypeError(f"{self._method} returned {what}: {FETCH_RETURNS}")

    def check(self, fetched: object, splits: Mapping[str, P]) -> P:
        """Return the one of `splits` that these rows are of; TypeError or ValueError for what cannot be.

        splits: those that the reader has, by their ids, as they were given, and the positions said last.
        """
        if not isinstance(fetched, Fetched):
            raise TypeError(
                f"{self._method} returned {_told(fetched)} where a Fetched must be: {FETCH_RETURNS}"
            )
        kind = type(fetched.records)
        if kind not in self._fitting:
            arrow = sys.modules.get("pyarrow")
            if not (_is_sequence(kind) or (arrow is not None and issubclass(kind, arrow.RecordBatch))):
                what = f"records={_told(fetched.records)} of split {fetched.split_id!r}"
                raise TypeError(f"{self._method} returned {what}: {RECORDS_RULE}")
            self._fitting.add(kind)
        before = splits.get(fetched.split_id)
        if before is None:
            what = f"rows of split {fetched.split_id!r}, which it does not have"
            raise ValueError(f"{self._method} returned {what}: {SPLIT_RULE}")
        position, split = fetched.position, before.split
        if not (type(position) in JSON_SCALARS or fetched.finished or is_json(position)):
            what = f"position={_told(position)} of split {split.split_id!r}"
            raise TypeError(f"{self._method} returned {what}: {POSITION_RULE}")
        stop = split.stop
        if stop is None or not len(fetched.records):
            return before
        # A reader that is at its `stop` already and hands out rows has the wrong ones, whatever their order.
        if before.position == stop or _is_beyond(position, stop, split.start):
            what = f"rows of split {split.split_id!r} up to position {position!r}, and its stop is {stop!r}"
            raise ValueError(f"{self._method} returned {what}: {STOP_RULE}")
        return before


def _is_sequence(kind: type[Any]) -> bool:
    return issubclass(kind, Sequence) and not issubclass(kind, str | bytes)


def _is_beyond(position: Any, stop: Any, start: Any) -> bool:
    """Positions that are numbers have an order. Where a source counts down, `stop` is not the highest."""
    if not (type(position) in (int, float) and type(stop) in (int, float)):
        return False
    return bool(position > stop) and not (type(start) in (int, float) and start > stop)


def _told(value: object) -> str:
    """A value of a reader may be long, and is named by its class as well."""
    shown = repr(value)
    return "None" if value is None else f"{shown[:80]}{'...' * (len(shown) > 80)} ({type(value).__name__})"


def read_splits(reader: SourceReader[S], splits: Sequence[S]) -> Generator[Fetched, None, None]:
    """Read `splits` with `reader`: starts it, gives what it polls as it comes, and closes it.

    For whoever has no task around it: Spark's partitions, tests, a loop of one's own. What is finished is
    given too, even with no rows.

    In the thread that iterates, which waits where nothing is there. Closing the iterator closes the reader.
    Raises what the reader raises.
    """
    contract = ReaderContract(reader, "poll")
    left = {split.split_id: Progress(split) for split in splits}
    try:
        reader.start()
        reader.add_splits(splits)
        while left:
            fetched = reader.poll()
            if fetched is None:
                future = reader.available()
                if future is not None:
                    future.result()
                continue
            progress = contract.check(fetched, left)
            progress.position = fetched.position
            if fetched.finished:
                del left[fetched.split_id]
            yield fetched
    finally:
        reader.close()
