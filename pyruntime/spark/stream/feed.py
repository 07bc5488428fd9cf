"""The input of a task that makes the calls of a stream. For the thread of the event loop."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from pillarbox.spark.stream.entry import Entry
from pillarbox.task import InputStatus, RowBatch, TaskOutput


class Feed:
    """Batches of entries, and no end."""

    def __init__(self) -> None:
        self._added: deque[tuple[list[Entry], int]] = deque()
        # The task asks for another batch when this one has been taken.
        self._emitted = RowBatch([])
        self._awaited: Future[None] | None = None

    def add(self, entries: list[Entry], size: int) -> None:
        """Entries of about `size` bytes each that are to be called."""
        self._added.append((entries, size))
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.set_result(None)

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next batch, without entries that nobody waits for."""
        while self._added:
            entries, size = self._added.popleft()
            if rows := [entry for entry in entries if not entry.dropped]:
                self._emitted = RowBatch(rows, size)
                output.collect(self._emitted)
                return InputStatus.MORE_AVAILABLE
        return InputStatus.NOTHING_AVAILABLE

    def let_go(self) -> None:
        """Take entries out that nobody waits for any more, from what waits for room in the task."""
        batch = self._emitted
        batch.rows = [entry for entry in batch.take(len(batch)) if not entry.dropped]
        batch.position = 0

    def available(self) -> Future[None] | None:
        """A future that is done when there is a batch; None if there is one."""
        if self._added:
            return None
        self._awaited = Future()
        return self._awaited

    def close(self) -> None:
        """No batch will be asked for."""
        self._added.clear()
