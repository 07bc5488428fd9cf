"""The checkpoints of one task: asked for, taken, declined, completed, aborted; and the stop with a savepoint.

The requests are for any thread; everything else is confined to the mailbox thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    CheckpointOrder,
    CheckpointResponder,
    StopAborted,
    TaskSnapshot,
)
from pillarbox.task.requests import Requests, decline

if TYPE_CHECKING:
    from pillarbox.task.stream_task import StreamTask


class Checkpointing:
    """Takes the checkpoints of `task`. Made by the task only.

    A checkpoint is one action on the mailbox thread: operators emit what should not be kept, then all give
    their states, then the barrier goes to the output, then the responder hears. So a declined checkpoint
    has sent no barrier. The idea is Flink's `SubtaskCheckpointCoordinator`.
    """

    __slots__ = ("_highest", "_lowest", "_order", "_requests", "_responder", "_stopping", "_task")

    def __init__(self, task: StreamTask, responder: CheckpointResponder | None) -> None:
        self._task = task
        self._responder = responder
        self._order = CheckpointOrder()
        # An operator may yield while it is opened, and a yield runs urgent checkpoints.
        self._order.end("the task is being restored")
        self._requests = Requests()
        self._lowest = task.processor.executor(MIN_PRIORITY)
        self._highest = task.processor.executor(MAX_PRIORITY)
        self._stopping: CheckpointBarrier | None = None

    # -- requests, any thread -----------------------------------------------------------------

    def trigger(
        self, checkpoint_id: int, options: CheckpointOptions, timestamp: float | None
    ) -> Future[TaskSnapshot]:
        """Have a checkpoint taken."""
        if options.drain:
            raise ValueError(f"options={options!r}: to drain the task, stop it with a savepoint")
        barrier = CheckpointBarrier(checkpoint_id, _now(timestamp), options)
        return self._requests.put(
            self._lowest if options.aligned else self._highest,
            checkpoint_id,
            partial(self._trigger, barrier),
            partial(str, barrier),
            urgent=not options.aligned,
        )

    def stop(self, checkpoint_id: int, drain: bool, timestamp: float | None) -> Future[TaskSnapshot]:
        """Have a savepoint taken and the task stopped."""
        options = CheckpointOptions(savepoint=True, drain=drain)
        barrier = CheckpointBarrier(checkpoint_id, _now(timestamp), options)
        answer = self._drain if drain else self._stop
        return self._requests.put(
            self._lowest, checkpoint_id, partial(answer, barrier), partial("stop with {}".format, barrier)
        )

    def complete(self, checkpoint_id: int) -> Future[bool]:
        """Have the operators told that a checkpoint is complete."""
        return self._notify(checkpoint_id, self._complete, "complete")

    def abort(self, checkpoint_id: int) -> Future[bool]:
        """Have the operators told that a checkpoint will not complete."""
        return self._notify(checkpoint_id, self._abort, "aborted")

    def _notify(self, checkpoint_id: int, notify: Callable[[int], bool], what: str) -> Future[bool]:
        def answer(future: Future[bool]) -> None:
            future.set_result(notify(checkpoint_id))

        description = partial("checkpoint {} is {}".format, checkpoint_id, what)
        return self._requests.put(self._highest, checkpoint_id, answer, description)

    # -- mailbox thread -----------------------------------------------------------------------

    def barrier(self, barrier: CheckpointBarrier) -> None:
        """A barrier has come through the input. If it is declined, only the responder hears of it."""
        try:
            self._begin_and_take(barrier)
        except CheckpointDeclined:
            return

    def begin(self) -> None:
        """Take checkpoints from now on: the operators are open."""
        self._order.end(None)

    def end(self) -> None:
        """Decline what is still asked for: the task has ended."""
        self._requests.end()

    def _trigger(self, barrier: CheckpointBarrier, future: Future[TaskSnapshot]) -> None:
        try:
            snapshot = self._begin_and_take(barrier)
        except CheckpointDeclined as error:
            decline(future, error)
        else:
            future.set_result(snapshot)

    def _begin_and_take(self, barrier: CheckpointBarrier) -> TaskSnapshot:
        try:
            self._order.begin(barrier.id)
            return self._take(barrier)
        except CheckpointDeclined as error:
            if self._responder is not None:
                self._responder.decline(error)
            raise

    def _take(self, barrier: CheckpointBarrier) -> TaskSnapshot:
        task = self._task
        position = task._input_state()
        operators = task.chain.snapshot(barrier, partial(self._order.check, barrier.id))
        self._order.taken(barrier.id)
        task.output.emit_barrier(barrier)
        snapshot = TaskSnapshot(barrier, position, operators)
        if self._responder is not None:
            self._responder.acknowledge(snapshot)
        return snapshot

    def _complete(self, checkpoint_id: int) -> bool:
        if not self._order.complete(checkpoint_id):
            return False
        self._task.chain.notify_complete(checkpoint_id)
        if self._stopping is not None and self._stopping.id == checkpoint_id:
            self._task._end_loop()
        return True

    def _abort(self, checkpoint_id: int) -> bool:
        if not self._order.abort(checkpoint_id):
            return False
        self._task.chain.notify_aborted(checkpoint_id)
        if self._stopping is not None and self._stopping.id == checkpoint_id:
            if self._stopping.options.drain:
                raise StopAborted(checkpoint_id)
            self._stopping = None
            self._order.end(None)
            self._task._release()
        return True

    # -- stop with savepoint ------------------------------------------------------------------

    def _stop(self, barrier: CheckpointBarrier, future: Future[TaskSnapshot]) -> None:
        if self._task._is_finishing:
            self._decline(future, CheckpointDeclined(barrier.id, "the operators are being finished already"))
            return
        try:
            snapshot = self._begin_and_take(barrier)
        except CheckpointDeclined as error:
            decline(future, error)
            return
        self._last(barrier)
        self._task._hold()
        future.set_result(snapshot)

    def _drain(self, barrier: CheckpointBarrier, future: Future[TaskSnapshot]) -> None:
        if self._task._data_ended:
            self._stop(barrier, future)
            return
        try:
            # Before anything that cannot be undone.
            self._order.begin(barrier.id)
        except CheckpointDeclined as error:
            self._decline(future, error)
            return
        self._last(barrier)
        self._task._end_data(partial(self._drained, barrier, future))

    def _drained(self, barrier: CheckpointBarrier, future: Future[Any]) -> None:
        try:
            snapshot = self._take(barrier)
        except CheckpointDeclined as error:
            self._decline(future, error)
            raise StopAborted(barrier.id) from error
        self._task._hold()
        future.set_result(snapshot)

    def _decline(self, future: Future[Any], error: CheckpointDeclined) -> None:
        decline(future, error)
        if self._responder is not None:
            self._responder.decline(error)

    def _last(self, barrier: CheckpointBarrier) -> None:
        self._stopping = barrier
        self._order.end(f"the task stops with savepoint {barrier.id}")


def _now(timestamp: float | None) -> float:
    return time.time() if timestamp is None else timestamp
