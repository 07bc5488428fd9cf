"""Runs the calls of a function that takes many rows at once: puts rows together, and takes them apart again.

Confined to the mailbox thread, which is the thread of the event loop; a blocking function runs in threads.
Each call of a batch is a task of its own, in a copy of the job's context: what it does there
reaches no other. There is no task, no timer and no future for a row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from pillarbox.aio.batch_search import BatchSearch, Inquiry
from pillarbox.aio.batching import Batch, BatchFiller
from pillarbox.aio.call_threads import CallThreads
from pillarbox.aio.calls import CURRENT, Call, CurrentCall
from pillarbox.aio.causes import Cause, cause_of
from pillarbox.aio.errors import BatchResultError, CallFailed, CallTimeout
from pillarbox.aio.function import is_async, refuse_awaitable
from pillarbox.aio.runners import Execution, Runner
from pillarbox.aio.usage import Result
from pillarbox.aio.worker_room import is_of_rows
from pillarbox.kernel import TaskMailbox
from pillarbox.lacks import Lack, lack_in
from pillarbox.wire import is_overload, is_unreached, may_have_poison_row

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import CallScheduler

BatchFunction: TypeAlias = Callable[[list[Any]], Awaitable["list[Any] | Result"]]
"""Gives a result for each row; in one `Result` where the function says what the call used."""

_NOT_BY_POSITION = (str, bytes, bytearray, memoryview, Mapping, Set)


class _BatchExecution(Execution):
    """Rows that are called together, once; when they are called again, that is another one.

    Each of `calls` whose `execution` is this one is still waited for, `left` of them. `timer` is of the
    pause before its call, then of its abandonment. `is_part`: they are a part of rows that failed together;
    its call looks for the poison row, and is not an attempt of the others. `is_suspect`: one of their calls,
    with the same rows, failed so that one of them may be a poison row. The last call alone does not tell,
    where errors that pass come between.
    """

    __slots__ = ("calls", "deadline", "is_part", "is_suspect", "left", "started")

    def __init__(self, calls: list[Call], is_part: bool = False, is_suspect: bool = False) -> None:
        super().__init__()
        self.calls = calls
        self.is_part = is_part
        self.is_suspect = is_suspect
        self.left = len(calls)
        self.deadline = -1
        self.started = False

    def waited_for(self) -> list[Call]:
        """Those of its calls that wait for it."""
        return [call for call in self.calls if call.execution is self]

    def release(self, call: Call) -> bool:
        """Take away `call`; the others go on."""
        self.left -= 1
        return not self.left

    def release_all(self) -> None:
        """Take away all calls: no answer of theirs counts."""
        self.left = 0


class BatchRunner(Runner):
    """Carries waiting calls of one operator in batches through a function, `limit` batches at a time.

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

    def __init__(
        self, scheduler: CallScheduler, batch: Batch, fn: BatchFunction, more_rows: Callable[[], bool]
    ) -> None:
        super().__init__(scheduler, fn)
        self._pausing: set[_BatchExecution] = set()
        self._again: deque[_BatchExecution] = deque()
        self._rows_first = False
        # Batches whose tasks have not had their first step.
        self._starting = 0
        # Rows of the batches that pause and of those that are called again.
        self._kept = 0
        self._search = BatchSearch(scheduler.name, batch.size)
        # Rows that wait for what an inquiry finds.
        self._pool = _BatchExecution([])
        self._filling = BatchFiller(scheduler, batch, more_rows, self._search.rows_now)
        self._deadlines = scheduler.attempt_timeouts

    def dispatch(self) -> None:
        """Call batches while there are slots."""
        self._filling.note_arrivals()
        super().dispatch()

    def revoke(self, call: Call) -> None:
        """Take `call` out of its batch, which goes on for the others and is cancelled when none is left."""
        batch = call.execution
        if batch.task is not None:
            super().revoke(call)
            if not batch.left:
                self._leader_ended(batch)
            return
        # Of a batch that is to be called again.
        call.execution = None
        self._scheduler.pausing.discard(call)
        self._kept -= 1
        if batch is self._pool:
            self._search.inquiry.calls.remove(call)  # type: ignore[union-attr]
            return
        batch.calls.remove(call)
        if batch.calls:
            return
        if batch.timer is not None:
            batch.timer.cancel()
            self._pausing.discard(batch)
        else:
            self._again.remove(batch)
        self._leader_ended(batch)

    def suggest_rows(self, rows: float) -> None:
        """Put no more rows into a batch that has not been called: the function says so of its service."""
        self._search.suggested = rows

    async def close(self) -> None:
        """Cancel all calls, those that pause too, and wait for them."""
        self._filling.close()
        for batch in self._pausing:
            if batch.timer is not None:
                batch.timer.cancel()
        self._pausing.clear()
        self._again.clear()
        await super().close()

    @property
    def others(self) -> int:
        """Batches that run beside the one whose end is being told."""
        return self._active - self._starting

    # -- which call is next -------------------------------------------------------------------

    def _next(self) -> _BatchExecution | None:
        """The next batch that may be called now."""
        throttle = self._scheduler.throttle
        if throttle is not None and throttle.holds:
            return None
        session = self._scheduler.session
        if self._search.holds:
            # Rows that were not called wait for what is found.
            self._rows_first = False
            if not self._again:
                return None
        if self._again and not self._rows_first:
            batch = self._again[0]
            if session is not None:
                if not session.look_first(0):
                    return None
                # Rows that have got a result have left it.
                if any(session.look_again(call) for call in [*batch.calls]):
                    return self._next()
            if not self._admits(batch.calls):
                return None
            self._again.popleft()
            self._kept -= len(batch.calls)
            self._scheduler.pausing.difference_update(batch.calls)
            return batch
        # Whole batches that pause bring no row for this one.
        rows = self._filling.rows_now(len(self._scheduler.pausing) > self._kept)
        waiting = self._waiting
        if rows and session is not None:
            if not session.look_first(rows):
                return None
            rows = min(rows, self._filling.rows_now(len(self._scheduler.pausing) > self._kept))
        if not rows:
            # Nothing there after all: it may have timed out.
            if self._rows_first:
                self._rows_first = False
                return self._next()
            return None
        if throttle is not None and not self._admits([*islice(waiting, rows)]):
            # What is tried again must not overtake what the gate holds back: that might wait for ever.
            self._rows_first = bool(waiting)
            return None
        self._rows_first = False
        self._search.began(rows)
        return _BatchExecution([waiting.popleft() for _ in range(rows)])

    def _admits(self, calls: list[Call]) -> bool:
        """Return True if `calls` may be called together now, and count them."""
        scheduler = self._scheduler
        throttle = scheduler.throttle
        if throttle is None or scheduler.admits(sum([throttle.weigh(call) for call in calls])):
            return True
        if throttle.exhausted is not None:
            while self._again:
                batch = self._again.popleft()
                self._kept -= len(batch.calls)
                scheduler.pausing.difference_update(batch.calls)
                for call in batch.calls:
                    call.execution = None
                scheduler.mark(batch.calls, throttle.exhausted)
            scheduler.mark(self._end_inquiry(), throttle.exhausted)
        return False

    # -- one call -----------------------------------------------------------------------------

    def _begin_next(self) -> bool:
        # Before rows are taken, which would have to be put back.
        if (self._waiting or self._again) and not self._has_thread(self._starting):
            return False
        batch = self._next()
        if batch is None:
            return False
        for call in batch.calls:
            call.execution = batch
        self._starting += 1
        self._start(batch, self._call(batch))
        return True

    async def _call(self, batch: _BatchExecution) -> None:
        results: list[Any] | Result = []
        failed: BaseException | None = None
        gen_ai, span = self._gen_ai, None
        batch.started = True
        self._starting -= 1
        # Rows may have timed out since the task was made: they are not called, and count for no call.
        batch.calls = batch.waited_for()
        try:
            if not batch.calls or self._scheduler.is_closed:
                raise asyncio.CancelledError
            self._scheduler.begin_all(batch.calls)
            if self._deadlines is not None:
                batch.deadline = self._deadlines.arm(batch)
            CURRENT.set(CurrentCall(self._scheduler, batch.calls))
            span = gen_ai.begin(batch.calls) if gen_ai.span_share else None
            results = await self._fn([call.row for call in batch.calls])
        except BaseException as raised:
            if self._loop.is_closed():
                # The task is being collected after its loop; nobody waits for the call.
                raise
            failed = raised
        self._scheduler.guarded(self._ended, batch, results, failed)
        if span is not None:
            gen_ai.end(batch.calls, span)

    def _ended(
        self, batch: _BatchExecution, results: list[Any] | Result, error: BaseException | None
    ) -> None:
        self._has_ended(batch)
        self._disarm(batch)
        # What has answers in the turn in which the job ends is kept, and not paid for again.
        if self._scheduler.is_closed and (error is not None or not batch.left):
            return
        scheduler, calls = self._scheduler, batch.calls
        # Where all rows timed out before the call began, nothing was called.
        if error is not None and calls:
            scheduler.bill_error(calls, error)
        is_billed = False
        if isinstance(results, Result):
            if results.usage is not None:
                is_billed = scheduler.costs.bill_batch(calls, results.usage)
            results = results.value
        assert isinstance(results, list)
        sent = len(calls)
        gone = sent - batch.left
        if gone:
            if not isinstance(error, asyncio.CancelledError):
                self._late += gone
                for call, result in zip(calls, results, strict=False):
                    if call.execution is batch:
                        continue
                    if isinstance(result, BaseException):
                        scheduler.bill_error([call], result)
                    else:
                        scheduler.late(call, result, is_billed)
            results = [
                result for call, result in zip(calls, results, strict=False) if call.execution is batch
            ]
            calls = batch.waited_for()
        if calls:
            for call in calls:
                call.execution = None
            if error is None:
                if self._succeeded(calls, results, is_billed):
                    self._search.succeeded(sent, not batch.is_part)
                    self._leader_ended(batch, sent)
            else:
                self._failed(calls, batch, error)
        if not scheduler.is_closed:
            self._leader_ended(batch)
        self.dispatch()

    def _succeeded(self, calls: list[Call], results: list[Any], is_billed: bool) -> bool:
        """There is a result or an error for each row; the call is told of once, by its worst.

        Returns True if a row has a result.
        """
        scheduler = self._scheduler
        ended = self._scheduler.clock()
        errors: list[BaseException] = []
        is_said = is_billed or scheduler.costs.bills_requests
        looks = scheduler.rejects_results if is_said else scheduler.looks_at_results
        # By their types, of which there are few: most batches have results alone.
        for kind in {*map(type, results)}:
            if issubclass(kind, BaseException):
                errors = [result for result in results if isinstance(result, BaseException)]
            looks = looks or kind is Result
        if not errors and not looks and (fitting := _converted(scheduler, results)):
            scheduler.rows_succeeded(calls, fitting, ended)
        else:
            was_closed = scheduler.is_closed
            for call, result in zip(calls, results, strict=True):
                if isinstance(result, BaseException):
                    scheduler.bill_error([call], result)
                    # Of those in one batch only the first ends the job.
                    if was_closed or not scheduler.is_closed:
                        scheduler.row_failed(call, result)
                else:
                    rejected = scheduler.row_succeeded(call, result, ended, is_billed)
                    if rejected is not None:
                        errors.append(rejected)
        if scheduler.is_closed:
            return False
        overloads = [error for error in errors if is_overload(error)]
        if overloads:
            scheduler.overloaded(overloads[0])
        elif len(errors) == len(calls) and all(map(is_unreached, errors)):
            scheduler.overloaded(errors[0], calls[-1].is_first)
        else:
            scheduler.answered(ended - calls[0].began)
        return len(errors) < len(calls)

    def _failed(
        self, calls: list[Call], batch: _BatchExecution, error: BaseException, timed_out: bool = False
    ) -> None:
        """The call of `batch` gave no results: these are called again, or parts of them, or they fail."""
        scheduler = self._scheduler
        found = lack_in(error)
        if found is not None:
            self._return(calls, batch, *found)
            return
        scheduler.overloaded(error, calls[-1].is_first)
        for call in calls:
            scheduler.measure_failed(call)
            call.error = error
        if isinstance(error, BatchResultError):
            self._fail(calls, error, False)
            return
        is_late = timed_out or isinstance(error, TimeoutError | asyncio.TimeoutError)
        cause = cause_of(error) if not is_late and may_have_poison_row(error) else None
        inquiry, sent = self._search.inquiry, len(batch.calls)
        if inquiry is not None and inquiry.leader is batch and inquiry.high:
            self._tried(inquiry, calls, batch, error, cause)
            return
        if cause is not None and sent > 1:
            self._search.failed(cause, calls[0].attempt == 1)
            if inquiry is not None and inquiry.cause == cause and inquiry.leader is not batch:
                self._wait_for(inquiry, calls)
                return
        had = attrgetter("charged", "repeats")
        for _, group in groupby(sorted(calls, key=had), had):
            self._try_again([*group], batch, error, timed_out, cause)

    def _try_again(
        self,
        calls: list[Call],
        failed: _BatchExecution,
        error: BaseException,
        timed_out: bool,
        cause: Cause | None,
    ) -> None:
        """Settle the rows of `failed` that have had as many attempts."""
        scheduler = self._scheduler
        sent = len(failed.calls)
        if may_have_poison_row(error):
            failed.is_suspect = True
        try:
            # A part is taken apart at once: to call it again whole would be for the one row that is to blame.
            splits_now = sent > 1 and failed.is_part and may_have_poison_row(error)
            pause = None if splits_now else scheduler.pause(calls, error)
        except BaseException as raised:
            self._fail(calls, raised, False)
            return
        if pause is not None:
            scheduler.meter.count_retries(error, len(calls))
            batch = self._call_later(calls, failed, pause)
            inquiry = self._search.inquiry
            if inquiry is not None:
                inquiry.leader = batch if inquiry.leader is failed else inquiry.leader
            elif cause is not None and self._search.is_worth_it(cause, sent, failed.is_part):
                self._search.inquiry = Inquiry(cause, batch)
        elif sent > 1 and failed.is_suspect:
            scheduler.meter.count_retries(error, len(calls))
            if cause is not None and self._inquire(calls, failed, cause):
                return
            # Without the others a part may do well, and no row fails for another.
            middle = len(calls) // 2 if len(calls) == sent else 0
            # At once, and before all others: most of their rows are as good as finished.
            self._call_parts([part for part in (calls[:middle], calls[middle:]) if part])
        else:
            if cause is not None and sent == 1:
                self._search.failed_alone(cause)
            self._fail(calls, error, timed_out)

    def _return(self, calls: list[Call], ended: _BatchExecution, lack: Lack, error: BaseException) -> None:
        """Have rows called again whose process lacked something for their call."""
        pause = self._scheduler.take_back(calls, lack, error)
        if pause is None:
            return
        inquiry = self._search.inquiry
        if pause and len(calls) > 1 and is_of_rows(lack) and inquiry is None:
            # Alone it had too little: fewer rows may do.
            middle = len(calls) // 2
            self._call_parts([calls[:middle], calls[middle:]])
            return
        batch = self._call_later(calls, ended, pause)
        if inquiry is not None and inquiry.leader is ended:
            inquiry.leader = batch

    def _call_later(self, calls: list[Call], failed: _BatchExecution, pause: float) -> _BatchExecution:
        batch = self._keep(calls, failed.is_part, failed.is_suspect)
        batch.timer = self._loop.call_later(pause, self._scheduler.guarded, self._pause_over, batch)
        self._pausing.add(batch)
        return batch

    def _call_parts(self, parts: list[list[Call]]) -> None:
        """Call parts of a batch that failed, before all others; that counts as no attempt of a row."""
        for part in parts:
            for call in part:
                call.uncharged = call.attempt
        self._again.extendleft(self._keep(part, True) for part in reversed(parts))

    # -- inquiries: what batches that fail alike wait for ----------------------------------------

    def _inquire(self, calls: list[Call], failed: _BatchExecution, cause: Cause) -> bool:
        """Look into why `failed` has failed, for all batches that do. False where it is not worth it."""
        search, sent = self._search, len(failed.calls)
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
        for batch in self._again:
            error = batch.calls[0].error
            if batch.is_part and error is not None and cause_of(error) == inquiry.cause:
                self._kept -= len(batch.calls)
                self._wait_for(inquiry, batch.calls)
            else:
                others.append(batch)
        self._again = deque(others)

    def _wait_for(self, inquiry: Inquiry, calls: list[Call]) -> None:
        """Have `calls` wait for what is found."""
        for call in calls:
            call.execution = self._pool
        inquiry.calls.extend(calls)
        self._kept += len(calls)
        self._scheduler.pausing.update(calls)

    def _go_on(self, inquiry: Inquiry) -> None:
        """Call the next rows."""
        if not inquiry.calls:
            self._search.inquiry = None
            return
        calls = inquiry.next_calls()
        self._kept -= len(calls)
        for call in calls:
            call.uncharged = call.attempt
        inquiry.leader = batch = self._keep(calls, True)
        self._again.appendleft(batch)

    def _tried(
        self,
        inquiry: Inquiry,
        calls: list[Call],
        batch: _BatchExecution,
        error: BaseException,
        cause: Cause | None,
    ) -> None:
        """Rows that were called for all have failed."""
        search, sent = self._search, len(batch.calls)
        if cause != inquiry.cause:
            try:
                pause = self._scheduler.pause(calls, error)
            except BaseException as raised:
                inquiry.leader = None
                self._fail(calls, raised, False)
                self._release()
                return
            if pause is not None:
                self._scheduler.meter.count_retries(error, len(calls))
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
            self._search.learn(inquiry)
        self._release()

    def _leader_ended(self, batch: _BatchExecution, rows: int = 0) -> None:
        """`batch` is called no more; if it was for all, what follows? rows: those of a call that did well."""
        inquiry = self._search.inquiry
        if inquiry is None or inquiry.leader is not batch:
            return
        inquiry.leader = None
        if not inquiry.high:
            self._release()
        elif not rows and not inquiry.is_sizing:
            self._go_on(inquiry)
        elif inquiry.is_sizing or self._search.may_be_of_size(inquiry):
            inquiry.is_sizing = True
            inquiry.low = max(inquiry.low, rows)
            inquiry.well += rows
            self._look_at_size(inquiry)
        else:
            self._release()

    def _release(self) -> None:
        """Call those that wait as any batch that has failed, in parts that may do well."""
        inquiry = self._search.inquiry
        assert inquiry is not None
        calls, most = self._end_inquiry(), self._search.most
        if not inquiry.high:
            # The first has done well after all, and perhaps they do.
            self._again.extend(self._keep(part, False, True) for part in _chunks(calls, most))
        else:
            if most >= inquiry.high:
                self._search.was_in_vain()
            # Most have not been called since they failed together: what was found of the few that have been,
            # down to a single bad row, says nothing of them.
            half = max(1, min(inquiry.sent, most) // 2)
            self._call_parts(_chunks(calls, most if most < inquiry.high else max(half, inquiry.low)))

    def _end_inquiry(self) -> list[Call]:
        """End it; returns the rows that have waited."""
        inquiry, self._search.inquiry = self._search.inquiry, None
        calls = [] if inquiry is None else [*inquiry.calls]
        for call in calls:
            call.execution = None
        self._kept -= len(calls)
        self._scheduler.pausing.difference_update(calls)
        return calls

    def _keep(self, calls: list[Call], is_part: bool, is_suspect: bool = False) -> _BatchExecution:
        batch = _BatchExecution(calls, is_part, is_suspect)
        for call in calls:
            call.execution = batch
        self._kept += len(calls)
        self._scheduler.pausing.update(calls)
        return batch

    def _pause_over(self, batch: _BatchExecution) -> None:
        batch.timer = None
        self._pausing.discard(batch)
        self._again.append(batch)
        self.dispatch()

    def _fail(self, calls: list[Call], error: BaseException, timed_out: bool) -> None:
        for call in calls:
            if self._scheduler.is_closed:
                return
            self._scheduler.fail_call(
                call, self._scheduler.attempt_timeout(call) if timed_out else CallFailed(call.attempt, error)
            )

    def attempt_timed_out(self, begun: Any, calls: list[Call], error: CallTimeout) -> None:
        """The call of a batch met its limit of time: its rows are called again, or fail."""
        self._failed(calls, begun, error, timed_out=True)
        self.dispatch()

    def _cancel(self, execution: Execution) -> None:
        self._disarm(execution)
        super()._cancel(execution)

    def _disarm(self, batch: Any) -> None:
        if self._deadlines is not None:
            self._deadlines.cancel(batch.deadline)


def _chunks(calls: list[Call], rows: int) -> list[list[Call]]:
    return [calls[first : first + rows] for first in range(0, len(calls), rows)]


def _converted(scheduler: CallScheduler, results: list[Any]) -> list[Any] | None:
    """The results in the form in which they leave; None if any of them does not fit."""
    if scheduler.convert_all is None:
        return results
    try:
        return scheduler.convert_all(results)
    except Exception:
        return None


def batch_function(
    fn: Callable[..., Any],
    name: str,
    loop: asyncio.AbstractEventLoop,
    mailbox: TaskMailbox,
    priority: int,
    *,
    spread: bool,
    rows_of: Callable[[Any], list[Any] | None] | None = None,
) -> BatchFunction:
    """Make the async function that gives the list of results for a list of rows, by `fn`.

    fn: an async function, or one that blocks, of a list of rows. spread: rows are tuples of arguments, and
    `fn` takes a list for each argument. name: what errors call it. loop: that of its calls. mailbox,
    priority: see `CallThreads`. rows_of: see `ResultConverter`.

    The async function raises what `fn` raises, and `BatchResultError` for results that are not one
    for each row.
    """
    given: Callable[[list[Any]], Any] = (lambda rows: fn(*_columns(rows))) if spread else fn
    if not is_async(fn):

        def finish(rows: list[Any], results: Any) -> list[Any] | Result:
            refuse_awaitable(name, results)
            return _checked(results, len(rows), name, rows_of)

        return CallThreads(given, finish, name, loop, mailbox, priority)

    async def call(rows: list[Any]) -> list[Any] | Result:
        return _checked(await given(rows), len(rows), name, rows_of)

    return call


def _columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _checked(
    results: Any, rows: int, name: str, rows_of: Callable[[Any], list[Any] | None] | None
) -> list[Any] | Result:
    if type(results) is Result:
        return Result(_checked(results.value, rows, name, rows_of), results.usage)
    if type(results) is not list and rows_of is not None:
        parts = rows_of(results)
        results = results if parts is None else parts
    if type(results) is not list:
        # A table of pandas, polars or Arrow gives its columns, or their names.
        by_columns = hasattr(type(results), "columns")
        if hasattr(results, "to_pylist"):
            # But of one of Arrow nobody would take the columns for its rows, and its values are Arrow's.
            results, by_columns = results.to_pylist(), False
        if by_columns or not isinstance(results, Iterable) or isinstance(results, _NOT_BY_POSITION):
            what = (
                "None" if results is None else f"{type(results).__name__}, which has no results by position"
            )
            if by_columns:
                what += " (return its rows, such as `frame.to_dict('records')` of pandas gives)"
            raise BatchResultError(name, rows, what)
        if not hasattr(results, "__len__"):
            # No further than is needed to see that there are too many: it may have no end.
            results = list(islice(results, rows + 1))
            if len(results) > rows:
                raise BatchResultError(name, rows, f"{rows + 1:,} results or more")
        else:
            results = list(results)
    if len(results) != rows:
        raise BatchResultError(name, rows, f"{len(results):,} results")
    return results  # type: ignore[no-any-return]
