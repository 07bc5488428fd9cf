"""A checkpoint of one task: options, barrier, snapshot and requests, and the order among checkpoints.

Values are plain and may go to any thread.
"""

# Why ids must grow, where one could remember which checkpoints have been seen. An abort may overtake its
# checkpoint, and a request may come twice after a restart of whoever sends it. The newest id answers all
# of that in constant space; a set of ids would have to be forgotten at some time, and each rule for that
# forgets one too early.
#
# Why a request is a mail of its own class. A mail that is dropped when the mailbox closes tells nobody, but
# for one that can be cancelled. A mailbox either drops a mail or has refused it, never both, so that exactly
# one thread declines a request.

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from pillarbox.kernel import Mail, PillarboxError


@dataclass(frozen=True)
class CheckpointOptions:
    """The options of a checkpoint. Any thread.

    aligned: after everything before it has been worked off; it waits while an operator is blocked. An
    unaligned one does not wait: elements between two operators go into the snapshot.
    """

    aligned: bool = True


ALIGNED = CheckpointOptions()
"""The usual checkpoint."""


@dataclass(frozen=True)
class CheckpointBarrier:
    """The line between the records that belong to checkpoint `id` and those that do not. Any thread.

    `id`s grow from one checkpoint to the next; `timestamp` is the time of the trigger in seconds since
    1970. Raises TypeError or ValueError for an `id` that is not an integer from 0 on.
    """

    id: int
    timestamp: float
    options: CheckpointOptions = ALIGNED

    def __post_init__(self) -> None:
        if not isinstance(self.id, int) or isinstance(self.id, bool):
            raise TypeError(f"id={self.id!r}: the id of a checkpoint must be an int")
        if self.id < 0:
            raise ValueError(f"id={self.id}: the id of a checkpoint must be 0 or more")


class OperatorSnapshot(NamedTuple):
    """One operator in a checkpoint. Any thread, if its state allows it."""

    state: Any
    """The value that its `snapshot_state` returned."""
    pending: tuple[Any, ...]
    """Elements that were on their way to it, oldest first: in an aligned checkpoint those without room."""
    finished: bool = False
    """Its `finish` has returned: after a restore neither that nor `end_input` is called again."""


class TaskSnapshot(NamedTuple):
    """All of a task at one checkpoint. Any thread, if the states allow it."""

    barrier: CheckpointBarrier
    input: Any
    """The value that the input's `snapshot_state` returned; None for an input without one."""
    operators: dict[str, OperatorSnapshot]
    """By the operators' `uid`s."""
    output: Any = None
    """The value that the output's `snapshot_state` returned; None for an output without one."""
    time_ended: bool = False
    """`MAX_WATERMARK` was on its way or had left: it is not put again."""


class CheckpointDeclined(PillarboxError):
    """The task does not take a checkpoint; it goes on without it.

    `id` is the checkpoint, `reason` says why. Operators raise it in `snapshot_state`.
    """

    def __init__(self, id: int, reason: str) -> None:
        self.id = id
        self.reason = reason
        super().__init__(id, reason)

    def __str__(self) -> str:
        return f"checkpoint {self.id} is declined: {self.reason}"


class CheckpointRequest(Mail):
    """A request about a checkpoint, of which `CheckpointDeclined` is the answer if the task ends before.

    answer: called on the mailbox thread. `future` gets what it returns, or raises; what is not a
    `CheckpointDeclined` ends the task as well.
    """

    def __init__(self, checkpoint_id: int, answer: Callable[[], Any], **mail: Any) -> None:
        super().__init__(self._run, answer, **mail)
        self._checkpoint_id = checkpoint_id
        self.future: Future[Any] = Future()

    def _run(self, answer: Callable[[], Any]) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = answer()
        except BaseException as error:
            # Both who asked and the task must hear of it.
            self.future.set_exception(error)
            if not isinstance(error, CheckpointDeclined):
                raise
        else:
            self.future.set_result(result)

    def cancel(self) -> None:
        """Decline the request: the task has ended. Any thread."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(CheckpointDeclined(self._checkpoint_id, "the task has ended"))


class CheckpointOrder:
    """The order of a task's checkpoints: which may still begin, and whose ends it waits for. Confined.

    Ids only grow: once a checkpoint has begun, older ones that come later are declined. An abort may
    come before the checkpoint that it aborts.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._taken: set[int] = set()
        self._aborted: set[int] = set()

    def begin(self, id: int) -> None:
        """A checkpoint begins. Raises `CheckpointDeclined` if it must not."""
        if id in self._aborted:
            raise CheckpointDeclined(id, "it was aborted before it began")
        if id <= self._newest:
            raise CheckpointDeclined(id, f"checkpoint {self._newest} has already begun")
        self._newest = id
        self._aborted = {aborted for aborted in self._aborted if aborted > id}

    def check(self, id: int) -> None:
        """Raise `CheckpointDeclined` if `id`, which is being taken, was overtaken or aborted meanwhile."""
        if id in self._aborted:
            raise CheckpointDeclined(id, "it was aborted while it was taken")
        if id != self._newest:
            raise CheckpointDeclined(id, f"checkpoint {self._newest} has overtaken it")

    def taken(self, id: int) -> None:
        """The checkpoint has been taken; one of `complete` and `abort` will follow."""
        self._taken.add(id)

    def complete(self, id: int) -> bool:
        """Drop the checkpoint and older ones: it is complete everywhere. False if it was not taken here."""
        if id not in self._taken:
            return False
        self._taken = {taken for taken in self._taken if taken > id}
        return True

    def abort(self, id: int) -> bool:
        """Drop the checkpoint, which will not complete; False if it was not taken here."""
        if id in self._taken:
            self._taken.remove(id)
            return True
        if id >= self._newest:
            self._aborted.add(id)
        return False
