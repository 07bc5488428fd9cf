"""Runs the calls of a blocking function in threads of their own, under the limits of the operator.

`run` of a thread is the thread's; all else is confined to the mailbox thread, which the outcomes
reach as mail. The threads are daemons: a call that never returns must not hold the process, and no
thread can be ended from outside. A call that returns a `concurrent.futures.Future` ends with that, and
gives its thread back before.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import SimpleQueue
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from pillarbox.aio.function import refuse_awaitable
from pillarbox.kernel import Mail, TaskMailbox

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import Call, CallScheduler

log = logging.getLogger("pillarbox")

GRACE = 1.0
"""Seconds that a call has to return after its time-out; then its slot is given to another."""

MAX_ABANDONED = 64
"""Calls that may go on in their threads after their time-out, at least; more where the capacity is larger."""


class _Attempt:
    """One attempt in a thread; `call` is None once the attempt was revoked or has finished, `made_for` stays.

    `grace` is the timer of its abandonment, once it was revoked. `future` is what it returned and is waited
    for; from then on it needs no thread.
    """

    __slots__ = ("abandoned", "call", "finished", "future", "grace", "made_for", "returned")

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call
        self.made_for = call
        self.grace: asyncio.TimerHandle | None = None
        self.future: Future[Any] | None = None
        self.finished = False
        self.returned = False
        self.abandoned = False


class ThreadRunner:
    """Carries waiting calls of one operator through a blocking function, `limit` at a time."""

    def __init__(
        self,
        scheduler: CallScheduler,
        fn: Callable[..., Any],
        name: str,
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop,
        mailbox: TaskMailbox,
    ) -> None:
        self._scheduler = scheduler
        self._fn = fn
        self._name = name
        self.limit = scheduler.concurrency.limit
        self._context = context
        self._loop = loop
        self._mailbox = mailbox
        self._jobs: SimpleQueue[_Attempt | None] = SimpleQueue()
        self._threads = 0
        self._started: list[threading.Thread] = []
        self._active = 0
        self._executions: set[_Attempt] = set()
        self._lock = threading.Lock()
        self._running = 0
        self._awaited = 0
        self._left_behind = 0
        self._idle: asyncio.Future[None] | None = None
        self._closed = False
        self.abandoned = 0
        self.late = 0

    @property
    def in_flight(self) -> int:
        """Calls that hold a slot now."""
        return self._active

    def dispatch(self) -> None:
        """Give waiting calls to threads while there are slots."""
        scheduler = self._scheduler
        waiting = scheduler.waiting
        throttle = scheduler.throttle
        while waiting and self._active < self.limit and not self._closed:
            if scheduler.look_first is not None and not scheduler.look_first():
                return
            call = waiting.popleft() if throttle is None else throttle.next()
            if call is None:
                return
            # Those that have returned a future need no thread.
            if self._threads == self._active - self._awaited:
                name = f"pillarbox-call-{self._threads + 1}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                thread.start()
                self._started.append(thread)
                self._threads += 1
            call.execution = attempt = _Attempt(call)
            self._executions.add(attempt)
            self._active += 1
            scheduler.begin(call)
            with self._lock:
                self._running += 1
            self._jobs.put(attempt)

    def turn(self) -> None:
        """Calls in threads never hold up the event loop."""

    def revoke(self, call: Call) -> None:
        """Take `call` from its thread; what it still brings is ignored."""
        attempt = call.execution
        call.execution = None
        self._take_back(attempt)
        attempt.grace = self._loop.call_later(GRACE, self._scheduler.guarded, self._abandon, attempt)

    async def close(self) -> None:
        """Wait for the calls that run, for `GRACE` seconds at most, and for the end of their threads."""
        self._closed = True
        for attempt in self._executions:
            self._take_back(attempt)
            if attempt.grace is not None:
                attempt.grace.cancel()
        self._jobs.put(None)
        with self._lock:
            if self._running:
                self._idle = self._loop.create_future()
        if self._idle is not None:
            _, pending = await asyncio.wait([self._idle], timeout=GRACE)
            if pending:
                log.warning("calls of %s go on in their threads after the end of their job", self._name)
                return
        # No thread runs a call any more: each ends as soon as it gets the mark of the end.
        for thread in self._started:
            thread.join()

    def _take_back(self, attempt: _Attempt) -> None:
        with self._lock:
            attempt.call = None
            future = attempt.future
        if future is not None:
            future.cancel()

    def _run(self) -> None:
        fn = self._fn
        while (attempt := self._jobs.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                context = self._context.copy()
                if attempt.call is not None:
                    result = context.run(fn, attempt.made_for.row)
                if isinstance(result, GeneratorType):
                    result = context.run(list, result)
                elif not isinstance(result, Future):
                    refuse_awaitable(self._name, result)
            except BaseException as caught:
                error = caught
            if isinstance(result, Future):
                is_spare = self._await(attempt, result)
            else:
                is_spare = self._tell(attempt, result, error) and not attempt.abandoned
            if not is_spare:
                return
            # Nothing of a finished call stays referenced while the thread waits for the next.
            del attempt, result, error
        # The one mark of the end goes round, so that it reaches every thread, counted or abandoned.
        self._jobs.put(None)

    def _await(self, attempt: _Attempt, future: Future[Any]) -> bool:
        """Have `attempt` end with `future`; returns True unless the thread was given up before."""
        with self._lock:
            attempt.future = future
            has_thread = not attempt.abandoned
            self._awaited += has_thread
            is_wanted = attempt.call is not None
        future.add_done_callback(partial(self._resolved, attempt))
        if not is_wanted:
            future.cancel()
        return has_thread

    def _resolved(self, attempt: _Attempt, future: Future[Any]) -> None:
        # In whichever thread the future ends.
        result: Any = None
        error: BaseException | None = None
        try:
            result = future.result()
            refuse_awaitable(self._name, result)
        except CancelledError:
            error = CancelledError(f"the Future that {self._name} returned was cancelled")
        except BaseException as caught:
            error = caught
        self._tell(attempt, result, error)

    def _tell(self, attempt: _Attempt, result: Any, error: BaseException | None) -> bool:
        self._finished(attempt)
        return self._mailbox.try_put(Mail(self._done, attempt, result, error))

    def _finished(self, attempt: _Attempt) -> None:
        with self._lock:
            self._running -= 1
            attempt.returned = True
            if attempt.abandoned:
                self._left_behind -= 1
            idle = None if self._running else self._idle
        if idle is not None:
            try:
                self._loop.call_soon_threadsafe(_set, idle)
            except RuntimeError:
                # The loop was closed without waiting any longer.
                return

    def _done(self, attempt: _Attempt, result: Any, error: BaseException | None) -> None:
        attempt.finished = True
        if attempt.grace is not None:
            attempt.grace.cancel()
        self._executions.discard(attempt)
        if not attempt.abandoned:
            self._active -= 1
            with self._lock:
                self._awaited -= attempt.future is not None
        call = attempt.call
        if call is None:
            # A future that was cancelled in time brings nothing late.
            self.late += attempt.future is None or not attempt.future.cancelled()
            if error is None:
                self._scheduler.late(attempt.made_for, result)
        else:
            call.execution = attempt.call = None
            if error is None:
                self._scheduler.succeeded(call, result)
            else:
                self._scheduler.failed(call, error)
        self.dispatch()

    def _abandon(self, attempt: _Attempt) -> None:
        if attempt.finished or self._closed:
            return
        with self._lock:
            attempt.abandoned = True
            # It may have returned, and its mail be on its way.
            self._left_behind += not attempt.returned
            left_behind = self._left_behind
            has_thread = attempt.future is None
            self._awaited -= not has_thread
        self._active -= 1
        self._threads -= has_thread
        self.abandoned += 1
        most = max(MAX_ABANDONED, self.limit)
        if left_behind >= most:
            raise RuntimeError(
                f"{left_behind} calls of {self._name} still run in their threads {GRACE:g} s after their "
                f"time-out, and at most {most} may: a thread cannot be ended from outside. Give what blocks "
                "there a time-out of its own, or make the function `async def`"
            )
        if self.abandoned == 1:
            # Said once: the counts have the others.
            log.warning(
                "a call of %s did not return within %g s after its time-out; "
                "its thread goes on without a slot",
                self._name,
                GRACE,
            )
        self.dispatch()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
