"""Where elements go: the protocol of an output, and what travels between the records.

An output is called on the mailbox thread. Only the future of `available()` may be completed elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pillarbox.task.checkpoint import CheckpointBarrier

MAX_WATERMARK = math.inf
"""The watermark at the end of all data: event time has come to its end."""


class Watermark(NamedTuple):
    """No record of this or an earlier event time follows. `timestamp` is in seconds."""

    timestamp: float


class Idleness(NamedTuple):
    """Whether nothing comes for a while, so that nobody need wait for a watermark; ended by a record."""

    idle: bool


class LatencyMarker(NamedTuple):
    """Measures how long elements are on their way. It waits in links as records do, and in no operator.

    marked_at: when it set out, in seconds of its sender's clock.
    """

    marked_at: float


class RowBatch:
    """Rows that travel together, as one element, with a position. Confined to the mailbox thread.

    An operator takes as many rows as it has room for; the others stay where the batch is. So a batch costs
    its way once, however many rows it has.

    rows: a list that nobody changes. row_bytes: of each row, by estimate; None where each is to be weighed.
    held_bytes: of all rows, as their sender counts them.
    """

    __slots__ = ("held_bytes", "position", "row_bytes", "rows")

    def __init__(
        self, rows: list[Any], row_bytes: int | None = None, *, position: int = 0, held_bytes: int = 0
    ) -> None:
        self.rows = rows
        self.row_bytes = row_bytes
        self.position = position
        """The rows before it have been taken."""
        self.held_bytes = held_bytes

    def __len__(self) -> int:
        """Count the rows that were not taken yet."""
        return len(self.rows) - self.position

    def __repr__(self) -> str:
        return f"<RowBatch of {len(self.rows)} rows, {self.position} taken>"

    def take(self, limit: int) -> list[Any]:
        """Take the next rows, at most `limit`."""
        # spec: Chain!ProcessBatch
        position, rows = self.position, self.rows
        end = self.position = min(len(rows), position + limit)
        return rows if end - position == len(rows) else rows[position:end]

    def rest(self) -> RowBatch:
        """A batch of the rows that were not taken yet, which stays as it is when these are."""
        return RowBatch(self.rows, self.row_bytes, position=self.position, held_bytes=self.held_bytes)


class TaskOutput(Protocol):
    """Takes what a task or an operator emits. Called on the mailbox thread only.

    `is_available` is False when no more records should come for now. Records that come nevertheless must be
    accepted: one call of an operator may emit several. An output that has a method `emit_status(idle: bool)`
    hears when its input becomes idle and when it is no longer, one that has `emit_latency_marker(marker)` of
    the markers that the input has emitted.

    When there is room again it says in one of two ways: by a method `call_when_room(fn)`, which has `fn`
    called once, on the mailbox thread; or by `available()`, a future that any thread may complete, which
    costs more.

    One that keeps what it has collected until somebody takes it has `snapshot_state()` and
    `restore_state(state)` besides, as `StatefulInput` has: the state is what was collected and not taken, and
    how much was taken before that.
    """

    def collect(self, record: Any) -> None:
        """Take one record, or a `RowBatch` from an operator that emits several at once."""

    def emit_watermark(self, timestamp: float) -> None:
        """Take a watermark, in seconds of event time; `MAX_WATERMARK` is the last one."""

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Take a checkpoint's barrier: records before it belong to the checkpoint, those after it do not.

        The barrier of an unaligned checkpoint may pass records that this output still holds; those then
        belong to the checkpoint as records under way.
        """

    @property
    def is_available(self) -> bool:
        """True if there is room. Reads one value, as it is asked for every element."""


class OperatorOutput(TaskOutput, Protocol):
    """What an operator emits to. Mailbox thread only."""

    def emit_status(self, idle: bool) -> None:
        """Say that nothing comes for a while, or that this is over."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Send a marker behind what was emitted before it. Not part of any snapshot."""

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once when there is room again, at the end of the action that made it."""

    def available(self) -> Future[Any]:
        """A future that is done when there is room again."""

    @property
    def room(self) -> int | None:
        """Rows to emit at a time, at most; None for any number."""

    @property
    def held_bytes(self) -> int:
        """Bytes of what was emitted and not taken yet."""
