"""What lies between two operators of a chain: elements emitted by the one and not yet worked on by the other.

Confined to the mailbox thread, or to the holder of the lock where a task shares one with a legacy source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.output import MAX_WATERMARK, Idleness, TaskOutput, Watermark


class ChainState:
    """What the links of a chain share with it. Confined as they are.

    check: raises `WrongThreadError` for a thread that must not touch the chain.
    """

    __slots__ = ("check", "closed", "dirty", "output", "paused", "work_off")

    def __init__(self, output: TaskOutput, check: Callable[[], None], work_off: Callable[[], None]) -> None:
        self.output = output
        self.check = check
        self.work_off = work_off
        """Called by the entry after each element, for who knows whether somebody else will."""
        self.dirty = False
        """A link may hold something."""
        self.paused = False
        """No element moves, and none leaves the task."""
        self.closed = False


class Link:
    """The output of one operator and the queue of the next one. Confined."""

    __slots__ = ("_state", "queue", "time_ended")

    def __init__(self, state: ChainState) -> None:
        self._state = state
        self.queue: deque[Any] = deque()
        self.time_ended = False
        """The task's input, or the snapshot that it was restored from, has put `MAX_WATERMARK` here."""

    def restore(self, pending: Sequence[Any]) -> None:
        """Put here what was on its way in a snapshot."""
        self.queue.extend(pending)
        self.time_ended = any(type(one) is Watermark and one.timestamp == MAX_WATERMARK for one in pending)

    def collect(self, record: Any) -> None:
        """Put a record on its way to the next operator, which works on it when this one has returned."""
        state = self._state
        state.check()
        if state.closed:
            raise RuntimeError(f"record {record!r} was emitted after the task had closed the chain")
        self.queue.append(record)
        state.dirty = True

    def emit_watermark(self, timestamp: float) -> None:
        """Put a watermark, in seconds of event time, on its way."""
        self.collect(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        """Put on its way that nothing comes for a while, or that this is over."""
        self.collect(Idleness(idle))

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Raise RuntimeError: the chain sends barriers itself."""
        raise RuntimeError(f"{barrier!r} was emitted by an operator; the chain sends barriers itself")

    @property
    def is_available(self) -> bool:
        """Whether the task's output has room."""
        return self._state.output.is_available

    def available(self) -> Future[Any]:
        """A future that is done when the task's output has room again."""
        return self._state.output.available()


class Exit(Link):
    """The output of the last operator: the task's output, but for a task that is paused. Confined."""

    __slots__ = ()

    def collect(self, record: Any) -> None:
        """Give a record to the task's output; while the chain is paused, keep it."""
        state = self._state
        if state.paused or state.closed:
            super().collect(record)
        else:
            state.check()
            state.output.collect(record)

    def emit_watermark(self, timestamp: float) -> None:
        """Give a watermark to the task's output; while the chain is paused, keep it."""
        state = self._state
        if state.paused or state.closed:
            super().collect(Watermark(timestamp))
        else:
            state.check()
            state.output.emit_watermark(timestamp)

    def emit_status(self, idle: bool) -> None:
        """Tell the task's output, if it wants to know; while the chain is paused, keep it."""
        state = self._state
        if state.paused or state.closed:
            super().collect(Idleness(idle))
        else:
            state.check()
            emit_status: Callable[[bool], None] | None = getattr(state.output, "emit_status", None)
            if emit_status is not None:
                emit_status(idle)

    def work_off(self) -> None:
        """Give what was kept to the task's output."""
        queue = self.queue
        while queue:
            element = queue.popleft()
            if type(element) is Watermark:
                self.emit_watermark(element.timestamp)
            elif type(element) is Idleness:
                self.emit_status(element.idle)
            else:
                self.collect(element)


class Entry(Link):
    """What the task's input emits to: the queue of the first operator. Confined.

    After an aligned barrier it takes nothing until the barrier has been worked off, after the end of
    the data nothing but barriers.
    """

    __slots__ = ("overtaking", "refusal")

    def __init__(self, state: ChainState) -> None:
        super().__init__(state)
        self.refusal: str | None = None
        """Why no record is taken."""
        self.overtaking: deque[CheckpointBarrier] = deque()
        """Unaligned barriers that the input has emitted and that were not taken yet."""

    def collect(self, record: Any) -> None:
        """Take a record of the input. Raises RuntimeError after a barrier and after the end of the data."""
        if self.refusal is not None:
            raise RuntimeError(f"the input emitted {record!r} {self.refusal}")
        super().collect(record)
        self._state.work_off()

    def emit_watermark(self, timestamp: float) -> None:
        """Take a watermark of the input. Raises RuntimeError as `collect` does."""
        super().emit_watermark(timestamp)
        if timestamp == MAX_WATERMARK:
            self.time_ended = True

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Take a barrier: an aligned one in its place, an unaligned one before all that waits.

        Neither is taken before the input's call has returned: only then does the input know its position.
        """
        self._state.check()
        if barrier.options.aligned:
            self.queue.append(barrier)
            self._state.dirty = True
            if self.refusal is None:
                self.refusal = AFTER_BARRIER
        else:
            self.overtaking.append(barrier)
        self._state.work_off()


AFTER_BARRIER = "after a barrier, in the same call; a barrier must be the last element of a call"
AFTER_DATA = "after the end of its data"
