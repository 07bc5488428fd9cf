"""One step of a task's work: the base class of operators, and what the task gives to each of them.

All methods of an operator are called on the mailbox thread, and by the chain only.
"""

# Why `has_room` is a property that is asked, and no event: see `pillarbox.task.chain`.
#
# Why `process_batch` returns True only once all rows were taken, and is called again otherwise. An operator
# that raised "no room" would have to say how far it came; one that took all rows and kept the rest would
# have a queue of its own, which would be part of no snapshot but by its own care.
#
# Why `end_input` and `finish` are two. Between them calls are under way and timers fire, and checkpoints
# are taken: an operator that has emitted its last must be told apart from one that only knows that nothing
# comes any more.

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from pillarbox.mailbox.processor import MailboxExecutor
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.operator_timers import OwnTimers, TimerService
from pillarbox.task.protocols import OperatorOutput, RowBatch


class OperatorContext(NamedTuple):
    """An operator's view of its task. Confined to the mailbox thread, but for `executor.execute`, `submit`.

    `uid` names the operator's state in snapshots, `position` is its place in the chain: 0 is next to the
    input. `executor` has the position as its priority, so a yield runs only mail of this operator and of
    those behind it. `output` takes what the operator emits. `timers` fire as its mail; in `finish` and
    `close` none begins any more.
    """

    uid: str
    position: int
    executor: MailboxExecutor
    output: OperatorOutput
    own_timers: OwnTimers
    fail: Callable[[BaseException], None]
    """End the task at once with an error that comes outside of any action, as in a coroutine."""

    @property
    def timers(self) -> TimerService:
        """The timers of the operator."""
        return self.own_timers.service()


class Operator:
    """Operator of a task. Subclasses write `process` and the other methods that they need.

        >>> from pillarbox.task import Operator
        >>> from pillarbox.testing import OperatorHarness
        >>> class Double(Operator):
        ...     def process(self, number):
        ...         self.output.collect(number * 2)
        >>> harness = OperatorHarness(Double())
        >>> harness.push(1, 2, 3)
        >>> harness.records
        [2, 4, 6]
        >>> harness.close()

    1. `restore_state` comes before `open`, `open` before the first element, `close` last: once, on every
       operator, also on one that was never opened.
    2. The elements that `process` emits are passed on when it has returned, or yields. So no operator is ever
       observed within an element, except at its own yields.
    3. An operator may yield (`context.executor.yield_()`), for instance while it has no room. An unaligned
       checkpoint may be taken in each of its yields, and contains the current element as one that is still to
       come: yield before the element changes the state, and before you emit.
    4. While a method, mail or timer of it is in a yield it gets no element. Other mail of its own runs, its
       timers too; deferrable mail only if the yield asks for it.

    On the mailbox thread. Its errors end the task. The life of an operator is Flink's `StreamOperator`.
    """

    uid: str | None = None
    """Names the state in snapshots, so it must not change; without one, the position and the class do."""

    context: OperatorContext

    def setup(self, context: OperatorContext) -> None:
        """Take the context. The first call, once."""
        self.context = context

    @property
    def output(self) -> OperatorOutput:
        """The output to which this operator emits."""
        return self.context.output

    def restore_state(self, state: Any) -> None:
        """Restore a state that `snapshot_state` returned."""

    def open(self) -> None:
        """Prepare for elements. The next operators are open already."""

    @property
    def has_room(self) -> bool:
        """True if the next element may come; otherwise it waits in front of the operator.

        Unless overridden, that is while the operator's output has room. Whoever overrides it is given no
        record, batch, watermark or status while it is False, and need say nothing when it becomes True: it
        is looked at after every action of the task.
        """
        return self.context.output.is_available

    def process(self, record: Any) -> None:
        """Process one record."""
        raise NotImplementedError(f"{type(self).__qualname__} is an operator without `process`")

    def process_batch(self, batch: RowBatch) -> bool:
        """Take as many rows of `batch` as there is room for; return True once all of them were taken.

        The others wait in front of the operator, and go into its snapshot. Unless overridden, each row is
        given to `process`. Must not yield.
        """
        raise NotImplementedError(f"{type(self).__qualname__} takes its rows one by one")

    def process_watermark(self, timestamp: float) -> None:
        """Process a watermark, in seconds of event time. By default passes it on."""
        self.context.output.emit_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Process the begin or the end of idleness. By default passes it on."""
        self.context.output.emit_status(idle)

    def snapshot_state(self, barrier: CheckpointBarrier) -> Any:
        """Return the present state, as a value that the operator does not change any more. Must not yield.

        May raise `CheckpointDeclined`: then no snapshot of the task is taken, and the task continues.
        """
        return None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that a checkpoint with this operator's snapshot, and all older ones, are complete."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Note that a checkpoint that was begun will not complete."""

    def end_input(self) -> Future[Any] | None:
        """Note the end of the elements. The future completes when all work is emitted; None: at once.

        Timers still fire and checkpoints are still taken until that future completes. After a restore
        this may be called again, unless `finish` had returned.
        """
        return None

    def finish(self) -> None:
        """Emit the rest: no element is in progress any more and no timer fires.

        A checkpoint taken later records this, and a task restored from it does not call it again. So the
        state must contain the elements that mail put here has still to emit, to be put again by `open`.
        """

    def stop(self) -> None:
        """Emit nothing from now on: the task ends, normally or not. Called before `close`; must not wait."""

    def close(self) -> Future[Any] | asyncio.Future[Any] | None:
        """Let go of everything; nothing is emitted any more.

        A future is waited for before the task ends, and its error is the task's, unless that has one; in
        `StreamTask.run`, which blocks, it must be one that another thread completes.
        """
        return None
