"""The async operator of a task: admits rows, has their calls made within limits, emits results in order.

Confined to the mailbox thread, the thread of the task's event loop. What runs the calls is apart (`runners`),
and where rows come from and go (`task_run`). It is Flink's `AsyncWaitOperator` (FLIP-12) on its mailbox
(FLINK-12477), with two changes: the window of rows that wait for order is larger than the number of calls in
flight, since with one as large as the capacity one slow call idles every other slot; and a retry that waits
holds no slot.
"""

# Alternatives, and why they are worse.
#
# One limit, as in Flink, whose queue has as many entries as there are calls in flight: in order, a finished
# row holds its entry until those before it have finished, so that one slow call idles all other slots. Here
# the window (`reorder`) and the slots (`capacity`) are two numbers, and memory has a third (`max_bytes`).
#
# To emit where a call ends: an emission runs the next operator, its calls may end at once and emit in turn,
# and the stack grows with the chain and with the number of rows. So a completion only puts one mail, however
# many rows have finished by then, and that mail emits all of them as one batch.
#
# To yield until there is room, as Flink's operator does: a nested loop on an event loop blocks the coroutines
# that would make the room. The operator takes what it has room for, and the rest stays at the head of its
# link.
#
# To weigh each result: `size_of` walks through all that a result holds, which costs more than a call that
# returns at once. So numbers and the like are not weighed, and of results so small that a window full of them
# is no matter only one of sixteen is.

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

from pillarbox.aio.batch_runner import BatchRunner, batch_function
from pillarbox.aio.batch_scheduler import BatchScheduler
from pillarbox.aio.call_sharing import without
from pillarbox.aio.call_threads import blocking_function
from pillarbox.aio.calls import Call, CallState, RestoredCall
from pillarbox.aio.chained import ONLY_PLACE, ChainPlace, chained_call, chained_row
from pillarbox.aio.deadlines import clock_of
from pillarbox.aio.equal_calls import Shared
from pillarbox.aio.errors import CallFailed, Failed, TooManyFailures
from pillarbox.aio.function import (
    ResultConverter,
    check_function,
    collector_parameter,
    is_async,
    is_async_generator,
    with_collector,
)
from pillarbox.aio.idle_reasons import reason_to_wait
from pillarbox.aio.in_flight import WAITING
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.loop_watcher import LoopWatcher
from pillarbox.aio.meter import SAMPLE_INTERVAL_S, Meter
from pillarbox.aio.options import Options
from pillarbox.aio.policies.errors import FirstFailure
from pillarbox.aio.runners import CollectorRunner, CoroutineRunner, Runner, collect
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.sizes import CALL_BYTES, LEDGER_BYTES, SMALL_TYPES, size_of
from pillarbox.aio.states import AsyncWaitState, Entry, FinishedRow
from pillarbox.aio.totals import Totals
from pillarbox.aio.waits import WaitReporter
from pillarbox.kernel import WATERMARK, Mail, OrderedQueue, UnorderedQueue
from pillarbox.redaction import Redact
from pillarbox.task import Operator
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.operator import OperatorContext
from pillarbox.task.protocols import Idleness, LeftOut, RowBatch, Watermark

_NOT_WEIGHED = SMALL_TYPES | {Failed}

LIGHT_SHARE = 1 / 16
"""A window full of results that hold less than this share of `Buffer.max_bytes` is light."""

LIGHT_RESULTS = 15
"""Results that are not weighed after one that belongs to a light window."""


class AsyncWaitOperator(Operator):
    """Calls `fn` for the rows of a task, as an operator of its chain. Confined to the thread of `loop`.

    loop: the event loop that the task is a guest of (`StreamTask.run_async`). context: what each call's
    context is a copy of. options: their functions of a row get the row; see `Options.spread` for rows
    that are tuples of arguments. ledger_session: where results are recorded before they leave, or None.
    convert: makes of a result the form in which it leaves, if it fits what is asked for; one that does not is
    a failed attempt. None for results that leave as they are. watched: whether a thread looks for code that
    blocks the loop. place: that among the functions of the task. input_failure: gives the error with which
    the input has ended, and the task ends once all rows before it have left; None for none.

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
        watched: bool = False,
        convert: ResultConverter | None = None,
        uid: str | None = None,
        place: ChainPlace = ONLY_PLACE,
        input_failure: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        self.uid = uid
        self._place = place
        self._input_failure = input_failure
        self._is_behind = not place.is_first
        self._options = options = options.spread() if spread else options
        self._loop = loop
        # Calls end on the loop's thread, whatever ran them: the queue needs no atomic operation.
        make_queue = OrderedQueue if options.ordered else UnorderedQueue
        self._queue = make_queue(options.window, owner_completes=True)
        self._emit_asked = self._output_full = self._is_stopped = self._is_whole = False
        self._marks = 0
        # Watermarks and statuses that share an entry of the queue, as no row has come since: the newest ones.
        self._last_mark: list[Watermark | Idleness] | None = None
        self._drained: Future[None] | None = None
        self._ends = self._is_stuck = False
        # Bytes of the rows in the window and of the results that were weighed.
        self._held = 0
        self._max_bytes = options.buffer.max_bytes
        self._weighs = self._max_bytes is not None
        self._light_bytes = (self._max_bytes or 0) * LIGHT_SHARE / options.window
        # Results that are not weighed before the next one is.
        self._light = 0
        # The mean of the last results.
        self._result_bytes = 0.0
        # Fewer calls may be in flight than `capacity` says, as their results would have no room.
        self._is_tight = False
        self._sampler: asyncio.TimerHandle | None = None
        self._fn, self._spread = fn, spread
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.watcher = LoopWatcher(name) if watched else None
        self._ledger_session = ledger_session
        self._meter = Meter()
        self._waits = WaitReporter(name, clock_of(loop))
        self._name, self._call_context = name, context
        # Rows of a snapshot that wait for their admission, with their states.
        self._restored: dict[Call, CallState | FinishedRow] = {}
        make = CallScheduler if options.batch is None else BatchScheduler
        self._scheduler = make(
            options,
            self._meter,
            loop,
            name=name,
            queue=self._queue,
            complete=self._complete,
            stop=self._fail,
            finished=self._finished,
            convert=convert,
            session=ledger_session,
        )
        self._waiting = self._scheduler.waiting
        self._runner: Runner | None = None

    def setup(self, context: OperatorContext) -> None:
        """Take the context of the task, and make what runs the calls."""
        super().setup(context)
        self._output = context.output
        self._mailbox = context.executor.mailbox
        # One mail, put again and again: with one for each emission every finished row would make one.
        self._emit_mail = Mail(self._emit, priority=context.position, description="emit results")
        self._runner = self._scheduler.runner = self._make_runner()
        if self._ledger_session is not None:
            weigh = self._weigh_kept if self._weighs else None
            flow = self._scheduler.flow()
            self._scheduler.record_in(self._ledger_session.bind(flow, self._mailbox, weigh, self._leave))

    def _make_runner(self) -> Runner:
        fn, scheduler, batch = self._fn, self._scheduler, self._options.batch
        hooks, name, context = scheduler.hooks(), self._name, self._call_context
        mail = self._mailbox, self._emit_mail.priority
        if isinstance(scheduler, BatchScheduler) and batch is not None:
            # Once more: of a resource only what entering it gave is known.
            check_function(fn, in_batches=True)
            policies = scheduler.policies
            # What looks at results sees each as the function gave it.
            whole = policies.fit.elements_of if policies.looks_at_results else policies.fit.rows_of
            # Rows that go on as Arrow are taken apart into their columns by whoever knows what they are.
            by_columns = self._spread and not batch.arrow
            in_batches = batch_function(fn, name, self._loop, *mail, spread=by_columns, rows_of=whole)
            scheduler.fill(self._may_get_rows)
            return BatchRunner(hooks, in_batches, name, context)
        parameter = collector_parameter(fn)
        if parameter is not None:
            check_function(fn)
            handed = with_collector(fn, parameter, spread=self._spread)
            return CollectorRunner(hooks, handed, name, context, *mail)
        call = (lambda row: fn(*row)) if self._spread else fn
        if is_async_generator(fn):
            call = partial(collect, call)
        elif not is_async(fn):
            call = blocking_function(call, name, self._loop, *mail)
        return CoroutineRunner(hooks, call, name, context)

    def _finished(self) -> int:
        """Rows that have finished, those included that had before a restore."""
        unfinished = self._queue.in_flight + len(self._restored)
        if self._ledger_session is not None:
            unfinished = self._ledger_session.unfinished(unfinished)
        return self._meter.rows_in - unfinished

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to make calls, those of restored rows first."""
        self._scheduler.start()
        if self.watcher is not None:
            self.watcher.start()
        self._sample()
        if self._queue.restoring:
            self._admit_restored()

    def end_input(self) -> Future[None] | None:
        """No row comes any more: make the calls that are left, retries at their own times."""
        # spec: Chain!EndInput, Operator!EndInput
        self._ends = True
        self._scheduler.runner.dispatch()
        if len(self._queue) == 0:
            return None
        self._drained = Future()
        return self._drained

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
        if self._is_stopped:
            return
        if self._sampler is not None:
            # Calls that held the loop up until the end would leave no trace otherwise.
            self._account()
        self._is_stopped = True
        self._scheduler.close()
        self._queue.close()
        if self._ledger_session is not None:
            self._ledger_session.stop()
        if self._sampler is not None:
            self._sampler.cancel()
        if self.watcher is not None:
            self.watcher.close()

    def close(self) -> asyncio.Future[None] | None:
        """Wait for calls that are cancelled, for a time, and for the ledger; its error is the task's."""
        if self._runner is None or self._loop.is_closed():
            # In a loop that was closed before its tasks ended nothing can be waited for.
            return None
        return self._loop.create_task(self._closed())

    async def _closed(self) -> None:
        """Close what the operator has used; raises what a task fails with that is whole otherwise."""
        failure = None
        # An error of closing itself loses nothing: all rows have left, or the task has failed before.
        with suppress(Exception):
            await self._scheduler.closed()
            if self._ledger_session is not None:
                failure = await self._ledger_session.close(self._is_whole)
        self._meter.fold()
        if failure is not None:
            raise failure

    def discard(self, is_unwanted: Callable[[Any], bool]) -> None:
        """Make no calls for rows that nobody wants, and cancel those that run. Mailbox thread."""
        entries = [
            (call, is_finished) for call, is_finished, _ in self._queue.snapshot() if call is not WATERMARK
        ]
        unwanted = [call for call, is_finished in entries if not is_finished and is_unwanted(call.row)]
        # Others that are wanted may have joined them.
        joined = self._scheduler.sharing.joined
        unwanted = [call for call in unwanted if all(is_unwanted(each.row) for each in joined(call))]
        self._scheduler.discard(unwanted)

    def _fail(self, error: BaseException) -> None:
        if not self._is_stopped:
            self._place.name_error(error)
            self.context.fail(error)

    def statistics(self) -> Totals | None:
        """Counts so far, None before it is set up. Any thread; of one moment only on the mailbox thread."""
        runner = self._runner
        if runner is None:
            return None
        return self._meter.statistics(
            self._scheduler.policies.load.limiter_statistics(),
            in_flight=runner.in_flight,
            waiting=len(self._waiting) + len(self._scheduler.pausing),
            late=self._meter.late + runner.late,
            abandoned=runner.abandoned,
            finished_waiting=max(0, len(self._queue) - self._queue.in_flight),
            held_bytes=self._held,
            capacity=self._scheduler.slots.limit,
            waits={} if self._waits.text is None else {self._waits.text: 1},
            policies=self._scheduler.policies.stack.statistics(),
        )

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

    # -- input --------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """True if a row may come in, by its number and by the bytes of those that are held.

        What is to be restored comes first.
        """
        return not self._is_stopped and not self._queue.restoring and self._room(None) > 0

    def _room(self, row_bytes: int | None) -> int:
        """Rows of `row_bytes` each that may come in now."""
        room = self._queue.capacity - len(self._queue)
        most = self._max_bytes
        if most is None:
            return room
        if len(self._queue):
            # Where nothing is held, one row is let in whatever it weighs, or nothing would ever come out.
            left = most - self._held - self._output.held_bytes - self._encoded_bytes()
            return min(room, max(0, left // row_bytes if row_bytes else left))
        return min(room, max(1, most // row_bytes)) if row_bytes else room

    def process(self, record: Any) -> None:
        """Take one row."""
        self.process_batch(RowBatch([record]))

    def process_batch(self, batch: RowBatch) -> bool:
        """Take as many rows as there is room for."""
        # spec: Chain!ProcessBatch, Operator!Admit
        self._scheduler.runner.note_turn()
        # Rows come: what follows them needs an entry of the queue of its own.
        self._last_mark = None
        room = self._room(batch.row_bytes)
        if room > 0:
            self._admit(batch, room)
        took_all = not len(batch)
        self._is_stuck = not took_all
        self._scheduler.runner.dispatch()
        return took_all

    def _may_get_rows(self) -> bool:
        """True if rows may come before a result has left; otherwise a batch of calls is not waited for."""
        return not self._ends and not self._is_stuck and self.has_room

    def _admit(self, batch: RowBatch, room: int) -> None:
        """Let rows of `batch` in, at most `room`, and no more than the limit of bytes allows."""
        if batch.is_left_out:
            for row in batch.take(room):
                call = Call(row, batch.row_bytes or 0)
                call.handle = self._queue.put(call)
                self._held += call.held if self._weighs else 0
                self._pass(call)
            return
        put = self._queue.put
        size = batch.row_bytes
        most = self._max_bytes
        weigh = most is not None and size is None
        if not weigh and not self._is_behind:
            # The usual case, on the path of every row.
            calls = list(map(Call, batch.take(room), repeat(size or 0)))
            for call in calls:
                call.handle = put(call)
            self._call(calls, len(calls))
            if most is not None:
                self._held += len(calls) * (size or 0)
            return
        admitted = 0
        calls = []
        position = batch.position
        make: Callable[[Any, int], Call] = partial(chained_call, Call) if self._is_behind else Call
        for row in batch.take(room):
            call = make(row, 0 if size is None else size)
            if weigh:
                call.held = size_of(call.row)
            call.handle = put(call)
            admitted += 1
            if isinstance(call.row, LeftOut):
                self._meter.rows_in -= 1
                self._pass(call)
            elif type(call.row) is Failed and self._is_behind:
                # It keeps its place, and nobody calls it.
                self._complete(call, call.row)
            else:
                calls.append(call)
            if weigh:
                self._held += call.held
                if self._held >= most:  # type: ignore[operator]
                    batch.position = position + admitted
                    break
        self._call(calls, admitted)
        if most is not None and size is not None:
            self._held += admitted * size

    def _call(self, calls: list[Call], admitted: int) -> None:
        """Have rows called that need it; so many were let in."""
        done = self._scheduler.sharing.admit_all(calls)
        self._waiting.extend(without(calls, done))
        self._count_in(admitted, done)

    def _pass(self, call: Call) -> None:
        """Finish rows that are left out: they are counted neither in nor out."""
        self._meter.results -= 1
        self._queue.complete(call.handle, call.row)
        if not self._emit_asked and self._queue.has_completed():
            self._ask_to_emit()

    def _count_in(self, admitted: int, done: Sequence[tuple[Call, Any]]) -> None:
        """So many rows were let in; some have a result by now, which was found, or cannot be called."""
        self._meter.rows_in += admitted
        for call, outcome in done:
            if self._is_stopped:
                return
            if isinstance(outcome, tuple):
                self._scheduler.take_found(call, outcome[0])
            elif outcome is WAITING:
                self._meter.shared += 1
            elif isinstance(outcome, Shared):
                self._meter.shared += 1
                self._scheduler.hand_on(call, outcome.result)
            else:
                self._scheduler.fail_call(call, CallFailed(0, outcome))

    def process_watermark(self, timestamp: float) -> None:
        """Let no row pass a watermark: it leaves behind those before it, and before those behind it."""
        self._put_mark(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        """Let no row pass the word that nothing comes for a while, or that this is over."""
        self._put_mark(Idleness(idle))

    def _put_mark(self, element: Watermark | Idleness) -> None:
        # spec: Chain!ProcessWatermark, Operator!PutMark
        if len(self._queue) == 0 and self._output.is_available:
            self._emit_mark(element)
            return
        if self._last_mark is None:
            self._last_mark = []
            self._queue.put_watermark(self._last_mark)
            self._marks += 1
            if not self.has_room:
                self._scheduler.runner.dispatch()
        mark = self._last_mark
        mark[:] = [*(each for each in mark if type(each) is not type(element)), element]
        if not self._emit_asked and self._queue.has_completed():
            self._ask_to_emit()

    def _emit_mark(self, element: Watermark | Idleness) -> None:
        if isinstance(element, Watermark):
            self._output.emit_watermark(element.timestamp)
        else:
            self._output.emit_status(element.idle)

    # -- output -------------------------------------------------------------------------------

    def _complete(self, call: Call, result: Any) -> None:
        if self._weighs and type(result) not in _NOT_WEIGHED:
            if self._light:
                self._light -= 1
            else:
                self._weigh(call, result)
        self._queue.complete(call.handle, result)
        if not self._emit_asked and self._queue.has_completed():
            self._ask_to_emit()

    def _weigh_kept(self, call: Call, result: Any) -> None:
        """Count a result that waits for the ledger: it is held as one that waits for its turn is."""
        if type(result) not in _NOT_WEIGHED:
            if self._light:
                self._light -= 1
            else:
                self._weigh(call, result)

    def _leave(self, call: Call, result: Any) -> None:
        """Complete `call`, whose result was counted when it came."""
        self._queue.complete(call.handle, result)
        if not self._emit_asked and self._queue.has_completed():
            self._ask_to_emit()
        if self._is_tight:
            self._allow_calls()

    def _weigh(self, call: Call, result: Any) -> None:
        """Count the bytes of a result to those that are held, and begin no call whose result has no room."""
        # Where results are small, what a row takes besides is most of it.
        size = size_of(result) + CALL_BYTES + (0 if self._ledger_session is None else LEDGER_BYTES)
        call.held += size
        self._held += size
        # The mean of some ten results.
        self._result_bytes += (size - self._result_bytes) * 0.1 if self._result_bytes else size
        if self._result_bytes < self._light_bytes:
            self._light = LIGHT_RESULTS
        most = self._max_bytes
        # Of that, up to a half may be with whoever takes the results: looked at only from here on.
        if self._is_tight or self._result_bytes * self._scheduler.slots.limit > 0.5 * most - self._held:  # type: ignore[operator]
            self._allow_calls()

    def _encoded_bytes(self) -> int:
        return 0 if self._ledger_session is None else self._ledger_session.kept_back()[1]

    def _allow_calls(self) -> None:
        """Let so many calls be in flight as will find room for their results, and one to go on with."""
        options = self._options
        in_call = 1 if options.batch is None else options.batch.size
        left = self._max_bytes - self._held - self._output.held_bytes - self._encoded_bytes()  # type: ignore[operator]
        room = (
            int(left / (self._result_bytes * in_call)) if self._result_bytes else self._scheduler.slots.limit
        )
        self._is_tight = room < self._scheduler.slots.limit
        # Where the output is full or results wait for the disk, the end of that looks again; otherwise one
        # call must go on, or none would.
        session = self._ledger_session
        waits = self._output_full or (session is not None and session.kept_back()[0])
        self._scheduler.slots.allow(max(room, 0 if waits else 1) if self._is_tight else None)

    def _ask_to_emit(self) -> None:
        if not self._is_stopped:
            self._emit_asked = True
            self._mailbox.put(self._emit_mail)

    def _emit(self) -> None:
        """Emit what has finished, as one batch. As mail, which the chain follows with its turn."""
        # spec: Chain!Emit, Operator!EmitRow, Operator!EmitMark
        output = self._output
        if self._is_stopped:
            return
        if not output.is_available:
            # The request to emit stands until then. spec: Chain!WaitForRoom
            self._output_full = True
            output.call_when_room(self._ask_to_emit)
            if self._is_tight:
                self._allow_calls()
            return
        self._emit_asked = self._output_full = False
        room = output.room
        results = self._queue.emit_many(room)
        if self._marks:
            self._emit_with_marks(results)
        else:
            self._emit_rows(results)
        if room is not None and self._queue.has_completed():
            self._ask_to_emit()
        if self._is_tight:
            self._allow_calls()
        if self._queue.restoring:
            self._admit_restored()
        if self._drained is not None and len(self._queue) == 0:
            drained, self._drained = self._drained, None
            drained.set_result(None)

    def _emit_rows(self, results: list[tuple[Call, Any]]) -> None:
        self._meter.results += len(results)
        held = 0
        if self._weighs:
            held = sum([call.held for call, _ in results])
            self._held -= held
        if results:
            place = self._place
            # Of a function alone no failure needs a name, and all goes on: nobody looks at each result.
            batch = RowBatch(results, held_bytes=held) if place.uid is None else place.pass_on(results, held)
            if batch is not None:
                self._output.collect(batch)

    def _emit_with_marks(self, results: list[tuple[Any, Any]]) -> None:
        rows: list[tuple[Call, Any]] = []
        for pair in results:
            if pair[0] is not WATERMARK:
                rows.append(pair)
                continue
            if rows:
                self._emit_rows(rows)
                rows = []
            if self._is_stopped:
                return
            self._marks -= 1
            mark: list[Watermark | Idleness] = pair[1]
            if mark is self._last_mark:
                self._last_mark = None
            for element in mark:
                self._emit_mark(element)
        if rows:
            self._emit_rows(rows)

    # -- snapshots ----------------------------------------------------------------------------

    def snapshot_state(self, barrier: CheckpointBarrier) -> AsyncWaitState:
        """Everything that was admitted and has not left, with what a restart must know of it."""
        # spec: Chain!Snapshot, Operator!Snapshot
        kept = {} if self._ledger_session is None else self._ledger_session.unsaved_results()
        restored = self._restored
        snapshot_call, now = self._scheduler.snapshot_call, self._scheduler.clock()
        row_of: Callable[[Call], Any] = chained_row if self._is_behind else attrgetter("row")
        entries: list[Entry] = []
        for element, finished, result in self._queue.snapshot():
            if element is WATERMARK:
                entries.append(list(result))
            elif finished:
                entries.append(FinishedRow(row_of(element), result, element.cost, True))
            elif restored and element in restored:
                entries.append(restored[element])
            elif kept and element in kept:
                not_durable, latency = kept[element]
                entries.append(
                    FinishedRow(row_of(element), not_durable, element.cost, False, element.attempt, latency)
                )
            else:
                state = snapshot_call(element, now)
                entries.append(state._replace(row=row_of(element)) if self._is_behind else state)
        left = self._meter.rows_in - sum(type(each) is not list for each in entries)
        scheduler = self._scheduler.snapshot()
        return AsyncWaitState(self._options.ordered, tuple(entries), scheduler, left)

    def restore_state(self, state: Any) -> None:
        """Take over what `snapshot_state` gave, of an operator with the same order.

        Raises ValueError for the state of one with another order, and for another state.
        """
        # spec: Chain!Restore, Operator!Restore
        if not isinstance(state, AsyncWaitState):
            raise ValueError(
                f"operator {self.context.uid!r}: {type(state).__name__} is not the state of an async operator"
            )
        if state.ordered is not self._options.ordered:
            raise ValueError(
                f"ordered={self._options.ordered}: the snapshot of operator {self.context.uid!r} was taken "
                f"with ordered={state.ordered}; restore it so, or begin without it"
            )
        entries: list[tuple[Any, bool, Any]] = []
        for each in state.entries:
            self._last_mark = None
            if isinstance(each, list):
                self._last_mark = mark = list(each)
                self._marks += 1
                entries.append((WATERMARK, True, mark))
                continue
            row = each.row.row if self._is_behind else each.row
            held = size_of(row) if self._weighs else 0
            finished = each if isinstance(each, FinishedRow) and each.is_durable else None
            if finished is not None and self._weighs and type(finished.result) not in _NOT_WEIGHED:
                held += size_of(finished.result)
            # The time of one that was not called begins with its first attempt, as that of any other row.
            is_begun = isinstance(each, CallState) and (each.attempts or each.spent)
            kind: type[Call] = RestoredCall if is_begun else Call
            call = chained_call(kind, each.row, held) if self._is_behind else kind(each.row, held)
            call.cost = each.cost
            if self._ledger_session is not None and not (self._is_behind and type(row) is Failed):
                # In the order of their admission, in which equal rows are counted; a function behind asks for
                # the keys of those that are finished, too.
                self._ledger_session.rows.identify(call)
            if finished is not None:
                entries.append((call, True, finished.result))
            else:
                self._restored[call] = each
                entries.append((call, False, None))
            self._held += held
            self._meter.rows_in += 1
        self._meter.rows_in += state.finished
        self._scheduler.restore(state.scheduler)
        self._queue.restore(entries)

    def _admit_restored(self) -> None:
        """Admit what was restored, as far as there is room; what needs its call waits for it."""
        # spec: Chain!AdmitRestored, Operator!Readmit
        while (admitted := self._queue.admit_restored()) is not None:
            handle, call = admitted
            call.handle = handle
            state = self._restored.pop(call)
            done = self._scheduler.sharing.readmit(call, isinstance(state, FinishedRow))
            if done:
                self._count_in(0, done)
            else:
                self._scheduler.restore_call(call, state)
        if not self._emit_asked and self._queue.has_completed():
            self._ask_to_emit()
        self._scheduler.runner.dispatch()

    # -- what the time goes on ----------------------------------------------------------------

    def _sample(self) -> None:
        self._account()
        if self.watcher is not None:
            self.watcher.beat()
        self._sampler = self._loop.call_later(SAMPLE_INTERVAL_S, self._sample)

    def _account(self) -> None:
        """Add the time since the last look to what it went on."""
        late = 0.0 if self._sampler is None else self._loop.time() - self._sampler.when()
        self._meter.fold()
        busy = min(1.0, self._scheduler.runner.in_flight / self._scheduler.slots.limit)
        idle = self._why_idle()
        self._meter.sample(busy, idle, late)
        self._waits.look(reason_to_wait(self._scheduler, self._ledger_session, idle, self._first_row))

    def _first_row(self) -> Any:
        return next((call.row for call, is_finished, _ in self._queue.snapshot() if not is_finished), None)

    def _why_idle(self) -> str:
        scheduler = self._scheduler
        if self._output_full:
            return "output"
        session = self._ledger_session
        if scheduler.slots.room.holds is not None:
            return "retry"
        if not self._scheduler.runner.limit or (session and session.claimed and not self._waiting):
            return "ledger"
        if scheduler.gate is not None and scheduler.gate.holds:
            breaker = scheduler.policies.load.breaker
            is_cooling = breaker is not None and breaker.is_cooling
            return "retry" if is_cooling else "rate"
        if self._ends:
            return "end" if self._scheduler.runner.in_flight or not scheduler.pausing else "retry"
        if not self.has_room:
            return "order" if self._options.ordered else "retry"
        return "retry" if scheduler.pausing and not self._waiting else "input"
