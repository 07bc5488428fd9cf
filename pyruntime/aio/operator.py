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
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from pillarbox.aio.call import Call
from pillarbox.aio.coroutines import CoroutineCalls, collect
from pillarbox.aio.counts import OperatorStatistics
from pillarbox.aio.deadlines import Deadlines
from pillarbox.aio.errors import CallFailed, CallTimeout, shorten
from pillarbox.aio.function import is_async, is_async_generator
from pillarbox.aio.options import Options
from pillarbox.aio.sinks import Sink
from pillarbox.aio.sources import Source
from pillarbox.aio.threads import ThreadCalls
from pillarbox.kernel import Mail, OrderedQueue, TaskMailbox, UnorderedQueue
from pillarbox.mailbox import Controller, GuestDriver, MailboxProcessor, Suspension

log = logging.getLogger("pillarbox")


class AsyncOperator:
    """Carries the rows of a source through `fn` into a sink. Confined to the thread of `loop`.

    context: what each call's context is a copy of. spread: a row is a tuple of arguments.
    failed: the result of a row that failed, where errors are null.

    `ended` is a future of the loop that is done when the operator has stopped, whatever the reason;
    the reason itself goes to the sink.
    """

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
        failed: Any = None,
    ) -> None:
        self._options = options
        self._source = source
        self._sink = sink
        self._loop = loop
        self._retry = options.retry
        self._queue = (OrderedQueue if options.ordered else UnorderedQueue)(options.window)
        self._mailbox = TaskMailbox()
        self._processor = MailboxProcessor(self._process_input, self._mailbox)
        self._driver = GuestDriver(self._processor, loop, self._processor_ended)
        self._emit_mail = Mail(self._emit, description="emit results")
        self._emit_asked = False
        self._rows: Iterator[Any] | None = None
        self._no_room: Suspension | None = None
        self._pausing: set[Call] = set()
        self._logged: set[type[BaseException]] = set()
        self.waiting: deque[Call] = deque()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._stopping = False
        self._rows_in = self._results = self._attempts = self._retries = self._errors = self._timeouts = 0

        self._failed = failed
        self._calls: CoroutineCalls | ThreadCalls
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        call = (lambda row: fn(*row)) if spread else fn
        if is_async_generator(fn):
            self._calls = CoroutineCalls(self, partial(collect, call), name, options.capacity, context, loop)
        elif is_async(fn):
            self._calls = CoroutineCalls(self, call, name, options.capacity, context, loop)
        else:
            self._calls = ThreadCalls(self, call, name, options.capacity, context, loop, self._mailbox)
        self._timeouts_of_calls = (
            None
            if options.timeout is None
            else Deadlines[Call](loop, options.timeout, partial(self.guarded, self._timed_out))
        )
        self._timeouts_of_attempts = (
            None
            if options.attempt_timeout is None
            else Deadlines[Call](
                loop, options.attempt_timeout, partial(self.guarded, self._attempt_timed_out)
            )
        )

    # -- life cycle ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the source."""
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
        return OperatorStatistics(
            self._rows_in,
            self._results,
            self._calls.in_flight,
            len(self.waiting) + len(self._pausing),
            self._attempts,
            self._retries,
            self._errors,
            self._timeouts,
            self._calls.late,
            self._calls.abandoned,
        )

    def overdue(self) -> tuple[Call, str, float, float] | None:
        """The call whose deadline comes first: call, limit, seconds, deadline. Any thread, as an estimate."""
        found = []
        for limit, deadlines in (
            ("timeout", self._timeouts_of_calls),
            ("attempt_timeout", self._timeouts_of_attempts),
        ):
            oldest = None if deadlines is None else deadlines.oldest()
            if deadlines is not None and oldest is not None:
                found.append((oldest[0], limit, deadlines.seconds, oldest[1]))
        return min(found, key=lambda late: late[3], default=None)

    def guarded(self, fn: Callable[..., None], *args: Any) -> None:
        """Call `fn(*args)`; what it raises ends the job. For timers, whose errors would only be logged."""
        try:
            fn(*args)
        except BaseException as error:
            self.fail(error)

    # -- input: the default action ------------------------------------------------------------

    def _process_input(self, controller: Controller) -> None:
        self._calls.turn()
        room = self._queue.capacity - len(self._queue)
        if self._rows is None:
            rows = self._source.poll()
            if rows is None:
                self._await_input(controller)
                return
            self._rows = rows
        put = self._queue.put
        append = self.waiting.append
        admitted = 0
        for row in islice(self._rows, room):
            call = Call(row)
            call.handle = put(call)
            append(call)
            admitted += 1
        self._rows_in += admitted
        if admitted < room:
            self._rows = None
        else:
            self._no_room = controller.suspend_default_action()
        self._calls.feed()

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

    # -- calls: what the runners say ----------------------------------------------------------

    def begin(self, call: Call) -> None:
        """An attempt of `call` begins now."""
        call.attempt += 1
        self._attempts += 1
        if self._timeouts_of_attempts is not None:
            call.attempt_deadline = self._timeouts_of_attempts.arm(call)
        if call.attempt > 1:
            call.handle = self._queue.renew(call.handle)
        elif self._timeouts_of_calls is not None:
            call.deadline = self._timeouts_of_calls.arm(call)

    def succeeded(self, call: Call, result: Any) -> None:
        """The attempt of `call` that runs ended with `result`."""
        if self._timeouts_of_attempts is not None:
            self._timeouts_of_attempts.cancel(call.attempt_deadline)
        self._finish(call, result)

    def failed(self, call: Call, error: BaseException) -> None:
        """The attempt of `call` that runs ended with `error`, which its function raised."""
        if self._timeouts_of_attempts is not None:
            self._timeouts_of_attempts.cancel(call.attempt_deadline)
        self._attempt_failed(call, error)

    def _attempt_failed(self, call: Call, error: BaseException, timed_out: CallTimeout | None = None) -> None:
        retry = self._retry
        if retry is not None and retry.applies(call.attempt, error) and not self._stopping:
            self._retries += 1
            self._pausing.add(call)
            call.pause = self._loop.call_later(
                retry.pause(call.attempt), self.guarded, self._pause_over, call
            )
        else:
            self._fail_call(call, CallFailed(call.attempt, error) if timed_out is None else timed_out)

    def _fail_call(self, call: Call, error: CallFailed | CallTimeout) -> None:
        self._errors += 1
        error.row = shorten(call.row)
        if self._options.errors == "null":
            self._log_once(error)
            self._finish(call, self._failed)
        else:
            self._stop(error)

    def _log_once(self, error: CallFailed | CallTimeout) -> None:
        kind = type(error.cause) if isinstance(error, CallFailed) else type(error)
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("a row is null, the first one for %s: %s", kind.__name__, error)

    def _finish(self, call: Call, result: Any) -> None:
        if self._timeouts_of_calls is not None:
            self._timeouts_of_calls.cancel(call.deadline)
        self._queue.complete(call.handle, result)
        if not self._emit_asked and self._queue.has_completed():
            self._ask_to_emit()

    # -- timers -------------------------------------------------------------------------------

    def _pause_over(self, call: Call) -> None:
        call.pause = None
        self._pausing.discard(call)
        # Before the rows that have not been tried: in order, they would wait for this one anyway.
        self.waiting.appendleft(call)
        self._calls.feed()

    def _attempt_timed_out(self, call: Call) -> None:
        self._timeouts += 1
        self._calls.revoke(call)
        assert self._timeouts_of_attempts is not None
        error = CallTimeout("attempt_timeout", self._timeouts_of_attempts.seconds, call.attempt)
        self._attempt_failed(call, error, timed_out=error)

    def _timed_out(self, call: Call) -> None:
        self._timeouts += 1
        if self._timeouts_of_attempts is not None:
            self._timeouts_of_attempts.cancel(call.attempt_deadline)
        if call.runner is not None:
            self._calls.revoke(call)
        elif call.pause is not None:
            call.pause.cancel()
            call.pause = None
            self._pausing.discard(call)
        else:
            self.waiting.remove(call)
        assert self._timeouts_of_calls is not None
        self._fail_call(call, CallTimeout("timeout", self._timeouts_of_calls.seconds, call.attempt))

    # -- output -------------------------------------------------------------------------------

    def _ask_to_emit(self) -> None:
        if not self._stopping:
            self._emit_asked = True
            self._mailbox.put(self._emit_mail)

    def _emit(self) -> None:
        if not self._sink.has_room:
            # The request to emit stands until then.
            self._sink.call_when_room(self._ask_to_emit)
            return
        self._emit_asked = False
        results = self._queue.emit_many()
        self._results += len(results)
        self._sink.emit(results)
        if self._no_room is not None:
            self._no_room.resume()
            self._no_room = None

    # -- the end ------------------------------------------------------------------------------

    def _processor_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._stop(error)
        elif not self._stopping:
            self._stopping = True
            self._close()
            self._loop.create_task(self._closed(self._sink.finish))

    def _stop(self, error: BaseException | None) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._processor.all_actions_completed()
        self._close()
        self._loop.create_task(
            self._closed(lambda: self._sink.finish() if error is None else self._sink.fail(error))
        )

    def _close(self) -> None:
        self._source.close()
        self.waiting.clear()
        for call in self._pausing:
            if call.pause is not None:
                call.pause.cancel()
        self._pausing.clear()
        for deadlines in (self._timeouts_of_calls, self._timeouts_of_attempts):
            if deadlines is not None:
                deadlines.close()
        self._queue.close()

    async def _closed(self, tell_sink: Callable[[], None]) -> None:
        try:
            await self._calls.close()
            self._processor.prepare_close()
            self._processor.close()
        finally:
            tell_sink()
            if not self.ended.done():
                self.ended.set_result(None)
