"""What a legacy source emits through, and the checkpoint lock that it shares with its task.

Thread-safe: the source's own thread uses it, and threads that the source may have besides. It waits for
room in the output, and never while it holds the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Event, Lock, get_ident
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from pillarbox.task.fair_lock import FairLock
from pillarbox.task.moments import check_duration, check_moment

log = logging.getLogger("pillarbox")


class SourceCancelled(BaseException):
    """Raised in a source that was cancelled when it emits or takes the checkpoint lock; ends its `run`.

    Not an Exception, so that a source that catches those for each record ends nevertheless.
    """


class Timestamped(NamedTuple):
    """What `collect_with_timestamp` emits: a record with its event time."""

    value: Any
    timestamp: float
    """In seconds of event time."""


class SourceOutput(Protocol):
    """Where a source's elements go. Called by threads of the source, under the checkpoint lock.

    What is emitted while `is_available` is False must be accepted. An output that has a method
    `emit_status(idle: bool)` hears when the source becomes idle and when it is no longer.
    """

    def collect(self, record: Any) -> None:
        """Take one record."""

    def emit_watermark(self, timestamp: float) -> None:
        """Take a watermark, in seconds of event time."""

    @property
    def is_available(self) -> bool:
        """Whether there is room."""

    def available(self) -> Future[Any]:
        """A future that is done when there is room again. Any thread may complete it."""


class SourceContext:
    """Emits a source's records, watermarks and idleness. Thread-safe. Made by `LegacySourceThread`.

    *The lock.* Every method takes the checkpoint lock for its one element. A source that has state changes it
    under `checkpoint_lock`, together with the record that it belongs to, so that a checkpoint sees both
    or neither::

        with context.checkpoint_lock:
            context.collect(record)
            self.offset += 1

    The lock is fair, so a task that waits for it gets it after this record, however fast the loop is.

    *A source that keeps the lock* over many records would keep checkpoints out for ever. So, before every
    record but the first since the lock was taken, `collect` lets those in who wait, and takes the lock back.
    What then is right: at that moment all earlier records are out and this one is not. State that is brought
    up to date after each `collect` and before the next is exact. State that is brought up to date once, after
    several records, is not: a checkpoint in their midst would have the records without the state, and a
    restart would repeat them. Nor is state that is changed before its record, from the second one on: a
    restart would lose that one. A source of either kind says `atomic_sections = True`: then whoever waits
    does so until the source gives the lock back, which it must do soon. Watermarks let nobody in. The first
    time that somebody is let in is logged.

    *Room.* While the output has none, `collect`, and taking the checkpoint lock, wait without it. A section
    that has begun is not held up: its first record goes out, and with `atomic_sections` all of them.

    *The end.* After a cancel every method, and a wait within it, raises `SourceCancelled`.
    """

    __slots__ = (
        "_atomic",
        "_cancelled",
        "_cancelling",
        "_home",
        "_idle",
        "_lock",
        "_name",
        "_output",
        "_stop",
        "_told",
        "_turn",
        "checkpoint_lock",
    )

    def __init__(
        self, output: SourceOutput, lock: FairLock, *, atomic_sections: bool = False, name: str = "source"
    ) -> None:
        self._output = output
        self._name = name
        self._told = False
        self._lock = lock
        self._atomic = atomic_sections
        # The thread that makes room must not wait for it.
        self._home = get_ident()
        self._turn = -1
        self._idle = False
        self._stop = Event()
        self._cancelled: Future[None] = Future()
        self._cancelling = Lock()
        self.checkpoint_lock = CheckpointLock(self, lock)
        """Keeps checkpoints out; reentrant, a context manager, to be held for a short time."""

    # -- emitting -----------------------------------------------------------------------------

    def collect(self, value: Any) -> None:
        """Emit a record. Any thread; waits for room. Raises `SourceCancelled`, and what the output raises."""
        self._emit(value)

    def collect_with_timestamp(self, value: Any, timestamp: float) -> None:
        """Emit a record as `Timestamped`, with its event time in seconds. As `collect`.

        Raises TypeError or ValueError for a `timestamp` that is no finite number.
        """
        self._emit(Timestamped(value, check_moment("timestamp", timestamp)))

    def emit_watermark(self, timestamp: float) -> None:
        """Say that no record of this event time, in seconds, or an earlier one follows. Any thread.

        Does not wait for room. Raises `SourceCancelled`, and what the output raises.
        """
        if timestamp != float("inf"):
            timestamp = check_moment("timestamp", timestamp)
        with self._lock:
            self._raise_if_cancelled()
            self._set_idle(False)
            self._output.emit_watermark(timestamp)

    def mark_as_temporarily_idle(self) -> None:
        """Say that nothing comes for a while, so that nobody waits for a watermark. Any thread.

        Ends with the next record or watermark. Raises `SourceCancelled`.
        """
        with self._lock:
            self._raise_if_cancelled()
            self._set_idle(True)

    # -- looking and waiting; any thread --------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        """Whether the source should end."""
        return self._stop.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether the source has marked itself as idle and emitted nothing since."""
        return self._idle

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the source is cancelled; whether it is. Any thread; not under the lock.

        For a source that polls. Raises TypeError or ValueError for what is no finite number of at least 0.
        """
        return self._stop.wait(check_duration("seconds", seconds))

    # -- for the thread and the lock ------------------------------------------------------------

    def cancel(self) -> None:
        """Emit nothing from now on, and end all waits. Any thread, idempotent. For `LegacySourceThread`."""
        self._stop.set()
        with self._cancelling:
            if not self._cancelled.done():
                self._cancelled.set_result(None)

    def _raise_if_cancelled(self) -> None:
        if self._stop.is_set():
            raise SourceCancelled

    def _emit(self, record: Any) -> None:
        in_section = self._lock.is_held
        # What a section begins with belongs to what the source has done in it already.
        if in_section and (self._atomic or self._lock.turns != self._turn):
            self._put(record)
        elif in_section:
            if self._lock.give_way():
                self._tell()
            while (room := self._look_for_room()) is not None:
                with self._lock.given_up():
                    self._wait_for(room)
            self._put(record)
        else:
            self._take_lock_with_room()
            try:
                self._put(record)
            finally:
                self._lock.release()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "source %s kept the checkpoint lock over several records, and the task was let in amid them; "
                "if they are one step with its state, the source must say atomic_sections = True",
                self._name,
            )

    def _put(self, record: Any) -> None:
        """Under the lock."""
        self._raise_if_cancelled()
        self._turn = self._lock.turns
        self._set_idle(False)
        self._output.collect(record)

    def _set_idle(self, idle: bool) -> None:
        """Under the lock."""
        if idle != self._idle:
            self._idle = idle
            emit_status: Callable[[bool], None] | None = getattr(self._output, "emit_status", None)
            if emit_status is not None:
                emit_status(idle)

    def _take_lock_with_room(self) -> None:
        """Take the lock, at a moment when there is room, if this thread does not hold it."""
        lock = self._lock
        in_section = lock.is_held
        while True:
            lock.acquire()
            try:
                room = None if in_section else self._look_for_room()
            except BaseException:
                lock.release()
                raise
            if room is None:
                return
            lock.release()
            self._wait_for(room)

    def _look_for_room(self) -> Future[Any] | None:
        """Under the lock. What to wait for; None if there is nothing to wait for."""
        self._raise_if_cancelled()
        if self._output.is_available or get_ident() == self._home:
            return None
        return self._output.available()

    def _wait_for(self, room: Future[Any]) -> None:
        wait((room, self._cancelled), return_when=FIRST_COMPLETED)
        self._raise_if_cancelled()
        room.result()


class CheckpointLock:
    """A source's view of the lock that it shares with its task. Thread-safe. Made by `SourceContext`.

    Waits for room in the output before it is taken, so that sections do not fill an output that is full.
    """

    __slots__ = ("_context", "_lock")

    def __init__(self, context: SourceContext, lock: FairLock) -> None:
        self._context = context
        self._lock = lock

    def acquire(self) -> bool:
        """Take the lock, again if this thread holds it; True. Any thread. Raises `SourceCancelled`."""
        self._context._take_lock_with_room()
        return True

    def release(self) -> None:
        """Give back one taking. Any thread.

        Raises RuntimeError if this thread does not hold it; not in a source that was cancelled, from which it
        may have been taken.
        """
        if self._context.is_cancelled and not self._lock.is_held:
            return
        self._lock.release()

    def __enter__(self) -> CheckpointLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<CheckpointLock {self._lock!r}>"
