"""The output of a job's task: results on their way from the event loop to the job's thread, cut at barriers.

A barrier cuts: what was emitted before it belongs to its checkpoint. `JobOutput` is confined to the mailbox
thread, but for `take`, which is the job's thread's, and `put_end`, which is for any.
"""

# Why not `ChunkOutput` of `aio`. There a row belongs to the consumer when it comes back for the next ones,
# and the snapshot has the rest; a sink must know in front of which row the barrier stands, and have all rows
# before it.

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.job.checkpoints import Checkpoint
from pillarbox.task.checkpoint import CheckpointBarrier, TaskSnapshot
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, Watermark

MAX_ROWS = 20_000
MAX_BYTES = 64 * 2**20
"""Rows, and bytes of them, that wait for the job's thread before the task is held back."""

Results = list[tuple[Call, Any]]


class Cut:
    """The place of a checkpoint's barrier among the results, and the request for it. Any thread.

    snapshot: gets the task's snapshot. done: gets the checkpoint when its rows are committed, or the error
    for which it was aborted. savepoint: a further file that it is written to.
    """

    __slots__ = ("done", "id", "savepoint", "snapshot")

    def __init__(self, id: int, savepoint: Path | None = None) -> None:
        self.id = id
        self.savepoint = savepoint
        self.snapshot: Future[TaskSnapshot] = Future()
        self.done: Future[Checkpoint] = Future()


class End:
    """Nothing comes any more."""


class Waiting:
    """Results that wait for the job's thread, and the bytes of them. Guarded by the output's lock."""

    __slots__ = ("nbytes", "results")

    def __init__(self, results: Results, nbytes: int) -> None:
        self.results = results
        self.nbytes = nbytes


Item = Waiting | Cut | Watermark | End


class JobOutput:
    """Takes results, and hands them to the job's thread with the cuts of checkpoints between them."""

    def __init__(self) -> None:
        self.has_ended = False
        """The last watermark has come: all rows have left."""
        self.watermark = -math.inf
        self.failure: BaseException | None = None
        """The error with which the task has ended."""
        self._expected: Cut | None = None
        # What follows is shared with the job's thread.
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._rows = self._bytes = 0
        self._wake: Callable[[], object] | None = None

    # -- the task's end; mailbox thread -------------------------------------------------------------

    def collect(self, batch: RowBatch) -> None:
        """Take results."""
        with self._changed:
            self._rows += len(batch.rows)
            self._bytes += batch.held_bytes
            last = self._items[-1] if self._items else None
            if isinstance(last, Waiting):
                last.results += batch.rows
                last.nbytes += batch.held_bytes
            else:
                self._items.append(Waiting([*batch.rows], batch.held_bytes))
                self._changed.notify()

    def emit_watermark(self, timestamp: float) -> None:
        """Take a watermark; the last one says that all rows have left."""
        self.has_ended = self.has_ended or timestamp == MAX_WATERMARK
        self.watermark = timestamp
        self._put(Watermark(timestamp))

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Cut: what was collected before belongs to the checkpoint."""
        # spec: SinkCommit!Barrier
        cut, self._expected = self._expected, None
        assert cut is not None and cut.id == barrier.id
        self._put(cut)

    def expect(self, cut: Cut | None) -> None:
        """Take the request for the next checkpoint, before it is triggered; None: it was declined."""
        self._expected = cut

    @property
    def is_available(self) -> bool:
        """True if there is room. Without the lock: a look that is late by a batch does no harm."""
        return self._rows < MAX_ROWS and self._bytes < MAX_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of the results that wait here."""
        return self._bytes

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once by the job's thread when there is room; at once if there is some."""
        with self._changed:
            if not self.is_available:
                self._wake = wake
                return
        wake()

    def snapshot_state(self) -> tuple[bool, float]:
        """The event time that has come; of rows none is left here, as all are in front of the barrier."""
        return self.has_ended, self.watermark

    def restore_state(self, state: Any) -> None:
        """Go on from there."""
        self.has_ended, self.watermark = state

    def finish(self) -> None:
        """Do nothing: the job puts the end, when the functions are closed."""

    def fail(self, error: BaseException) -> None:
        """Note the error with which the task has ended."""
        self.failure = error

    # -- the job's end ------------------------------------------------------------------------------

    def put_end(self) -> None:
        """Say that nothing comes any more. Any thread."""
        self._put(End())

    def take(self) -> Item:
        """The next item, waiting for it. The job's thread."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            item = self._items.popleft()
            if isinstance(item, Waiting):
                self._rows -= len(item.results)
                self._bytes -= item.nbytes
            wake, self._wake = (self._wake, None) if self.is_available else (None, self._wake)
        if wake is not None:
            wake()
        return item

    def _put(self, item: Item) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()
