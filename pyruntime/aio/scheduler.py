"""Schedules the calls of one operator: attempts begun, ended, timed out, tried again, given up.

Confined to the mailbox thread. The operator admits rows and emits results; a runner takes calls from here,
and reports how each attempt ended; policies decide. The scheduler alone writes the life of a call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from pillarbox.aio import intervals
from pillarbox.aio.call_flow import CallFlow
from pillarbox.aio.call_sharing import CallSharing
from pillarbox.aio.calls import Call, CallState, OperatorFunctions, state_of
from pillarbox.aio.current_call import CallServices
from pillarbox.aio.deadlines import CallTimes, clock_of
from pillarbox.aio.errors import CallFailed, CallTimeout, Failed
from pillarbox.aio.function import ResultConverter
from pillarbox.aio.gate import Gate, Slots
from pillarbox.aio.ledger_records import LedgerRecords
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.meter import Meter
from pillarbox.aio.operator_policies import OperatorPolicies
from pillarbox.aio.options import Options
from pillarbox.aio.policy import Again, HookFailed, PolicyServices
from pillarbox.aio.result_route import ResultRoute
from pillarbox.aio.runners import Runner, RunnerHooks
from pillarbox.aio.states import FinishedRow, SchedulerState
from pillarbox.aio.usage import Result, Usage, UsageMissing
from pillarbox.aio.worker_room import WorkerRoom
from pillarbox.kernel import OrderedQueue, UnorderedQueue
from pillarbox.lacks import lack_in


class CallScheduler:
    """Follows each call from its first attempt to its outcome.

    name: that of the function, for errors. queue: has a handle for each attempt. convert: makes of results
    the form in which they leave; what it raises is the error of the attempt. session: where results are
    recorded before they leave, or None. `runner` is set by the operator before anything runs. `is_closed`:
    every call has been forgotten.
    """

    # Each row reads these: slots are faster than the dictionary of an object with so many attributes.
    __slots__ = (
        *("clock", "gate", "is_closed", "loop", "meter", "options", "pausing", "policies"),
        *("queue", "route", "runner", "sharing", "slots", "times", "waiting"),
        *("_finish_call", "_is_open", "_operator", "_plain"),
    )

    runner: Runner

    def __init__(
        self,
        options: Options,
        meter: Meter,
        loop: asyncio.AbstractEventLoop,
        *,
        name: str,
        queue: OrderedQueue | UnorderedQueue,
        operator: OperatorFunctions,
        convert: ResultConverter | None = None,
        session: LedgerSession | None = None,
    ) -> None:
        self.options = options
        self.meter = meter
        self.waiting: deque[Call] = deque()
        self.pausing: set[Call] = set()
        self.queue = queue
        self.loop = loop
        self.clock = clock = clock_of(loop)
        self.is_closed = False
        limits, guarding = options.timeout, self._guarding
        self.times: CallTimes[Any] = CallTimes(
            loop, limits.total, limits.attempt, guarding(self._timed_out), guarding(self._attempt_timed_out)
        )
        self.policies = policies = OperatorPolicies(
            options, meter, clock, convert, self.pausing.add, guarding(self._resume_held)
        )
        if policies.by_key is not None:
            # Rows that are not called leave by it too.
            complete = policies.by_key.completing(operator.complete)
            operator = operator._replace(complete=complete, complete_all=None)
        self._operator = operator
        self.sharing = CallSharing(options, policies.stack, session)
        self.route = ResultRoute(self.sharing, meter, operator.complete, guarding(self._count_shared))
        self._finish_call = self.route.of_calls()
        self.slots = Slots(
            options.max_capacity,
            lambda: policies.found,
            lambda changed: WorkerRoom(options.max_capacity, name, loop, guarding(changed), operator.stop),
            self._limit,
        )
        policies.stack.open(
            PolicyServices(
                loop,
                clock,
                options.errors.redaction,
                self._ask_again,
                operator.stop,
                operator.finished,
                lambda: meter.calls,
                lambda: self.runner.in_flight,
                lambda moment: self.runner.running_since(moment),
                lambda: self.slots.limit,
                self.slots.set_limit,
                self._open_gate,
            )
        )
        # Whether calls begin as they come.
        self._is_open = session is None
        # There is a gate where a policy may hold calls back; one of a breaker appears with it.
        self.gate: Gate | None = None
        if policies.stack.may_begin:
            self._open_gate()
        # The usual case, on the path of every row: a call that has one attempt and ends when it ends.
        self._plain = policies.is_plain and limits.total is None and limits.attempt is None

    def start(self) -> None:
        """Let calls begin."""
        self.policies.start(self._ask_again)

    def close(self) -> None:
        """Forget every call: no timer fires any more, nothing is tried again."""
        self.is_closed = True
        self.waiting.clear()
        for call in self.pausing:
            if call.pause is not None:
                call.pause.cancel()
        self.pausing.clear()
        self.times.close()
        self.slots.close()
        if hasattr(self, "runner"):
            self.runner.limit = 0
        if self.gate is not None:
            self.gate.stop()

    async def closed(self) -> None:
        """Wait until no call runs any more, for a time, and close the policies and the limiter."""
        try:
            await self.runner.close()
        finally:
            await self.policies.closed()

    def guarded(self, fn: Callable[..., None], *args: Any) -> None:
        """Call `fn(*args)`; what it raises ends the job. For timers, whose errors would only be logged."""
        try:
            fn(*args)
        except BaseException as error:
            self._operator.stop(error)

    def _guarding(self, fn: Callable[..., None]) -> Callable[..., None]:
        return lambda *args: self.guarded(fn, *args)

    def hooks(self) -> RunnerHooks:
        """The functions by which a runner takes calls and reports their ends."""
        return RunnerHooks(
            services=CallServices(
                self.loop,
                self.clock,
                self.options.timeout,
                self.options.errors.redaction,
                self.bill_request,
                *self.policies.for_calls(),
                self.suggest_rows,
            ),
            gen_ai=self.meter.gen_ai,
            intervals=intervals.INTERVALS,
            most=self.options.max_capacity,
            limit=self.slots.limit,
            is_gated=self.gate is not None,
            arrived=self.note_arrivals,
            may_start=self.may_start,
            take=self.take,
            begin=self.carry,
            ended=self.ended,
            limit_threads=self.slots.limit_threads,
            guarded=self.guarded,
            stop=self._operator.stop,
        )

    def flow(self) -> CallFlow:
        """The functions by which a session with a ledger acts on calls."""
        fit = self.policies.fit
        return CallFlow(
            loop=self.loop,
            clock=self.clock,
            window=self.options.window,
            waiting=self.waiting,
            convert=fit.convert,
            rows_of=fit.rows_of,
            ahead=lambda: self.slots.limit if self.gate is None else 1,
            complete=self._operator.complete,
            replay=self.replay,
            share=self.route.share_found,
            suspend=self.suspend,
            resume=self.resume,
            hold=self.slots.hold,
            stop=self._operator.stop,
        )

    def record_in(self, records: LedgerRecords) -> None:
        """Have results recorded before they leave. Before `start`."""
        self.sharing.records = records
        self._finish_call = self.route.of_calls()

    def suggest_rows(self, rows: float) -> None:
        """Put no more rows into later batches; without batches nothing is done."""

    def overdue(self) -> tuple[Call, str, float, float] | None:
        """The call whose deadline comes first: call, limit, seconds, deadline. Any thread, as an estimate."""
        if (found := self.times.overdue()) is None:
            return None
        key, *limit = found
        return (key if isinstance(key, Call) else key.calls[0], *limit)  # type: ignore[return-value]

    # -- which call is next -------------------------------------------------------------------

    def _limit(self, limit: int) -> None:
        grown = limit > self.runner.limit
        self.runner.limit = limit
        if grown:
            self.runner.dispatch()

    def _open_gate(self) -> None:
        # spec: Feeding!GateAppears
        before = self.gate
        stack = self.policies.stack
        stack.compile("may_begin")
        stack.compile("ended")
        self._is_open = False
        self.gate = Gate(stack.may_begin, self.policies.load, self.loop, self._wake)
        if hasattr(self, "runner"):
            self.runner.is_gated = True
        if before is not None and before.holds:
            # What was held back is asked for again, by all of them.
            before.stop()
            self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        self.guarded(self.runner.dispatch)

    def _ask_again(self) -> None:
        if self.gate is not None:
            self.gate.ask_again()

    def weigh(self, call: Call) -> None:
        """Set the weight of a row at the limiter, once. Raises HookFailed if the user's function raises."""
        if call.units is None and self.policies.load.weighs:
            try:
                call.units = self.policies.load.units_of(call.row)
            except BaseException as raised:
                raise HookFailed(raised) from raised

    def note_arrivals(self) -> None:
        """Note that rows may have come; nothing depends on when they did."""

    def may_start(self, starting: int, running: int) -> bool:
        """Return True if a worker is to start beside those on their way and those that carry calls."""
        if starting >= len(self.waiting):
            return False
        if self.gate is None:
            return starting < max(1, running)
        # One at a time, and each that is let through starts the next: most may be held back.
        return not (self.gate.holds or starting)

    def take(self, execution: Any) -> Call | None:
        """Begin an attempt of the next call that may begin, in `execution`; None if none may."""
        # spec: Chain!Start, Operator!Start
        if self._is_open:
            call = self.waiting.popleft() if self.waiting else None
        elif self.gate is None:
            # Not open, without a gate: it has a ledger. Most rows have waited for their slot only, and the
            # lease was looked at a moment ago.
            waiting, session, call = self.waiting, self.sharing.session, None
            if waiting and session is not None:
                is_trusted, first = monotonic() < session.lease.trusted_until, waiting[0]
                is_known = is_trusted and not first.attempt and first.looked == session.reader.scans
                if is_known or session.look_first():
                    call = waiting.popleft()
        else:
            call = self._next_call(self.gate)
        if call is None:
            return None
        call.execution = execution
        call.began = self.clock()
        call.attempt += 1
        self.meter.calls += 1
        if self._plain:
            return call
        times, stack = self.times, self.policies.stack
        if times.attempt is not None:
            call.attempt_deadline = times.attempt.arm(call)
        if call.attempt > 1:
            call.handle = self.queue.renew(call.handle)
        elif times.total is not None and call.deadline < 0:
            call.deadline = times.total.arm(call)
        if (stack.begin or stack.choose) and not self.begin_policies((call,)):
            return self.take(execution)
        return call

    def carry(self, call: Call, execution: Any) -> None:
        """Have `execution` carry a call that was taken without one."""
        call.execution = execution

    def _next_call(self, gate: Gate) -> Call | None:
        """Take the next call that may begin out of `waiting`; None if none may."""
        waiting, session = self.waiting, self.sharing.session
        if not waiting or (session is not None and not session.look_first()):
            return None
        while waiting and not gate.holds:
            call = waiting[0]
            try:
                if gate.weighs:
                    self.weigh(call)
                is_admitted = gate.admit((call,))
            except HookFailed as failed:
                waiting.popleft()
                self.fail_call(call, CallFailed(call.attempt, failed.cause))
                continue
            if is_admitted:
                return waiting.popleft()
            self._mark_exhausted(gate)
            return None
        return None

    def admits(self, calls: Sequence[Call]) -> bool:
        """Return True if one call of the rows of `calls` may begin now; otherwise there is another dispatch.

        Where what is allowed is used up, no row that waits is called any more.
        """
        gate = self.gate
        if gate is None or gate.admit(calls):
            return True
        self._mark_exhausted(gate)
        return False

    def _mark_exhausted(self, gate: Gate) -> None:
        if gate.exhausted is not None and not gate.holds:
            waiting = [*self.waiting]
            self.waiting.clear()
            self.mark(waiting, gate.exhausted)

    def begin_policies(self, calls: Sequence[Call]) -> bool:
        """Report the begin of an attempt to the policies; False if one raised, so that the rows failed."""
        try:
            for choose in self.policies.stack.choose:
                if (endpoint := choose(calls)) is not None:
                    for call in calls:
                        call.endpoint = endpoint
                    break
            for begin in self.policies.stack.begin:
                begin(calls)
        except BaseException as raised:
            for call in calls:
                call.execution = None
                if self.times.attempt is not None:
                    self.times.attempt.cancel(call.attempt_deadline)
                self.fail_call(call, CallFailed(call.attempt, raised))
            return False
        return True

    # -- what the runners say -----------------------------------------------------------------

    def ended(self, call: Call, execution: Any, result: Any, error: BaseException | None = None) -> None:
        """Settle an attempt of `call`, carried by `execution`, that ended with `result` or with `error`."""
        if call.execution is not execution:
            self.late(call, result, error)
            return
        call.execution = None
        if error is not None:
            self._failed(call, error)
            return
        # spec: Chain!Complete, Feeding!Succeed, Operator!Answer
        ended = self.clock()
        policies = self.policies
        if type(result) is Result or policies.looks_at_results:
            if self.times.attempt is not None:
                self.times.attempt.cancel(call.attempt_deadline)
            rejected = self.row_succeeded(call, result, ended)
        else:
            rejected = None
            if policies.convert is not None:
                try:
                    result = policies.convert(result)
                except Exception as misfit:
                    rejected = misfit
            if self._plain:
                if rejected is None:
                    self.meter.ended.append(ended - call.began)
                    self._finish_call(call, result)
                else:
                    self.row_failed(call, rejected)
                return
            if self.times.attempt is not None:
                self.times.attempt.cancel(call.attempt_deadline)
            if rejected is None:
                self._row_ended(call, result, ended)
            else:
                self.row_failed(call, rejected)
        if rejected is None:
            for answered in policies.stack.answered:
                answered((call,), None, ended - call.began)
        else:
            self.observe((call,), rejected, ended - call.began)

    def _row_ended(self, call: Call, result: Any, ended: float) -> None:
        """Finish a row with its converted result, which came at `ended`."""
        if call.attempt == 1:
            self.meter.ended.append(ended - call.began)
        else:
            call.error = None
            self.meter.ended_again.append(ended - call.began)
            self.meter.rows_ended_again.append(ended - call.started)
        if self.times.total is not None:
            self.times.total.cancel(call.deadline)
        for finish in self.policies.stack.finish:
            finish(call, result)
        self._finish_call(call, result)

    def _failed(self, call: Call, error: BaseException, timed_out: CallTimeout | None = None) -> None:
        """The attempt of `call` that runs ended with `error`, which its function raised.

        timed_out: where the attempt met a limit of time, what the row fails with unless it is tried again.
        """
        if self.times.attempt is not None:
            self.times.attempt.cancel(call.attempt_deadline)
        self.bill_error([call], error)
        if lack_in(error) is None:
            self.observe((call,), error, self.clock() - call.began)
        self.row_failed(call, error, timed_out)

    def observe(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Report an attempt of `calls` that has ended to the policies."""
        stack = self.policies.stack
        for ended in stack.answered if error is None else stack.ended:
            ended(calls, error, seconds)

    def row_succeeded(
        self, call: Call, result: Any, ended: float, is_billed: bool = False
    ) -> Exception | None:
        """Take the result of the row of `call`, there since `ended`; returns the error if the result is bad.

        The row is finished then, or it waits for its retry. is_billed: it is known what the call used.
        """
        policies = self.policies
        try:
            if not is_billed and (policies.costs.looks or type(result) is Result):
                result = policies.costs.accept(call, result)
            for accept in policies.stack.accept:
                result = accept(call, result)
        except UsageMissing as missing:
            # Every other call would be paid for as well, and its result be lost.
            self._operator.stop(missing)
            return None
        except HookFailed as failed:
            # A hook that raises fails the row: without an answer it would wait for ever.
            if not self._returns(call, failed.cause):
                self.fail_call(call, CallFailed(call.attempt, failed.cause))
            return None
        except Exception as error:
            self.row_failed(call, error)
            return error
        self._row_ended(call, result, ended)
        return None

    def row_failed(self, call: Call, error: BaseException, timed_out: CallTimeout | None = None) -> None:
        """The row of `call` failed with `error`, by itself or in a batch: it is tried again or fails."""
        # spec: Chain!Fail, Feeding!Fail, Operator!Fail
        if self._returns(call, error):
            return
        self.measure_failed(call)
        try:
            pause = self.again([call], error)
        except BaseException as raised:
            self.fail_call(call, CallFailed(call.attempt, raised))
            return
        if pause is None:
            self.fail_call(call, CallFailed(call.attempt, error) if timed_out is None else timed_out)
        else:
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

    def take_back(self, calls: list[Call], lack: Any, error: BaseException) -> float | None:
        """Take back an attempt of `calls`, whose process lacked something: seconds to the next, or None."""
        # spec: Operator!Return
        if self.is_closed:
            return None
        pause = self.slots.room.took_back(lack, error, self.runner.others, self._operator.finished())
        self.slots.set_limit()
        self.policies.load.give_back(calls)
        for call in calls:
            call.take_back()
            if not call.attempt and type(call) is Call and self.times.total is not None:
                # Its time begins with the call that is made.
                self.times.total.cancel(call.deadline)
                call.deadline = -1
        return pause

    def again(self, calls: Sequence[Call], error: BaseException) -> float | None:
        """Seconds until the attempt that follows after `error`; None if there is none.

        `calls` were called together and have had as many charged attempts. Raises what a function of the
        user raises.
        """
        if self.is_closed:
            return None
        for decide in self.policies.stack.again:
            if (decision := decide(calls, error)) is not None:
                self._charge(calls, decision)
                return decision.pause
        return None

    def _charge(self, calls: Sequence[Call], decision: Again) -> None:
        charge = decision.charge
        if charge == "attempt":
            return
        if charge == "repeat":
            for call in calls:
                call.repeats += 1
                call.uncharged += 1
            # From now on there are calls that have more than one attempt.
            self._plain = False
            return
        now = self.loop.time()
        for call in calls:
            if call.refused_since is None:
                call.refused_since = now
            if decision.pause is not None:
                call.uncharged += 1
                call.refusals += 1

    def fail_call(self, call: Call, error: CallFailed | CallTimeout) -> None:
        """`call` has failed for good. On the mailbox thread."""
        policies = self.policies
        try:
            if isinstance(error, CallFailed):
                if (found := lack_in(error.cause)) is not None:
                    # In what is ours, or in a hook: nothing of it is the row's.
                    raise self.slots.room.error_of(*found)
                policies.load.explain(call, error)
            result = policies.errors.of_failure(call, error, self._operator.finished() + 1)
            if policies.fit.convert_fallback is not None and type(result) is not Failed:
                # What stands for a time-out fits as an answer must.
                try:
                    result = policies.fit.convert_fallback(result)
                except Exception as misfit:
                    error = CallFailed(call.attempt, misfit)
                    result = policies.errors.of_failure(call, error, self._operator.finished() + 1)
        except BaseException as ending:
            self._operator.stop(ending)
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
        self.times.cancel(call.deadline, call.attempt_deadline)
        self._take_away(call)
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
        # one that the gate holds back, which might wait for ever.
        place = 1 if self.gate is not None and self.gate.holds else 0
        for call in reversed(calls):
            self.pausing.discard(call)
            call.waits_since = now
            self.waiting.insert(place, call)
        self.runner.dispatch()

    def mark(self, calls: list[Call], limit: str) -> None:
        """`calls` are not called, or not again, since `limit` is used up. They can be done later."""
        for call in calls:
            self._finish(call, self.policies.errors.of_no_call(call, limit))

    def late(
        self, call: Call, result: Any, error: BaseException | None = None, is_billed: bool = False
    ) -> None:
        """An attempt ended that nobody waits for: it counts where it is paid for, and where it is kept."""
        if isinstance(error, asyncio.CancelledError):
            return
        self.meter.late += 1
        if error is not None:
            self.bill_error([call], error)
            return
        if self.is_closed:
            return
        cost = 0.0
        if not is_billed:
            result, cost = self.policies.costs.bill_late(call, result)
        if self.sharing.records is not None and not self.policies.rejects:
            try:
                converted = result if self.policies.fit.convert is None else self.policies.fit.convert(result)
            except Exception:
                # The row is called again, as after any answer that is none.
                return
            self.sharing.records.record_late(call, converted, cost)

    def bill_request(self, calls: Sequence[Call], usage: Usage, seconds: float, knows_cost: bool) -> None:
        """Count what one request of a call that still runs used. On an event loop, of any thread."""
        if asyncio.get_running_loop() is not self.loop:
            # A blocking function may have a loop of its own.
            self.loop.call_soon_threadsafe(self.bill_request, calls, usage, seconds, knows_cost)
        elif not self.is_closed:
            self.policies.costs.bill_request(calls, usage, seconds, knows_cost)

    def bill_error(self, calls: list[Call], error: BaseException) -> None:
        """Count what a call for the rows of `calls` used that failed with `error`, if the error says so."""
        if not self.is_closed and (missing := self.policies.costs.bill_error(calls, error)) is not None:
            self._operator.stop(missing)

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
        if self.times.total is not None:
            self.times.total.cancel(call.deadline)
        for finish in self.policies.stack.finish:
            finish(call, result)
        self._finish_call(call, result)

    def replay(self, call: Call, result: Any) -> None:
        """`call`, which waits, gets what another attempt of the task, or another task, has kept."""
        self.withdraw(call)
        self.route.replay(call, result)

    def _count_shared(self, failed: Failed, rows: int) -> None:
        self.policies.errors.count_shared(failed, rows, self._operator.finished() + 1 + rows)

    # -- rows by key --------------------------------------------------------------------------

    def let_through(self, call: Call) -> bool:
        """Return True if a row that is to be called waits for a slot: no other of its key holds it back."""
        by_key = self.policies.by_key
        try:
            return by_key is None or by_key.let_through(call)
        except BaseException as raised:
            self.fail_call(call, CallFailed(call.attempt, raised))
            return False

    def _resume_held(self, calls: Sequence[Call], is_behind: bool) -> None:
        held = [call for call in calls if call in self.pausing]
        ready = [call for call in held if self._weigh_restored(call)]
        self.pausing.difference_update(held)
        if is_behind:
            self.waiting.extend(ready)
            self.runner.dispatch()
        else:
            self.resume(ready)

    # -- snapshots ----------------------------------------------------------------------------

    def snapshot(self) -> SchedulerState:
        """The state that a restart needs of all calls so far."""
        policies = self.policies
        retries, users = policies.snapshot()
        return SchedulerState(policies.errors.snapshot(), retries, *policies.load.spent(), users)

    def restore(self, state: SchedulerState) -> None:
        """Go on from a snapshot. Before `start`."""
        self.policies.errors.restore(state.failures)
        self.policies.restore(state.retries, state.policies)
        self.policies.load.restore_spent(state.calls, state.cost)

    def snapshot_call(self, call: Call, now: float) -> CallState:
        """The state that a restart needs of a row that is not finished; now: by `clock`."""
        return state_of(call, now, self.loop, call in self.pausing)

    def restore_call(self, call: Call, state: CallState | FinishedRow) -> None:
        """Have the call of a restored row made, when its pause is over; what it has spent counts."""
        # spec: Chain!AdmitRestored
        if isinstance(state, FinishedRow):
            # The ledger counts what was paid for.
            call.attempt, call.began = state.attempts, self.clock() - state.latency
            self.route.hand_on(call, state.result)
            return
        call.started = self.clock() - state.spent
        if self.times.total is not None and (state.attempts or state.spent):
            call.deadline = self.times.total.arm_rest(call, state.spent)
        call.attempt = state.attempts
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
        if not (self._weigh_restored(call) and self.let_through(call)):
            return
        if state.pause is None:
            self.waiting.append(call)
        else:
            self._make_later(call, state.pause)

    def _weigh_restored(self, call: Call) -> bool:
        """Give a restored row what rows that come are given; False if it fails for it."""
        return True

    # -- timers -------------------------------------------------------------------------------

    def _pause_over(self, call: Call) -> None:
        # spec: Chain!PauseOver, Feeding!PauseOver
        call.pause = None
        self.resume([call])

    def attempt_timeout(self, call: Call) -> CallTimeout:
        """The error of `call` whose attempt has met its limit of time."""
        assert self.times.attempt is not None
        return CallTimeout("timeout.attempt", self.times.attempt.seconds, call.attempt)

    def _attempt_timed_out(self, call: Call) -> None:
        """The attempt of a call met its limit."""
        self.meter.timeouts += 1
        self.revoke(call)
        error = self.attempt_timeout(call)
        self._failed(call, error, timed_out=error)

    def _timed_out(self, call: Call) -> None:
        # spec: Chain!TimePasses, Feeding!TimeOut, Operator!TimeOut
        self.meter.timeouts += 1
        times, errors = self.times, self.policies.errors
        if times.attempt is not None:
            times.attempt.cancel(call.attempt_deadline)
        self._take_away(call)
        assert times.total is not None
        error = CallTimeout("timeout", times.total.seconds, call.attempt)
        self.observe((call,), error, call.elapsed(self.clock()))
        if call.error is not None:
            error.detail = f"The attempt before ended with {errors.told(call, call.error)}"
        self.fail_call(call, error)

    def revoke(self, call: Call) -> None:
        """Take `call` from what runs it, and have that end; what it still brings is late."""
        execution, call.execution = call.execution, None
        self.runner.revoke(execution, call)

    def _take_away(self, call: Call) -> None:
        if call.execution is not None:
            self.revoke(call)
        elif call in self.pausing:
            if call.pause is not None:
                call.pause.cancel()
                call.pause = None
            self.pausing.discard(call)
        else:
            self.waiting.remove(call)
