"""Schedules the calls of one operator that are made in batches: which rows, and what follows their failures.

Confined to the mailbox thread. `BatchRunner` makes the calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import groupby, islice, repeat, starmap
from operator import attrgetter
from typing import Any

from pillarbox.aio.batches.batch_execution import BatchExecution
from pillarbox.aio.batches.batch_filler import BatchFiller
from pillarbox.aio.batches.batch_search import BatchSearch, Inquiry
from pillarbox.aio.calls import ATTEMPT, BEGAN, EXECUTION, Call
from pillarbox.aio.causes import Cause, cause_of
from pillarbox.aio.errors import BatchResultError, CallFailed
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import Options
from pillarbox.aio.policy import HookFailed
from pillarbox.aio.runners import RunnerHooks
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.usage import Result
from pillarbox.aio.worker_room import is_of_rows
from pillarbox.lacks import Lack, lack_in
from pillarbox.wire import is_overload, is_unreached, may_have_poison_row


class BatchQueue:
    """The batches of an operator that are to be called again, and what is known of why they failed.

    again: those that may be called now, before rows that wait. pausing: those that wait for their retry.
    kept: rows of both, and of `pool`, whose rows wait for what an inquiry finds. rows_first: rows that the
    gate has held back are the next ones.
    """

    __slots__ = ("again", "filler", "kept", "pausing", "pool", "rows_first", "search")

    def __init__(self, name: str, size: int) -> None:
        self.again: deque[BatchExecution] = deque()
        self.pausing: set[BatchExecution] = set()
        self.kept = 0
        self.rows_first = False
        self.search = BatchSearch(name, size)
        self.pool = BatchExecution([])
        self.filler: BatchFiller | None = None

    def close(self) -> None:
        """Call nothing any more."""
        if self.filler is not None:
            self.filler.close()
        for batch in self.pausing:
            if batch.timer is not None:
                batch.timer.cancel()
        self.pausing.clear()
        self.again.clear()


class BatchScheduler(CallScheduler):
    """Follows the calls of one operator that are made in batches.

    `BatchFiller` decides which rows make a batch, and when. A batch whose call failed is called again whole,
    if the retry says so; otherwise its halves are called, down to the rows that fail alone, unless no row
    can be the cause of the error. The calls of a batch that was taken apart were not attempts of its rows: a
    row that is called alone has all its attempts, so that an error that passes costs no row that has done
    nothing.
    """

    # To fail all rows of a batch for one of them is what users of batches fear; to call each row alone
    # after a failure costs as many calls as the batch was to save. Halving needs 2 log2(n) calls for one
    # poison row of n. With many of them, or where the service itself is ill, it needs more than n: hence
    # errors that any row would meet (`may_have_poison_row`) take no batch apart.

    # Besides those of a scheduler of single calls.
    __slots__ = ("_batches",)

    def __init__(
        self, options: Options, meter: Meter, loop: asyncio.AbstractEventLoop, **others: Any
    ) -> None:
        super().__init__(options, meter, loop, **others)
        assert options.batch is not None
        self._batches = BatchQueue(others["name"], options.batch.size)

    def fill(self, more_rows: Callable[[], bool]) -> None:
        """Fill batches from now on. more_rows: returns True if rows may come before any result has left."""
        batch = self.options.batch
        assert batch is not None
        weighs = batch.weight is not None or self.policies.load.weighs
        weigh = self._weigh_row if weighs else None
        self._batches.filler = BatchFiller(batch, self.loop, weigh, more_rows, self._wake)

    def note_arrivals(self) -> None:
        """Note when the rows came that have come since the last time, and what they weigh."""
        filler = self._batches.filler
        assert filler is not None
        for call, error in filler.note_arrivals(self.waiting):
            if self.is_closed:
                return
            self.fail_call(call, CallFailed(call.attempt, error))

    def may_start(self, starting: int, running: int) -> bool:
        """Return True if there may be a batch to call."""
        return bool(self.waiting or self._batches.again)

    def _weigh_row(self, call: Call) -> None:
        assert self.options.batch is not None
        call.weight = self.options.batch.weight_of(call.row)
        try:
            self.weigh(call)
        except HookFailed as failed:
            raise failed.cause from None

    def hooks(self) -> RunnerHooks:
        """The functions by which a runner takes batches and reports their ends."""
        hooks = super().hooks()
        return hooks._replace(take=self.next_batch, begin=self.begin_batch, ended=self.batch_ended)

    def suggest_rows(self, rows: float) -> None:
        """Put no more rows into a batch that has not been called: the function says so of its service."""
        self._batches.search.suggested = rows

    def revoke(self, call: Call) -> None:
        """Take `call` out of its batch, which goes on for the others and is cancelled when none is left."""
        queue, batch = self._batches, call.execution
        if batch.task is not None:
            super().revoke(call)
            if not batch.left:
                self._disarm(batch)
                self._leader_ended(batch)
            return
        # Of a batch that is to be called again.
        call.execution = None
        self.pausing.discard(call)
        queue.kept -= 1
        if batch is queue.pool:
            queue.search.inquiry.calls.remove(call)  # type: ignore[union-attr]
            return
        batch.calls.remove(call)
        if batch.calls:
            return
        if batch.timer is not None:
            batch.timer.cancel()
            queue.pausing.discard(batch)
        else:
            queue.again.remove(batch)
        self._leader_ended(batch)

    def close(self) -> None:
        """Forget every call; batches that pause are called no more."""
        super().close()
        self._batches.close()

    def _weigh_restored(self, call: Call) -> bool:
        # Rows that come are given these; these have come before.
        call.waits_since = self.loop.time()
        try:
            assert self.options.batch is not None
            call.weight = self.options.batch.weight_of(call.row)
        except BaseException as raised:
            self.fail_call(call, CallFailed(call.attempt, raised))
            return False
        return True

    # -- which call is next -------------------------------------------------------------------

    def next_batch(self, _: Any = None) -> BatchExecution | None:
        """Take the next batch that may be called now."""
        while not self.is_closed:
            try:
                batch = self._next()
            except HookFailed as failed:
                # Of the rows that were to be called next.
                for call in self._take_next():
                    self.fail_call(call, CallFailed(call.attempt, failed.cause))
                continue
            if batch is not None:
                EXECUTION.put(batch.calls, batch)
            return batch
        return None

    def _take_next(self) -> list[Call]:
        """Take the rows that the gate was asked about, which are not called."""
        if self._batches.again and not self._batches.rows_first:
            batch = self._take_again()
            self._leader_ended(batch)
            return batch.calls
        return [self.waiting.popleft() for _ in range(max(1, self._rows_now()))]

    def _take_again(self) -> BatchExecution:
        """Take the first batch that is to be called again; its rows are carried by nothing."""
        batch = self._batches.again.popleft()
        self._batches.kept -= len(batch.calls)
        self.pausing.difference_update(batch.calls)
        EXECUTION.put(batch.calls, None)
        return batch

    def _next(self) -> BatchExecution | None:
        queue, gate, session = self._batches, self.gate, self.sharing.session
        if gate is not None and gate.holds:
            return None
        if queue.search.holds:
            # Rows that were not called wait for what is found.
            queue.rows_first = False
            if not queue.again:
                return None
        if queue.again and not queue.rows_first:
            batch = queue.again[0]
            if session is not None:
                if not session.look_first(0):
                    return None
                # Rows that have got a result have left it.
                if any(session.look_again(call) for call in [*batch.calls]):
                    return self._next()
            if not self._admits_batch(batch.calls):
                return None
            return self._take_again()
        rows = self._rows_now()
        if rows and session is not None:
            if not session.look_first(rows):
                return None
            rows = min(rows, self._rows_now())
        if not rows:
            # Nothing there after all: it may have timed out.
            if queue.rows_first:
                queue.rows_first = False
                return self._next()
            return None
        if gate is not None and not self._admits_batch([*islice(self.waiting, rows)]):
            # What is tried again must not overtake what the gate holds back: that might wait for ever.
            queue.rows_first = bool(self.waiting)
            return None
        queue.rows_first = False
        queue.search.began(rows)
        # No line of Python runs for each row.
        return BatchExecution([*starmap(self.waiting.popleft, repeat((), rows))])

    def _rows_now(self) -> int:
        queue = self._batches
        assert queue.filler is not None
        # Whole batches that pause bring no row for this one.
        return queue.filler.rows_now(self.waiting, queue.search.rows_now(), len(self.pausing) > queue.kept)

    def _admits_batch(self, calls: list[Call]) -> bool:
        """Return True if `calls` may be called together now, and count them."""
        if self.gate is None:
            return True
        for call in calls:
            self.weigh(call)
        if self.admits(calls):
            return True
        if self.gate.exhausted is not None:
            while self._batches.again:
                self.mark(self._take_again().calls, self.gate.exhausted)
            self.mark(self._end_inquiry(), self.gate.exhausted)
        return False

    def begin_batch(self, batch: BatchExecution) -> bool:
        """An attempt of the rows of `batch` that still wait for it begins now; False if there is none.

        Rows may have timed out since its task was made: they are not called, and count for no call.
        """
        batch.calls = calls = batch.waited_for()
        if not calls or self.is_closed:
            return False
        now = self.clock()
        self.meter.calls += len(calls)
        self.meter.batches += 1
        BEGAN.put(calls, now)
        total = self.times.total
        if total is None and ATTEMPT.holds(calls, 0):
            # As most are.
            ATTEMPT.put(calls, 1)
        else:
            for call in calls:
                call.attempt += 1
                if call.attempt > 1:
                    call.handle = self.queue.renew(call.handle)
                elif total is not None and call.deadline < 0:
                    call.deadline = total.arm(call)
        if self.times.attempt is not None:
            batch.deadline = self.times.attempt.arm(batch)
        stack = self.policies.stack
        if (stack.choose or stack.begin) and not self.begin_policies(calls):
            batch.calls = []
            return False
        return True

    # -- one call -----------------------------------------------------------------------------

    def batch_ended(
        self, batch: BatchExecution, results: list[Any] | Result, error: BaseException | None
    ) -> None:
        """Settle a batch whose call ended: a result or an error for each row, or one error for all."""
        self._disarm(batch)
        # What has answers in the turn in which the job ends is kept, and not paid for again.
        if self.is_closed and (error is not None or not batch.left):
            return
        calls = batch.calls
        # Where all rows timed out before the call began, nothing was called.
        if error is not None and calls:
            self.bill_error(calls, error)
        is_billed = False
        if isinstance(results, Result):
            if results.usage is not None:
                is_billed = self.policies.costs.bill_batch(calls, results.usage)
            results = results.value
        assert isinstance(results, list)
        sent = len(calls)
        if sent - batch.left:
            if not isinstance(error, asyncio.CancelledError):
                self._rows_came_late(batch, results, is_billed)
            results = [
                result for call, result in zip(calls, results, strict=False) if call.execution is batch
            ]
            calls = batch.waited_for()
        if calls:
            EXECUTION.put(calls, None)
            if error is None:
                if self._succeeded(calls, results, is_billed):
                    self._batches.search.succeeded(sent, not batch.is_part)
                    self._leader_ended(batch, sent)
            else:
                self._batch_failed(calls, batch, error)
        if not self.is_closed:
            self._leader_ended(batch)

    def _rows_came_late(self, batch: BatchExecution, results: list[Any], is_billed: bool) -> None:
        gone = [place for place, call in enumerate(batch.calls) if call.execution is not batch]
        for place in gone:
            call = batch.calls[place]
            if place >= len(results):
                self.meter.late += 1
            elif isinstance(results[place], BaseException):
                self.late(call, None, results[place])
            else:
                self.late(call, results[place], None, is_billed)

    def _succeeded(self, calls: list[Call], results: list[Any], is_billed: bool) -> bool:
        """There is a result or an error for each row; the call is told of once, by its worst.

        Returns True if a row has a result.
        """
        ended = self.clock()
        seconds = ended - calls[0].began
        errors: list[BaseException] = []
        is_said = is_billed or self.policies.costs.bills_requests
        looks = self.policies.looks_beside_costs if is_said else self.policies.looks_at_results
        # By their types, of which there are few: most batches have results alone.
        for kind in {*map(type, results)}:
            if issubclass(kind, BaseException):
                errors = [result for result in results if isinstance(result, BaseException)]
            looks = looks or kind is Result
        if not errors and not looks and (fitting := self._converted(results)):
            self._rows_succeeded(calls, fitting, ended)
        else:
            was_closed = self.is_closed
            for call, result in zip(calls, results, strict=True):
                if isinstance(result, BaseException):
                    self.bill_error([call], result)
                    # Of those in one batch only the first ends the job.
                    if was_closed or not self.is_closed:
                        self.row_failed(call, result)
                else:
                    rejected = self.row_succeeded(call, result, ended, is_billed)
                    if rejected is not None:
                        errors.append(rejected)
        if self.is_closed:
            return False
        overloads = [error for error in errors if is_overload(error)]
        if overloads:
            self.observe(calls, overloads[0], seconds)
        elif len(errors) == len(calls) and all(map(is_unreached, errors)):
            self.observe(calls, errors[0], seconds)
        else:
            self.observe(calls, None, seconds)
        return len(errors) < len(calls)

    def _batch_failed(
        self, calls: list[Call], batch: BatchExecution, error: BaseException, timed_out: bool = False
    ) -> None:
        """The call of `batch` gave no results: these are called again, or parts of them, or they fail."""
        found = lack_in(error)
        if found is not None:
            self._return(calls, batch, *found)
            return
        self.observe(calls, error, self.clock() - calls[0].began)
        for call in calls:
            self.measure_failed(call)
            call.error = error
        if isinstance(error, BatchResultError):
            self._fail(calls, error, False)
            return
        is_late = timed_out or isinstance(error, TimeoutError | asyncio.TimeoutError)
        cause = cause_of(error) if not is_late and may_have_poison_row(error) else None
        inquiry, sent = self._batches.search.inquiry, len(batch.calls)
        if inquiry is not None and inquiry.leader is batch and inquiry.high:
            self._tried(inquiry, calls, batch, error, cause)
            return
        if cause is not None and sent > 1:
            self._batches.search.failed(cause, calls[0].attempt == 1)
            if inquiry is not None and inquiry.cause == cause and inquiry.leader is not batch:
                self._wait_for(inquiry, calls)
                return
        had = attrgetter("charged", "repeats")
        for _, group in groupby(sorted(calls, key=had), had):
            self._try_again([*group], batch, error, timed_out, cause)

    def _try_again(
        self,
        calls: list[Call],
        failed: BatchExecution,
        error: BaseException,
        timed_out: bool,
        cause: Cause | None,
    ) -> None:
        """Settle the rows of `failed` that have had as many attempts."""
        sent = len(failed.calls)
        if may_have_poison_row(error):
            failed.is_suspect = True
        try:
            # A part is taken apart at once: to call it again whole would be for the one row that is to blame.
            splits_now = sent > 1 and failed.is_part and may_have_poison_row(error)
            pause = None if splits_now else self.again(calls, error)
        except BaseException as raised:
            self._fail(calls, raised, False)
            return
        if pause is not None:
            self.meter.count_retries(error, len(calls))
            batch = self._call_later(calls, failed, pause)
            inquiry = self._batches.search.inquiry
            if inquiry is not None:
                inquiry.leader = batch if inquiry.leader is failed else inquiry.leader
            elif cause is not None and self._batches.search.is_worth_it(cause, sent, failed.is_part):
                self._batches.search.inquiry = Inquiry(cause, batch)
        elif sent > 1 and failed.is_suspect:
            self.meter.count_retries(error, len(calls))
            if cause is not None and self._inquire(calls, failed, cause):
                return
            # Without the others a part may do well, and no row fails for another.
            middle = len(calls) // 2 if len(calls) == sent else 0
            # At once, and before all others: most of their rows are as good as finished.
            self._call_parts([part for part in (calls[:middle], calls[middle:]) if part])
        else:
            if cause is not None and sent == 1:
                self._batches.search.failed_alone(cause)
            self._fail(calls, error, timed_out)

    def _return(self, calls: list[Call], ended: BatchExecution, lack: Lack, error: BaseException) -> None:
        """Have rows called again whose process lacked something for their call."""
        pause = self.take_back(calls, lack, error)
        if pause is None:
            return
        inquiry = self._batches.search.inquiry
        if pause and len(calls) > 1 and is_of_rows(lack) and inquiry is None:
            # Alone it had too little: fewer rows may do.
            middle = len(calls) // 2
            self._call_parts([calls[:middle], calls[middle:]])
            return
        batch = self._call_later(calls, ended, pause)
        if inquiry is not None and inquiry.leader is ended:
            inquiry.leader = batch

    def _call_later(self, calls: list[Call], failed: BatchExecution, pause: float) -> BatchExecution:
        batch = self._keep(calls, failed.is_part, failed.is_suspect)
        batch.timer = self.loop.call_later(pause, self.guarded, self._batch_pause_over, batch)
        self._batches.pausing.add(batch)
        return batch

    def _call_parts(self, parts: list[list[Call]]) -> None:
        """Call parts of a batch that failed, before all others; that counts as no attempt of a row."""
        for part in parts:
            for call in part:
                call.uncharged = call.attempt
        self._batches.again.extendleft(self._keep(part, True) for part in reversed(parts))

    # -- inquiries: what batches that fail alike wait for ----------------------------------------

    def _inquire(self, calls: list[Call], failed: BatchExecution, cause: Cause) -> bool:
        """Look into why `failed` has failed, for all batches that do. False where it is not worth it."""
        search, sent = self._batches.search, len(failed.calls)
        if sent > search.most:
            # Of before the size was known, or larger to see whether that is still so.
            self._call_parts(_chunks(calls, search.most))
            return True
        inquiry = search.inquiry
        if inquiry is None and search.is_worth_it(cause, sent, failed.is_part):
            inquiry = search.inquiry = Inquiry(cause, None)
            self._gather(inquiry)
        elif inquiry is None or inquiry.leader is not failed or inquiry.cause != cause:
            return False
        inquiry.leader = None
        self._wait_for(inquiry, calls)
        inquiry.sent = inquiry.high = sent
        self._go_on(inquiry)
        return True

    def _gather(self, inquiry: Inquiry) -> None:
        """Have parts that failed alike, and would be called now, wait as well."""
        others = []
        for batch in self._batches.again:
            error = batch.calls[0].error
            if batch.is_part and error is not None and cause_of(error) == inquiry.cause:
                self._batches.kept -= len(batch.calls)
                self._wait_for(inquiry, batch.calls)
            else:
                others.append(batch)
        self._batches.again = deque(others)

    def _wait_for(self, inquiry: Inquiry, calls: list[Call]) -> None:
        """Have `calls` wait for what is found."""
        for call in calls:
            call.execution = self._batches.pool
        inquiry.calls.extend(calls)
        self._batches.kept += len(calls)
        self.pausing.update(calls)

    def _go_on(self, inquiry: Inquiry) -> None:
        """Call the next rows."""
        if not inquiry.calls:
            self._batches.search.inquiry = None
            return
        calls = inquiry.next_calls()
        self._batches.kept -= len(calls)
        for call in calls:
            call.uncharged = call.attempt
        inquiry.leader = batch = self._keep(calls, True)
        self._batches.again.appendleft(batch)

    def _tried(
        self,
        inquiry: Inquiry,
        calls: list[Call],
        batch: BatchExecution,
        error: BaseException,
        cause: Cause | None,
    ) -> None:
        """Rows that were called for all have failed."""
        search, sent = self._batches.search, len(batch.calls)
        if cause != inquiry.cause:
            try:
                pause = self.again(calls, error)
            except BaseException as raised:
                inquiry.leader = None
                self._fail(calls, raised, False)
                self._release()
                return
            if pause is not None:
                self.meter.count_retries(error, len(calls))
                inquiry.leader = self._call_later(calls, batch, pause)
                return
        inquiry.leader = None
        self._wait_for(inquiry, calls)
        if cause != inquiry.cause:
            self._release()
        elif inquiry.is_sizing:
            # Those that have just failed are the next ones.
            inquiry.calls.rotate(len(calls))
            inquiry.well, inquiry.high = 0, min(inquiry.high, sent)
            if sent <= inquiry.low:
                self._release()
            else:
                self._look_at_size(inquiry)
        else:
            inquiry.failed_alone += 1
            if search.is_of_all(inquiry):
                for call in self._end_inquiry():
                    assert call.error is not None
                    self._fail([call], call.error, False)
            else:
                self._go_on(inquiry)

    def _look_at_size(self, inquiry: Inquiry) -> None:
        if inquiry.calls and not inquiry.is_over:
            self._go_on(inquiry)
            return
        if 2 * inquiry.low >= inquiry.high:
            self._batches.search.learn(inquiry)
        self._release()

    def _leader_ended(self, batch: BatchExecution, rows: int = 0) -> None:
        """`batch` is called no more; if it was for all, what follows? rows: those of a call that did well."""
        inquiry = self._batches.search.inquiry
        if inquiry is None or inquiry.leader is not batch:
            return
        inquiry.leader = None
        if not inquiry.high:
            self._release()
        elif not rows and not inquiry.is_sizing:
            self._go_on(inquiry)
        elif inquiry.is_sizing or self._batches.search.may_be_of_size(inquiry):
            inquiry.is_sizing = True
            inquiry.low = max(inquiry.low, rows)
            inquiry.well += rows
            self._look_at_size(inquiry)
        else:
            self._release()

    def _release(self) -> None:
        """Call those that wait as any batch that has failed, in parts that may do well."""
        inquiry = self._batches.search.inquiry
        assert inquiry is not None
        calls, most = self._end_inquiry(), self._batches.search.most
        if not inquiry.high:
            # The first has done well after all, and perhaps they do.
            self._batches.again.extend(self._keep(part, False, True) for part in _chunks(calls, most))
        else:
            if most >= inquiry.high:
                self._batches.search.was_in_vain()
            # Most have not been called since they failed together: what was found of the few that have been,
            # down to a single bad row, says nothing of them.
            half = max(1, min(inquiry.sent, most) // 2)
            self._call_parts(_chunks(calls, most if most < inquiry.high else max(half, inquiry.low)))

    def _end_inquiry(self) -> list[Call]:
        """End it; returns the rows that have waited."""
        inquiry, self._batches.search.inquiry = self._batches.search.inquiry, None
        calls = [] if inquiry is None else [*inquiry.calls]
        for call in calls:
            call.execution = None
        self._batches.kept -= len(calls)
        self.pausing.difference_update(calls)
        return calls

    def _keep(self, calls: list[Call], is_part: bool, is_suspect: bool = False) -> BatchExecution:
        batch = BatchExecution(calls, is_part, is_suspect)
        for call in calls:
            call.execution = batch
        self._batches.kept += len(calls)
        self.pausing.update(calls)
        return batch

    def _batch_pause_over(self, batch: BatchExecution) -> None:
        batch.timer = None
        self._batches.pausing.discard(batch)
        self._batches.again.append(batch)
        self.runner.dispatch()

    def _fail(self, calls: list[Call], error: BaseException, timed_out: bool) -> None:
        for call in calls:
            if self.is_closed:
                return
            self.fail_call(call, self.attempt_timeout(call) if timed_out else CallFailed(call.attempt, error))

    def _attempt_timed_out(self, batch: Any) -> None:
        """The call of a batch met its limit of time: its rows are called again, or fail."""
        calls = batch.waited_for()
        self.meter.timeouts += len(calls)
        for call in calls:
            self.revoke(call)
        self._batch_failed(calls, batch, self.attempt_timeout(calls[0]), timed_out=True)
        self.runner.dispatch()

    def _disarm(self, batch: BatchExecution) -> None:
        if self.times.attempt is not None:
            self.times.attempt.cancel(batch.deadline)

    def _converted(self, results: list[Any]) -> list[Any] | None:
        """The results in the form in which they leave; None if any of them does not fit."""
        convert_all = self.policies.fit.convert_all
        if convert_all is None:
            return results
        try:
            return convert_all(results)
        except Exception:
            return None

    def _rows_succeeded(self, calls: list[Call], results: list[Any], ended: float) -> None:
        """Finish rows that were called together, with converted results that no policy looks at."""
        seconds = ended - calls[0].began
        again = [] if ATTEMPT.holds(calls, 1) else [call for call in calls if call.attempt > 1]
        meter = self.meter
        meter.ended += [seconds] * (len(calls) - len(again))
        for call in again:
            call.error = None
            meter.ended_again.append(seconds)
            meter.rows_ended_again.append(ended - call.started)
        if self.times.total is not None:
            for call in calls:
                self.times.total.cancel(call.deadline)
        for report in self.policies.stack.finish:
            for call, result in zip(calls, results, strict=True):
                report(call, result)
        records = None if self.sharing.equals is not None else self.sharing.records
        if records is not None and records.record_all(calls, results):
            return
        if self._operator.complete_all is not None and self.sharing.is_empty:
            self._operator.complete_all(calls, results)
            return
        finish = self._finish_call
        for call, result in zip(calls, results, strict=True):
            finish(call, result)


def _chunks(calls: list[Call], rows: int) -> list[list[Call]]:
    return [calls[first : first + rows] for first in range(0, len(calls), rows)]
