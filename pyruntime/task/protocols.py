"""The protocols of a task: what its input and its output must have, what travels between them, its states.

An input and an output are called on the mailbox thread, and never block: an input gives a future, an output
calls back, when they can go on. The idea is that of Flink's `PushingAsyncDataInput` and `DataInputStatus`.
"""

# Protocols, and no base classes: an input or an output is often something that exists already, such as a
# reader of Arrow batches, and what it lacks is a TypeError when the task is made.
#
# Why an output calls back, and gives no future as an input does. A future costs a lock, a mail and a wake-up
# of the loop, for each batch that has filled the output; a call on the mailbox thread, the usual one, none of
# these.
#
# Why `RowBatch` has a position of its own. Handing the rest on as a new list would copy it at each stop,
# and two objects would have to agree which of them a snapshot holds.

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from pillarbox.kernel import PillarboxError

if TYPE_CHECKING:
    from pillarbox.task.checkpoint import CheckpointBarrier

MAX_WATERMARK = math.inf
"""The watermark at the end of all data: event time has come to its end."""


class Watermark(NamedTuple):
    """No record of this or an earlier event time follows. `timestamp` is in seconds."""

    timestamp: float


class Idleness(NamedTuple):
    """True if nothing comes for a while, so that nobody need wait for a watermark; ended by a record."""

    idle: bool


class RowBatch:
    """Rows that travel together, as one element, with a position. Confined to the mailbox thread.

    An operator takes as many rows as it has room for; the others stay where the batch is. So a batch costs
    its way once, however many rows it has.

    rows: a list that nobody changes. row_bytes: of each row, by estimate; None where each is to be weighed.
    held_bytes: of all rows, as their sender counts them. is_left_out: the rows are `LeftOut`.
    """

    __slots__ = ("held_bytes", "is_left_out", "position", "row_bytes", "rows")

    def __init__(
        self,
        rows: list[Any],
        row_bytes: int | None = None,
        *,
        position: int = 0,
        held_bytes: int = 0,
        is_left_out: bool = False,
    ) -> None:
        self.rows = rows
        self.is_left_out = is_left_out
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
        return RowBatch(
            self.rows,
            self.row_bytes,
            position=self.position,
            held_bytes=self.held_bytes,
            is_left_out=self.is_left_out,
        )


class LeftOut:
    """Rows of the input that no function is called with. Confined to one thread at a time.

    All rows of a batch of the input that are left out are one element: it enters the window of an operator
    finished, keeps its place there, and counts as no row. A subclass holds the rows.
    """

    __slots__ = ()


class InputStatus(enum.Enum):
    """Result of `TaskInput.emit_next`. Any thread.

        >>> from pillarbox.task import InputStatus
        >>> [status.name for status in InputStatus]
        ['MORE_AVAILABLE', 'NOTHING_AVAILABLE', 'END_OF_DATA', 'STOPPED', 'END_OF_INPUT']

    `MORE_AVAILABLE` and `NOTHING_AVAILABLE` alternate freely. Then follows one of `END_OF_DATA` and
    `STOPPED`, once; after it the input gives no record and no watermark. `END_OF_INPUT` is last. An input
    that returns it without one of the other two has also reached the end of its data.
    """

    MORE_AVAILABLE = "more available"
    """Call again; there may be another element at once."""
    NOTHING_AVAILABLE = "nothing available"
    """Call again when the future of `available()` is done."""
    END_OF_DATA = "end of data"
    """All records have been read: the operators are finished, with all that they still hold."""
    STOPPED = "stopped"
    """No record comes any more, though there are some: the operators are not finished."""
    END_OF_INPUT = "end of input"
    """Nothing comes any more: the task may end."""


class TaskInput(Protocol):
    """The input of a task. Called on the mailbox thread only."""

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Give the next element to `output`, if there is one, and say how the input stands.

        One element a call, or few: mail waits as long as a call and what the chain does with its elements
        take. The chain works on them after the call has returned. What it raises ends the task.
        """

    def available(self) -> Future[Any] | None:
        """A future that is done when `emit_next` should be called again; None means now.

        Any thread may complete the future. Its result does not matter, its exception ends the task.
        """

    def close(self) -> None:
        """Let go of everything. Called once, also after a failure."""


@runtime_checkable
class StatefulInput(Protocol):
    """An input whose position checkpoints hold. Mailbox thread."""

    def snapshot_state(self) -> Any:
        """The position after the last element emitted. The caller keeps what is returned."""

    def restore_state(self, state: Any) -> None:
        """Go to the position that a `snapshot_state` returned; called before the first `emit_next`.

        An input that had said its end says it again: the end is not part of the task's snapshot.
        """


class TaskOutput(Protocol):
    """Takes what a task or an operator emits. Called on the mailbox thread only.

    `is_available` is False when no more records should come for now. Records that come nevertheless must be
    accepted: one call of an operator may emit several. An output that has a method `emit_status(idle: bool)`
    hears when its input becomes idle and when it is no longer.

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

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once when there is room again, by any thread; at once if there is room already.

        An output that always has room is never asked.
        """


class OperatorOutput(TaskOutput, Protocol):
    """The output of an operator. Mailbox thread only."""

    def emit_status(self, idle: bool) -> None:
        """Say that nothing comes for a while, or that this is over."""

    @property
    def room(self) -> int | None:
        """Rows to emit at a time, at most; None for any number."""

    @property
    def held_bytes(self) -> int:
        """Bytes of what was emitted and not taken yet."""


class TaskState(enum.Enum):
    """A task goes from CREATED by way of RUNNING to one of the last three, and never back."""

    CREATED = "created"
    """Not restored yet."""
    RUNNING = "running"
    """Restored, its operators are open; also while its loop is suspended."""
    FINISHED = "finished"
    """Came to the end of its input, or was stopped with a savepoint; everything is closed."""
    CANCELLED = "cancelled"
    """Was cancelled; everything is closed."""
    FAILED = "failed"
    """Something raised; everything is closed."""


class TaskCancelled(PillarboxError):
    """The task was cancelled. `name` is the task's."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)

    def __str__(self) -> str:
        return f"task {self.name!r} was cancelled"


def state_of(end: Any) -> Any:
    """The state of a task's input or output, or None if it has none. Mailbox thread."""
    return end.snapshot_state() if isinstance(end, StatefulInput) else None


def restore_end(end: Any, state: Any, name: str) -> None:
    """Restore an input or output, called `name` in words, from `state`, if that is not None. Mailbox thread.

    Raises ValueError for one that cannot.
    """
    if state is None:
        return
    if not isinstance(end, StatefulInput):
        raise ValueError(
            f"the snapshot holds a state, {state!r}, which the {name} cannot restore: it has no restore_state"
        )
    end.restore_state(state)
