"""The async operator: admits rows, has their calls made within limits, emits results in the order asked for.

Everything here is confined to the mailbox thread, which is the thread of the job's event loop.
What runs the calls is apart (`coroutines`, `threads`), as is where rows come from (`sources`) and
where results go (`sinks`).

The operator is Flink's `AsyncWaitOperator` (FLIP-12) on its mailbox (FLINK-12477), with two changes:
the window of rows that wait for order is larger than the number of calls in flight, since with a
window as large as the capacity one slow call idles every other slot; and a retry that waits holds
no slot.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, repeat
from typing import Any

from pillarbox.aio.attempts import Attempts
from pillarbox.aio.batch_function import batch_function
from pillarbox.aio.batches import BatchCalls
from pillarbox.aio.blocking import LoopWatcher
from pillarbox.aio.call import Call
from pillarbox.aio.calls import Calls, ResultConverter
from pillarbox.aio.coroutines import CoroutineCalls, collect
from pillarbox.aio.counts import OperatorStatistics
from pillarbox.aio.errors import CallFailed
from pillarbox.aio.failure import Failed
from pillarbox.aio.function import check_function, is_async, is_async_generator
from pillarbox.aio.journal import Journal
from pillarbox.aio.meter import SAMPLE, Meter
from pillarbox.aio.options import Options
from pillarbox.aio.single_flight import JOINED, single_flight
from pillarbox.aio.sinks import Sink
from pillarbox.aio.sizes import SMALL_TYPES, size_of
from pillarbox.aio.sources import Source
from pillarbox.aio.threads import ThreadCalls
from pillarbox.kernel import Mail, OrderedQueue, TaskMailbox, UnorderedQueue
from pillarbox.mailbox import Controller, GuestDriver, MailboxProcessor, Suspension

_NOT_WEIGHED = SMALL_TYPES | {Failed}

LIGHT_SHARE = 1 / 16
"""A window full of results that hold less than this share of `max_bytes` is light."""

LIGHT_RESULTS = 15
"""Results that are not weighed after one that belongs to a light window."""


class AsyncOperator:
    """Carries the rows of a source through `fn` into a sink. Confined to the thread of `loop`.

    context: what each call's context is a copy of. options: their functions of a row get the row; see
    `Options.spread` for rows that are tuples of arguments. journal: where results are kept before they
    leave, or None. convert: makes of a result the form in which it leaves, if it fits what is asked for; one
    that does not is a failed attempt. None for results that leave as they are. watched: whether
    a thread looks for code that blocks the loop.

    The sink gets a `Failed` for a row that failed for good, unless that ends the job. `ended` is a future of
    the loop that is done when the operator has stopped, whatever the reason; the reason itself goes to
    the sink.
    """

    __slots__ = (
        "_attempts",
        "_calls",
        "_closing",
        "_driver",
        "_emit_asked",
        "_emit_mail",
        "_flights",
        "_held",
        "_is_tight",
        "_journal",
        "_light",
        "_light_bytes",
        "_loop",
        "_mailbox",
        "_meter",
        "_no_room",
        "_options",
        "_output_full",
        "_processor",
        "_queue",
        "_result_bytes",
        "_row_bytes",
        "_rows",
        "_sampler",
        "_sink",
        "_source",
        "_stopping",
        "_waiting",
        "_weighs",
        "ended",
        "let_go",
        "watcher",
    )

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        source: Source,
        sink: Sink,
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        spread: bool = False,
        journal: Journal | None = None,
        watched: bool = False,
        convert: ResultConverter | None = None,
    ) -> None:
        self._options = options = options.spread() if spread else options
        self._source = source
        self._sink = sink
        self._loop = loop
        self._queue = (OrderedQueue if options.ordered else UnorderedQueue)(options.window)
        self._mailbox = TaskMailbox()
        self._processor = MailboxProcessor(self._process_input, self._mailbox)
        self._driver = GuestDriver(self._processor, loop, self._processor_ended)
        self._emit_mail = Mail(self._emit, description="emit results")
        self._emit_asked = self._output_full = self._stopping = False
        self._rows: Iterator[Any] | None = None
        self._row_bytes: int | None = None
        self._held = 0
        self._weighs = options.max_bytes is not None
        self._light_bytes = (options.max_bytes or 0) * LIGHT_SHARE / options.window
        self._light = 0
        self._result_bytes = 0.0
        self._is_tight = False
        self._no_room: Suspension | None = None
        self._sampler: asyncio.TimerHandle | None = None
        self.watcher = LoopWatcher(_name_of(fn)) if watched else None
        self._closing: asyncio.Task[BaseException | None] | None = None
        self._journal = journal
        self._flights = single_flight(options.dedupe, options.memo, options.max_bytes)
        self._meter = Meter()
        self._attempts = Attempts(
            options,
            self._meter,
            loop,
            finish=self._way_out(),
            finished=self._finished,
            renew=self._renew,
            stop=self.fail,
            keep_late=None if journal is None else journal.keep_late,
            convert=convert,
        )
        self._waiting = self._attempts.waiting
        self.let_go = self._attempts.let_go
        self._calls = self._make_calls(fn, context, spread, convert)
        self._attempts.calls = self._attempts.capacity.calls = self._calls
        if journal is not None:
            self._attempts.look_first = self._look_first
            self._attempts.look_again = journal.look_again
            journal.bind(
                self._mailbox,
                loop,
                self._waiting,
                options.window,
                complete=self._complete,
                found=self._found_waiting,
                share=self._share_found,
                hold=self._attempts.capacity.hold,
                stop=self.fail,
                convert=self._attempts.convert,
            )
        self.ended: asyncio.Future[None] = loop.create_future()

    def _make_calls(
        self,
        fn: Callable[[Any], Any],
        context: contextvars.Context,
        spread: bool,
        convert: ResultConverter | None,
    ) -> Calls:
        name = _name_of(fn)
        attempts = self._attempts
        if self._options.batch is not None:
            # Once more: of a resource only what entering it gave is known.
            check_function(fn, in_batches=True)
            # What looks at results sees each as the function gave it.
            whole = None if convert is None or attempts.looks_at_results else convert.rows_of
            in_batches = batch_function(fn, name, spread=spread, rows_of=whole)
            return BatchCalls(attempts, self._options.batch, in_batches, name, context, self._loop)
        call = (lambda row: fn(*row)) if spread else fn
        if is_async_generator(fn):
            return CoroutineCalls(attempts, partial(collect, call), name, context, self._loop)
        if is_async(fn):
            return CoroutineCalls(attempts, call, name, context, self._loop)
        return ThreadCalls(attempts, call, name, context, self._loop, self._mailbox)

    def _finished(self) -> int:
        admitted, in_flight = self._meter.rows_in, self._queue.in_flight
        return admitted - (in_flight if self._journal is None else self._journal.unfinished(in_flight))

    # -- life cycle ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the source."""
        self._attempts.start()
        if self.watcher is not None:
            self.watcher.start()
        self._sample()
        self._driver.start()

    def stop(self) -> None:
        """Stop without a result: cancel the calls and drop what is not emitted. Idempotent."""
        self._mailbox.check_is_mailbox_thread()
        self._stop(None)

    def fail(self, error: BaseException) -> None:
        """Stop because of `error`, which goes to the sink. The first one counts."""
        self._mailbox.check_is_mailbox_thread()
        self._stop(error)

    def statistics(self) -> OperatorStatistics:
        """Counts so far. Any thread; the counts are those of one moment on the mailbox thread only there."""
        calls = self._calls
        gate = None if self._attempts.admission is None else self._attempts.admission.gate.statistics()
        return self._meter.statistics(
            in_flight=calls.in_flight,
            waiting=len(self._waiting) + len(self._attempts.pausing),
            late=calls.late,
            abandoned=calls.abandoned,
            finished_waiting=max(0, len(self._queue) - self._queue.in_flight),
            held_bytes=self._held,
            capacity=self._attempts.capacity.limit,
            gate=gate,
        )

    def overdue(self) -> tuple[Call, str, float, float] | None:
        """The call whose deadline comes first: call, limit, seconds, deadline. Any thread, as an estimate."""
        return self._attempts.overdue()

    # -- input: the default action ------------------------------------------------------------

    def _process_input(self, controller: Controller) -> None:
        self._calls.turn()
        if self._rows is None:
            lot = self._source.poll()
            if lot is None:
                self._await_input(controller)
                return
            self._rows, self._row_bytes = lot
        room = self._queue.capacity - len(self._queue)
        most = self._options.max_bytes
        if most is not None and len(self._queue):
            # Where nothing is held, one row is let in whatever it weighs, or nothing would ever come out.
            left = most - self._held - self._sink.held_bytes
            room = min(room, max(0, left // self._row_bytes if self._row_bytes else left))
        elif most is not None and self._row_bytes:
            room = min(room, max(1, most // self._row_bytes))
        if self._admit(room) < room:
            self._rows = None
        else:
            self._no_room = controller.suspend_default_action()
        self._attempts.more_rows = self._no_room is None
        self._calls.feed()

    def _admit(self, room: int) -> int:
        """Let rows in, at most `room`; returns how many there were, or `room` where bytes are the limit."""
        assert self._rows is not None
        put = self._queue.put
        append = self._waiting.append
        flights = self._flights
        size = self._row_bytes
        most = self._options.max_bytes
        weigh = most is not None and size is None
        journal = self._journal
        if journal is None and flights is None and not weigh:
            # The usual case, on the path of every row.
            calls = list(map(Call, islice(self._rows, room), repeat(size or 0)))
            for call in calls:
                call.handle = put(call)
            self._waiting.extend(calls)
            self._meter.rows_in += len(calls)
            if most is not None:
                self._held += len(calls) * (size or 0)
            return len(calls)
        admitted = 0
        done: list[tuple[Call, Any]] = []
        for row in islice(self._rows, room):
            call = Call(row, size_of(row) if weigh else size or 0)
            call.handle = put(call)
            admitted += 1
            if journal is not None and (found := journal.look(call)) is not None:
                done.append((call, found))
            elif flights is None:
                append(call)
            else:
                try:
                    self._board(flights.board(call), call)
                except BaseException as error:
                    done.append((call, error))
            if weigh:
                self._held += call.held
                if self._held >= most:  # type: ignore[operator]
                    self._count_in(admitted, done)
                    return room
        self._count_in(admitted, done)
        if most is not None and size is not None:
            self._held += admitted * size
        return admitted

    def _count_in(self, admitted: int, done: list[tuple[Call, Any]]) -> None:
        """So many rows were let in; some have a result by now, which was found, or cannot be called."""
        self._meter.rows_in += admitted
        for call, outcome in done:
            if self._stopping:
                return
            if isinstance(outcome, tuple):
                self._take_found(call, outcome[0])
            elif outcome is JOINED:
                self._meter.shared += 1
            else:
                self._attempts.fail_call(call, CallFailed(0, outcome))

    def _board(self, found: Any, call: Call) -> None:
        if found is None:
            self._waiting.append(call)
            return
        self._meter.shared += 1
        if found is not JOINED:
            self._hand_on(call, found[0])

    def _await_input(self, controller: Controller) -> None:
        if not self._source.ended:
            suspension = controller.suspend_default_action()
            if not self._source.arm(suspension.resume):
                suspension.resume()
        elif len(self._queue) == 0:
            controller.all_actions_completed()
        else:
            # Everything in flight is waited for, at its own times; the emission that takes out the
            # last entry resumes the default action, which then ends the loop.
            self._no_room = controller.suspend_default_action()
            self._attempts.more_rows = False
            self._calls.feed()

    # -- output -------------------------------------------------------------------------------

    def _renew(self, call: Call) -> None:
        call.handle = self._queue.renew(call.handle)

    def _complete(self, call: Call, result: Any) -> None:
        if self._weighs and type(result) not in _NOT_WEIGHED:
            if self._light:
                self._light -= 1
            else:
                self._weigh(call, result)
        self._queue.complete(call.handle, result)
        if not self._emit_asked and self._queue.has_completed():
            self._ask_to_emit()

    def _weigh(self, call: Call, result: Any) -> None:
        """Count the bytes of a result to those that are held, and begin no call whose result has no room."""
        size = size_of(result)
        call.held += size
        self._held += size
        # The mean of some ten results.
        self._result_bytes += (size - self._result_bytes) * 0.1 if self._result_bytes else size
        if self._result_bytes < self._light_bytes:
            self._light = LIGHT_RESULTS
        most = self._options.max_bytes
        if self._is_tight or self._result_bytes * self._attempts.capacity.limit > most - self._held:  # type: ignore[operator]
            self._allow_calls()

    def _allow_calls(self) -> None:
        """Let so many calls be in flight as will find room for their results, and one to go on with."""
        options = self._options
        capacity = self._attempts.capacity
        in_call = 1 if options.batch is None else options.batch.size
        left = options.max_bytes - self._held - self._sink.held_bytes  # type: ignore[operator]
        room = int(left / (self._result_bytes * in_call)) if self._result_bytes else capacity.limit
        self._is_tight = room < capacity.limit
        # Where the output is full, its next room looks again; otherwise one call must go on, or none would.
        capacity.allow(max(room, 0 if self._output_full else 1) if self._is_tight else None)

    def _way_out(self) -> Callable[[Call, Any], None]:
        """Where rows that have finished go first: as straight to the queue as the options allow."""
        if self._flights is not None:
            return self._finish_shared
        return self._complete if self._journal is None else self._hand_on

    def _finish_shared(self, call: Call, result: Any) -> None:
        self._share(call, result)
        self._hand_on(call, result)

    def _share(self, call: Call, result: Any) -> None:
        assert self._flights is not None
        shared = self._flights.land(call, result)
        if shared and type(result) is Failed:
            self._attempts.count_shared(result, len(shared))
        for sharing in shared:
            self._hand_on(sharing, result, call)

    def _hand_on(self, call: Call, result: Any, called: Call | None = None) -> None:
        """`call` has a result, perhaps of another row's call: by way of the journal, where there is one."""
        if self._journal is None:
            self._complete(call, result)
        else:
            substitute = (called or call).error is not None and type(result) is not Failed
            self._journal.keep(call, result, is_substitute=substitute)

    def _look_first(self, rows: int = 1) -> bool:
        """Return True if the first `rows` rows that wait may be called; of none, if any may.

        Those whose call another attempt has made are finished, and wait no more.
        """
        journal, waiting = self._journal, self._waiting
        assert journal is not None
        if not journal.may_call():
            return False
        looked = 0
        while looked < min(rows, len(waiting)):
            looked += not journal.look_again(waiting[looked])
        return bool(waiting) or not rows

    def _found_waiting(self, call: Call, result: Any) -> None:
        """Another attempt of this task has made the call that `call` waits for."""
        self._attempts.withdraw(call)
        if self._flights is not None:
            self._share(call, result)
        self._take_found(call, result)

    def _share_found(self, call: Call, result: Any) -> None:
        """A row that has joined the call of another one with its key gets that one's result."""
        if type(result) is Failed:
            self._attempts.count_shared(result, 1)
        self._complete(call, result)

    def _take_found(self, call: Call, result: Any) -> None:
        if type(result) is Failed:
            self._attempts.count_shared(result, 1)
        if type(result) is not Failed or not result.not_called:
            self._meter.found += 1
        self._complete(call, result)

    def _ask_to_emit(self) -> None:
        if not self._stopping:
            self._emit_asked = True
            self._mailbox.put(self._emit_mail)

    def _emit(self) -> None:
        if not self._sink.has_room:
            # The request to emit stands until then.
            self._output_full = True
            self._sink.call_when_room(self._ask_to_emit)
            if self._is_tight:
                self._allow_calls()
            return
        self._emit_asked = self._output_full = False
        room = self._sink.room
        results = self._queue.emit_many(room)
        self._meter.results += len(results)
        held = 0
        if self._weighs:
            held = sum([call.held for call, _ in results])
            self._held -= held
        self._sink.emit(results, held)
        if room is not None and self._queue.has_completed():
            self._ask_to_emit()
        if self._is_tight:
            self._allow_calls()
        if self._no_room is not None:
            self._no_room.resume()
            self._no_room = None

    # -- what the time goes on ----------------------------------------------------------------

    def _sample(self) -> None:
        self._account()
        if self.watcher is not None:
            self.watcher.beat()
        self._sampler = self._loop.call_later(SAMPLE, self._sample)

    def _account(self) -> None:
        """Add the time since the last look to what it went on."""
        late = 0.0 if self._sampler is None else self._loop.time() - self._sampler.when()
        self._meter.fold()
        busy = min(1.0, self._calls.in_flight / self._attempts.capacity.limit)
        self._meter.sample(busy, self._why_idle(), late)

    def _why_idle(self) -> str:
        attempts = self._attempts
        if self._output_full:
            return "output"
        if not self._calls.limit:
            return "ledger"
        if attempts.admission is not None and attempts.admission.holds:
            is_cooling = attempts.breaker is not None and attempts.breaker.is_cooling
            return "retry" if is_cooling else "rate"
        if self._source.ended and self._rows is None:
            return "end" if self._calls.in_flight or not attempts.pausing else "retry"
        if self._no_room is not None:
            return "order" if self._options.ordered else "retry"
        return "retry" if attempts.pausing and not self._waiting else "input"

    # -- the end ------------------------------------------------------------------------------

    def _processor_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._stop(error)
        elif not self._stopping:
            try:
                self._attempts.check_end()
            except Exception as failed:
                self._stop(failed)
                return
            self._stopping = True
            self._close()
            self._end_with(None, is_whole=True)

    def _stop(self, error: BaseException | None) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._processor.all_actions_completed()
        self._close()
        self._end_with(error)

    def _close(self) -> None:
        # Calls that held the loop up until the end would leave no trace otherwise.
        self._account()
        self._source.close()
        self._attempts.close()
        self._queue.close()
        if self._journal is not None:
            self._journal.stop()
        if self._sampler is not None:
            self._sampler.cancel()
        if self.watcher is not None:
            self.watcher.close()

    def _end_with(self, error: BaseException | None, *, is_whole: bool = False) -> None:
        def has_closed(closing: asyncio.Task[BaseException | None]) -> None:
            self._meter.fold()
            failure = error
            if failure is None and not closing.cancelled() and closing.exception() is None:
                failure = closing.result()
            if failure is None:
                self._sink.finish()
            else:
                self._sink.fail(failure)
            if not self.ended.done():
                self.ended.set_result(None)

        # In a callback: where the end of the loop cancels the task before its first step, none of it runs.
        self._closing = self._loop.create_task(self._closed(is_whole))
        self._closing.add_done_callback(has_closed)

    async def _closed(self, is_whole: bool) -> BaseException | None:
        """Close what the operator has used; returns what a job fails with that is whole otherwise."""
        await self._attempts.closed()
        failure = None if self._journal is None else await self._journal.close(is_whole)
        self._processor.prepare_close()
        self._processor.close()
        return failure


def _name_of(fn: Callable[[Any], Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)
