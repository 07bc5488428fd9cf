"""Runs the calls of one operator: coroutines on its event loop, a blocking function in threads.

Confined to the mailbox thread, which is the thread of the event loop. The threads of blocking functions are
in `call_threads`, calls of batches and of functions with a collector in rings.
"""

# A task for each call is the simple way, and costs several microseconds a row more: a task, a context, two
# turns of the event loop. So a worker is a task that carries one call after the other. What a task for each
# call gives for free has to be made again, and here it is made:
#
# - Context variables. Each call must begin in the context of the job. To run each in a fresh context needs
#   a task, as a coroutine cannot change its context halfway; to set back what a call has set needs a list
#   of all variables. Comparing contexts is one step in C as long as nothing was set: so a worker whose call
#   has changed its context retires, and the next call gets a new worker.
# - Cancellation. `Task.cancel` reaches whatever runs in the task when it arrives, which may be the next
#   call. So a worker that was asked to cancel retires, and so does one whose call ended with something
#   other than an `Exception`: it may have come from outside.
# - Turns. A call that never waits gives the loop no turn; after `CALLS_PER_TURN` of them the worker does.
# - Spans. The span of a call is a context variable as others, so its worker retires.
# - The call that runs (`current_call`). To name each in its context costs a tenth of what a call costs that
#   returns at once. So the worker names itself, once, and each call is named only where somebody may ask,
#   which is whoever has imported the module for it.
#
# As many workers as slots would mostly be made for nothing where calls end at once, since the first carries
# all rows before the others have begun. They double instead: as many are started as carry calls already,
# and each starts others with its first call. Somebody is always on the way to begin a call that could
# begin, though workers retire, limits change and gates close: that is what the model `Feeding` checks. A
# queue that workers wait on (`asyncio.Queue`) would need no such proof, and costs a future and a wake-up a
# row. Here nobody waits for rows: whoever brings a row or frees a slot calls `dispatch`.
#
# The figures of the comparison are in docs/decisions/runners.md.

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pillarbox.aio.ai_calls import AiCalls
from pillarbox.aio.call_threads import CallThreads, joined
from pillarbox.aio.calls import Call
from pillarbox.aio.current_call import CURRENT, CallServices, CurrentCall
from pillarbox.aio.executions import Execution, Worker
from pillarbox.aio.function import refuse_coroutine
from pillarbox.aio.intervals import Intervals
from pillarbox.aio.usage import Result

T = TypeVar("T")

log = logging.getLogger("pillarbox")

CALLS_PER_TURN = 128
"""Calls that may follow one another without the event loop getting its turn."""

_PLAIN_TYPES = frozenset({bool, bytes, dict, float, int, list, str, tuple, type(None), Result})
"""Types of usual results, none of them an async iterator."""

_ASKS_MODULE = "pillarbox.aio.current"
"""The module that is imported where functions may ask for their call."""

THREAD_RETRY_S = 5.0
"""Seconds after a thread could not be started until the next one is tried."""

_CAN_COUNT = hasattr(asyncio.Task, "cancelling")  # since Python 3.11


class RunnerHooks(NamedTuple):
    """Functions of a scheduler for its runner, which takes calls by them and reports their ends.

    services: for `current_call`. most, limit: calls in flight, at most, and as it is at first. is_gated:
    whether something may hold calls back. arrived: notes that rows may have come. may_start: whether one more
    execution is to start, beside so many that are on their way and so many that run. take: begins the next
    call, in an execution; None if none may begin. begin: has an execution carry what was taken without one.
    ended: takes call, execution, result and error of an attempt, on time or late. limit_threads: no more
    calls in flight than threads. guarded: calls a function whose error ends the job. stop: ends it.
    """

    services: CallServices
    gen_ai: AiCalls
    intervals: Intervals
    most: int
    limit: int
    is_gated: bool
    arrived: Callable[[], None]
    may_start: Callable[[int, int], bool]
    take: Callable[[Any], Any]
    begin: Callable[..., Any]
    ended: Callable[..., None]
    limit_threads: Callable[[int | None], None]
    guarded: Callable[..., None]
    stop: Callable[[BaseException], None]


class Runner:
    """Carries waiting calls of one operator through its function, `limit` executions at a time.

    Dispatch, cancellation, abandonment and the end are here; a subclass says what begins next, and what
    becomes of what its function gives or raises.

    A call that is revoked, since its row waits for it no longer, keeps its slot until its function has ended,
    for `Intervals.cancel_timeout` at most: then it is abandoned, so that a function that never ends holds up
    nobody.
    """

    # `limit` and `is_gated` are attributes that the scheduler sets, not questions to it: each row asks.

    def __init__(
        self, hooks: RunnerHooks, fn: Callable[..., Any], name: str, context: contextvars.Context
    ) -> None:
        self._hooks = hooks
        self._fn = fn
        self._threads = fn if isinstance(fn, CallThreads) else None
        self._name = name
        self._context = context
        self._loop = hooks.services.loop
        hooks.gen_ai.context = context
        # With the call that one was made for, where it has but one.
        self._executions: dict[Any, Call | None] = {}
        self._active = 0
        self._dispatching = self._closed = False
        self.limit = hooks.limit
        self.is_gated = hooks.is_gated
        # Until then no thread is tried, since none could be started.
        self._more_threads: asyncio.TimerHandle | None = None
        self._told_of_threads = self._asked_for_thread = False
        self.abandoned = 0
        # Of these, those that have not ended yet.
        self._left_behind = 0

    @property
    def in_flight(self) -> int:
        """Executions that hold a slot now."""
        return self._active

    def running_since(self, moment: float) -> int:
        """Count the executions in flight whose call began at `moment` of the operator's clock, or before."""
        return sum([execution.began() <= moment for execution in self._executions])

    @property
    def others(self) -> int:
        """Executions that run beside the one whose end is being told."""
        return self._active

    @property
    def late(self) -> int:
        """Outcomes that came after their call was revoked, and that reached nobody."""
        return 0

    def dispatch(self) -> None:
        """Begin waiting calls while there are slots."""
        # spec: Feeding!Feed
        # What a function or a hook does may ask for it again, in the middle of a call.
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._active < self.limit and self._begin_next():
                pass
        finally:
            self._dispatching = False

    def _begin_next(self) -> bool:
        """Have what is next begin in the free slot; returns False if nothing may begin now."""
        raise NotImplementedError

    def _has_thread(self, starting: int) -> bool:
        """Have a thread for one more call besides `starting` that are about to begin, or have the rows wait.

        Where no thread can be started, the calls in flight are limited to the threads that there are, and
        later more are tried. Where there is none that could become free, the job ends.
        """
        threads = self._threads
        tries = self._more_threads is None and not self._asked_for_thread
        if threads is None or threads.reserve(starting + 1, tries=tries):
            return True
        if self._asked_for_thread:
            return False
        if not threads.count and threads.ask_for_one(partial(self._hooks.guarded, self._got_thread)):
            # Of a function in front, which may have taken all.
            self._asked_for_thread = True
            return False
        if self._left_behind >= threads.count:
            # Nothing was called that could fail.
            still = f", and calls that were given up still run in {threads.count}" if threads.count else ""
            self._hooks.stop(
                RuntimeError(
                    f"no thread can be started for the calls of {self._name}{still}: {threads.shortage}. "
                    f"{_MORE_THREADS}"
                )
            )
            return False
        if self._more_threads is None:
            threads.freed = partial(self._hooks.guarded, self._use_free_thread)
            self._hooks.limit_threads(threads.count)
            self._more_threads = self._loop.call_later(
                THREAD_RETRY_S, self._hooks.guarded, self._try_more_threads
            )
        if not self._told_of_threads:
            self._told_of_threads = True
            log.warning(
                "capacity: %d calls of %s may be in flight, and no more than %d threads can be started (%s): "
                "the other rows wait for these. %s",
                self._hooks.most,
                self._name,
                threads.count,
                threads.shortage,
                _MORE_THREADS,
            )
        return False

    def _got_thread(self) -> None:
        self._asked_for_thread = False
        self.dispatch()

    def _use_free_thread(self) -> None:
        """Begin a call in the thread of one that goes on without it: more are in flight than threads."""
        self._hooks.limit_threads(None)
        self.dispatch()

    def _try_more_threads(self) -> None:
        self._more_threads = None
        self._hooks.limit_threads(None)

    def note_turn(self) -> None:
        """Note that the event loop had its turn."""

    def revoke(self, execution: Any, call: Call) -> None:
        """Take `call` from what runs it and have that end; what it still brings is ignored."""
        if execution.release(call):
            self._cancel(execution)

    async def close(self) -> None:
        """Revoke all calls and wait for their end, for `Intervals.cancel_timeout` at most."""
        self._closed = True
        if self._more_threads is not None:
            self._more_threads.cancel()
        tasks = []
        for execution in self._executions:
            execution.release_all()
            if execution.timer is not None:
                execution.timer.cancel()
            if execution.task is not None:
                execution.task.cancel()
                tasks.append(execution.task)
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=self._hooks.intervals.cancel_timeout)
            for task in pending:
                _forget(task)
                log.warning(_ABANDONED, self._name, self._hooks.intervals.cancel_timeout)
        if self._threads is not None:
            self._threads.close()

    def _start(self, execution: Execution, coroutine: Coroutine[Any, Any, None]) -> None:
        """Give `execution` a slot, and a task in a copy of the job's context."""
        self._executions[execution] = None
        self._active += 1
        # Not by `create_task`: a task factory of the caller's loop may run it before it is known here.
        execution.task = self._context.run(asyncio.Task, coroutine, loop=self._loop)

    def _cancel(self, execution: Execution) -> None:
        """Have `execution` end, for whose results nobody waits; if it does not, it loses its slot."""
        assert execution.task is not None
        if execution.started:
            # A task that was cancelled before its first step would never come to its end here.
            execution.task.cancel()
        execution.timer = self._loop.call_later(
            self._hooks.intervals.cancel_timeout, self._hooks.guarded, self._abandon, execution
        )

    def _abandon(self, execution: Any) -> None:
        # spec: Feeding!Abandon
        if execution not in self._executions or self._closed:
            return
        self._executions.pop(execution, None)
        self._active -= 1
        self.abandoned += 1
        self._leave_alone(execution)
        self.dispatch()

    def _leave_alone(self, execution: Any) -> None:
        """Let what runs go on without a slot, and say so. Raises RuntimeError for too many threads."""
        execution.abandoned = True
        self._left_behind += 1
        _forget(execution.task)
        if self._threads is None:
            log.warning(_ABANDONED, self._name, self._hooks.intervals.cancel_timeout)
            return
        allowed, left_behind = max(self._hooks.intervals.abandoned_threads, self.limit), self._left_behind
        if self._more_threads is not None:
            # Others cannot be had.
            allowed = min(allowed, self._threads.count)
        if left_behind >= allowed:
            raise RuntimeError(
                f"{left_behind} calls of {self._name} still run in their threads "
                f"{self._hooks.intervals.cancel_timeout:g} s after their time-out, "
                f"and at most {allowed} may: "
                "a thread cannot be ended from outside. "
                "Give what blocks there a time-out of its own, or make the function `async def`"
            )
        if self.abandoned == 1:
            # Said once: the counts have the others.
            log.warning(
                "a call of %s did not return within %g s after its time-out; "
                "its thread goes on without a slot",
                self._name,
                self._hooks.intervals.cancel_timeout,
            )

    def _has_ended(self, execution: Execution) -> None:
        """Free the slot of `execution`, unless it was abandoned and has none."""
        # spec: Feeding!Retire, Feeding!RevokedEnds
        self._executions.pop(execution, None)
        if execution.timer is not None:
            execution.timer.cancel()
        if not execution.abandoned:
            self._active -= 1
        else:
            self._left_behind -= 1


_MORE_THREADS = (
    "Give this process more of them (`ulimit -u`, the limit of pids of its container) or more memory, which "
    "their stacks take; or a smaller capacity; or make the function `async def`, which needs no threads"
)

_ABANDONED = "a call of %s did not end within %g s after it was cancelled; it goes on without a slot"


def _forget(task: asyncio.Task[None]) -> None:
    # Otherwise asyncio reports it a second time, without its cause, when the task is collected.
    task._log_destroy_pending = False  # type: ignore[attr-defined]


class CoroutineRunner(Runner):
    """Carries calls through an async function, in tasks that take one call after the other."""

    def __init__(
        self,
        hooks: RunnerHooks,
        fn: Callable[..., Awaitable[Any]],
        name: str,
        context: contextvars.Context,
    ) -> None:
        super().__init__(hooks, fn, name, context)
        self._starting = 0
        self._streak = 0

    @property
    def others(self) -> int:
        """Workers that carry calls, beside the one whose call ends: it has its slot still."""
        return self._active - self._starting - 1

    def _begin_next(self) -> bool:
        """Start a worker, unless as many are on their way as calls wait, or as carry calls already."""
        starting = self._starting
        if not self._hooks.may_start(starting, self._active - starting):
            return False
        if self._threads is not None and not self._has_thread(starting):
            return False
        worker = Worker(self._hooks.services)
        self._starting += 1
        self._start(worker, self._carry(worker))
        return True

    def note_turn(self) -> None:
        """Note that the event loop had its turn."""
        self._streak = 0

    async def _carry(self, worker: Worker) -> None:
        hooks = self._hooks
        take, ended, gen_ai = hooks.take, hooks.ended, hooks.gen_ai
        fn = self._fn
        CURRENT.set(worker)
        names_calls = _ASKS_MODULE in sys.modules
        context = copy_context()
        task: Any = worker.task
        needs_threads = self._threads is not None
        first = True
        self._starting -= 1
        # spec: Feeding!Start, Feeding!GoOn
        try:
            while not self._closed and self._active <= self.limit:
                if needs_threads and not self._has_thread(self._starting):
                    return
                call: Call | None = take(worker)
                if call is None:
                    return
                worker.call = call
                # The gate is looked at anew: that of a breaker appears while workers run.
                if first or self.is_gated:
                    first = False
                    self.dispatch()
                if names_calls:
                    CURRENT.set(CurrentCall(hooks.services, (call,)))
                    context = copy_context()
                span = gen_ai.begin((call,)) if gen_ai.span_share else None
                try:
                    result = await fn(call.row)
                    if type(result) not in _PLAIN_TYPES:
                        if hasattr(type(result), "__aiter__"):
                            result = await _gather(result)
                        else:
                            refuse_coroutine(self._name, result)
                except BaseException as error:
                    if self._loop.is_closed():
                        # The task is being collected after its loop; nobody waits for the call.
                        raise
                    if worker.call is not call:
                        self._came_late(call, worker, None, error)
                        return
                    worker.call = None
                    ended(call, worker, None, error)
                    if not isinstance(error, Exception):
                        return
                else:
                    if worker.call is not call:
                        self._came_late(call, worker, result)
                        return
                    worker.call = None
                    ended(call, worker, result)
                finally:
                    if span is not None:
                        gen_ai.end((call,), span)
                # Has the call left something behind in its task that the next one would see?
                try:
                    # Contexts are equal in constant time unless a variable was set.
                    if task._must_cancel or (_CAN_COUNT and task.cancelling()) or copy_context() != context:
                        return
                except Exception:
                    # Values are compared too, and those of others compare as they like.
                    return
                self._streak += 1
                if self._streak >= CALLS_PER_TURN:
                    self._streak = 0
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        # Between two calls, so it holds none; another worker is started for the next.
                        return
        except BaseException as error:
            if self._closed or self._loop.is_closed():
                raise
            hooks.stop(error)
        finally:
            self._has_ended(worker)
            if not (self._closed or self._loop.is_closed()):
                self.dispatch()

    def _came_late(self, call: Call, worker: Worker, result: Any, error: BaseException | None = None) -> None:
        # Once the job has ended, nothing of a call counts any more.
        if not self._closed:
            self._hooks.ended(call, worker, result, error)


async def collect(call: Callable[..., AsyncIterator[T]], row: Any) -> list[T] | Result:
    """Return the list of what the async iterator `call(row)` yields; the iterator is closed in the end."""
    return await _gather(call(row))


async def _gather(results: AsyncIterator[T]) -> list[T] | Result:
    try:
        return joined([result async for result in results])
    finally:
        close = getattr(results, "aclose", None)
        if close is not None:
            await close()
