"""An old source in its thread, the queue of its lock, and an output, as several test modules need them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pillarbox.sources.legacy import FromSourceFunction, FunctionRun, FunctionSplit
from pillarbox.task.fair_lock import FairLock
from pillarbox.task.legacy import SourceContext, SourceFunction

LONG = 60.0


class Queue(deque[Any]):
    """The queue of a lock; says when a thread has joined it."""

    def __init__(self, lock: FairLock) -> None:
        super().__init__()
        self._joined = threading.Semaphore(0)
        lock._waiters = self

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self._joined.release()

    def wait_for_next(self) -> None:
        assert self._joined.acquire(timeout=LONG)

    def forget(self) -> None:
        """Forget who has joined until now."""
        while self._joined.acquire(blocking=False):
            pass


class TaskOutput:
    """The output of a task, which keeps what is emitted."""

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.on_record: Callable[[int], object] = lambda count: None
        self.is_available = True
        self.asked_for_room = threading.Event()
        self.wake: Callable[[], object] = lambda: None

    def collect(self, record: Any) -> None:
        self.elements.append(record)
        self.on_record(len(self.elements))

    def emit_watermark(self, timestamp: float) -> None:
        self.elements.append(("watermark", timestamp))

    def emit_status(self, idle: bool) -> None:
        self.elements.append("idle" if idle else "active")

    def emit_barrier(self, barrier: Any) -> None:
        self.elements.append(barrier)

    def call_when_room(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.asked_for_room.set()

    def make_room(self) -> None:
        self.is_available = True
        self.wake()


class Source(SourceFunction):
    """Runs `body(self, context)`; `offset` is its state."""

    def __init__(self, body: Callable[[Source, SourceContext], object]) -> None:
        self.body = body
        self.offset = 0
        self.stop = threading.Event()
        self.cancels = 0

    def run(self, context: SourceContext) -> None:
        self.body(self, context)

    def cancel(self) -> None:
        self.cancels += 1
        self.stop.set()

    def snapshot_state(self) -> int:
        return self.offset

    def restore_state(self, state: int) -> None:
        self.offset = state


class AtomicSource(Source):
    atomic_sections = True


class Job(FunctionRun):
    """A source in its thread, which begins with `start`; the test takes what it emits.

    `on_record` is called after each record with how many there were, under the lock; `waits_for_room` is set
    when the source waits for room.
    """

    def __init__(self, source: Source, *, capacity: int = 10_000, grace: float = LONG) -> None:
        self._begins = threading.Event()
        self.source = source
        self.taken_records = 0
        self.on_record: Callable[[int], object] = lambda count: None
        self.waits_for_room = threading.Event()
        made = FromSourceFunction(lambda: source, capacity=capacity, grace=grace)
        made.name = "under test"
        super().__init__(made, FunctionSplit("under test"))
        self.lock = self._lock
        self.queue = Queue(self.lock)

    def start(self) -> None:
        self._begins.set()

    def _run(self) -> None:
        assert self._begins.wait(LONG)
        super()._run()

    def _emit(self, *records: Any) -> None:
        super()._emit(*records)
        self.taken_records += len(records)
        if records:
            self.on_record(self.taken_records)

    def _wait_for_room(self) -> None:
        if len(self._records) >= self._capacity:
            self.waits_for_room.set()
        super()._wait_for_room()

    def take(self) -> tuple[list[Any], Any, bool]:
        """The records since the last call, the state behind them, and whether the source has ended."""
        rows = self.take_rows()
        return rows, None if self.position is None else self.position[1], self.ended

    @property
    def elements(self) -> list[Any]:
        """The elements that it has emitted and nobody has taken."""
        return [*self._records]

    def end(self) -> None:
        """Wait for the end of the source."""
        self._thread.join(LONG)
        assert not self._thread.is_alive()
