"""A legacy source as the input of a task: the source's thread fills a buffer, the mailbox thread empties it.

So operators are called on the mailbox thread only, as with every input. The buffer has a lock of its own;
its two sides are for the source's threads and for the mailbox thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from pillarbox.task.fair_lock import FairLock
from pillarbox.task.legacy import GRACE, CheckpointedSource, LegacySourceThread, SourceFunction
from pillarbox.task.moments import check_duration
from pillarbox.task.output import TaskOutput, Watermark
from pillarbox.task.status import InputStatus

CAPACITY = 100
"""Records that a source may be ahead of its task."""


class LegacyInputState(NamedTuple):
    """Where a legacy source stands in a checkpoint."""

    source: Any
    """What the source's `snapshot_state` returned; None if it has none."""
    pending: tuple[Any, ...]
    """What the source has emitted and the task has not read: records and `Watermark`s.

    Empty for a source that has no state and has not ended: it starts over, and emits them again."""
    ended: bool
    """The source has come to its end: it is not run again."""


class _Idle(NamedTuple):
    """An element of the buffer: the source has become idle, or is no longer."""

    idle: bool


class LegacySourceInput:
    """Runs a `SourceFunction` as the input of a task.

    1. Elements come out in the order in which the source emits them; then its error, or the end of the input.
    2. The source is `capacity` records ahead at most, more only within a section of its own: see
       `SourceContext`.
    3. A snapshot is taken under the checkpoint lock: it holds the source's state and what the task has not
       read yet, so each record is in it once, or has been read. It waits for one record of the source. A
       source that is no `CheckpointedSource` starts over after a restart, unless it had ended.
    4. The thread starts with the first `emit_next`, and has ended, or was abandoned, when `close` returns.

    lock: the checkpoint lock; a new one if None. A task whose own mail touches the source gets it too, as
    `action_executor=SynchronizedActionExecutor(lock)`. grace: seconds that a source has to end in `close`. An
    output that has `emit_status(idle: bool)` is told of idleness.

    Made and called on the mailbox thread, but for `cancel`, which any thread may call.
    """

    def __init__(
        self,
        source: SourceFunction,
        *,
        lock: FairLock | None = None,
        capacity: int = CAPACITY,
        grace: float = GRACE,
        name: str | None = None,
    ) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int):
            raise TypeError(f"capacity={capacity!r}: must be an int, not {type(capacity).__name__}")
        if capacity < 1:
            raise ValueError(f"capacity={capacity!r}: must be at least 1 record")
        self.lock = FairLock() if lock is None else lock
        """The checkpoint lock."""
        self._source = source
        self._grace = check_duration("grace", grace)
        self._buffer = _Buffer(capacity)
        self._thread = LegacySourceThread(source, self._buffer, self.lock, name=name)
        self._thread.done.add_done_callback(self._buffer.end)
        self._started = False
        # In the attempt that was restored, not in this one.
        self._ended = False

    # -- as an input; mailbox thread ------------------------------------------------------------

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Give the next element to `output`, if there is one. Mailbox thread.

        Raises what the source has raised, after all that it emitted before.
        """
        if not self._started:
            self._started = True
            if not self._ended:
                self._thread.start()
        buffer = self._buffer
        element = buffer.take()
        if element is None:
            if not self._ended and not buffer.ended:
                return InputStatus.NOTHING_AVAILABLE
            # What the source emitted before its end may have come meanwhile.
            element = buffer.take()
            if element is None:
                return self._end()
        if type(element[0]) is Watermark:
            output.emit_watermark(element[0].timestamp)
        elif type(element[0]) is _Idle:
            emit_status: Callable[[bool], None] | None = getattr(output, "emit_status", None)
            if emit_status is not None:
                emit_status(element[0].idle)
        else:
            output.collect(element[0])
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[Any] | None:
        """A future that is done when there is an element or the end; None if there is. Mailbox thread."""
        return None if self._ended or not self._started else self._buffer.has_more()

    def close(self) -> None:
        """Cancel the source and wait for its end, for the time of grace. Mailbox thread. Idempotent."""
        self._buffer.close()
        self._thread.close(self._grace)

    def cancel(self) -> None:
        """Have the source end; what it has emitted comes out, and then the end. Any thread, idempotent."""
        self._thread.cancel()

    # -- checkpoints; mailbox thread --------------------------------------------------------------

    def snapshot_state(self) -> LegacyInputState:
        """Where the source stands. Mailbox thread; waits for the checkpoint lock."""
        with self.lock:
            source = self._source
            state = source.snapshot_state() if isinstance(source, CheckpointedSource) else None
            done = self._thread.done
            ended = self._ended or (
                done.done() and done.exception() is None and not self._thread.context.is_cancelled
            )
            starts_over = not (ended or isinstance(source, CheckpointedSource))
            return LegacyInputState(state, () if starts_over else self._buffer.pending(), ended)

    def restore_state(self, state: LegacyInputState) -> None:
        """Go on where `state` was taken. Mailbox thread, before the first `emit_next`.

        Raises RuntimeError after that, and ValueError for the state of a source if this one takes none.
        """
        if self._started:
            raise RuntimeError(f"source {self._thread.name} runs already; it can be restored only before")
        source_state, pending, ended = state
        if isinstance(self._source, CheckpointedSource):
            with self.lock:
                self._source.restore_state(source_state)
        elif source_state is not None:
            raise ValueError(
                f"state.source={source_state!r}: source {self._thread.name} cannot restore it, as it has not "
                "both snapshot_state and restore_state"
            )
        self._ended = ended
        self._buffer.restore(pending)

    def _end(self) -> InputStatus:
        if not self._ended:
            self._thread.done.result()
        return InputStatus.END_OF_INPUT


class _Buffer:
    """Elements on their way: `collect` to `available` are for the source, the rest for the mailbox thread.

    An element is kept in a tuple of one, so that None is an element like any other.
    """

    __slots__ = ("_capacity", "_closed", "_elements", "_guard", "_more", "_room", "ended")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._elements: deque[tuple[Any]] = deque()
        self._guard = threading.Lock()
        self._more: Future[None] | None = None
        self._room: Future[None] | None = None
        self._closed = False
        self.ended = False

    # -- the source's side; under the checkpoint lock ---------------------------------------------

    def collect(self, record: Any) -> None:
        self._add(record)

    def emit_watermark(self, timestamp: float) -> None:
        self._add(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        self._add(_Idle(idle))

    @property
    def is_available(self) -> bool:
        return len(self._elements) < self._capacity

    def available(self) -> Future[None]:
        with self._guard:
            if self._room is None:
                self._room = Future()
            room = self._room
            full = len(self._elements) >= self._capacity
            if not full:
                self._room = None
        if not full:
            _complete(room)
        return room

    def _add(self, element: Any) -> None:
        with self._guard:
            if self._closed:
                return
            self._elements.append((element,))
            more, self._more = self._more, None
        _complete(more)

    def end(self, done: Future[None]) -> None:
        """The source has ended. Any thread."""
        with self._guard:
            self.ended = True
            more, self._more = self._more, None
        _complete(more)

    # -- the mailbox thread's side -------------------------------------------------------------------

    def take(self) -> tuple[Any] | None:
        with self._guard:
            if not self._elements:
                return None
            element = self._elements.popleft()
            room = None
            # Not for each record: a source that is ahead is woken when there is something to do for it.
            if self._room is not None and len(self._elements) <= self._capacity // 2:
                room, self._room = self._room, None
        _complete(room)
        return element

    def has_more(self) -> Future[None] | None:
        with self._guard:
            if self._elements or self.ended:
                return None
            if self._more is None:
                self._more = Future()
            return self._more

    def pending(self) -> tuple[Any, ...]:
        with self._guard:
            return tuple(element for (element,) in self._elements if type(element) is not _Idle)

    def restore(self, pending: tuple[Any, ...]) -> None:
        with self._guard:
            self._elements.extend((element,) for element in pending)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._elements.clear()
            room, self._room = self._room, None
            more, self._more = self._more, None
        _complete(room)
        _complete(more)


def _complete(future: Future[None] | None) -> None:
    if future is not None:
        future.set_result(None)
