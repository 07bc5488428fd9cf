"""A task: an input, a chain of operators and an output, run by a mailbox processor.

Made, restored and run on one thread, which is its mailbox thread from then on. `cancel`, `suspend`, the
checkpoint requests, the notices and `state` are for any thread.
"""

# Why the end of a task is a sequence of futures that are waited for by mail (`_advance`). A coroutine would
# need an event loop, which a task on a thread of its own does not have; a nested loop that runs mail until
# a future is done would be a yield, in which no checkpoint could be told from one within an operator. So
# each step is a mail: between two of them timers fire, calls complete and checkpoints are taken as at any
# other time.
#
# Why errors have two ways. What an action raises ends the loop by itself, as any exception does. An error
# of a coroutine comes while no action runs, so `fail` must stop the operators at once: until the loop has
# its turn they could still emit.
#
# Why `_close` exists twice. Operators may close by a coroutine, which only the event loop can end: a
# blocking close on the loop's thread would wait for itself. What the two share are the steps before,
# between and behind.

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, TaskMailbox
from pillarbox.mailbox.executor import MailboxExecutor
from pillarbox.mailbox.processor import Controller, MailboxProcessor, Suspension
from pillarbox.task.chain import OperatorChain
from pillarbox.task.checkpoint import (
    ALIGNED,
    CheckpointBarrier,
    CheckpointOptions,
    CheckpointResponder,
    TaskSnapshot,
)
from pillarbox.task.checkpointing import Checkpointing
from pillarbox.task.failures import Failures, raise_of
from pillarbox.task.operator import Operator
from pillarbox.task.protocols import (
    InputStatus,
    TaskCancelled,
    TaskInput,
    TaskOutput,
    TaskState,
    restore_end,
)
from pillarbox.task.timers import monotonic_epoch
from pillarbox.validate import check_methods

log = logging.getLogger("pillarbox")

END_OF_TASK = "go on with the end of the task"
"""The description of the mail in which a task that comes to its end goes on."""


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
    mailbox: one that this thread owns; for tests.
    latency_interval: seconds between two measurements of the latency of mail; None for none.

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
        mailbox: TaskMailbox | None = None,
        latency_interval: float | None = 1.0,
    ) -> None:
        check_methods("input", input, "emit_next", "available", "close")
        check_methods("output", output, "collect", "emit_watermark", "emit_barrier", "call_when_room")
        self.name = name
        self._input = input
        self.output = output
        self._clock = monotonic_epoch() if clock is None else clock
        mailbox = TaskMailbox() if mailbox is None else mailbox
        self.chain = OperatorChain(operators, output, check=mailbox.check_is_mailbox_thread)
        self.processor = MailboxProcessor(
            self._process_input,
            mailbox,
            run_action=self.chain.run,
            clock=self._clock,
            latency_interval=latency_interval,
        )
        self._executor: MailboxExecutor = self.processor.executor(MIN_PRIORITY)
        self._checkpointing = Checkpointing(input, self.chain, self.processor, responder)
        self._state = TaskState.CREATED
        self._in_loop = False
        self._cancelled = False
        self._closed = False
        self._data_ended = False
        self._complete = False
        self._failure: BaseException | None = None
        self._held: Future[None] | None = None

    # -- any thread ---------------------------------------------------------------------------

    @property
    def state(self) -> TaskState:
        """The state of the task. Any thread."""
        return self._state

    def cancel(self) -> None:
        """End the task as soon as the element or mail at work ends or yields. Any thread, idempotent.

        `run` then raises `TaskCancelled`. No effect once the task has ended.
        """
        highest = self.processor.executor(MAX_PRIORITY)
        highest.try_execute(self._cancel, urgent=True, description="cancel the task")

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
        Raises TypeError or ValueError for a bad id.
        """
        timestamp = time.time() if timestamp is None else timestamp
        return self._checkpointing.trigger(CheckpointBarrier(checkpoint_id, timestamp, options))

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> Future[bool]:
        """Say that a checkpoint is complete everywhere. Any thread.

        The future says whether this task had taken it; otherwise the operators do not hear of it. The
        mail has the highest priority, so a yield runs it.
        """
        return self._checkpointing.notify(checkpoint_id, self._checkpointing.complete, "complete")

    def notify_checkpoint_aborted_async(self, checkpoint_id: int) -> Future[bool]:
        """Say that a checkpoint will not complete. Any thread; as `notify_checkpoint_complete_async`.

        If it has not begun here, it is declined when it comes.
        """
        return self._checkpointing.notify(checkpoint_id, self._checkpointing.abort, "aborted")

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
            self._restore(snapshot)
        except BaseException as error:
            self._close(error)
            raise

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
        the task, and ends when the operators have closed, however often it is cancelled.
        """
        self._enter()
        try:
            self._begin()
            try:
                await self.processor.run_async()
            except asyncio.CancelledError:
                self._cancelled = self._failure is None
                raise
            if not self._end():
                return
        except BaseException as error:
            first = self._first(error)
            await self._close_async(first)
            if first is error:
                raise
            raise first from None
        finally:
            self._in_loop = False
        await self._close_async(None)

    def fail(self, error: BaseException) -> None:
        """End the task at once: nothing is emitted from now on, and `run` raises `error`. Mailbox thread.

        For errors that come outside of any action, as in a coroutine of the same event loop; what an action
        raises ends the task by itself. The first one counts. No effect once the task has ended.
        """
        self.processor.mailbox.check_is_mailbox_thread()
        if self._closed or self._failure is not None:
            return
        self._failure = error
        self.chain.stop(Failures(error))
        self.processor.all_actions_completed()

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

    def _restore(self, snapshot: TaskSnapshot | None) -> None:
        self._open(snapshot)
        self._checkpointing.refuse(None)
        self._state = TaskState.RUNNING

    @contextmanager
    def _living(self) -> Iterator[None]:
        self._enter()
        try:
            self._begin()
            yield
            if not self._end():
                return
        except BaseException as error:
            first = self._first(error)
            self._close(first)
            if first is error:
                raise
            raise first from None
        finally:
            self._in_loop = False
        self._close(None)

    def _enter(self) -> None:
        """Enter the loop, which the task may do once at a time."""
        self.processor.mailbox.check_is_mailbox_thread()
        if self._in_loop or self._state not in (TaskState.CREATED, TaskState.RUNNING):
            what = "already runs" if self._in_loop else f"is {self._state.value} and cannot run again"
            raise RuntimeError(f"task {self.name!r} {what}")
        self._in_loop = True

    def _begin(self) -> None:
        """Restore the task if it was not."""
        if self._failure is not None:
            raise self._failure
        if self._state is TaskState.CREATED:
            self._restore(None)

    def _first(self, error: BaseException) -> BaseException:
        """The error that the task fails with, where `error` has ended its loop."""
        return error if self._failure is None else self._failure

    def _end(self) -> bool:
        """The loop has ended: run what mail is left, and return True, if the task has come to its end."""
        self._raise_if_failed()
        if not self._complete:
            return False
        self.processor.prepare_close()
        self.chain.end_mail()
        self.processor.drain()
        self._raise_if_failed()
        return True

    def _open(self, snapshot: TaskSnapshot | None) -> None:
        self.chain.setup(self.processor.executor, self._clock, self.fail, self._checkpointing.barrier)
        if snapshot is not None:
            restore_end(self._input, snapshot.input, f"input of task {self.name!r}")
            restore_end(self.output, snapshot.output, f"output of task {self.name!r}")
            self.chain.open(snapshot.operators, snapshot.time_ended)
        else:
            self.chain.open()

    def _close(self, cause: BaseException | None) -> None:
        """Close everything, waiting for operators that close on another thread. Once."""
        if self._closed:
            return
        failures = Failures(cause)
        for uid, future in self._begin_close(failures).items():
            if asyncio.isfuture(future) and not future.done():
                # Only the event loop can end it, and this thread is the loop's.
                future.add_done_callback(_retrieve)
            else:
                failures.run(f"closing operator {uid!r}", future.result)
        self._end_close(cause, failures)

    async def _close_async(self, cause: BaseException | None) -> None:
        """As `_close`, beside the other coroutines of the event loop."""
        if self._closed:
            return
        failures = Failures(cause)
        closing = {
            uid: future if asyncio.isfuture(future) else asyncio.wrap_future(future)
            for uid, future in self._begin_close(failures).items()
        }
        interrupted = await _ended(closing.values())
        for uid, future in closing.items():
            # Who ends the event loop cancels them all.
            if not future.cancelled():
                failures.run(f"closing operator {uid!r}", future.result)
        self._end_close(cause, failures)
        if interrupted is not None and cause is None:
            raise interrupted

    def _begin_close(self, failures: Failures) -> dict[str, Any]:
        self._closed = True
        failures.run("closing the input", self._input.close)
        closing: dict[str, Any] = {}
        failures.run("closing the operators", lambda: closing.update(self.chain.close(failures)))
        return closing

    def _end_close(self, cause: BaseException | None, failures: Failures) -> None:
        failures.run("closing the mailbox", self.processor.close)
        if self._cancelled:
            self._state = TaskState.CANCELLED
        else:
            self._state = TaskState.FINISHED if failures.first is None else TaskState.FAILED
        if failures.first is not None and failures.first is not cause:
            raise failures.first

    def _cancel(self) -> None:
        self._cancelled = True
        self.chain.cancel()
        # An operator may catch what this raises in its yield; the loop ends all the same.
        self.processor.all_actions_completed()
        raise TaskCancelled(self.name)

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._cancelled:
            raise TaskCancelled(self.name)

    # -- the end ------------------------------------------------------------------------------

    def _end_data(self, then: Callable[[], None]) -> None:
        """Read no more, finish the operators, then call `then`. Once."""
        self._data_ended = True
        self._advance(self.chain.finishing(), partial(self._finished, self._hold_input(), then))

    def _finished(self, held: Future[None], then: Callable[[], None]) -> None:
        self._held = None
        then()
        held.set_result(None)

    def _end_loop(self) -> None:
        """Wait for the timers that have begun, and end the loop: the task has come to its end."""
        self._advance(self.chain.quiesce_timers(), partial(self._loop_ended, self._hold_input()))

    def _loop_ended(self, held: Future[None]) -> None:
        self._complete = True
        self.processor.all_actions_completed()
        held.set_result(None)

    def _advance(self, steps: Iterator[Future[Any]], then: Callable[[], None]) -> None:
        """Go on to the next future that is not done, and behind the last one call `then`. Other mail runs.

        What a step or a future raises ends the task.
        """
        for future in steps:
            if not future.done():
                # Once the task was closed nobody waits for its end, and the mail may be refused.
                go_on = partial(self._executor.try_execute, self._go_on, steps, then, description=END_OF_TASK)
                future.add_done_callback(go_on)
                return
            raise_of(future)
        then()

    def _go_on(self, steps: Iterator[Future[Any]], then: Callable[[], None], future: Future[Any]) -> None:
        raise_of(future)
        self._advance(steps, then)

    def _hold_input(self) -> Future[None]:
        held: Future[None] = Future()
        self._held = held
        return held

    # -- input: the default action ------------------------------------------------------------

    def _process_input(self, controller: Controller) -> None:
        if self._held is not None:
            self._suspend_until(self._held, controller)
            return
        entry = self.chain.entry
        # spec: Chain!Read, Chain!SuspendInput
        if not entry.is_available:
            entry.call_when_room(controller.suspend_default_action("back_pressured").resume)
            return
        status = self._input.emit_next(entry)
        if entry.overtaking:
            self.chain.take_overtaking()
        if status is InputStatus.MORE_AVAILABLE:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            if entry.queue or entry.is_available:
                self._suspend_until(self._input.available(), controller)
            else:
                entry.call_when_room(controller.suspend_default_action("back_pressured").resume)
            return
        self.chain.work_off()
        self._input_ended(status)

    def _suspend_until(self, future: Future[Any] | None, controller: Controller) -> None:
        """Read nothing until `future` is done, which any thread may complete; None is done.

        Its error ends the task; a cancelled one is just done.
        """
        if future is not None:
            future.add_done_callback(partial(self._resume, controller.suspend_default_action("idle")))

    def _resume(self, suspension: Suspension, future: Future[Any]) -> None:
        """Any thread."""
        if not future.cancelled() and (error := future.exception()) is not None:
            self.processor.report_error(error)
        suspension.resume()

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


async def _ended(futures: Iterable[asyncio.Future[Any]]) -> asyncio.CancelledError | None:
    """Wait until all of them are done, however often it is cancelled; returns the last cancellation."""
    interrupted: asyncio.CancelledError | None = None
    while left := [future for future in futures if not future.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            interrupted = error
    return interrupted


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Tell of an error that nobody can be given any more."""
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("an operator could not be closed: %s: %s", type(error).__name__, error)


def _nothing() -> None:
    """Follow the end of the data with nothing: the input goes on to its own end."""
