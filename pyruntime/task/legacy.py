"""Sources of the old kinds: `SourceFunction`, which is one loop, and `InputFormat`, which reads splits.

The interfaces are Flink's of these names, which FLIP-27 has replaced. `pillarbox.sources.legacy` makes a
`Source` of either. A loop cannot take turns with a mailbox: `FunctionThread` runs it in a thread of its own,
which shares a fair lock, the checkpoint lock, with who takes what it emits together with its state.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from pillarbox.task.fair_lock import FairLock
from pillarbox.task.moments import check_duration, check_moment
from pillarbox.task.output import Idleness, Watermark

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


class Timestamped(NamedTuple):
    """A record with its event time in seconds, as `collect_with_timestamp` emits it."""

    value: Any
    timestamp: float


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
    """Emits a source's records, watermarks and idleness. Thread-safe. Made by `FunctionThread`.

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

    def __init__(self, lock: FairLock, capacity: int, *, atomic_sections: bool, name: str) -> None:
        self.checkpoint_lock = CheckpointLock(self, lock)
        """Keeps checkpoints out; reentrant, a context manager, to be held for a short time."""
        self._lock = lock
        self._capacity = capacity
        self._atomic = atomic_sections
        self._name = name
        self._turn = -1
        self.is_idle = False
        """True if the source has marked itself as idle and emitted nothing since."""
        self._told = False
        self._stop = threading.Event()
        # Guards what follows; notified where a wait may end: for more, for room, for the end.
        self._changed = threading.Condition(threading.Lock())
        self._elements: deque[Any] = deque()
        self._ended = False

    def collect(self, value: Any) -> None:
        """Emit a record; waits for room. Raises `SourceCancelled`."""
        lock = self._lock
        if not lock.is_held:
            with self.checkpoint_lock:
                self._emit_record(value)
            return
        # What a section begins with belongs to what the source has done in it already.
        if not self._atomic and lock.turns == self._turn:
            if lock.give_way() and not self._told:
                self._told = True
                text = "source %s kept the checkpoint lock over several records, and a checkpoint was let in"
                log.warning(f"{text}; if they are one step with its state, set atomic_sections", self._name)
            self._wait_for_room()
        self._emit_record(value)

    def collect_with_timestamp(self, value: Any, timestamp: float) -> None:
        """As `collect`, with the event time in seconds. Raises TypeError or ValueError for what is none."""
        self.collect(Timestamped(value, check_moment("timestamp", timestamp)))

    def emit_watermark(self, timestamp: float) -> None:
        """Say that no record of this event time, in seconds, or an earlier one follows. Waits for no room."""
        if timestamp != float("inf"):
            timestamp = check_moment("timestamp", timestamp)
        with self._lock:
            self._add(Watermark(timestamp))

    def mark_as_temporarily_idle(self) -> None:
        """Have nobody wait for the source until its next record or watermark. Raises `SourceCancelled`."""
        with self._lock:
            self._raise_if_cancelled()
            if not self.is_idle:
                self._add(Idleness(True))
                self.is_idle = True

    @property
    def is_cancelled(self) -> bool:
        """True if the source should end."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the source is cancelled, and return True if it is. Not under the lock."""
        return self._stop.wait(check_duration("seconds", seconds))

    def _emit_record(self, record: Any) -> None:
        self._turn = self._lock.turns
        self._add(record)

    def _add(self, element: Any) -> None:
        """Under the lock."""
        self._raise_if_cancelled()
        self.is_idle = False
        with self._changed:
            self._elements.append(element)
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        """Under the lock, which is given up for the time of a wait."""
        self._raise_if_cancelled()
        while len(self._elements) >= self._capacity:
            with self._lock.given_up(), self._changed:
                self._changed.wait_for(lambda: self._stop.is_set() or len(self._elements) < self._capacity)
            self._raise_if_cancelled()

    def _raise_if_cancelled(self) -> None:
        if self._stop.is_set():
            raise SourceCancelled


class CheckpointLock:
    """A source's view of the lock that it shares: waits for room before it is taken. Thread-safe."""

    def __init__(self, context: SourceContext, lock: FairLock) -> None:
        self._context = context
        self._lock = lock

    def acquire(self) -> bool:
        """Take the lock, again if this thread holds it. Any thread. Raises `SourceCancelled`."""
        in_section = self._lock.is_held
        self._lock.acquire()
        if not in_section:
            try:
                self._context._wait_for_room()
            except BaseException:
                self._lock.release()
                raise
        return True

    def release(self) -> None:
        """Give back one taking. Any thread. Raises RuntimeError if this thread does not hold it."""
        # From a source that was cancelled it may have been taken.
        if not self._context.is_cancelled or self._lock.is_held:
            self._lock.release()

    def __enter__(self) -> CheckpointLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class FunctionThread:
    """Runs a `SourceFunction` in a daemon thread until its end or `close`.

    Confined to one thread, which takes what it emits, but for `wake_up`. name: for messages and the thread.
    """

    def __init__(self, function: SourceFunction, *, capacity: int, grace: float, name: str) -> None:
        self.lock = FairLock()
        self.context = SourceContext(self.lock, capacity, atomic_sections=function.atomic_sections, name=name)
        self._function = function
        self._grace = grace
        self._name = name
        self._error: BaseException | None = None
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=f"pillarbox-source {name}", daemon=True)
        self._thread.start()

    def take(self) -> tuple[list[Any], Any, bool]:
        """The elements since the last call, the state behind them, and True if the function has ended.

        Waits for the lock alone. Raises what the function has raised, instead of what came since the last
        call: behind that the state is not known.
        """
        function, context = self._function, self.context
        with self.lock:
            # Asked first: what the function emits before its end is there when it has ended.
            ended = context._ended
            if self._error is not None:
                raise self._error
            with context._changed:
                elements = [*context._elements]
                context._elements.clear()
                context._changed.notify_all()
            state = function.snapshot_state() if isinstance(function, CheckpointedSource) else None
            return elements, state, ended

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for an element or the end, and return True if one is there; or `seconds`, or for `wake_up`."""
        context = self.context
        with context._changed:
            context._changed.wait_for(lambda: context._elements or context._ended or self._woken, seconds)
            self._woken = False
            return bool(context._elements) or context._ended

    def wake_up(self) -> None:
        """End a wait; the next one, if there is none. Any thread."""
        with self.context._changed:
            self._woken = True
            self.context._changed.notify_all()

    def close(self) -> bool:
        """Cancel the function, wait for its end, and return True if it has ended. Idempotent.

        One that has not ended after `grace` seconds is logged by its name and left alone: the lock is taken
        from it, and all it emits raises `SourceCancelled` in it. What its `cancel` raises is logged.
        """
        context, thread = self.context, self._thread
        with context._changed:
            first = not (context.is_cancelled or context._ended)
            context._stop.set()
            context._changed.notify_all()
        if first:
            try:
                self._function.cancel()
            except Exception:
                log.exception("the cancel of source %s raised", self._name)
            thread.join(min(self._grace, threading.TIMEOUT_MAX))
        if thread.is_alive() and thread.ident is not None and first:
            self.lock.revoke(thread.ident)
            text = "source %s has not ended within %g s of its cancel; it is left alone and can emit nothing"
            log.warning(text, self._name, self._grace)
        return not thread.is_alive()

    def _run(self) -> None:
        context = self.context
        try:
            self._function.run(context)
        except BaseException as error:
            if not context.is_cancelled:
                self._error = error
            elif not isinstance(error, SourceCancelled):
                log.info("source %s ended with an error after its cancel", self._name, exc_info=error)
        if self.lock.revoke(get_ident()):
            log.warning("source %s ended without giving the checkpoint lock back", self._name)
        with context._changed:
            context._ended = True
            context._changed.notify_all()


class InputStatistics(NamedTuple):
    """The size of an input, or about its size; None is unknown. Flink's `BaseStatistics`."""

    nbytes: int | None = None
    records: int | None = None

    @property
    def record_bytes(self) -> float | None:
        """Bytes of a record on average."""
        return None if self.nbytes is None or not self.records else self.nbytes / self.records


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
