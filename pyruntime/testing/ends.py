"""The two ends of a task under test: an input that a test pushes into, an output that keeps what comes.

`PushedInput` may be pushed into by any thread; `CollectedOutput` belongs to the mailbox thread, but for
its switch, which any thread may turn.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, cast

from pillarbox.task import CheckpointBarrier, Idleness, InputStatus, OperatorOutput, TaskOutput, Watermark


class PushedInput:
    """An input that emits what was pushed, one element a call. Pushing is for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._elements: deque[Any] = deque()
        self._more: Future[None] | None = None
        self.closed = 0
        """How often the task has closed it."""

    def push(self, *records: Any) -> None:
        """Have records emitted, after all that was pushed before. A `Watermark` is one. Any thread."""
        with self._lock:
            self._elements.extend(records)
            more, self._more = self._more, None
        if more is not None:
            more.set_result(None)

    def push_watermark(self, timestamp: float) -> None:
        """Have a watermark emitted. Any thread."""
        self.push(Watermark(timestamp))

    def push_idle(self, idle: bool = True) -> None:
        """Have it said that nothing comes for a while, or that this is over. Any thread."""
        self.push(Idleness(idle))

    def push_barrier(self, barrier: CheckpointBarrier) -> None:
        """Have a barrier emitted. Any thread."""
        self.push(barrier)

    def push_status(self, status: InputStatus) -> None:
        """Have `emit_next` say `status` once, when it comes to it. Any thread."""
        self.push(status)

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the oldest element. Mailbox thread."""
        if not self._elements:
            return InputStatus.NOTHING_AVAILABLE
        element = self._elements.popleft()
        if isinstance(element, InputStatus):
            return element
        if isinstance(element, Watermark):
            output.emit_watermark(element.timestamp)
        elif isinstance(element, Idleness):
            cast("OperatorOutput", output).emit_status(element.idle)
        elif isinstance(element, CheckpointBarrier):
            output.emit_barrier(element)
        else:
            output.collect(element)
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[None] | None:
        """A future for the next push; None if something is there. Any thread."""
        with self._lock:
            if self._elements:
                return None
            if self._more is None:
                self._more = Future()
            return self._more

    def close(self) -> None:
        """Count it. Mailbox thread."""
        self.closed += 1


class CollectedOutput:
    """An output that keeps what comes, in order: records, and what travels between them as objects.

    It has room, until `block` is called. What comes is taken all the same.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room: Future[None] | None = None
        self.elements: list[Any] = []

    def collect(self, record: Any) -> None:
        """Keep a record. Mailbox thread."""
        self.elements.append(record)

    def emit_watermark(self, timestamp: float) -> None:
        """Keep a watermark. Mailbox thread."""
        self.elements.append(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        """Keep an `Idleness`. Mailbox thread."""
        self.elements.append(Idleness(idle))

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Keep a barrier. Mailbox thread."""
        self.elements.append(barrier)

    @property
    def is_available(self) -> bool:
        """Whether it is not blocked. Any thread."""
        return self._room is None

    def available(self) -> Future[None]:
        """Done when it is not blocked. Any thread."""
        with self._lock:
            if self._room is not None:
                return self._room
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def block(self) -> None:
        """Have no room from now on. Any thread."""
        with self._lock:
            if self._room is None:
                self._room = Future()

    def unblock(self) -> None:
        """Have room again. Any thread."""
        with self._lock:
            room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    @property
    def records(self) -> list[Any]:
        """The records alone. Mailbox thread."""
        return [e for e in self.elements if not isinstance(e, (Watermark, Idleness, CheckpointBarrier))]

    @property
    def watermarks(self) -> list[float]:
        """The timestamps of the watermarks alone, in seconds. Mailbox thread."""
        return [element.timestamp for element in self.elements if isinstance(element, Watermark)]
