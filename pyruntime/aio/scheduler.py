"""Schedules the calls of one operator: attempts begun, ended, timed out, tried again, given up.

Confined to the mailbox thread. The operator admits rows and emits results; a runner takes calls from
`waiting` and tells here how each attempt ended.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.aio.calls import Call, CallDeadlines, CallState, ResultConverter, clock_of, state_of
from pillarbox.aio.error_policy import ErrorPolicy, FailureCounts, FirstFailure
from pillarbox.aio.errors import CallFailed, CallTimeout, Failed, ResultRejected, ServiceResting
from pillarbox.aio.function import ParsingConverter, value_of
from pillarbox.aio.options import Options
from pillarbox.aio.retry import RetryPolicy, asked_delay
from pillarbox.aio.runners import Runner
from pillarbox.aio.shared_calls import single_flight
from pillarbox.aio.throttle import CircuitBreaker, Throttle, open_throttle
from pillarbox.aio.usage import CostTracker, Meter, Result, Usage, UsageMissing, repeats_of
from pillarbox.aio.worker_room import WorkerRoom
from pillarbox.kernel import OrderedQueue, UnorderedQueue
from pillarbox.lacks import Lack, lack_in
from pillarbox.wire import is_overload, is_unreached, is_unsent, may_have_poison_row

if TYPE_CHECKING:
    from pillarbox.aio.ledger_session import LedgerSession
    from pillarbox.aio.snapshots import FinishedRow


class SchedulerState(NamedTuple):
    """The part of a snapshot that is about all calls together."""

    failures: FailureCounts
    retries: Any
    calls: int
    cost: float


class CallScheduler:
    """Follows each call from its first attempt to its outcome.

    name: that of the function, for errors. context: what each call's context is a copy of. queue: has a
    handle for each attempt. complete: takes a row and its result, once for each. stop: takes the error that
    ends the job. convert: makes of results the form in which they leave; what it raises is the error of the
    attempt. session: where results are recorded before they leave, or None.
    `runner` is set by the operator before anything runs. `is_closed` says that every call has been forgotten.
    `restored` are rows of a snapshot that wait for their admission, with their states.
    """

    # Each row reads these: slots are faster than the dictionary of an object with so many attributes.
    __slots__ = (
        *("attempt_timeouts", "breaker", "clock", "complete", "context", "convert", "convert_all", "costs"),
        *("convert_fallback", "flights", "is_closed", "looks_at_results", "loop", "meter", "name", "options"),
        *("can_break", "elements_of", "pausing", "queue", "rejects_results", "restored", "room", "rows_of"),
        *("runner", "session", "stop", "throttle", "waiting", "_adaptive", "_allowed", "_counted", "_plain"),
        *("_deadlines", "_error_policy", "_finish_call", "_held", "_retry", "_spent_before", "_timeouts"),
    )

    runner: Runner

    def __init__(
        self,
        options: Options,
        meter: Meter,
        loop: asyncio.AbstractEventLoop,
        *,
        name: str,
        context: contextvars.Context,
        queue: OrderedQueue | UnorderedQueue,
        complete: Callable[[Call, Any], None],
        stop: Callable[[BaseException], None],
        convert: ResultConverter | None = None,
        session: LedgerSession | None = None,
    ) -> None:
        self.options = options
        self.meter = meter
        self.name = name
        self.context = context
        self.waiting: deque[Call] = deque()
        self.pausing: set[Call] = set()
        self.restored: dict[Call, CallState | FinishedRow] = {}
        self.queue = queue
        self.complete = complete
        self.stop = stop
        self.loop = loop
        self.session = session
        # Equal rows share their calls.
        self.flights = single_flight(options.dedupe, options.buffer.max_bytes)
        # The way of rows that have finished: as straight to the queue as the options allow.
        straight = complete if session is None else self.hand_on
        self._finish_call = straight if self.flights is None else self._finish_shared
        self.convert = None if convert is None else convert.convert
        self.convert_all = None if convert is None else convert.convert_all
        # What stands for a result is nothing that could be parsed.
        self.convert_fallback = (
            convert.convert_value if isinstance(convert, ParsingConverter) else self.convert
        )
        self.is_closed = False
        self.rows_of = None if convert is None else convert.rows_of
        self.elements_of = None if convert is None else convert.elements_of
        self.clock = clock = clock_of(loop)
        self._error_policy = ErrorPolicy(options, meter, clock)
        self._retry = None if options.retry is None else RetryPolicy(options.retry, clock)
        self._counted = self._retry if self._retry is not None and self._retry.counts_attempts else None
        self._adaptive = None if options.adaptive is None else options.adaptive.open(clock)
        # Whether no call may begin; how many may be in flight as results find room, and as the process has.
        self._held = False
        self._allowed: int | None = None
        self.room = WorkerRoom(options.max_capacity, name, loop, partial(self.guarded, self.set_limit), stop)
        # Results that nobody looks at take the short way.
        self.rejects_results = self._retry is not None and self._retry.checks_results
        budget = options.budget
        self.looks_at_results = (
            self.rejects_results or budget.usage is not None or budget.max_cost is not None
        )
        # There is a breaker since the service was overloaded, or not reached, for the first time.
        self.breaker: CircuitBreaker | None = None
        self.can_break = self._retry is not None and self._retry.max_outage > 0.0
        self.throttle = open_throttle(options, self.can_break, loop, self._dispatch_guarded)
        limiter = None if self.throttle is None else self.throttle.limiter
        self.costs = CostTracker(budget, meter, limiter, clock, options.errors.redaction)
        # Calls and cost of the lives before, of which a snapshot has told.
        self._spent_before = 0, 0.0
        # By the limit that they are of.
        self._deadlines: list[tuple[str, CallDeadlines[Any]]] = []
        self._timeouts = self._make_deadlines("timeout", options.timeout.total, self._timed_out)
        # A batch has one time to live for all of its rows, and is itself the key.
        self.attempt_timeouts = self._make_deadlines(
            "timeout.attempt", options.timeout.attempt, self._attempt_timed_out
        )
        # The usual case, on the path of every row: a call that has one attempt and ends when it ends.
        attends = self._adaptive or self._retry or self._timeouts or self.attempt_timeouts
        self._plain = not (self.looks_at_results or attends)

    def _make_deadlines(
        self, limit: str, seconds: float | None, expired: Callable[[Any], None]
    ) -> CallDeadlines[Any] | None:
        if seconds is None:
            return None
        deadlines: CallDeadlines[Any] = CallDeadlines(self.loop, seconds, partial(self.guarded, expired))
        self._deadlines.append((limit, deadlines))
        return deadlines

    def close(self) -> None:
        """Forget every call: no timer fires any more, nothing is tried again."""
        self.is_closed = True
        self.waiting.clear()
        for call in self.pausing:
            if call.pause is not None:
                call.pause.cancel()
        self.pausing.clear()
        for _, deadlines in self._deadlines:
            deadlines.close()
        self.room.close()
        if self.throttle is not None:
            self.throttle.stop()

    async def closed(self) -> None:
        """Wait until no call runs any more, for a time, and until the throttle has closed."""
        try:
            await self.runner.close()
        finally:
            if self.throttle is not None:
                await self.throttle.close()

    def guarded(self, fn: Callable[..., None], *args: Any) -> None:
        """Call `fn(*args)`; what it raises ends the job. For timers, whose errors would only be logged."""
        try:
            fn(*args)
        except BaseException as error:
            self.stop(error)

    def overdue(self) -> tuple[Call, str, float, float] | None:
        """The call whose deadline comes first: call, limit, seconds, deadline. Any thread, as an estimate."""
        found = []
        for limit, deadlines in self._deadlines:
            if (oldest := deadlines.oldest()) is not None:
                call = oldest[0] if isinstance(oldest[0], Call) else oldest[0].calls[0]
                found.append((call, limit, deadlines.seconds, oldest[1]))
        return min(found, key=lambda late: late[3], default=None)

    def _finished(self) -> int:
        """Rows that have finished, those included that had before a restore."""
        unfinished = self.queue.in_flight + len(self.restored)
        if self.session is not None:
            unfinished = self.session.unfinished(unfinished)
        return self.meter.rows_in - unfinished

    def check_end(self) -> None:
        """All rows have finished; raises `TooManyFailures` if a larger fraction failed than is allowed."""
        self._error_policy.check_end(self._finished())

    @property
    def first_failure(self) -> FirstFailure | None:
        """The error of the first row that failed for good; None before. Any thread."""
        return self._error_policy.first

    # -- how many calls -----------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Calls in flight, at most, as given or as found so far, unless they are held back."""
        limit = self.options.max_capacity if self._adaptive is None else self._adaptive.limit
        return min(limit, self.room.limit)

    def hold(self, held: bool) -> None:
        """Let no call begin for now, or again; those in flight go on."""
        # spec: Feeding!Hold, Feeding!Release
        self._held = held
        self.set_limit()

    def allow(self, calls: int | None) -> None:
        """Let so many calls be in flight as find room for their results; None where that is not a limit."""
        if calls != self._allowed:
            self._allowed = calls
            self.set_limit()

    def set_limit(self) -> None:
        """Have the limits of calls in flight hold from now on."""
        # spec: Feeding!Found
        allowed = self.limit if self._allowed is None else min(self.limit, self._allowed)
        limit = 0 if self._held or self.room.holds is not None else allowed
        grown = limit > self.runner.limit
        self.runner.limit = limit
        if grown:
            self.runner.dispatch()

    # -- which call is next -------------------------------------------------------------------

    def next_call(self) -> Call | None:
        """Take the next call that may begin out of `waiting`, which is not empty; None if none may."""
        if self.session is not None and not self.session.look_first():
            return None
        waiting, throttle = self.waiting, self.throttle
        if throttle is None:
            return waiting.popleft()
        while waiting and not throttle.holds:
            call = waiting[0]
            try:
                units = throttle.weigh(call)
            except BaseException as error:
                waiting.popleft()
                self.fail_call(call, CallFailed(call.attempt, error))
                continue
            return waiting.popleft() if self.admits(units) else None
        return None

    def admits(self, units: float) -> bool:
        """Return True if the throttle lets a call of so many units begin; otherwise it dispatches later.

        Where what is allowed is used up, no row that waits is called any more.
        """
        throttle = self.throttle
        assert throttle is not None
        if throttle.admit(units):
            return True
        if throttle.exhausted is not None and not throttle.holds:
            waiting = [*self.waiting]
            self.waiting.clear()
            self.mark(waiting, throttle.exhausted)
        return False

    def _dispatch_guarded(self) -> None:
        # To ask a limiter may raise, and a timer has nobody who would see it.
        self.guarded(self.runner.dispatch)

    # -- what the runners say -----------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """An attempt of `call` begins now."""
        # spec: Chain!Start, Operator!Start
        call.began = self.clock()
        call.attempt += 1
        self.meter.calls += 1
        if self._plain:
            return
        if self.attempt_timeouts is not None:
            call.attempt_deadline = self.attempt_timeouts.arm(call)
        if call.attempt > 1:
            call.handle = self.queue.renew(call.handle)
        elif self._timeouts is not None and call.deadline < 0:
            call.deadline = self._timeouts.arm(call)
        if self._counted is not None:
            self._counted.began(call.attempt)

    def begin_all(self, calls: list[Call]) -> None:
        """An attempt of each of `calls`, which are one batch, begins now."""
        now = self.clock()
        self.meter.calls += len(calls)
        self.meter.batches += 1
        timeouts = self._timeouts
        for call in calls:
            call.began = now
            call.attempt += 1
            if call.attempt > 1:
                call.handle = self.queue.renew(call.handle)
            elif timeouts is not None and call.deadline < 0:
                call.deadline = timeouts.arm(call)
        if self._counted is not None:
            # Once, as a batch that is tried again is one retry.
            self._counted.began(min(call.attempt for call in calls))

    def succeeded(self, call: Call, result: Any) -> None:
        """The attempt of `call` that runs ended with `result`."""
        # spec: Chain!Complete, Feeding!Succeed, Operator!Answer
        ended = self.clock()
        if self._plain and type(result) is not Result:
            if self.convert is not None:
                try:
                    result = self.convert(result)
                except Exception as error:
                    self.row_failed(call, error)
                    return
            self.meter.ended.append(ended - call.began)
            self._finish_call(call, result)
            return
        if self.attempt_timeouts is not None:
            self.attempt_timeouts.cancel(call.attempt_deadline)
        rejected = self.row_succeeded(call, result, ended)
        if rejected is not None:
            self.overloaded(rejected)
        else:
            self.answered(ended - call.began)

    def failed(self, call: Call, error: BaseException, timed_out: CallTimeout | None = None) -> None:
        """The attempt of `call` that runs ended with `error`, which its function raised.

        timed_out: where the attempt met a limit of time, what the row fails with unless it is tried again.
        """
        if self.attempt_timeouts is not None:
            self.attempt_timeouts.cancel(call.attempt_deadline)
        self.bill_error([call], error)
        if lack_in(error) is None:
            self.overloaded(error, call.is_first)
        self.row_failed(call, error, timed_out)

    def row_succeeded(
        self, call: Call, result: Any, ended: float, is_billed: bool = False
    ) -> Exception | None:
        """Take the result of the row of `call`, there since `ended`; returns the error if the result is bad.

        The row is finished then, or it waits for its retry. is_billed: it is known what the call used.
        """
        if self.looks_at_results or type(result) is Result:
            try:
                if not is_billed:
                    result = self.costs.bill_result(call, result)
                retry = self._retry
                is_bad = self.rejects_results and retry is not None and retry.rejects(result)
                rejected = ResultRejected(result) if is_bad else None
            except UsageMissing as missing:
                # Every other call would be paid for as well, and its result be lost.
                self.stop(missing)
                return None
            except BaseException as error:
                # A hook that raises fails the row: without an answer it would wait for ever.
                if not self._returns(call, error):
                    self.fail_call(call, CallFailed(call.attempt, error))
                return None
            if rejected is not None:
                self.row_failed(call, rejected)
                return rejected
        if self.convert is not None:
            try:
                result = self.convert(result)
            except Exception as error:
                self.row_failed(call, error)
                return error
        if call.attempt == 1:
            self.meter.ended.append(ended - call.began)
        else:
            call.error = None
            self.meter.ended_again.append(ended - call.began)
            self.meter.rows_ended_again.append(ended - call.started)
        self._finish(call, result)
        return None

    def rows_succeeded(self, calls: list[Call], results: list[Any], ended: float) -> None:
        """The rows of `calls`, called together, have converted results since `ended`, and nobody looks."""
        seconds = ended - calls[0].began
        again = [call for call in calls if call.attempt > 1]
        meter = self.meter
        meter.ended += [seconds] * (len(calls) - len(again))
        for call in again:
            call.error = None
            meter.ended_again.append(seconds)
            meter.rows_ended_again.append(ended - call.started)
        if self._timeouts is not None:
            for call in calls:
                self._timeouts.cancel(call.deadline)
        if self.session is not None and self.flights is None and self.session.record_all(calls, results):
            return
        finish = self._finish_call
        for call, result in zip(calls, results, strict=True):
            finish(call, result)

    def row_failed(self, call: Call, error: BaseException, timed_out: CallTimeout | None = None) -> None:
        """The row of `call` failed with `error`, by itself or in a batch: it is tried again or fails."""
        # spec: Chain!Fail, Feeding!Fail, Operator!Fail
        if self._returns(call, error):
            return
        self.measure_failed(call)
        try:
            pause = self.pause([call], error)
        except BaseException as raised:
            self.fail_call(call, CallFailed(call.attempt, raised))
            return
        if pause is None:
            self.fail_call(call, CallFailed(call.attempt, error) if timed_out is None else timed_out)
            return
        self.meter.count_retries(error, 1)
        call.error = error
        self._make_later(call, pause)

    def _returns(self, call: Call, error: BaseException) -> bool:
        """Have `call` made again if its process lacked something for it; False if `error` is another one."""
        if (found := lack_in(error)) and (pause := self.take_back([call], *found)) is not None:
            self._make_later(call, pause)
        return found is not None

    def _make_later(self, call: Call, pause: float) -> None:
        self.pausing.add(call)
        call.pause = self.loop.call_later(pause, self.guarded, self._pause_over, call)

    def take_back(self, calls: list[Call], lack: Lack, error: BaseException) -> float | None:
        """Take back an attempt of `calls` that lacked something of the process, of one call.

        Returns the seconds until they may be called again; None where it ends the job.
        """
        # spec: Operator!Return
        pause = self.room.took_back(lack, error, self.runner.others, self._finished())
        self.set_limit()
        if self.throttle is not None:
            self.throttle.give_back(calls)
        for call in calls:
            call.take_back()
            if not call.attempt and type(call) is Call and self._timeouts is not None:
                # Its time begins with the call that is made.
                self._timeouts.cancel(call.deadline)
                call.deadline = -1
        return pause

    def pause(self, calls: list[Call], error: BaseException) -> float | None:
        """Seconds until the attempt that follows after `error`; None if there is none.

        `calls` were called together and have had as many charged attempts. Raises what a predicate of the
        user raises.
        """
        if self.is_closed:
            return None
        if self._asks_again(calls, error):
            return 0.0
        retry = self._retry
        if retry is None:
            return None
        first = calls[0]
        if not retry.waits_out or not self._is_refusal(error):
            return retry.pause(first.charged, error)
        breaker = self._open_breaker()
        now = self.loop.time()
        for call in calls:
            if call.refused_since is None:
                call.refused_since = now
        assert first.refused_since is not None
        if breaker.is_given_up(first.refused_since):
            return None
        for call in calls:
            call.uncharged += 1
            call.refusals += 1
        # While all calls are held back, this row need not wait longer than they do.
        return retry.pause_of_overload(1 if breaker.is_cooling else first.refusals, error)

    def _asks_again(self, calls: list[Call], error: BaseException) -> bool:
        """Return True if `error` asks for another attempt at once, and may still do so, and count that."""
        # spec: Operator!AskAgain
        repeats = repeats_of(error)
        if not repeats and self._retry is not None and is_unsent(error):
            # Nothing of the request was read: a kept connection was closed. It is asked whether it is wanted.
            repeats = int(self._retry.pause_of_overload(1, error) is not None)
        if any(call.repeats >= repeats for call in calls):
            return False
        for call in calls:
            call.repeats += 1
            call.uncharged += 1
        # From now on there are calls that have more than one attempt.
        self._plain = False
        return True

    def answered(self, seconds: float) -> None:
        """Tell what holds calls back of an attempt, of a row or a batch, that succeeded after so long."""
        if self._adaptive is not None:
            self._adaptive.succeeded(seconds)
            self.set_limit()
        if self.breaker is not None:
            self.breaker.succeeded()

    def overloaded(self, error: BaseException, is_first: bool = False) -> None:
        """Tell what holds calls back of an attempt that failed, the first charged to its row or another."""
        if self.throttle is None and self._adaptive is None and not self.can_break:
            return
        overload = is_overload(error)
        if self._adaptive is not None and not isinstance(error, ServiceResting):
            self._adaptive.failed(overload)
            self.set_limit()
        if not overload:
            if self.can_break and is_unreached(error):
                self._open_breaker().unreached(is_first)
                return
            # An answer, though no good one, tells that the service is there; that it was late does not.
            is_late = isinstance(error, TimeoutError | asyncio.TimeoutError)
            if self.breaker is not None and not is_late and may_have_poison_row(error):
                self.breaker.succeeded()
            return
        if self.can_break:
            self._open_breaker()
        if self.throttle is not None:
            begun = min(self.meter.calls, 2 * self.limit)
            self.throttle.cool_down(asked_delay(self._retry, error), begun, error)

    def _is_refusal(self, error: BaseException) -> bool:
        """Return True if an attempt that ended with `error` is not charged to its rows."""
        if is_overload(error):
            return True
        return self.breaker is not None and self.breaker.is_outage and is_unreached(error)

    def _open_breaker(self) -> CircuitBreaker:
        if self.breaker is None:
            retry = self._retry
            assert retry is not None
            reached = self._finished()
            answered = min(reached, self.limit)
            self.breaker = CircuitBreaker(
                self.loop.time, retry.backoff, retry.max_outage, answered, reached, self.runner.in_flight
            )
            # spec: Feeding!GateAppears
            if self.throttle is None:
                self.throttle = Throttle(None, None, self.loop, self._dispatch_guarded)
            self.throttle.breaker = self.breaker
        return self.breaker

    def fail_call(self, call: Call, error: CallFailed | CallTimeout) -> None:
        """`call` has failed for good. On the mailbox thread."""
        try:
            if isinstance(error, CallFailed) and (found := lack_in(error.cause)) is not None:
                # In what is ours, or in a hook: nothing of it is the row's.
                raise self.room.error_of(*found)
            if self.breaker is not None and isinstance(error, CallFailed) and self._is_refusal(error.cause):
                self.breaker.explain(call, error)
            result = self._error_policy.of_failure(call, error, self._finished() + 1)
            if self.convert_fallback is not None and type(result) is not Failed:
                # What stands for a time-out fits as an answer must.
                try:
                    result = self.convert_fallback(result)
                except Exception as misfit:
                    error = CallFailed(call.attempt, misfit)
                    result = self._error_policy.of_failure(call, error, self._finished() + 1)
        except BaseException as ending:
            self.stop(ending)
            return
        call.error = error
        if call.attempt > 0:
            self.meter.rows_ended_again.append(call.elapsed(self.clock()))
        self._finish(call, result)

    def discard(self, calls: Iterable[Call]) -> None:
        """Calls whose rows nobody wants: they are not made, or are cancelled; the rows get None.

        One that has a result, or shares that of another row, goes on.
        """
        waiting = {*self.waiting}
        for call in calls:
            if call.execution is not None or call in self.pausing or call in waiting:
                self.withdraw(call)
                call.error = asyncio.CancelledError()
                self._finish(call, None)
        self.runner.dispatch()

    def withdraw(self, call: Call) -> None:
        """`call` waits, is about to be made again or runs: it is not made, or what it brings is ignored."""
        if self._timeouts is not None:
            self._timeouts.cancel(call.deadline)
        if self.attempt_timeouts is not None:
            self.attempt_timeouts.cancel(call.attempt_deadline)
        self._take_back(call)
        if call.attempt > 0:
            self.meter.rows_ended_again.append(call.elapsed(self.clock()))

    def suspend(self, call: Call) -> None:
        """`call`, which waits, may not begin before `resume`."""
        self.waiting.remove(call)
        self.pausing.add(call)

    def resume(self, calls: Sequence[Call]) -> None:
        """These may begin as soon as there are slots."""
        now = self.loop.time()
        # Before the rows that have not been tried: in order, they would wait for these anyway. Not before
        # one that the throttle holds back, which might wait for ever.
        place = 1 if self.throttle is not None and self.throttle.holds else 0
        for call in reversed(calls):
            self.pausing.discard(call)
            call.waits_since = now
            self.waiting.insert(place, call)
        self.runner.dispatch()

    def mark(self, calls: list[Call], limit: str) -> None:
        """`calls` are not called, or not again, since `limit` is used up. They can be done later."""
        for call in calls:
            self._finish(call, self._error_policy.of_no_call(call, limit))

    def late(self, call: Call, result: Any, is_billed: bool = False) -> None:
        """A result came too late for its attempt: it counts where it is paid for, and where it is kept."""
        if self.is_closed:
            return
        cost = 0.0
        if not is_billed:
            result, cost = self.costs.bill_late(call, result)
        if self.session is not None and not self.rejects_results:
            try:
                converted = result if self.convert is None else self.convert(result)
            except Exception:
                # The row is called again, as after any answer that is none.
                return
            self.session.record_late(call, converted, cost)

    def bill_request(self, calls: Sequence[Call], usage: Usage, seconds: float, knows_cost: bool) -> None:
        """Count what one request of a call that still runs used. On an event loop, of any thread."""
        if asyncio.get_running_loop() is not self.loop:
            # A blocking function may have a loop of its own.
            self.loop.call_soon_threadsafe(self.bill_request, calls, usage, seconds, knows_cost)
        elif not self.is_closed:
            self.costs.bill_request(calls, usage, seconds, knows_cost)

    def bill_error(self, calls: list[Call], error: BaseException) -> None:
        """Count what a call for the rows of `calls` used that failed with `error`, if the error says so."""
        if not self.is_closed and (missing := self.costs.bill_error(calls, error)) is not None:
            self.stop(missing)

    def measure_failed(self, call: Call) -> None:
        """An attempt of `call` has ended without a result."""
        if call.attempt == 1:
            if type(call) is Call:
                call.started = call.began
            call.uncharged = call.refusals = call.repeats = 0
            call.refused_since = None
        self.meter.ended_again.append(self.clock() - call.began)

    # -- results, on their way to the queue ---------------------------------------------------

    def _finish(self, call: Call, result: Any) -> None:
        if self._timeouts is not None:
            self._timeouts.cancel(call.deadline)
        self._finish_call(call, result)

    def _finish_shared(self, call: Call, result: Any) -> None:
        self._share(call, result)
        self.hand_on(call, result)

    def _share(self, call: Call, result: Any) -> None:
        shared = () if self.flights is None else self.flights.resolve(call, result)
        if shared and type(result) is Failed:
            self._count_shared(result, len(shared))
        for sharing in shared:
            # Each may change its own.
            self.hand_on(sharing, self.flights.copied(result), call)  # type: ignore[union-attr]

    def hand_on(self, call: Call, result: Any, called: Call | None = None) -> None:
        """`call` has a result, perhaps of another row's call: by way of the ledger, where there is one."""
        if self.session is None:
            self.complete(call, result)
        else:
            substitute = (called or call).error is not None and type(result) is not Failed
            self.session.record(call, result, is_substitute=substitute)

    def replay(self, call: Call, result: Any) -> None:
        """`call`, which waits, gets what another attempt of the task, or another task, has kept."""
        self.withdraw(call)
        self._share(call, result)
        self.take_found(call, value_of(result))

    def share_found(self, call: Call, result: Any) -> None:
        """A row gets a result that counts as that of another row: found, or of a call that it had joined."""
        if type(result) is Failed:
            self._count_shared(result, 1)
        self.complete(call, result)

    def take_found(self, call: Call, result: Any) -> None:
        """A row gets the result that the ledger has for it."""
        self.meter.found += type(result) is not Failed or not result.not_called
        self.share_found(call, result)

    def _count_shared(self, failed: Failed, rows: int) -> None:
        self.guarded(self._error_policy.count_shared, failed, rows, self._finished() + 1 + rows)

    # -- snapshots ----------------------------------------------------------------------------

    def snapshot(self) -> SchedulerState:
        """The state that a restart needs of all calls so far."""
        counts = None if self.throttle is None else self.throttle.statistics()
        # The limiter counts those of this life only.
        calls, cost = self._spent_before
        return SchedulerState(
            self._error_policy.snapshot(),
            None if self._retry is None else self._retry.snapshot(),
            calls if counts is None else calls + counts.granted,
            cost if counts is None else cost + counts.cost,
        )

    def restore(self, state: SchedulerState) -> None:
        """Go on from a snapshot. Before `start`. With a ledger the budget is the run's, which knows more."""
        self._error_policy.restore(state.failures)
        self._spent_before = state.calls, state.cost
        if self._retry is not None:
            self._retry.restore(state.retries)
        limiter = None if self.throttle is None else self.throttle.limiter
        if limiter is not None and self.options.ledger is None and self.options.limits is None:
            limiter.count_before("snapshot", state.calls, state.cost)

    def snapshot_call(self, call: Call, now: float) -> CallState:
        """The state that a restart needs of a row that is not finished; now: by `clock`."""
        return state_of(call, now, self.loop, call in self.pausing)

    def restore_call(self, call: Call, state: CallState) -> None:
        """Have the call of a restored row made, when its pause is over; what it has spent counts."""
        # spec: Chain!AdmitRestored
        call.started = self.clock() - state.spent
        if self._timeouts is not None and (state.attempts or state.spent):
            call.deadline = self._timeouts.arm_rest(call, state.spent)
        call.attempt, call.cost = state.attempts, state.cost
        if state.attempts:
            # It may have asked for its next attempt itself, where `retry` has none. Where nobody looks at
            # attempts, nothing takes its error back, and a result would pass for a substitute.
            self._plain = False
            call.error = state.error
            # It may end before its next attempt begins.
            call.began = self.clock()
            call.uncharged, call.refusals, call.repeats = state.uncharged, state.refusals, state.repeats
            since = state.refused_for
            call.refused_since = None if since is None else self.loop.time() - since
        if self.options.batch is not None:
            # Rows that come are given these; these have come before.
            call.waits_since = self.loop.time()
            try:
                call.weight = self.options.batch.weight_of(call.row)
            except BaseException as raised:
                self.fail_call(call, CallFailed(call.attempt, raised))
                return
        if state.pause is None:
            self.waiting.append(call)
        else:
            self._make_later(call, state.pause)

    # -- timers -------------------------------------------------------------------------------

    def _pause_over(self, call: Call) -> None:
        # spec: Chain!PauseOver, Feeding!PauseOver
        call.pause = None
        self.resume([call])

    def attempt_timeout(self, call: Call) -> CallTimeout:
        """The error of `call` whose attempt has met its limit of time."""
        assert self.attempt_timeouts is not None
        return CallTimeout("timeout.attempt", self.attempt_timeouts.seconds, call.attempt)

    def _attempt_timed_out(self, begun: Any) -> None:
        """The attempt of a call met its limit, or that of a batch, for those of its rows that wait for it."""
        calls: list[Call] = [begun] if isinstance(begun, Call) else begun.waited_for()
        self.meter.timeouts += len(calls)
        for call in calls:
            self.runner.revoke(call)
        self.runner.attempt_timed_out(begun, calls, self.attempt_timeout(calls[0]))

    def _timed_out(self, call: Call) -> None:
        # spec: Chain!TimePasses, Feeding!TimeOut, Operator!TimeOut
        self.meter.timeouts += 1
        if self.attempt_timeouts is not None:
            self.attempt_timeouts.cancel(call.attempt_deadline)
        self._take_back(call)
        assert self._timeouts is not None
        error = CallTimeout("timeout", self._timeouts.seconds, call.attempt)
        self.overloaded(error)
        if call.error is not None:
            error.detail = f"The attempt before ended with {self._error_policy.told(call, call.error)}"
        self.fail_call(call, error)

    def _take_back(self, call: Call) -> None:
        if call.execution is not None:
            self.runner.revoke(call)
        elif call in self.pausing:
            if call.pause is not None:
                call.pause.cancel()
                call.pause = None
            self.pausing.discard(call)
        else:
            self.waiting.remove(call)
