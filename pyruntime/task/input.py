"""Where a task's elements come from: the protocol of its input. All of it is called on the mailbox thread.

An input never blocks. It emits what it has, says how it stands, and gives a future for the time when
there is more. The idea is Flink's `PushingAsyncDataInput`.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from pillarbox.task.output import TaskOutput
from pillarbox.task.status import InputStatus


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
    """What an input has besides, if checkpoints are to hold its position. Mailbox thread."""

    def snapshot_state(self) -> Any:
        """The position after the last element emitted. The caller keeps what is returned."""

    def restore_state(self, state: Any) -> None:
        """Go to the position that a `snapshot_state` returned; called before the first `emit_next`.

        An input that had said its end says it again: the end is no part of the task's snapshot.
        """


def state_of(end: Any) -> Any:
    """The state of a task's input or output, or None if it has none. Mailbox thread."""
    return end.snapshot_state() if isinstance(end, StatefulInput) else None


def restore_end(end: Any, state: Any, name: str) -> None:
    """Restore an input or output, called `name` in words, from `state`; None is no state. Mailbox thread.

    Raises ValueError for one that cannot.
    """
    if state is None:
        return
    if not isinstance(end, StatefulInput):
        raise ValueError(
            f"the snapshot holds a state, {state!r}, which the {name} cannot restore: it has no restore_state"
        )
    end.restore_state(state)
