"""The checkpoints of one task: asked for, taken, declined, completed, aborted.

Requests are for any thread; everything else is confined to the mailbox thread. What is here knows the chain
and its two ends, and nothing of the task's life.
"""

# Why a checkpoint is one action. Flink takes the states on the task's thread and uploads them on others,
# each operator's for itself, because states are large there. Here they are references and counts; taken in
# one action they belong to one instant, and nothing has to be put together afterwards.
#
# Why a snapshot is whoever's asked for it, and is not written here. It is references and counts, which pickle
# in any thread; where they are kept, in which form, and with what beside them, such as the position of a
# coordinator, is known by whoever completes the checkpoint.
#
# Why a request is a mail of its own class. A mail that is dropped when the mailbox closes tells nobody, but
# for one that can be cancelled. A mailbox either drops a mail or has refused it, never both, so that exactly
# one thread declines a request.
#
# Why the responder hears before who has asked. A callback of the future may ask for the next checkpoint, and
# the responder is to hear of them in their order.

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail
from pillarbox.mailbox.executor import MailboxExecutor
from pillarbox.mailbox.processor import MailboxProcessor
from pillarbox.task.chain import OperatorChain
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOrder,
    CheckpointResponder,
    TaskSnapshot,
)
from pillarbox.task.protocols import TaskInput, state_of


class RequestMail(Mail):
    """A request about a checkpoint, of which `CheckpointDeclined` is the answer if the task ends before."""

    def __init__(
        self, checkpoint_id: int, answer: Callable[[Future[Any]], object], priority: int, **mail: Any
    ) -> None:
        super().__init__(self._run, priority=priority, **mail)
        self._future: Future[Any] = Future()
        self._checkpoint_id = checkpoint_id
        self._answer = answer

    def put(self, executor: MailboxExecutor) -> Future[Any]:
        """Have the request answered, as mail, unless its future is cancelled before. Any thread, once."""
        if not executor.try_put(self):
            self.cancel()
        return self._future

    def cancel(self) -> None:
        """Decline the request: the task has ended. Any thread."""
        decline(self._future, CheckpointDeclined(self._checkpoint_id, "the task has ended"))

    def _run(self) -> None:
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            self._answer(self._future)
        except BaseException as error:
            # Both who asked and the task must hear of it.
            if not self._future.done():
                self._future.set_exception(error)
            raise


class Checkpointing:
    """Takes the checkpoints of a chain and of its ends. Confined, but for `trigger` and `notify`.

    A checkpoint is one action on the mailbox thread: operators emit what should not be kept, then all give
    their states, then the barrier goes to the output, then the responder hears. What is declined has sent no
    barrier. The idea is Flink's `SubtaskCheckpointCoordinator`.
    """

    __slots__ = ("_chain", "_highest", "_input", "_lowest", "_order", "_responder")

    def __init__(
        self,
        input: TaskInput,
        chain: OperatorChain,
        processor: MailboxProcessor,
        responder: CheckpointResponder | None,
    ) -> None:
        self._input = input
        self._chain = chain
        self._responder = responder
        self._order = CheckpointOrder()
        # An operator may yield while it is opened, and a yield runs urgent checkpoints.
        self.refuse("the task is being restored")
        self._lowest = processor.executor(MIN_PRIORITY)
        self._highest = processor.executor(MAX_PRIORITY)

    # -- any thread ---------------------------------------------------------------------------

    def trigger(self, barrier: CheckpointBarrier) -> Future[TaskSnapshot]:
        """Have a checkpoint taken, as mail of the lowest priority, or urgent if unaligned.

        The future gets its snapshot, or `CheckpointDeclined`.
        """

        def answer(future: Future[TaskSnapshot]) -> None:
            self._take(barrier, future.set_result, partial(decline, future))

        aligned = barrier.options.aligned
        executor = self._lowest if aligned else self._highest
        mail = RequestMail(
            barrier.id, answer, executor.priority, urgent=not aligned, description=partial(str, barrier)
        )
        return mail.put(executor)

    def notify(self, checkpoint_id: int, notify: Callable[[int], bool], what: str) -> Future[bool]:
        """Have `notify(checkpoint_id)` run as mail of the highest priority; the future gets its answer."""

        def answer(future: Future[bool]) -> None:
            future.set_result(notify(checkpoint_id))

        description = partial("checkpoint {} is {}".format, checkpoint_id, what)
        return RequestMail(checkpoint_id, answer, MAX_PRIORITY, description=description).put(self._highest)

    # -- mailbox thread -----------------------------------------------------------------------

    def barrier(self, barrier: CheckpointBarrier) -> None:
        """Take a barrier that has come through the input. If declined, only the responder hears of it."""
        self._take(barrier, _nothing, _nothing)

    def refuse(self, reason: str | None) -> None:
        """Decline every checkpoint that begins from now on, for `reason`; None: take them again."""
        self._order.end(reason)

    def _take(
        self,
        barrier: CheckpointBarrier,
        taken: Callable[[TaskSnapshot], object],
        declined: Callable[[CheckpointDeclined], object],
    ) -> None:
        """Take a checkpoint; the responder hears how it comes out, then whoever has asked for it."""
        try:
            self._order.begin(barrier.id)
            snapshot = self._snapshot(barrier)
        except CheckpointDeclined as error:
            if self._responder is not None:
                self._responder.decline(error)
            declined(error)
            return
        self._order.taken(barrier.id)
        if self._responder is not None:
            self._responder.acknowledge(snapshot)
        taken(snapshot)

    def _snapshot(self, barrier: CheckpointBarrier) -> TaskSnapshot:
        # spec: Chain!Snapshot
        chain = self._chain
        position = _state_of("input", self._input, barrier)
        operators = chain.snapshot(barrier, partial(self._order.check, barrier.id))
        try:
            rows = _state_of("output", chain.output, barrier)
        except CheckpointDeclined:
            chain.notify_aborted(barrier.id)
            raise
        chain.output.emit_barrier(barrier)
        return TaskSnapshot(barrier, position, operators, rows, chain.time_ended)

    def complete(self, checkpoint_id: int) -> bool:
        """Tell the operators that a checkpoint is complete; False, without effect, if it was not taken."""
        if not self._order.complete(checkpoint_id):
            return False
        self._chain.notify_complete(checkpoint_id)
        return True

    def abort(self, checkpoint_id: int) -> bool:
        """Tell the operators that a checkpoint will not complete; returns whether it was taken here."""
        if not self._order.abort(checkpoint_id):
            return False
        self._chain.notify_aborted(checkpoint_id)
        return True


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
    """For a barrier of the input, of which only the responder hears."""


def decline(future: Future[Any], error: CheckpointDeclined) -> None:
    """Give `error` to a future unless it is done or cancelled. One thread at a time, whichever it is."""
    if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
        future.set_exception(error)
