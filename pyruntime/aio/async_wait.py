"""The async operator of a task: admits rows, has their calls made within limits, emits results in order.

Confined to the mailbox thread, the thread of the task's event loop. It composes its parts, each for one
concern: rows come in by `admission`, calls are made by the `scheduler`, results leave by `emission`. What
runs the calls is apart (`runners`), and where rows come from and go (`task_run`). It is Flink's
`AsyncWaitOperator` (FLIP-12) on its mailbox (FLINK-12477), with two changes: the window of rows that wait
for order is larger than the number of calls in flight, since with one as large as the capacity one slow call
idles every other slot; and a retry that waits holds no slot.
"""

# Alternatives, and why they are worse.
#
# One limit, as in Flink, whose queue has as many entries as there are calls in flight: in order, a finished
# row holds its entry until those before it have finished, so that one slow call idles all other slots. Here
# the window (`reorder`) and the slots (`capacity`) are two numbers, and memory has a third (`max_bytes`).
#
# One object for all of it: each method could change any of forty attributes. The parts know each other in one
# direction: admission and time account know the emission, which knows the bytes that are held; none knows the
# operator.

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from pillarbox.aio.admission import RowAdmission
from pillarbox.aio.calls import Call, OperatorFunctions
from pillarbox.aio.emission import ResultEmitter
from pillarbox.aio.errors import TooManyFailures
from pillarbox.aio.function import ResultConverter, request_bytes_of
from pillarbox.aio.function_runner import runner_of
from pillarbox.aio.held_bytes import HeldBytes
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import Options
from pillarbox.aio.policies.errors import FirstFailure
from pillarbox.aio.runners import Runner
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.stages import ONLY_PLACE, Place
from pillarbox.aio.states import AsyncWaitState
from pillarbox.aio.time_account import TimeAccount
from pillarbox.aio.totals import Totals
from pillarbox.kernel import WATERMARK, OrderedQueue, UnorderedQueue
from pillarbox.providers import (
    BATCH_SCHEDULER,
    HEDGED_BATCH_SCHEDULER,
    HEDGING_SCHEDULER,
    OPERATOR_SNAPSHOTS,
    provided,
)
from pillarbox.redaction import Redact
from pillarbox.task import Operator
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.operator import OperatorContext
from pillarbox.task.protocols import Idleness, RowBatch, Watermark


class AsyncWaitOperator(Operator):
    """Calls `fn` for the rows of a task, as an operator of its chain. Confined to the thread of `loop`.

    loop: the event loop that the task is a guest of (`StreamTask.run_async`). context: what each call's
    context is a copy of. options: their functions of a row get the row; see `Options.spread` for rows
    that are tuples of arguments. ledger_session: where results are recorded before they leave, or None.
    convert: makes of a result the form in which it leaves, if it fits what is asked for; one that does not is
    a failed attempt. None for results that leave as they are. watcher: notes that the loop has its turns,
    and is closed with the operator. place: that among the functions of the task. input_failure: gives the
    error with which the input has ended, and the task ends once all rows before it have left; None for none.

    Rows come in batches, and leave in batches of (call, result) pairs; the result of a row that failed for
    good is a `Failed`, unless that ends the task. No row passes a watermark.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        spread: bool = False,
        ledger_session: LedgerSession | None = None,
        watcher: Any = None,
        convert: ResultConverter | None = None,
        uid: str | None = None,
        place: Place = ONLY_PLACE,
        input_failure: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        self.uid = uid
        self._place = place
        self._input_failure = input_failure
        self._options = options = options.spread() if spread else options
        self._ledger_session = ledger_session
        self._meter = Meter()
        # Calls end on the loop's thread, whatever ran them: the queue needs no atomic operation.
        make_queue = OrderedQueue if options.ordered else UnorderedQueue
        queue = make_queue(options.window, owner_completes=True)
        kept_back = None if ledger_session is None else ledger_session.kept_back
        most = options.buffer.max_bytes
        self._weights = weights = None if most is None else HeldBytes(options, most, kept_back)
        self._emitter = emitter = ResultEmitter(queue, self._meter, place, weights)
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        is_hedged = options.hedge is not None
        make: Callable[..., CallScheduler] = CallScheduler
        if options.batch is not None:
            make = provided(HEDGED_BATCH_SCHEDULER if is_hedged else BATCH_SCHEDULER, "batch")
        elif is_hedged:
            make = provided(HEDGING_SCHEDULER, "hedge")
        self._scheduler = scheduler = make(
            options,
            self._meter,
            loop,
            name=name,
            queue=queue,
            operator=OperatorFunctions(emitter.complete, self._fail, self._finished, emitter.complete_all),
            convert=convert,
            session=ledger_session,
        )
        call_of = None if place.is_first else place.call_of
        self._admission = admission = RowAdmission(
            scheduler, emitter, weights, call_of=call_of, beside=request_bytes_of(fn, spread=spread)
        )
        self._time = TimeAccount(name, scheduler, emitter, admission, ledger_session, watcher)
        more_rows = admission.may_get_rows
        self._make_runner = partial(
            runner_of, fn, scheduler, name=name, context=context, spread=spread, more_rows=more_rows
        )
        self._runner: Runner | None = None
        self._is_whole = False

    def setup(self, context: OperatorContext) -> None:
        """Take the context of the task, and make what runs the calls."""
        super().setup(context)
        scheduler, emitter, mailbox = self._scheduler, self._emitter, context.executor.mailbox
        emitter.bind(context, self._admission.admit_restored)
        if self._weights is not None:
            self._weights.bind(scheduler.slots, context.output)
        self._runner = scheduler.runner = self._make_runner(mailbox, context.position)
        if self._ledger_session is not None:
            flow, leave = scheduler.flow(), emitter.complete_kept
            scheduler.record_in(self._ledger_session.bind(flow, mailbox, self._weights, leave))

    def _finished(self) -> int:
        """Rows that have finished, those included that had before a restore."""
        if not self._meter.rows_in:
            # A policy may ask while it is opened, when there are no parts yet.
            return 0
        unfinished = self._scheduler.queue.in_flight + len(self._admission.restored)
        if self._ledger_session is not None:
            unfinished = self._ledger_session.unfinished(unfinished)
        return self._meter.rows_in - unfinished

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to make calls, those of restored rows first."""
        self._scheduler.start()
        self._time.start()
        if self._scheduler.queue.restoring:
            self._admission.admit_restored()

    def end_input(self) -> Future[None] | None:
        """No row comes any more: make the calls that are left, retries at their own times."""
        # spec: Chain!EndInput, Operator!EndInput
        scheduler = self._scheduler
        self._admission.has_ended = True
        scheduler.runner.dispatch()
        if len(scheduler.queue) == 0:
            return None
        return self._emitter.drained()

    def finish(self) -> None:
        """All rows have left.

        Raises `TooManyFailures` if more of them failed than is allowed, and an error of the input that was
        kept until now.
        """
        failure = self._input_failure()
        if failure is not None:
            if self._place.is_last:
                raise failure
            return
        try:
            self._scheduler.policies.errors.check_end(self._finished())
        except TooManyFailures as error:
            self._place.name_error(error)
            raise
        self._is_whole = True

    def stop(self) -> None:
        """Make no call and emit nothing from now on; what is not emitted is dropped."""
        # spec: Chain!Stop, Operator!Close
        if self._scheduler.is_closed:
            return
        self._time.stop()
        self._emitter.stop()
        self._scheduler.close()
        self._scheduler.queue.close()
        if self._ledger_session is not None:
            self._ledger_session.stop()

    def close(self) -> asyncio.Future[None] | None:
        """Wait for calls that are cancelled, for a time, and for the ledger; its error is the task's."""
        if self._scheduler.loop.is_closed():
            # In a loop that was closed before its tasks ended nothing can be waited for.
            self._scheduler.policies.stack.close()
            return None
        return self._scheduler.loop.create_task(self._closed())

    async def _closed(self) -> None:
        """Close what the operator has used; raises what a task fails with that is whole otherwise."""
        failure = None
        # An error of closing itself loses nothing: all rows have left, or the task has failed before.
        with suppress(Exception):
            if self._runner is None:
                self._scheduler.policies.stack.close()
            else:
                await self._scheduler.closed()
            if self._ledger_session is not None:
                failure = await self._ledger_session.close(self._is_whole)
        self._meter.fold()
        if failure is not None:
            raise failure

    def discard(self, is_unwanted: Callable[[Any], bool]) -> None:
        """Make no calls for rows that nobody wants, and cancel those that run. Mailbox thread."""
        entries = [
            (call, is_finished)
            for call, is_finished, _ in self._scheduler.queue.snapshot()
            if call is not WATERMARK
        ]
        unwanted = [call for call, is_finished in entries if not is_finished and is_unwanted(call.row)]
        # Others that are wanted may have joined them.
        joined = self._scheduler.sharing.joined
        unwanted = [call for call in unwanted if all(is_unwanted(each.row) for each in joined(call))]
        self._scheduler.discard(unwanted)

    def _fail(self, error: BaseException) -> None:
        if not self._scheduler.is_closed:
            self._place.name_error(error)
            self.context.fail(error)

    def statistics(self) -> Totals | None:
        """Counts so far, None before it is set up. Any thread; of one moment only on the mailbox thread."""
        runner = self._runner
        if runner is None:
            return None
        scheduler, wait = self._scheduler, self._time.text
        return self._meter.statistics(
            scheduler.policies.load.limiter_statistics(),
            in_flight=runner.in_flight,
            waiting=len(scheduler.waiting) + len(scheduler.pausing),
            late=self._meter.late + runner.late,
            abandoned=runner.abandoned,
            finished_waiting=max(0, len(scheduler.queue) - scheduler.queue.in_flight),
            held_bytes=0 if self._weights is None else self._weights.held,
            capacity=scheduler.slots.limit,
            waits={} if wait is None else {wait: 1},
            policies=scheduler.policies.stack.statistics(),
            spent=dict(self._time.spent),
            elapsed=self._time.elapsed,
            **scheduler.policies.totals(),
        )

    @property
    def has_all_rows(self) -> bool:
        """True if all rows that it will get have come in. Any thread, as an estimate."""
        return self._admission.has_ended

    @property
    def first_failure(self) -> FirstFailure | None:
        """The error of the first row that failed for good; None before. Any thread."""
        return self._scheduler.policies.errors.first

    @property
    def redaction(self) -> Redact:
        """The rule for what is taken out of texts about its rows."""
        return self._options.errors.redaction

    def overdue(self) -> tuple[Call, str, float, float] | None:
        """The call whose deadline comes first: call, limit, seconds, deadline. Any thread, as an estimate."""
        return self._scheduler.overdue()

    # -- rows, marks and checkpoints ----------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """True if a row may come in, by its number and by the bytes of those that are held."""
        return self._admission.has_room

    def process(self, record: Any) -> None:
        """Take one row."""
        self.process_batch(RowBatch([record]))

    def process_batch(self, batch: RowBatch) -> bool:
        """Take as many rows as there is room for."""
        # spec: Chain!ProcessBatch, Operator!Admit
        runner = self._scheduler.runner
        runner.note_turn()
        # Rows come: what follows them needs an entry of the queue of its own.
        self._emitter.last_mark = None
        took_all = self._admission.take(batch)
        runner.dispatch()
        return took_all

    def process_watermark(self, timestamp: float) -> None:
        """Let no row pass a watermark: it leaves behind those before it, and before those behind it."""
        self._put_mark(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        """Let no row pass the word that nothing comes for a while, or that this is over."""
        self._put_mark(Idleness(idle))

    def _put_mark(self, element: Watermark | Idleness) -> None:
        if self._emitter.put_mark(element) and not self._admission.has_room:
            self._scheduler.runner.dispatch()

    def snapshot_state(self, barrier: CheckpointBarrier) -> AsyncWaitState:
        """Everything that was admitted and has not left, with what a restart must know of it."""
        state: AsyncWaitState = self._snapshots().take()
        return state

    def restore_state(self, state: Any) -> None:
        """Take over what `snapshot_state` gave, of an operator with the same order.

        Raises ValueError for the state of one with another order, and for another state.
        """
        self._snapshots().restore(state, self.context.uid)

    def _snapshots(self) -> Any:
        """Make what takes and restores the state. Most tasks have no checkpoint."""
        make = provided(OPERATOR_SNAPSHOTS, "a snapshot")
        parts = self._scheduler, self._emitter, self._admission, self._ledger_session, self._weights
        return make(*parts, is_behind=not self._place.is_first)
