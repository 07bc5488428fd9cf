"""The checkpoints of one task: asked for, taken, declined, completed, aborted; and the stop with a savepoint.

The requests are for any thread; everything else is confined to the mailbox thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, MailboxClosedError
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    CheckpointOrder,
    CheckpointResponder,
    SnapshotStorage,
    StopAborted,
    TaskSnapshot,
)
from pillarbox.task.input import state_of
from pillarbox.task.requests import Requests, decline

if TYPE_CHECKING:
    from pillarbox.task.stream_task import StreamTask

log = logging.getLogger("pillarbox")


class _Writing(NamedTuple):
    """A snapshot that is being written. taken, declined: hear how it came out."""

    snapshot: TaskSnapshot
    taken: Callable[[TaskSnapshot], object]
    declined: Callable[[CheckpointDeclined], object]


class Checkpointing:
    """Takes the checkpoints of `task`. Made by the task only.

    A checkpoint is one action on the mailbox thread: operators emit what should not be kept, then all give
    their states, then the barrier goes to the output. With a storage another thread writes the snapshot while
    the task goes on. Then the responder hears. What is declined in the first phase has sent no barrier. The
    idea is Flink's `SubtaskCheckpointCoordinator`.
    """

    __slots__ = (
        "_highest",
        "_lowest",
        "_order",
        "_requests",
        "_responder",
        "_stopping",
        "_storage",
        "_task",
        "_writer",
        "_writing",
        "_written_now",
        "last_write",
    )

    def __init__(
        self, task: StreamTask, responder: CheckpointResponder | None, storage: SnapshotStorage | None
    ) -> None:
        self._task = task
        self._responder = responder
        self._storage = storage
        self._writer: ThreadPoolExecutor | None = None
        # Once the task has ended: done when the storage is used no more.
        self.last_write: Future[None] | None = None
        # In the order of their ids. One is with the writer, and the next only when that one has come out: a
        # storage takes the snapshot before a new one for one that counts, and keeps no older ones.
        self._writing: dict[int, _Writing] = {}
        self._written_now: int | None = None
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
        snapshot = self._begin_and_take(barrier, _nothing)
        if snapshot is not None:
            self._keep(snapshot, _nothing, _nothing)

    def begin(self) -> None:
        """Take checkpoints from now on: the operators are open."""
        self._order.end(None)

    def end(self) -> None:
        """Decline what is still asked for or written: the task has ended."""
        writing, self._writing = self._writing, {}
        if self._writer is not None:
            if self._written_now in writing:
                # After it was written, as the writer is one thread.
                self._writer.submit(self._discard, self._written_now)
            self.last_write = self._writer.submit(_nothing, None)
            self._writer.shutdown(wait=False)
        if self._responder is not None:
            for checkpoint_id in writing:
                self._responder.decline(CheckpointDeclined(checkpoint_id, "the task has ended"))
        self._requests.end()

    def _trigger(self, barrier: CheckpointBarrier, future: Future[TaskSnapshot]) -> None:
        declined = partial(decline, future)
        snapshot = self._begin_and_take(barrier, declined)
        if snapshot is not None:
            self._keep(snapshot, future.set_result, declined)

    def _begin_and_take(
        self, barrier: CheckpointBarrier, declined: Callable[[CheckpointDeclined], object]
    ) -> TaskSnapshot | None:
        """The snapshot of a checkpoint that begins now; None for one that is declined."""
        try:
            self._order.begin(barrier.id)
            return self._take(barrier)
        except CheckpointDeclined as error:
            self._decline(error, declined)
            return None

    def _take(self, barrier: CheckpointBarrier) -> TaskSnapshot:
        # spec: Chain!Snapshot
        task = self._task
        position = _state_of("input", task._input, barrier)
        operators = task.chain.snapshot(barrier, partial(self._order.check, barrier.id))
        try:
            rows = _state_of("output", task.output, barrier)
        except CheckpointDeclined:
            task.chain.notify_aborted(barrier.id)
            raise
        task.output.emit_barrier(barrier)
        return TaskSnapshot(barrier, position, operators, rows, task.chain.time_ended)

    def _keep(
        self,
        snapshot: TaskSnapshot,
        taken: Callable[[TaskSnapshot], object],
        declined: Callable[[CheckpointDeclined], object],
    ) -> None:
        """Have a snapshot written, where there is a storage; without one, the checkpoint is taken."""
        if self._storage is None:
            self._has_taken(snapshot, taken)
            return
        self._writing[snapshot.barrier.id] = _Writing(snapshot, taken, declined)
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "pillarbox-snapshot")
        self._write_next()

    def _write_next(self) -> None:
        """Give the oldest snapshot that waits to the writer, unless that has one."""
        if self._written_now is None and self._writing:
            assert self._writer is not None
            self._written_now, writing = next(iter(self._writing.items()))
            self._writer.submit(self._write, writing.snapshot)

    def _has_taken(self, snapshot: TaskSnapshot, taken: Callable[[TaskSnapshot], object]) -> None:
        self._order.taken(snapshot.barrier.id)
        if self._responder is not None:
            self._responder.acknowledge(snapshot)
        taken(snapshot)

    def _write(self, snapshot: TaskSnapshot) -> None:
        """On the thread that writes."""
        assert self._storage is not None
        checkpoint_id, error = snapshot.barrier.id, None
        try:
            self._storage.write(snapshot)
        except Exception as raised:
            reason = f"its snapshot was not written: {type(raised).__name__}: {raised}"
            error = CheckpointDeclined(checkpoint_id, reason)
            error.__cause__ = raised
        try:
            self._highest.execute(self._written, checkpoint_id, error, description="a snapshot is written")
        except MailboxClosedError:
            # The task has ended; what was being written is removed.
            return

    def _written(self, checkpoint_id: int, error: CheckpointDeclined | None) -> None:
        writing = self._writing.pop(checkpoint_id, None)
        self._written_now = None
        self._write_next()
        if writing is None:
            # It was aborted meanwhile, and is being removed.
            return
        if error is None:
            self._has_taken(writing.snapshot, writing.taken)
        else:
            self._give_up(error, writing)

    def _discard(self, checkpoint_id: int) -> None:
        """On the thread that writes."""
        assert self._storage is not None
        try:
            self._storage.discard(checkpoint_id)
        except Exception as error:
            log.warning("the snapshot of checkpoint %d was not removed: %s", checkpoint_id, error)

    def _give_up(self, error: CheckpointDeclined, writing: _Writing) -> None:
        """A checkpoint whose barrier has left is declined."""
        # spec: Chain!Decline
        self._task.chain.notify_aborted(error.id)
        self._decline(error, writing.declined)
        self._stop_no_more(error.id)

    def _complete(self, checkpoint_id: int) -> bool:
        if not self._order.complete(checkpoint_id):
            return False
        self._task.chain.notify_complete(checkpoint_id)
        if self._stopping is not None and self._stopping.id == checkpoint_id:
            self._task._end_loop()
        return True

    def _abort(self, checkpoint_id: int) -> bool:
        writing = self._writing.pop(checkpoint_id, None)
        if writing is not None:
            if checkpoint_id == self._written_now:
                # Now, as the task may end before it is written.
                assert self._writer is not None
                self._writer.submit(self._discard, checkpoint_id)
            self._give_up(CheckpointDeclined(checkpoint_id, "it was aborted while it was written"), writing)
            return True
        if not self._order.abort(checkpoint_id):
            return False
        self._task.chain.notify_aborted(checkpoint_id)
        self._stop_no_more(checkpoint_id)
        return True

    # -- stop with savepoint ------------------------------------------------------------------

    def _stop(self, barrier: CheckpointBarrier, future: Future[TaskSnapshot]) -> None:
        if self._task._is_finishing:
            error = CheckpointDeclined(barrier.id, "the operators are being finished already")
            self._decline(error, partial(decline, future))
            return
        declined = partial(decline, future)
        snapshot = self._begin_and_take(barrier, declined)
        if snapshot is not None:
            self._last(barrier)
            self._task._hold()
            self._keep(snapshot, future.set_result, declined)

    def _drain(self, barrier: CheckpointBarrier, future: Future[TaskSnapshot]) -> None:
        if self._task._data_ended:
            self._stop(barrier, future)
            return
        try:
            # Before anything that cannot be undone.
            self._order.begin(barrier.id)
        except CheckpointDeclined as error:
            self._decline(error, partial(decline, future))
            return
        self._last(barrier)
        self._task._end_data(partial(self._drained, barrier, future))

    def _drained(self, barrier: CheckpointBarrier, future: Future[Any]) -> None:
        declined = partial(decline, future)
        try:
            snapshot = self._take(barrier)
        except CheckpointDeclined as error:
            self._decline(error, declined)
            raise StopAborted(barrier.id) from error
        self._task._hold()
        self._keep(snapshot, future.set_result, declined)

    def _decline(self, error: CheckpointDeclined, declined: Callable[[CheckpointDeclined], object]) -> None:
        declined(error)
        if self._responder is not None:
            self._responder.decline(error)

    def _last(self, barrier: CheckpointBarrier) -> None:
        self._stopping = barrier
        self._order.end(f"the task stops with savepoint {barrier.id}")

    def _stop_no_more(self, checkpoint_id: int) -> None:
        """The savepoint with which the task was to stop, if this is it, will not complete."""
        if self._stopping is None or self._stopping.id != checkpoint_id:
            return
        if self._stopping.options.drain:
            raise StopAborted(checkpoint_id)
        self._stopping = None
        self._order.end(None)
        self._task._release()


def _now(timestamp: float | None) -> float:
    return time.time() if timestamp is None else timestamp


def _state_of(name: str, end: Any, barrier: CheckpointBarrier) -> Any:
    """The state of the task's input or output; what that raises declines the checkpoint."""
    try:
        return state_of(end)
    except CheckpointDeclined:
        raise
    except Exception as error:
        reason = f"the {name} raised {type(error).__name__}: {error}"
        raise CheckpointDeclined(barrier.id, reason) from error


def _nothing(_: object) -> None:
    """For a barrier of the input, of which only the responder hears, and behind the last write."""
