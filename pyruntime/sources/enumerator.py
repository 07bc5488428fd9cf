"""The part of a source that finds its splits: `SplitEnumerator`, and the messages of coordinator and readers.

There is one for each run of a source, beside the driver. The idea is Flink's `SplitEnumerator` (FLIP-27).
Messages are plain values, for any thread; their idea is Flink's too: `OperatorEvent` is the general one,
`SourceEvent` (FLIP-27) one kind of it. The coordinator alone says who reads what. A reader that was restored
shows what it had, and reads what it is given then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pillarbox.sources.split import Serializer, Split

S = TypeVar("S", bound=Split)
S_contra = TypeVar("S_contra", bound=Split, contravariant=True)
C = TypeVar("C")


class ReaderInfo(NamedTuple):
    """A reader that has registered. A plain value."""

    subtask: int
    host: str
    """The name of its machine."""


class ReadLimit(NamedTuple):
    """The most that a micro-batch, or the rest of it, may read. None for no limit. A plain value."""

    rows: int | None = None
    nbytes: int | None = None
    files: int | None = None


class EnumeratorContext(Protocol[S_contra]):
    """The questions and orders of an enumerator. Confined to the enumerator's thread."""

    @property
    def parallelism(self) -> int:
        """The number of readers that are there, or will be."""

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """The readers that are there now, by their numbers."""

    def assign(self, splits: Collection[S_contra], subtask: int) -> None:
        """Give splits to a reader. One that is not there gets them when it comes."""

    def no_more_splits(self, subtask: int) -> None:
        """Tell a reader that it gets no other splits: it ends when it has read those that it has.

        For a source that ends some readers early. When all is found and given out, all are told anyway.
        Raises RuntimeError for the last one while splits wait, or before `discover` has found nothing.
        """

    def send(self, subtask: int, event: SourceEvent) -> None:
        """Say something to a reader. One that is not there does not hear it."""


class SplitEnumerator(ABC, Generic[S, C]):
    """Finder of the splits of a source. Derive one and write `discover`; the other methods have a default.

    *Threads.* All methods are called on one thread, the enumerator's, except `discover`, which may block and
    has its own thread. So `discover` changes nothing: it takes the previous knowledge and returns the new
    one. The enumerator's thread applies the returned splits and the new knowledge in one step. A checkpoint
    has both or neither.

    `checkpoint` is that knowledge: the value from which `create_enumerator` began or that
    `restore_enumerator` was given.

        >>> from pillarbox.sources import SplitEnumerator
        >>> from pillarbox.sources.split import OffsetSplit
        >>> class Days(SplitEnumerator):
        ...     def discover(self, checkpoint, most):
        ...         new = [day for day in ("mon", "tue") if day not in checkpoint][:most]
        ...         return [OffsetSplit(day, 0, 24) for day in new], checkpoint + new
        >>> splits, known = Days(None, []).discover([], 10)
        >>> [split.split_id for split in splits], known
        (['mon', 'tue'], ['mon', 'tue'])

    The first error of `discover` ends the job; later ones are logged, and it is called again.
    """

    discovery_interval: float | None = None
    """Seconds from a call of `discover` that has found nothing to the next; None: there is no next one.

    Whatever it is, one that has found splits is followed by another, and a bounded source is at its end when
    one has found nothing.
    """
    max_planned_splits: int = 3_000_000
    """Splits that may be found before any is read; a discovery that goes on counts as one without an end."""

    def __init__(self, context: EnumeratorContext[S], checkpoint: C) -> None:
        self.context = context
        self.checkpoint = checkpoint

    @abstractmethod
    def discover(self, checkpoint: C, most: int) -> tuple[Sequence[S], C]:
        """Return at most `most` splits that `checkpoint` does not know, and one that does. May block.

        No splits means that there are no more now. A checkpoint that does not know the returned splits, or a
        split that was returned before, is an error that ends the job: such a discovery would have no end. A
        split that was read to its end may be returned again when a discovery has found nothing since, or when
        the enumerator has set another `checkpoint`, in `let_go` or `handle_finished`, that does not know it.

        On the discovery thread, one call at a time. An error ends the job if nothing is known yet; later it
        is logged, and `discover` is called again after the interval. After a discovery with splits another
        follows at once, or as soon as readers need more, so that a checkpoint never has to hold a long list.
        """

    def assigned_to(self, split: S) -> int | None:
        """Return the reader of a split by the source's own rule; None: the first reader that requests one."""
        return None

    def choose(self, pending: Sequence[S], reader: ReaderInfo) -> int:
        """Choose the split for a reader that requests one: its place in `pending`, never empty.

        By default the first that is near to it, otherwise the first.
        """
        return next((at for at, split in enumerate(pending) if reader.host in split.hosts), 0)

    def advance(self, split: S, limit: ReadLimit) -> S | None:
        """Return the front of `split` that can be read now, within the limit; None if there is none.

        For micro-batches: the next one is read from the `stop` of the returned split; the same range must
        give the same rows at any later time. At least one row must fit, whatever the limit. May call the
        service. By default: all of a split that has a `stop`. Raises NotImplementedError for one without.
        """
        if split.stop is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no `advance`, so split {split.split_id!r}, which has no end, "
                "cannot be cut into micro-batches"
            )
        return split

    def let_go(self, splits: Sequence[S]) -> Collection[str]:
        """Return the ids of those of `splits` that no longer exist and will never have rows. By default none.

        For micro-batches, of all open splits that the planned one does not read. It does not call the
        service: `advance` has. From then on they are in no offset. In the same step `checkpoint` must
        forget names that may be used again: that is then another split, which `discover` finds, though
        it may have the same id. To let go of one that still exists loses its rows, or reads them twice.
        """
        return ()

    def handle_finished(self, splits: Sequence[S]) -> None:
        """Handle splits that were read to their end before a complete checkpoint: no reader gets them again.

        For tasks. `checkpoint` may now forget names that may be used again: `discover` finds that as
        another split, which may have the same id. Earlier a reader may still return to them.
        """

    def handle_restored(self, unread: Collection[S]) -> None:
        """Handle all splits that are still to be read, once after a restore, before all other calls.

        For tasks. The readers' parts of a checkpoint may be ahead of `checkpoint`: a split that it
        knows and that is not here has been read to its end, and `handle_finished` is not called for it.
        """

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """Handle an event of a reader. Raises TypeError here: a source with events overrides it."""
        raise TypeError(f"{type(self).__name__} knows no event {event.kind!r}")

    def handle_split_request(self, subtask: int) -> None:
        """Note that a reader requests a split. The framework answers afterwards, by `choose`."""

    def add_splits_back(self, splits: Sequence[S], subtask: int) -> None:
        """Note that a reader has died: these splits, which it had since the last checkpoint, wait again."""

    def add_reader(self, reader: ReaderInfo) -> None:
        """Note that a reader has started."""

    def snapshot(self) -> C:
        """Return the knowledge that `restore_enumerator` takes. Waiting splits are stored separately."""
        return self.checkpoint

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Notify the service of the positions, by split id, up to which rows are durable downstream.

        Called at least once or, after a crash, not at all. Its errors are logged.
        """

    def close(self) -> None:
        """Release all resources. Idempotent."""


# -- messages between a reader and the coordinator, and a reader's part of a checkpoint -----------------


class OperatorEvent:
    """A message between an operator and its coordinator: handed over at most once, in the sender's order.

    What a source says to itself is a `SourceEvent`.
    """


@dataclass(frozen=True)
class SourceEvent(OperatorEvent):
    """A message of a source's own, from its enumerator to a reader or the other way.

    `kind` tells its messages apart, `payload` is what JSON can hold. A message is handed over at most once,
    and those of one sender in order; one to a reader that has gone is dropped.
    """

    kind: str
    payload: Any = None


VERSION = 1


@dataclass(frozen=True)
class AddSplits(OperatorEvent, Generic[S]):
    """Read these too."""

    splits: tuple[S, ...]
    number: int
    """Counts what a reader of this place was given, over all its lives: it rises, and is more than 0."""
    skip: Mapping[str, int] = field(default_factory=dict)
    """By split id: how many of the first records from `start` on were emitted already. Most have none."""


@dataclass(frozen=True)
class NoMoreSplits(OperatorEvent):
    """No other splits will come: end when those that are there have been read."""


@dataclass(frozen=True)
class EventTimeLimit(OperatorEvent):
    """Give nothing more of splits whose watermark is beyond this: event-time alignment. It may fall too."""

    seconds: float
    """Infinite: all may go on."""


@dataclass(frozen=True)
class Failed(OperatorEvent):
    """The coordinator has failed or cannot be reached. The task must end with `error`; nothing else comes."""

    error: BaseException


Message = AddSplits[S] | NoMoreSplits | SourceEvent | EventTimeLimit | Failed


@dataclass(frozen=True)
class ReaderState(Generic[S]):
    """The splits of a reader at one moment: its part of a checkpoint.

    taken_up: the `number` of the latest `AddSplits` that `splits` counts in; 0 before the first. With it the
    coordinator tells a split that was still under way from one that was finished.
    splits: those that are not finished, each starting where the rows end that are behind it.
    skip: by split id, how many records from `start` on are behind it besides.
    """

    taken_up: int = 0
    splits: tuple[S, ...] = ()
    skip: Mapping[str, int] = field(default_factory=dict)


def state_to_json(state: ReaderState[S], serializer: Serializer[S]) -> dict[str, Any]:
    """`state` as what JSON can hold. `serializer` is that of the source's splits."""
    return {
        "version": VERSION,
        "split_version": serializer.version,
        "taken_up": state.taken_up,
        "splits": [serializer.to_json(split) for split in state.splits],
        "skip": dict(state.skip),
    }


def state_from_json(written: Any, serializer: Serializer[S]) -> ReaderState[S]:
    """Read what `state_to_json` has written. Raises ValueError for what it has not."""
    if not isinstance(written, dict) or written.get("version") != VERSION:
        raise ValueError(f"written={written!r}: must be the state of a reader, version {VERSION}")
    version = written["split_version"]
    return ReaderState(
        taken_up=written["taken_up"],
        splits=tuple(serializer.from_json(version, split) for split in written["splits"]),
        skip=dict(written["skip"]),
    )
