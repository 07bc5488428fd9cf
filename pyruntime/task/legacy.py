"""Sources of the old kinds: `SourceFunction`, which is one loop, and `InputFormat`, which reads splits.

The interfaces are Flink's of these names, which FLIP-27 has replaced. `pillarbox.sources.legacy` makes a
`Source` of either. A loop cannot take turns with a mailbox: it runs in a thread of its own, which shares a
fair lock, the checkpoint lock, with who takes what it emits together with its state.
"""

# Why a lock at all, and no queue between loop and task. With a queue the loop's state is ahead of the rows
# that the task has taken, by what stands in the queue: a checkpoint of both would lose these. Only who keeps
# state and emission in one section of a lock can say which state belongs to which row.
#
# Why `collect` lets others in by itself. The loops that this is for were written for Flink, and some hold the
# lock over many records. To demand that they are written anew would leave nothing of the reason for them. It
# is safe where state follows each record, the usual way; `atomic_sections` is for the others, and the log
# says when it mattered.

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from pillarbox.task.fair_lock import FairLock
from pillarbox.validate import check_duration, check_moment

log = logging.getLogger("pillarbox")

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class RuntimeContext:
    """The place of old code among its parallel instances: a name, its number from 0, of how many."""

    task_name: str = "source"
    subtask: int = 0
    parallelism: int = 1


class SourceCancelled(BaseException):
    """Raised in a source that was cancelled, where it emits or takes the lock; ends its `run`.

    Not an Exception, so that a source that catches those for each record ends nevertheless.
    """


class SourceFunction(ABC):
    """A source that is one loop. The idea is Flink's `SourceFunction`."""

    atomic_sections: ClassVar[bool] = False
    """True for a source that emits several records under one taking of the lock as one step with its state,
    or changes its state before it emits: see `SourceContext`. It must give the lock up soon."""

    @abstractmethod
    def run(self, context: SourceContext) -> None:
        """Emit through `context` until the input ends or `cancel` is called. In the source's thread, once."""

    @abstractmethod
    def cancel(self) -> None:
        """End a wait of `run` outside of its context. Once, by another thread; must not block."""


class ParallelSourceFunction(SourceFunction):
    """A source of which several instances run, each for its share. Flink's `RichParallelSourceFunction`."""

    runtime_context = RuntimeContext()
    """Set before `restore_state` and `run`."""


@runtime_checkable
class CheckpointedSource(Protocol):
    """The methods of a source whose position checkpoints hold. Called under the checkpoint lock."""

    def snapshot_state(self) -> Any:
        """The position after the last record emitted. The caller keeps what is returned."""

    def restore_state(self, state: Any) -> None:
        """Go to the position that a `snapshot_state` returned. Before `run`."""


class SourceContext:
    """Emits a source's records, watermarks and idleness. Thread-safe. Made by who runs it.

    *The lock.* Every method takes the checkpoint lock for its one element. A source that has state changes it
    under `checkpoint_lock`, together with the record that it belongs to, so that a checkpoint sees both or
    neither. The lock is fair, so who waits for it gets it after this record, however fast the loop is.

    *A source that keeps the lock* over many records would keep checkpoints out for ever. So, before every
    record but the first since the lock was taken, `collect` lets those in who wait, and takes the lock back.
    State that is brought up to date after each `collect` and before the next is exact then. State that is
    changed once for several records is not, nor is one that is changed before its record: a restart would
    repeat or lose records. A source of that kind says `atomic_sections = True`; who waits then does so until
    it gives the lock back. Watermarks let nobody in. The first time that somebody is let in is logged.

    *Room.* A source that is `capacity` elements ahead waits, without the lock, in `collect` and to take the
    lock. A section that has begun is not held up: its first record goes out, of `atomic_sections` all.

    *The end.* After a cancel every method, and a wait within it, raises `SourceCancelled`.
    """

    def __init__(self, capacity: int, *, atomic_sections: bool, name: str) -> None:
        self._capacity = capacity
        self._atomic = atomic_sections
        self._name = name
        self._lock = FairLock()
        self.checkpoint_lock = CheckpointLock(self)
        """Keeps checkpoints out; reentrant, a context manager, to be held for a short time."""
        # Under the lock: the turn of it in which the latest record was emitted, and event time.
        self._turn = -1
        self._told = False
        self._watermark: float | None = None
        self._latest: float | None = None
        self.is_idle = False
        """True if the source has marked itself as idle and emitted nothing since."""
        self._stop = threading.Event()
        # Guards what follows; notified where a wait may end: for more, for room, for the end.
        self._changed = threading.Condition(threading.Lock())
        self._records: list[Any] = []
        self._has_news = self._ended = False

    def collect(self, value: Any) -> None:
        """Emit a record; waits for room. Raises `SourceCancelled`."""
        lock = self._lock
        if not lock.is_held:
            with self.checkpoint_lock:
                self.collect(value)
            return
        # What a section begins with belongs to what the source has done in it already.
        if not self._atomic and lock.turns == self._turn:
            if lock.give_way() and not self._told:
                self._told = True
                text = "source %s kept the checkpoint lock over several records, and a checkpoint was let in"
                log.warning(f"{text}; if they are one step with its state, set atomic_sections", self._name)
            self._wait_for_room()
        self._turn = lock.turns
        self._emit(value)

    def collect_with_timestamp(self, value: Any, timestamp: float) -> None:
        """As `collect`, with the event time in seconds. Raises TypeError or ValueError for what is none."""
        timestamp = check_moment("timestamp", timestamp)
        if not self._lock.is_held:
            with self.checkpoint_lock:
                self.collect_with_timestamp(value, timestamp)
            return
        self.collect(value)
        self._latest = timestamp if self._latest is None else max(self._latest, timestamp)

    def emit_watermark(self, timestamp: float) -> None:
        """Say that no record of this event time, in seconds, or an earlier one follows. Waits for no room."""
        # The end of time is what a function says when it ends: no moment, but allowed.
        if timestamp != float("inf"):
            timestamp = check_moment("timestamp", timestamp)
        with self._lock:
            self._emit()
            self._watermark = timestamp

    def mark_as_temporarily_idle(self) -> None:
        """Have nobody wait for the source until its next record or watermark. Raises `SourceCancelled`."""
        with self._lock:
            self._emit()
            self.is_idle = True

    @property
    def is_cancelled(self) -> bool:
        """True if the source should end."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the source is cancelled, and return True if it is. Not under the lock."""
        return self._stop.wait(check_duration("seconds", seconds))

    def _emit(self, *records: Any) -> None:
        """Under the lock."""
        self._raise_if_cancelled()
        self.is_idle = False
        with self._changed:
            self._records += records
            self._has_news = True
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        """Under the lock, which is given up for the time of a wait."""
        self._raise_if_cancelled()
        while len(self._records) >= self._capacity:
            with self._lock.given_up(), self._changed:
                self._changed.wait_for(lambda: self._stop.is_set() or len(self._records) < self._capacity)
            self._raise_if_cancelled()

    def _raise_if_cancelled(self) -> None:
        if self._stop.is_set():
            raise SourceCancelled


class CheckpointLock:
    """A source's view of the lock that it shares: waits for room before it is taken. Thread-safe."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context

    def acquire(self) -> bool:
        """Take the lock, again if this thread holds it. Any thread. Raises `SourceCancelled`."""
        lock = self._context._lock
        in_section = lock.is_held
        lock.acquire()
        if not in_section:
            try:
                self._context._wait_for_room()
            except BaseException:
                lock.release()
                raise
        return True

    def release(self) -> None:
        """Give back one taking. Any thread. Raises RuntimeError if this thread does not hold it."""
        self._context._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class InputStatistics(NamedTuple):
    """The size of an input, or about its size; None is unknown. Flink's `BaseStatistics`."""

    nbytes: int | None = None
    records: int | None = None


class InputFormat(ABC, Generic[S, T]):
    """Divides an input into splits of type S, and reads records of type T from one split after the other.

    Calls come in this order: `configure`; then `statistics`, `create_input_splits` and `choose`, where splits
    are handed out, or, where they are read, for each split `open`, then `reached_end` and `next_record`
    in turn, then `close`. Confined to who uses it. A split that has `hosts`, names of machines, goes to
    a reader on one of them if it can.
    """

    def configure(self, parameters: Mapping[str, Any]) -> None:
        """Take the job's parameters. Called before everything else."""

    def statistics(self) -> InputStatistics | None:
        """The size of the whole input, for planning; None if it is unknown."""
        return None

    @abstractmethod
    def create_input_splits(self, min_splits: int) -> Sequence[S]:
        """Divide the input into splits, `min_splits` or more if that can be."""

    def choose(self, splits: Sequence[S], subtask: int) -> S | None:
        """The one of the `splits` that wait for a reader that asks; None: one near to it, or the first."""
        return None

    @abstractmethod
    def open(self, split: S) -> None:
        """Begin to read a split, which may be one that was given back unread, or read in part, before."""

    @abstractmethod
    def reached_end(self) -> bool:
        """True if the split has no more records."""

    @abstractmethod
    def next_record(self) -> T | None:
        """The next record; None if there is none after all, which need not be the end of the split."""

    @abstractmethod
    def close(self) -> None:
        """End with the split. Called after every `open`, also after one that has raised."""


class RichInputFormat(InputFormat[S, T]):
    """A format that holds something over many splits, such as a connection, and knows who reads with it."""

    runtime_context = RuntimeContext()
    """Set before `open_input_format`. How many readers there will be is not known: `subtask` + 1 at least."""

    def open_input_format(self) -> None:
        """Get what is needed for all splits. Called once by a reader, before the first `open`."""

    def close_input_format(self) -> None:
        """Let go of it. Called once by a reader, after the last `close`, also if something has raised."""


@dataclass(frozen=True)
class ReplicatingInputFormat(Generic[S, T]):
    """Has every reader read all splits of `format`, as for the small side of a join."""

    format: InputFormat[S, T]
