"""The two ends of a task under test: inputs that are pushed into or replayed, outputs that keep what comes.

`PushedInput` may be pushed into by any thread; `CollectedOutput` belongs to the mailbox thread, but for
its switch, which any thread may turn. `ReplayedInput` and `RestingOutput` belong to the mailbox thread.
"""

# Why real outputs that are full, and no mock that says so. What an operator does without room shows only
# when room comes back, and who calls back, on which thread and how often is just what goes wrong.
#
# Why an output takes what comes although it is full. One call of an operator may emit several records, and
# the contract of `TaskOutput` says that they are taken; an output that dropped them would test another
# contract.

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

from pillarbox.task import InputStatus
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.protocols import Idleness, OperatorOutput, RowBatch, TaskOutput, Watermark


def emit(element: object, output: TaskOutput) -> None:
    """Give an element to a task: a mark by the method for its kind, anything else as a record."""
    if isinstance(element, Watermark):
        output.emit_watermark(element.timestamp)
    elif isinstance(element, Idleness):
        cast("OperatorOutput", output).emit_status(element.idle)
    else:
        output.collect(element)


class PushedInput:
    """An input that emits what was pushed, one element a call. Pushing is for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._elements: deque[Any] = deque()
        self._more: Future[None] | None = None
        self.closed = 0
        """The number of times that the task has closed it."""

    def push(self, *records: object) -> None:
        """Have records emitted, after all that was pushed before. A `Watermark` is one. Any thread."""
        with self._lock:
            self._elements.extend(records)
            more, self._more = self._more, None
        if more is not None:
            more.set_result(None)

    def push_watermark(self, timestamp: float) -> None:
        """Have a watermark emitted. Any thread."""
        self.push(Watermark(timestamp))

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
        emit(element, output)
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


class ReplayedInput:
    """An input of elements in memory that is restored to its position. Mailbox thread.

    elements: rows, `Watermark`s and `Idleness`es. Rows leave in batches of at most `batch_rows`, up to the
    next mark. A subclass may say otherwise what leaves for some rows, and what comes behind the last element.
    """

    def __init__(self, elements: Sequence[Any], batch_rows: int) -> None:
        self.elements = elements
        self.batch_rows = batch_rows
        self.position = 0
        """Elements that were emitted, which is the state of the input."""

    def batch(self, rows: list[Any]) -> Any:
        """The record that leaves for these rows."""
        return RowBatch(rows, 1)

    def at_end(self) -> InputStatus:
        """Say how the input stands behind its last element."""
        return InputStatus.END_OF_INPUT

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next rows, or the next mark."""
        rows: list[Any] = []
        while self.position < len(self.elements) and len(rows) < self.batch_rows:
            element = self.elements[self.position]
            if isinstance(element, (Watermark, Idleness)):
                break
            rows.append(element)
            self.position += 1
        if rows:
            output.collect(self.batch(rows))
            return InputStatus.MORE_AVAILABLE
        if self.position == len(self.elements):
            return self.at_end()
        mark = self.elements[self.position]
        self.position += 1
        emit(mark, output)
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[None] | None:
        """None: something is always there."""
        return None

    def snapshot_state(self) -> int:
        """The position."""
        return self.position

    def restore_state(self, state: int) -> None:
        """Go on from a position."""
        self.position = state

    def close(self) -> None:
        """Nothing: the elements stay."""


class CollectedOutput:
    """An output that keeps what comes, in order: records, and what travels between them as objects.

    It has room, until `block` is called. What comes is taken all the same. Mailbox thread, but for `block`
    and `unblock`.
    """

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], object]] = []
        self.is_available = True
        """True if it is not blocked. Any thread."""

    def collect(self, record: object) -> None:
        """Keep a record."""
        self.elements.append(record)

    def emit_watermark(self, timestamp: float) -> None:
        """Keep a watermark."""
        self.elements.append(Watermark(timestamp))

    def emit_status(self, idle: bool) -> None:
        """Keep an `Idleness`."""
        self.elements.append(Idleness(idle))

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Keep a barrier."""
        self.elements.append(barrier)

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Call `wake` when it is not blocked."""
        with self._lock:
            if not self.is_available:
                self._wakes.append(wake)
                return
        wake()

    def block(self) -> None:
        """Have no room from now on. Any thread."""
        self.is_available = False

    def unblock(self) -> None:
        """Have room again. Any thread."""
        with self._lock:
            self.is_available = True
            wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    @property
    def records(self) -> list[Any]:
        """The records alone."""
        marks = (Watermark, Idleness, CheckpointBarrier)
        return [element for element in self.elements if not isinstance(element, marks)]

    @property
    def watermarks(self) -> list[float]:
        """The timestamps of the watermarks alone, in seconds."""
        return [element.timestamp for element in self.elements if isinstance(element, Watermark)]


class LimitedOutput(CollectedOutput):
    """An output with room for so many `batches`, and then for none until `make_room`. Mailbox thread.

    It keeps the rows of the batches. Raises AssertionError if one comes while there is no room.
    """

    def __init__(self, batches: float = math.inf) -> None:
        super().__init__()
        self._room_left = self._batches = batches

    def make_room(self) -> None:
        """Take as many batches again."""
        self._room_left = self._batches
        self.unblock()

    def collect(self, record: object) -> None:
        """Keep a record, or the rows of a batch."""
        # A mark parts the batches of one emission.
        if not self.is_available and not isinstance(self.elements[-1], (Watermark, Idleness)):
            self.emitted_without_room(record)
        self._room_left -= 1
        if self._room_left <= 0:
            self.block()
        self.elements += record.rows[record.position :] if type(record) is RowBatch else [record]

    def emitted_without_room(self, record: object) -> None:
        """Raise AssertionError: a record has come while there was no room for it."""
        raise AssertionError(f"{record!r} was emitted without room")


class RestingOutput(LimitedOutput):
    """An output that takes `room` batches, and then none for `rest_s` seconds of `loop`. Mailbox thread.

    It keeps the rows and marks that come. `committed` has the number of those before each barrier, by its id:
    of a task that is killed, those before the last one count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, room: int = 1, rest_s: float = 1.0) -> None:
        super().__init__(room)
        self.committed: dict[int, int] = {}
        self._loop = loop
        self._rest_s = rest_s

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Call `wake` when it has rested."""
        super().call_when_room(wake)
        self._loop.call_later(self._rest_s, self.make_room)

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Count what came before the barrier."""
        self.committed[barrier.id] = len(self.elements)
