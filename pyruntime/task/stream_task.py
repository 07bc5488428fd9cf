"""A task: an input, a chain of operators and an output, run by a mailbox processor.

Made, restored and run on one thread, which is its mailbox thread from then on. `cancel`, `suspend`, the
checkpoint requests, the notices and `state` are for any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, MailboxClosedError, TaskMailbox
from pillarbox.mailbox import (
    IMMEDIATE,
    Controller,
    MailboxExecutor,
    MailboxProcessor,
    TaskActionExecutor,
)
from pillarbox.task.actions import ChainActions
from pillarbox.task.chain import OperatorChain
from pillarbox.task.checkpoint import (
    ALIGNED,
    CheckpointBarrier,
    CheckpointOptions,
    CheckpointResponder,
    TaskSnapshot,
)
from pillarbox.task.checkpointing import Checkpointing
from pillarbox.task.failures import Failures
from pillarbox.task.input import TaskInput, position_of, restore_position
from pillarbox.task.operator import Operator
from pillarbox.task.output import TaskOutput
from pillarbox.task.shapes import check_methods
from pillarbox.task.state import TaskCancelled, TaskState
from pillarbox.task.status import InputStatus
from pillarbox.task.steps import Steps, wait_for
from pillarbox.task.timers import ProcessingTimeService, monotonic_epoch
from pillarbox.task.waiting import suspend_until


class StreamTask:
    """Carries the elements of an input through operators to an output, with checkpoints. Confined.

    1. The default action lets the input emit one element and has the chain work it off. It suspends itself
       while the input has nothing (idle) or the output has no room (back-pressured); mail runs meanwhile.
    2. Life: `restore`, `run`; at the end of the data the operators are finished; at the end of the input
       no timer begins any more, those that had begun are waited for, what mail is left is run, and everything
       is closed. Whatever happens, everything is closed once, and the first error is raised; later
       ones are notes of it.
    3. An aligned checkpoint is ordinary mail of the lowest priority: it is taken between two elements and
       waits while an operator yields. An unaligned one is urgent and of the highest priority, so that
       a yield runs it too. Notices have the highest priority.

    clock: for timers and metrics, in seconds, never going back; None: seconds since 1970.
    responder: hears how checkpoints come out.
    action_executor: what every action runs in. mailbox: one that this thread owns; for tests.

    Raises TypeError for an input, output or operator that is none, ValueError for no operators or two of
    one uid. The model is Flink's `StreamTask`.
    """

    def __init__(
        self,
        input: TaskInput,
        operators: Sequence[Operator],
        output: TaskOutput,
        *,
        name: str = "task",
        clock: Callable[[], float] | None = None,
        responder: CheckpointResponder | None = None,
        action_executor: TaskActionExecutor = IMMEDIATE,
        mailbox: TaskMailbox | None = None,
    ) -> None:
        check_methods("input", input, "emit_next", "available", "close")
        check_methods("output", output, "collect", "emit_watermark", "emit_barrier", "available")
        self.name = name
        self._input = input
        self.output = output
        self._clock = monotonic_epoch() if clock is None else clock
        mailbox = TaskMailbox() if mailbox is None else mailbox
        actions = ChainActions(action_executor, mailbox)
        # For what is no action of the mailbox: under the lock, if there is one, but nothing moves at its end.
        self._call = action_executor.call
        self.chain = OperatorChain(operators, output, check=actions.check, on_barrier=self._barrier)
        actions.act = self.chain.act
        self.processor = MailboxProcessor(
            self._process_input, mailbox, action_executor=actions, clock=self._clock
        )
        self._executor: MailboxExecutor = self.processor.executor(MIN_PRIORITY)
        self._checkpointing = Checkpointing(self, responder)
        self._state = TaskState.CREATED
        self._in_loop = False
        self._cancelled = False
        self._closed = False
        self._data_ended = False
        self._steps: Steps | None = None
        self._complete = False
        self._held: Future[None] | None = None

    # -- any thread ---------------------------------------------------------------------------

    @property
    def state(self) -> TaskState:
        """Where the task stands. Any thread."""
        return self._state

    def cancel(self) -> None:
        """End the task as soon as the element or mail at work ends or yields. Any thread, idempotent.

        `run` then raises `TaskCancelled`. No effect once the task has ended.
        """
        try:
            self.processor.executor(MAX_PRIORITY).execute(
                self._cancel, urgent=True, description="cancel the task"
            )
        except MailboxClosedError:
            return

    def suspend(self) -> None:
        """Have `run` return as soon as it can; running again goes on. Any thread."""
        self.processor.suspend()

    def trigger_checkpoint_async(
        self,
        checkpoint_id: int,
        options: CheckpointOptions = ALIGNED,
        *,
        timestamp: float | None = None,
    ) -> Future[TaskSnapshot]:
        """Take a checkpoint; the future gets the snapshot, or `CheckpointDeclined`. Any thread.

        timestamp: seconds since 1970; now by default. An aligned one waits for the mail before it and for
        operators that yield, an unaligned one for the element or mail at work only, or for its next yield.
        Raises TypeError or ValueError for a bad id, ValueError for `drain`, which stops the task.
        """
        return self._checkpointing.trigger(checkpoint_id, options, timestamp)

    def stop_with_savepoint_async(
        self, checkpoint_id: int, *, drain: bool = False, timestamp: float | None = None
    ) -> Future[TaskSnapshot]:
        """Take a savepoint as the last thing that the task does. Any thread.

        The task ends when `notify_checkpoint_complete_async` says that the savepoint is complete; until then
        nothing leaves it. drain: first finish the operators, as at the end of the data, for a job that
        will not be started again; without it they are left as the savepoint has them. After an abort the task
        goes on; a drained one cannot, and `run` raises `StopAborted`. The future gets the snapshot or
        `CheckpointDeclined`. Raises TypeError or ValueError for a bad id.
        """
        return self._checkpointing.stop(checkpoint_id, drain, timestamp)

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> Future[bool]:
        """Say that a checkpoint is complete everywhere. Any thread.

        The future says whether this task had taken it; otherwise the operators do not hear of it. The
        mail has the highest priority, so a yield runs it.
        """
        return self._checkpointing.complete(checkpoint_id)

    def notify_checkpoint_aborted_async(self, checkpoint_id: int) -> Future[bool]:
        """Say that a checkpoint will not complete. Any thread; as `notify_checkpoint_complete_async`.

        If it has not begun here, it is declined when it comes.
        """
        return self._checkpointing.abort(checkpoint_id)

    # -- life, on the mailbox thread ----------------------------------------------------------

    def restore(self, snapshot: TaskSnapshot | None = None) -> None:
        """Give the operators their contexts, restore them and the input, and open them. Mailbox thread, once.

        Raises what an operator or the input raises, and then has closed everything; ValueError for a snapshot
        that holds what the task has no place for.
        """
        self.processor.mailbox.check_is_mailbox_thread()
        if self._state is not TaskState.CREATED:
            raise RuntimeError(
                f"task {self.name!r} is {self._state.value}; it can be restored only when created"
            )
        try:
            self._call(self._open, snapshot)
        except BaseException as error:
            self._close(error)
            raise
        self._checkpointing.begin()
        self._state = TaskState.RUNNING

    def run(self) -> None:
        """Run until the task has ended or is suspended; restore it first if it was not. Mailbox thread.

        Raises the first error of the task, `TaskCancelled` for a cancelled one, RuntimeError for one that has
        ended before.
        """
        with self._living():
            self.processor.run_mailbox_loop()

    async def run_async(self) -> None:
        """As `run`, beside the other coroutines of this thread's event loop. Mailbox thread.

        An operator that yields blocks the event loop while it waits. A coroutine that is cancelled cancels
        the task.
        """
        with self._living():
            try:
                await self.processor.run_async()
            except asyncio.CancelledError:
                self._cancelled = True
                raise

    def run_step(self) -> bool:
        """Run the mail that has come and one default action, without blocking. Mailbox thread.

        Returns whether another step would find work at once. Raises as `run` does.
        """
        with self._living():
            return self.processor.run_mailbox_step()

    def close(self) -> None:
        """Close everything, if it was not; a task that has not ended counts as cancelled. Mailbox thread.

        Raises the first error of closing. Idempotent.
        """
        self.processor.mailbox.check_is_mailbox_thread()
        if not self._closed:
            self._cancelled = True
            self._close(None)

    @contextmanager
    def _living(self) -> Iterator[None]:
        self.processor.mailbox.check_is_mailbox_thread()
        if self._state is TaskState.CREATED:
            self.restore()
        if self._state is not TaskState.RUNNING or self._in_loop:
            what = "already runs" if self._in_loop else f"is {self._state.value} and cannot run again"
            raise RuntimeError(f"task {self.name!r} {what}")
        self._in_loop = True
        try:
            yield
            self._raise_if_cancelled()
            if not self._complete:
                return
            self._wind_up()
            self._raise_if_cancelled()
        except BaseException as error:
            self._close(error)
            raise
        finally:
            self._in_loop = False
        self._close(None)

    def _open(self, snapshot: TaskSnapshot | None) -> None:
        self.chain.setup(self.processor.executor, self._make_timers)
        if snapshot is not None:
            restore_position(self._input, snapshot.input, self.name)
        self.chain.open(None if snapshot is None else snapshot.operators)

    def _wind_up(self) -> None:
        wait_for(self.chain.quiesce_timers(), self._executor, self._call)
        self.processor.prepare_close()
        self.chain.end_mail()
        self.processor.drain()

    def _close(self, cause: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        failures = Failures(cause)
        failures.run("closing the input", self._input.close)
        failures.run("closing the operators", self._call, self.chain.close, failures)
        failures.run("closing the mailbox", self.processor.close)
        failures.run("declining checkpoints", self._checkpointing.end)
        if self._cancelled:
            self._state = TaskState.CANCELLED
        else:
            self._state = TaskState.FINISHED if failures.first is None else TaskState.FAILED
        if failures.first is not None and failures.first is not cause:
            raise failures.first

    def _cancel(self) -> None:
        self._cancelled = True
        self.chain.pause()
        # An operator may catch what this raises in its yield; the loop ends all the same.
        self.processor.all_actions_completed()
        raise TaskCancelled(self.name)

    def _raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise TaskCancelled(self.name)

    def _make_timers(self, executor: MailboxExecutor) -> ProcessingTimeService:
        self.processor.mailbox.check_is_mailbox_thread()
        return ProcessingTimeService(executor, self._clock)

    # -- the end, for this task and its checkpoints; mailbox thread ---------------------------

    @property
    def _is_finishing(self) -> bool:
        """Whether the operators are being finished at this time."""
        return self._steps is not None

    def _end_data(self, then: Callable[[], None]) -> None:
        """Read no more, finish the operators, then call `then`. Once."""
        self._data_ended = True
        held = self._hold_input()
        self._steps = Steps(self.chain.finishing(), self._executor, partial(self._finished, held, then))
        self._steps.advance()

    def _finished(self, held: Future[None], then: Callable[[], None]) -> None:
        self._steps = None
        self._held = None
        then()
        held.set_result(None)

    def _hold(self) -> None:
        """Read nothing and let nothing leave the task, until `_release` or its end."""
        self._hold_input()
        self.chain.pause()

    def _release(self) -> None:
        """Go on after `_hold`."""
        held, self._held = self._held, None
        self.chain.resume()
        if held is not None:
            held.set_result(None)

    def _end_loop(self) -> None:
        """End the loop: the task has come to its end."""
        self._complete = True
        self.processor.all_actions_completed()

    def _hold_input(self) -> Future[None]:
        held: Future[None] = Future()
        self._held = held
        return held

    # -- checkpoints, on the mailbox thread ---------------------------------------------------

    def _input_state(self) -> Any:
        """The input's position, or None if it has none."""
        return position_of(self._input)

    def _barrier(self, barrier: CheckpointBarrier) -> None:
        self._checkpointing.barrier(barrier)

    # -- input: the default action ------------------------------------------------------------

    def _process_input(self, controller: Controller) -> None:
        if self._held is not None:
            suspend_until(self._held, controller, self.processor, "idle")
            return
        output = self.output
        if not output.is_available:
            suspend_until(output.available(), controller, self.processor, "back_pressured")
            return
        entry = self.chain.entry
        status = self._input.emit_next(entry)
        if entry.overtaking:
            self.chain.take_overtaking()
        if status is InputStatus.MORE_AVAILABLE:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            if output.is_available:
                suspend_until(self._input.available(), controller, self.processor, "idle")
            else:
                suspend_until(output.available(), controller, self.processor, "back_pressured")
            return
        self.chain.work_off()
        self._input_ended(status)

    def _input_ended(self, status: InputStatus) -> None:
        if status is InputStatus.END_OF_INPUT:
            if self._data_ended:
                self._end_loop()
            else:
                self._end_data(self._end_loop)
        elif self._data_ended:
            raise RuntimeError(f"the input of task {self.name!r} said {status} after the end of its data")
        elif status is InputStatus.END_OF_DATA:
            self._end_data(_nothing)
        elif status is InputStatus.STOPPED:
            self._data_ended = True
            self.chain.end_data()
        else:
            raise TypeError(f"the input of task {self.name!r} said {status!r}; it must say an InputStatus")


def _nothing() -> None:
    """What follows the end of the data, in a task whose input goes on to its own end."""
