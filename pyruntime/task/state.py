"""Where a task stands in its life, and the error of one that was cancelled. Plain values, any thread."""

from __future__ import annotations

import enum

from pillarbox.kernel import PillarboxError


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
