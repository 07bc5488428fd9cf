"""What reads splits: `SplitReader`, on a fetcher's thread, and `SourceReader`, on the task's.

A connector writes a `SplitReader`; the framework's `FetchingReader` runs it on threads that it owns and is
the `SourceReader` of a task. The two parts are those of Flink's source reader (FLIP-27).
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

from pillarbox.sources.events import SourceEvent
from pillarbox.sources.split import Split

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=Split)

Records = Union["pa.RecordBatch", Sequence[Any]]
"""Rows: an Arrow record batch, or a sequence of rows as tuples in the order of the schema."""


class Fetched(NamedTuple):
    """What a fetch has got of one split: rows, and where the split stands after them. A plain value."""

    split_id: str
    records: Records
    position: Any
    """Where reading goes on after `records`: what `Split.start` may be. Ignored if `finished`."""
    finished: bool = False
    """Whether the split has been read to its end. Then nothing of it may follow."""
    timestamp: float | None = None
    """The latest event time in `records`, in seconds, where the reader knows it better than the strategy.

    Without records: a watermark, that nothing earlier follows."""
    idle: bool = False
    """True if nobody need wait for the split until its next records, whatever `idle_after` is."""


@dataclass(frozen=True)
class SplitsAdded(Generic[S]):
    """Splits that the reader is to read besides those that it has."""

    splits: tuple[S, ...]


class SplitsRemoved(NamedTuple):
    """Splits that the reader is to read no more. What it has got of them is dropped."""

    split_ids: tuple[str, ...]


SplitsChange = SplitsAdded[S] | SplitsRemoved


class SplitReader(ABC, Generic[S]):
    """Reads splits with a client that may block. One thread, its fetcher, calls all but `wake_up`.

    It must never hand out rows at or after a split's `stop`, where that is not None, and says `finished`
    when it has come there: with the last rows, or with an empty sequence.
    """

    @abstractmethod
    def fetch(self) -> Sequence[Fetched]:
        """The next rows of the splits that are not paused; blocks until there are some.

        May give nothing now and then, and must where it was woken up. Nothing that it has taken from the
        service may be lost by that: it gives it, or the next call does. One call should take seconds at most,
        and give a batch: thousands of rows or about a megabyte. What it raises ends the task.
        """

    @abstractmethod
    def handle_splits_changes(self, change: SplitsChange[S]) -> None:
        """Take splits up, or let go of them, before the next `fetch`."""

    def wake_up(self) -> None:
        """Have a `fetch` that blocks return soon; the next one, if none is running. Any thread."""

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Fetch nothing of the splits `pause` until they are in `resume`. Named by their ids.

        Needed for event-time alignment of a reader that has more than one split at a time. Raises
        NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot pause splits")

    def close(self) -> None:
        """Let go of everything. Called once, after the last `fetch`, also after a failure."""


@dataclass(frozen=True)
class ReaderContext:
    """What a reader knows of its place. A plain value.

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

    Most sources return a `FetchingReader`; derive from this one for a client that is asynchronous itself. Two
    methods are optional, for event time: `looked(split_id)`, the seconds for which it has looked for rows of
    a split and found none, and `require_pausing()`, which raises if it cannot pause splits.
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
    def remove_splits(self, split_ids: Collection[str]) -> None:
        """Read these no more. `poll` gives nothing of them from now on."""

    @abstractmethod
    def splits(self) -> list[S]:
        """The splits that it has, each starting where the rows end that `poll` has given: its snapshot."""

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Give nothing of the splits `pause`, but what was fetched already, until they are in `resume`."""
        raise NotImplementedError(f"{type(self).__name__} cannot pause splits")

    def handle_source_event(self, event: SourceEvent) -> None:
        """Hear what the enumerator says. Raises TypeError here: one with events has a reader for them."""
        raise TypeError(f"{type(self).__name__} knows no event {event.kind!r}")

    @abstractmethod
    def close(self) -> None:
        """End its threads and let go of everything. Idempotent; also after a failure."""
