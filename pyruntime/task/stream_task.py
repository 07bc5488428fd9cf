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
# Why a checkpoint is one action. Flink takes the states on the task's thread and uploads them on others,
# each operator's for itself, because states are large there. Here they are references and counts; taken in
# one action they belong to one instant, and nothing has to be put together afterwards. Who has asked for the
# snapshot makes bytes of it and knows where they are kept.
#
# Why checkpoints come from requests alone, and no barrier from the input. A barrier among the elements is
# how Flink's tasks hear of a checkpoint from those in front of them. Here nobody is in front: whoever wants
# a checkpoint knows the task.
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
from itertools import chain
from typing import Any

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, TaskMailbox
from pillarbox.mailbox.processor import Controller, MailboxExecutor, MailboxProcessor, Suspension
from pillarbox.task.chain import OperatorChain
from pillarbox.task.checkpoint import (
    ALIGNED,
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    CheckpointOrder,
    CheckpointRequest,
    TaskSnapshot,
)
from pillarbox.task.failures import Failures, raise_of
from pillarbox.task.operator import Operator
from pillarbox.task.operator_timers import monotonic_epoch
from pillarbox.task.protocols import (
    InputStatus,
    TaskCancelled,
    TaskInput,
    TaskOutput,
    TaskState,
    restore_end,
    state_of,
)
from pillarbox.validate import check_methods

log = logging.getLogger("pillarbox")

END_OF_TASK = "go on with the end of the task"
"""The description of the mail in which a task that comes to its end goes on."""


class StreamTask:
    """Task that carries the elements of an input through operators to an output, with checkpoints. Confined.

        >>> from pillarbox.sources import SourceCoordinator, SourceInput
        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> from pillarbox.task import Operator, StreamTask
        >>> class Count(Operator):
        ...     def process(self, batch):
        ...         self.output.collect(f"{batch.num_rows} rows")
        >>> class Output(list):
        ...     is_available, collect = True, list.append
        ...     def emit_watermark(self, seconds): ...
        ...     def emit_barrier(self, barrier): ...
        ...     def call_when_room(self, wake): ...
        >>> output, source = Output(), GeneratorSource(rows=10)
        >>> with SourceCoordinator(source, parallelism=1) as coordinator:
        ...     StreamTask(SourceInput(coordinator.link(0), source), [Count()], output).run()
        >>> output
        ['10 rows']

    1. The default action makes the input emit one element and the chain process it. It suspends itself
       while the input has no element (idle) or the output has no room (back-pressured); mail runs meanwhile.
    2. Life: `restore`, `run`; at the end of the data the operators are finished; at the end of the input
       no timer begins any more, those that had begun are awaited, the remaining mail is run, and everything
       is closed. In every case everything is closed once, and the first error is raised; later
       ones are notes of it.
    3. An aligned checkpoint is ordinary mail of the lowest priority: it is taken between two elements and
       waits while an operator yields. An unaligned one is urgent and of the highest priority, so that
       a yield runs it too. Notices have the highest priority.

    clock: for timers and metrics, in seconds, monotonic; None: seconds since 1970.
    mailbox: one that this thread owns; for tests.
    latency_interval: seconds between two measurements of the latency of mail; None for none.

    Raises TypeError for an input, output or operator of another type, ValueError for no operators or two with
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
        self._order = CheckpointOrder()
        self._state = TaskState.CREATED
        self._in_loop = False
        self._cancelled = False
        self._closed = False
        self._complete = False
        self._failure: BaseException | None = None

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
        barrier = CheckpointBarrier(checkpoint_id, timestamp, options)
        return self._ask(
            checkpoint_id,
            partial(self._take_checkpoint, barrier),
            priority=MIN_PRIORITY if options.aligned else MAX_PRIORITY,
            urgent=not options.aligned,
            description=partial(str, barrier),
        )

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> Future[bool]:
        """Say that a checkpoint is complete everywhere. Any thread.

        The future says whether this task had taken it; otherwise the operators do not hear of it. The
        mail has the highest priority, so a yield runs it.
        """
        return self._ask(checkpoint_id, partial(self._end_checkpoint, checkpoint_id, True))

    def notify_checkpoint_aborted_async(self, checkpoint_id: int) -> Future[bool]:
        """Say that a checkpoint will not complete. Any thread; as `notify_checkpoint_complete_async`.

        If it has not begun here, it is declined when it comes.
        """
        return self._ask(checkpoint_id, partial(self._end_checkpoint, checkpoint_id, False))

    def _ask(self, checkpoint_id: int, answer: Callable[[], Any], **mail: object) -> Future[Any]:
        request = CheckpointRequest(checkpoint_id, answer, **{"priority": MAX_PRIORITY, **mail})
        if not self._executor.try_put(request):
            request.cancel()
        return request.future

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
        """Run until the task has ended; restore it first if it was not. Mailbox thread.

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
        self.chain.setup(self.processor.executor, self._clock, self.fail)
        if snapshot is not None:
            restore_end(self._input, snapshot.input, f"input of task {self.name!r}")
            restore_end(self.output, snapshot.output, f"output of task {self.name!r}")
            self.chain.open(snapshot.operators, snapshot.time_ended)
        else:
            self.chain.open()
        self._state = TaskState.RUNNING

    def _take_checkpoint(self, barrier: CheckpointBarrier) -> TaskSnapshot:
        """Take a checkpoint: the state of the task at one moment, then its barrier goes to the output."""
        if self._state is TaskState.CREATED:
            # An operator may yield while it is opened, and a yield runs urgent checkpoints.
            raise CheckpointDeclined(barrier.id, "the task is being restored")
        self._order.begin(barrier.id)
        if barrier.options.aligned:
            # What a restore has left in front of an operator, which may yield, and a yield may overtake this.
            self.chain.work_off()
        self._order.check(barrier.id)
        # spec: Chain!Snapshot
        position = _state_of("input", self._input, barrier)
        try:
            operators = self.chain.snapshot(barrier)
            rows = _state_of("output", self.output, barrier)
        except CheckpointDeclined:
            # spec: Chain!Decline
            self.chain.notify_aborted(barrier.id)
            raise
        self._order.taken(barrier.id)
        self.output.emit_barrier(barrier)
        return TaskSnapshot(barrier, position, operators, rows, self.chain.time_ended)

    def _end_checkpoint(self, checkpoint_id: int, is_complete: bool) -> bool:
        """Tell the operators how a checkpoint has ended; False, without effect, if it was not taken here."""
        if is_complete:
            was_taken, notify = self._order.complete(checkpoint_id), self.chain.notify_complete
        else:
            was_taken, notify = self._order.abort(checkpoint_id), self.chain.notify_aborted
        if was_taken:
            notify(checkpoint_id)
        return was_taken

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

    # -- input: the default action, and its end -------------------------------------------------

    def _process_input(self, controller: Controller) -> None:
        entry = self.chain.entry
        # spec: Chain!Read, Chain!SuspendInput
        if not entry.is_available:
            entry.call_when_room(controller.suspend_default_action("back_pressured").resume)
            return
        status = self._input.emit_next(entry)
        if status is InputStatus.MORE_AVAILABLE:
            return
        if status is InputStatus.NOTHING_AVAILABLE:
            if entry.queue or entry.is_available:
                self._suspend_until(self._input.available(), controller)
            else:
                entry.call_when_room(controller.suspend_default_action("back_pressured").resume)
            return
        if not isinstance(status, InputStatus):
            raise TypeError(f"the input of task {self.name!r} said {status!r}; it must say an InputStatus")
        self._input_ended(status, controller)

    def _input_ended(self, status: InputStatus, controller: Controller) -> None:
        """Finish the operators at the end of the data, and end the task at that of the input, in mail."""
        is_last = status is InputStatus.END_OF_INPUT
        if self.chain.data_ended and not is_last:
            raise RuntimeError(f"the input of task {self.name!r} said {status} after the end of its data")
        self.chain.work_off()
        finishes = not (self.chain.data_ended or status is InputStatus.STOPPED)
        self.chain.data_ended = True
        steps = self.chain.finishing() if finishes else iter(())
        if is_last:
            steps = chain(steps, self.chain.timers_done())
        suspension = controller.suspend_default_action("idle")
        self._advance(steps, self._end_loop if is_last else suspension.resume)

    def _end_loop(self) -> None:
        self._complete = True
        self.processor.all_actions_completed()

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


def _state_of(name: str, end: object, barrier: CheckpointBarrier) -> Any:
    """The state of the task's input or output; what that raises declines the checkpoint."""
    try:
        return state_of(end)
    except CheckpointDeclined:
        raise
    except Exception as error:
        reason = f"the {name} raised {type(error).__name__}: {error}"
        raise CheckpointDeclined(barrier.id, reason) from error
