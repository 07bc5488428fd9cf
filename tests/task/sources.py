"""A legacy source, its output and its lock, as several test modules need them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pillarbox.task.fair_lock import FairLock
from pillarbox.task.legacy import LegacySourceThread, SourceContext, SourceFunction
from pillarbox.task.legacy_input import LegacySourceInput
from pillarbox.task.status import InputStatus

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


class Output:
    """Keeps what is emitted; `on_record` is called with the number of records, under the lock."""

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.on_record: Callable[[int], object] = lambda count: None
        self.is_available = True
        self.asked_for_room = threading.Event()
        self.room: Future[None] = Future()

    def collect(self, record: Any) -> None:
        self.elements.append(record)
        self.on_record(len(self.elements))

    def emit_watermark(self, timestamp: float) -> None:
        self.elements.append(("watermark", timestamp))

    def emit_status(self, idle: bool) -> None:
        self.elements.append("idle" if idle else "active")

    def available(self) -> Future[None]:
        self.room = Future()
        self.asked_for_room.set()
        return self.room

    def make_room(self) -> None:
        self.is_available = True
        self.room.set_result(None)


class TaskOutput(Output):
    """The output of a task."""

    def emit_barrier(self, barrier: Any) -> None:
        self.elements.append(barrier)


def read_all(one: LegacySourceInput, output: Output | None = None) -> list[Any]:
    """What the input emits until its end, as a task reads it."""
    output = TaskOutput() if output is None else output
    while (status := one.emit_next(output)) is not InputStatus.END_OF_INPUT:
        more = one.available()
        if status is InputStatus.NOTHING_AVAILABLE and more is not None:
            more.result(LONG)
    return output.elements


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


class AtomicSource(Source):
    atomic_sections = True


class Job:
    """A source in its thread, its output and its lock; the test is the task."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.output = Output()
        self.lock = FairLock()
        self.queue = Queue(self.lock)
        self.thread = LegacySourceThread(source, self.output, self.lock, name="under test")

    def end(self) -> None:
        self.thread.done.result(LONG)
        assert self.thread.close(LONG)
