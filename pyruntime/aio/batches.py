"""Runs the calls of a function that takes many rows at once: puts rows together, and takes them apart again.

Confined to the mailbox thread, which is the thread of the event loop.

Each call of a batch is a task of its own, in a copy of the job's context: what it does there reaches no
other. There is no task, no timer and no future for a row.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pillarbox.aio.batch_filling import BatchFiller
from pillarbox.aio.blame import may_have_poison_row
from pillarbox.aio.coroutines import GRACE, abandon, cancel_all
from pillarbox.aio.errors import BatchResultError, CallFailed, CallTimeout
from pillarbox.aio.status import is_overload, is_unreached

if TYPE_CHECKING:
    from pillarbox.aio.batch import Batch
    from pillarbox.aio.batch_function import BatchFunction
    from pillarbox.aio.scheduler import Call, CallScheduler


class _Together:
    """Rows that are called together, once; when they are called again, that is another one.

    Each of `calls` whose `runner` is this one is still waited for, `left` of them. `timer` is of the pause
    before its call, then of the grace period after it was cancelled. `is_part` is whether they are a part of
    rows that failed together: its call looks for the row that is to blame, and is no attempt of the others.
    `is_suspect` is whether one of their calls, with the same rows, failed so that a row may be to blame: the
    last one alone does not tell, where errors that pass come between.
    """

    __slots__ = (
        "abandoned",
        "calls",
        "deadline",
        "is_part",
        "is_suspect",
        "left",
        "started",
        "task",
        "timer",
    )

    def __init__(self, calls: list[Call], is_part: bool = False, is_suspect: bool = False) -> None:
        self.calls = calls
        self.is_part = is_part
        self.is_suspect = is_suspect
        self.left = len(calls)
        self.deadline = -1
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.started = self.abandoned = False


class BatchRunner:
    """Carries waiting calls of one operator in batches through a function, `limit` batches at a time.

    Which rows make a batch, and when, `Filling` says. A batch whose call failed is called again whole, if the
    retry says so; otherwise its halves are called, down to the rows that fail alone, unless the error can be
    no row's fault. The calls of a batch that was taken apart were no attempts of its rows: a row that is
    called alone has all its attempts, so that an error that passes costs no row that has done nothing.
    """

    def __init__(
        self,
        scheduler: CallScheduler,
        batch: Batch,
        fn: BatchFunction,
        name: str,
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._scheduler = scheduler
        self._waiting = scheduler.waiting
        self._fn = fn
        self._name = name
        self._context = context
        self._loop = loop
        self.limit = scheduler.concurrency.limit
        self.late = 0
        self.abandoned = 0
        self._active = 0
        self._running: set[_Together] = set()
        self._pausing: set[_Together] = set()
        self._again: deque[_Together] = deque()
        self._rows_first = False
        # Rows of the latter two.
        self._kept = 0
        self._filling = BatchFiller(scheduler, batch, loop)
        self._deadlines = scheduler.deadlines_of_batches(self._attempt_timed_out)

    @property
    def in_flight(self) -> int:
        """Batches that hold a slot now."""
        return self._active

    def dispatch(self) -> None:
        """Call batches while there are slots."""
        self._filling.note_arrivals()
        while self._active < self.limit and not self._scheduler.is_closed:
            batch = self._next()
            if batch is None:
                return
            self._begin(batch)

    def turn(self) -> None:
        """Each call is a task: the event loop has its turn."""

    def revoke(self, call: Call) -> None:
        """Take `call` out of its batch, which goes on for the others and is cancelled when none is left."""
        batch = call.execution
        call.execution = None
        batch.left -= 1
        if batch.task is not None:
            if not batch.left:
                self._cancel(batch)
            return
        batch.calls.remove(call)
        self._scheduler.pausing.discard(call)
        self._kept -= 1
        if batch.calls:
            return
        if batch.timer is not None:
            batch.timer.cancel()
            self._pausing.discard(batch)
        else:
            self._again.remove(batch)

    async def close(self) -> None:
        """Cancel all calls and wait for them, for `GRACE` seconds at most."""
        self._filling.close()
        for batch in (*self._pausing, *self._running):
            if batch.timer is not None:
                batch.timer.cancel()
        self._pausing.clear()
        self._again.clear()
        tasks = []
        for batch in self._running:
            batch.left = 0
            assert batch.task is not None
            tasks.append(batch.task)
        await cancel_all(tasks, self._name, GRACE)

    # -- which call is next -------------------------------------------------------------------

    def _next(self) -> _Together | None:
        """The next batch that may be called now."""
        throttle = self._scheduler.throttle
        if throttle is not None and throttle.holds:
            return None
        look_first = self._scheduler.look_first
        if self._again and not self._rows_first:
            batch = self._again[0]
            if look_first is not None:
                if not look_first(0):
                    return None
                if self._has_found(batch):
                    return self._next()
            if not self._admitted(batch.calls):
                return None
            self._again.popleft()
            self._kept -= len(batch.calls)
            self._scheduler.pausing.difference_update(batch.calls)
            return batch
        # Whole batches that pause bring no row for this one.
        rows = self._filling.rows_now(len(self._scheduler.pausing) > self._kept)
        waiting = self._waiting
        if rows and look_first is not None:
            if not look_first(rows):
                return None
            rows = min(rows, self._filling.rows_now(len(self._scheduler.pausing) > self._kept))
        if not rows:
            # Nothing there after all: it may have timed out.
            if self._rows_first:
                self._rows_first = False
                return self._next()
            return None
        if throttle is not None and not self._admitted([*islice(waiting, rows)]):
            # What is tried again must not overtake what the gate holds back: that might wait for ever.
            self._rows_first = bool(waiting)
            return None
        self._rows_first = False
        return _Together([waiting.popleft() for _ in range(rows)])

    def _has_found(self, batch: _Together) -> bool:
        """Return True if rows of `batch`, which is to be called again, have got a result and left it."""
        look_again = self._scheduler.look_again
        assert look_again is not None
        return any(look_again(call) for call in [*batch.calls])

    def _admitted(self, calls: list[Call]) -> bool:
        throttle = self._scheduler.throttle
        if throttle is None:
            return True
        if throttle.admit(sum([throttle.weigh(call) for call in calls])):
            return True
        if throttle.gate.exhausted is not None:
            while self._again:
                batch = self._again.popleft()
                self._kept -= len(batch.calls)
                self._scheduler.pausing.difference_update(batch.calls)
                for call in batch.calls:
                    call.execution = None
                self._scheduler.mark(batch.calls, throttle.gate.exhausted)
        return False

    # -- one call -----------------------------------------------------------------------------

    def _begin(self, batch: _Together) -> None:
        self._active += 1
        self._running.add(batch)
        for call in batch.calls:
            call.execution = batch
        # As in `CoroutineCalls.feed`.
        batch.task = self._context.run(asyncio.Task, self._call(batch), loop=self._loop)

    async def _call(self, batch: _Together) -> None:
        results: list[Any] = []
        failed: BaseException | None = None
        batch.started = True
        # Rows may have timed out since the task was made: they are not called, and count for no call.
        batch.calls = [call for call in batch.calls if call.execution is batch]
        try:
            if not batch.calls or self._scheduler.is_closed:
                raise asyncio.CancelledError
            self._scheduler.begin_all(batch.calls)
            if self._deadlines is not None:
                batch.deadline = self._deadlines.arm(batch)
            results = await self._fn([call.row for call in batch.calls])
        except BaseException as raised:
            if self._loop.is_closed():
                # The task is being collected after its loop; nobody waits for the call.
                raise
            failed = raised
        self._scheduler.guarded(self._ended, batch, results, failed)

    def _ended(self, batch: _Together, results: list[Any], error: BaseException | None) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        if self._deadlines is not None:
            self._deadlines.cancel(batch.deadline)
        self._running.discard(batch)
        if not batch.abandoned:
            self._active -= 1
        # What has answers in the turn in which the job ends is kept, and not paid for again.
        if self._scheduler.is_closed and (error is not None or not batch.left):
            return
        calls = batch.calls
        sent = len(calls)
        gone = sent - batch.left
        if gone:
            if not isinstance(error, asyncio.CancelledError):
                self.late += gone
                for call, result in zip(calls, results, strict=False):
                    if call.execution is not batch and not isinstance(result, BaseException):
                        self._scheduler.late(call, result)
            results = [
                result for call, result in zip(calls, results, strict=False) if call.execution is batch
            ]
            calls = [call for call in calls if call.execution is batch]
        if calls:
            for call in calls:
                call.execution = None
            if error is None:
                self._succeeded(calls, results)
            else:
                self._failed(calls, batch, error)
        self.dispatch()

    def _succeeded(self, calls: list[Call], results: list[Any]) -> None:
        """There is a result or an error for each row; the call is told of once, by its worst."""
        scheduler = self._scheduler
        ended = self._scheduler.clock()
        seconds = ended - calls[0].began
        errors: list[BaseException] = [result for result in results if isinstance(result, BaseException)]
        if not errors and not scheduler.looks_at_results and (fitting := _converted(scheduler, results)):
            scheduler.rows_succeeded(calls, fitting, ended)
        else:
            was_closed = scheduler.is_closed
            for call, result in zip(calls, results, strict=True):
                if isinstance(result, BaseException):
                    # Of those in one batch only the first ends the job.
                    if was_closed or not scheduler.is_closed:
                        scheduler.row_failed(call, result)
                else:
                    rejected = scheduler.row_succeeded(call, result, ended)
                    if rejected is not None:
                        errors.append(rejected)
        if scheduler.is_closed:
            return
        overloads = [error for error in errors if is_overload(error)]
        if overloads:
            scheduler.overloaded(overloads[0])
        elif len(errors) == len(calls) and all(map(is_unreached, errors)):
            scheduler.overloaded(errors[0], calls[-1].is_first)
        else:
            scheduler.batch_succeeded(seconds)

    def _failed(
        self, calls: list[Call], batch: _Together, error: BaseException, timed_out: bool = False
    ) -> None:
        """The call of `batch` gave no results: these are called again, or parts of them, or they fail."""
        scheduler = self._scheduler
        scheduler.overloaded(error, calls[-1].is_first)
        for call in calls:
            scheduler.measure_failed(call)
            call.error = error
        if isinstance(error, BatchResultError):
            self._fail(calls, error, False)
            return
        calls = sorted(calls, key=attrgetter("charged"))
        for _, group in groupby(calls, attrgetter("charged")):
            self._try_again([*group], batch, error, timed_out)

    def _try_again(self, calls: list[Call], failed: _Together, error: BaseException, timed_out: bool) -> None:
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
            scheduler.count_retries(error, len(calls))
            batch = self._keep(calls, failed.is_part, failed.is_suspect)
            batch.timer = self._loop.call_later(pause, scheduler.guarded, self._pause_over, batch)
            self._pausing.add(batch)
        elif sent > 1 and failed.is_suspect:
            scheduler.count_retries(error, len(calls))
            for call in calls:
                call.uncharged = call.attempt
            # Without the others a part may do well, and no row fails for another.
            middle = len(calls) // 2 if len(calls) == sent else 0
            # At once, and before all others: most of their rows are as good as finished.
            self._again.extendleft(
                self._keep(part, True) for part in (calls[middle:], calls[:middle]) if part
            )
        else:
            self._fail(calls, error, timed_out)

    def _keep(self, calls: list[Call], is_part: bool, is_suspect: bool = False) -> _Together:
        batch = _Together(calls, is_part, is_suspect)
        for call in calls:
            call.execution = batch
        self._kept += len(calls)
        self._scheduler.pausing.update(calls)
        return batch

    def _pause_over(self, batch: _Together) -> None:
        batch.timer = None
        self._pausing.discard(batch)
        self._again.append(batch)
        self.dispatch()

    def _fail(self, calls: list[Call], error: BaseException, timed_out: bool) -> None:
        for call in calls:
            if self._scheduler.is_closed:
                return
            self._scheduler.fail_call(
                call, self._timeout(call) if timed_out else CallFailed(call.attempt, error)
            )

    # -- time-outs ----------------------------------------------------------------------------

    def _timeout(self, call: Call) -> CallTimeout:
        assert self._deadlines is not None
        return CallTimeout("attempt_timeout", self._deadlines.seconds, call.attempt)

    def _attempt_timed_out(self, batch: _Together) -> None:
        calls = [call for call in batch.calls if call.execution is batch]
        self._scheduler.meter.timeouts += len(calls)
        for call in calls:
            call.execution = None
        batch.left = 0
        self._cancel(batch)
        self._failed(calls, batch, self._timeout(calls[0]), timed_out=True)
        self.dispatch()

    def _cancel(self, batch: _Together) -> None:
        """Nobody waits for what `batch` brings."""
        if self._deadlines is not None:
            self._deadlines.cancel(batch.deadline)
        assert batch.task is not None
        if batch.started:
            # A task that was cancelled before its first step would never come to its end here.
            batch.task.cancel()
        batch.timer = self._loop.call_later(GRACE, self._scheduler.guarded, self._abandon, batch)

    def _abandon(self, batch: _Together) -> None:
        batch.timer = None
        batch.abandoned = True
        self._running.discard(batch)
        self._active -= 1
        self.abandoned += 1
        assert batch.task is not None
        abandon(batch.task, self._name, GRACE)
        self.dispatch()


def _converted(scheduler: CallScheduler, results: list[Any]) -> list[Any] | None:
    """The results in the form in which they leave; None if any of them does not fit."""
    if scheduler.convert_all is None:
        return results
    try:
        return scheduler.convert_all(results)
    except Exception:
        return None
