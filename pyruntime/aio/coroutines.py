"""Runs the calls of an async function: a runner is a task that carries one call after the other.

Confined to the mailbox thread, which is the thread of the event loop.

A task per call would be simpler and costs several microseconds a row more. What a task per call
gives for free is kept: each call begins in the context of the job (a runner whose call changed its
context is retired), and what cancels one call cannot reach the next (a runner that was cancelled,
or whose call ended with something other than an `Exception`, is retired too).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import Call, CallScheduler

T = TypeVar("T")

log = logging.getLogger("pillarbox")

GRACE = 1.0
"""Seconds that a cancelled call has to end; then its slot is given to another."""

_PLAIN = frozenset({bool, bytes, dict, float, int, list, str, tuple, type(None)})
"""Types of usual results, none of them an async iterator."""

_CAN_COUNT = hasattr(asyncio.Task, "cancelling")  # since Python 3.11

CALLS_PER_TURN = 128
"""Calls that may follow one another without the event loop getting its turn."""


class _Runner:
    """A task and the call that it carries now; `call` is None once that call was taken from it.

    `grace` is the timer of its abandonment, while it is asked to end.
    """

    __slots__ = ("abandoned", "call", "grace", "task")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.task: asyncio.Task[None] | None = None
        self.grace: asyncio.TimerHandle | None = None
        self.abandoned = False


class CoroutineRunner:
    """Carries waiting calls of one operator through an async function, `limit` at a time."""

    def __init__(
        self,
        scheduler: CallScheduler,
        fn: Callable[..., Awaitable[Any]],
        name: str,
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._scheduler = scheduler
        self._fn = fn
        self._name = name
        self.limit = scheduler.concurrency.limit
        self._context = context
        self._loop = loop
        self._runners: set[_Runner] = set()
        self._active = 0
        self._starting = 0
        self._streak = 0
        self._closed = False
        self.abandoned = 0
        self.late = 0

    @property
    def in_flight(self) -> int:
        """Calls that hold a slot now."""
        return self._active

    def dispatch(self) -> None:
        """Start runners for waiting calls while there are slots."""
        # spec: Feeding!Feed
        slots = min(self.limit - self._active, len(self._scheduler.waiting) - self._starting)
        if slots <= 0:
            return
        throttle = self._scheduler.throttle
        if throttle is None:
            # As many as carry calls already, and each starts others with its first call: where calls end at
            # once, one runner carries them all, and to make the others would be for nothing.
            slots = min(slots, max(1, self._active - self._starting) - self._starting)
        elif throttle.holds or self._starting:
            return
        else:
            # One at a time, and each that is let through starts the next: most may be held back.
            slots = 1
        for _ in range(slots):
            runner = _Runner()
            self._runners.add(runner)
            self._active += 1
            self._starting += 1
            # Not by `create_task`: a task factory of the caller's loop may run it before it is known here.
            runner.task = self._context.run(asyncio.Task, self._carry(runner), loop=self._loop)

    def turn(self) -> None:
        """Note that the event loop had its turn."""
        self._streak = 0

    def revoke(self, call: Call) -> None:
        """Take `call` from its runner and cancel what runs of it; what it still brings is ignored."""
        runner = call.execution
        call.execution = None
        runner.call = None
        runner.task.cancel()
        runner.grace = self._loop.call_later(GRACE, self._scheduler.guarded, self._abandon, runner)

    async def close(self) -> None:
        """Cancel all calls and wait for them, for `GRACE` seconds at most."""
        self._closed = True
        tasks = []
        for runner in list(self._runners):
            if runner.call is not None:
                runner.call.execution = None
                runner.call = None
            if runner.grace is not None:
                runner.grace.cancel()
            if runner.task is not None:
                tasks.append(runner.task)
        await cancel_all(tasks, self._name, GRACE)

    async def _carry(self, runner: _Runner) -> None:
        scheduler = self._scheduler
        waiting = scheduler.waiting
        begin = scheduler.begin
        succeeded = scheduler.succeeded
        fn = self._fn
        context = self._context
        look_first = scheduler.look_first
        task: Any = runner.task
        first = True
        self._starting -= 1
        # spec: Feeding!Start, Feeding!GoOn
        try:
            while waiting and not self._closed and self._active <= self.limit:
                if look_first is not None and not look_first():
                    return
                # Looked at anew: the gate of a breaker appears while runners run.
                if scheduler.throttle is not None:
                    admitted = self._next_admitted()
                    if admitted is None:
                        return
                    call = admitted
                else:
                    call = waiting.popleft()
                    if first:
                        first = False
                        self.dispatch()
                runner.call = call
                call.execution = runner
                begin(call)
                try:
                    result = await fn(call.row)
                    if type(result) not in _PLAIN and hasattr(type(result), "__aiter__"):
                        result = await _gather(result)
                except BaseException as error:
                    if self._loop.is_closed():
                        # The task is being collected after its loop; nobody waits for the call.
                        raise
                    if runner.call is not call:
                        self._count_late(error)
                        return
                    runner.call = call.execution = None
                    scheduler.failed(call, error)
                    if not isinstance(error, Exception):
                        return
                else:
                    if runner.call is not call:
                        self._count_late(None)
                        scheduler.late(call, result)
                        return
                    runner.call = call.execution = None
                    succeeded(call, result)
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
                        # Between two calls, so it holds none; another runner is started for the next.
                        return
        except BaseException as error:
            if self._closed or self._loop.is_closed():
                raise
            scheduler.stop(error)
        finally:
            # spec: Feeding!Retire, Feeding!RevokedEnds
            self._runners.discard(runner)
            if runner.grace is not None:
                runner.grace.cancel()
            if not runner.abandoned:
                self._active -= 1
            if not self._closed and waiting:
                self.dispatch()

    def _next_admitted(self) -> Call | None:
        assert self._scheduler.throttle is not None
        call = self._scheduler.throttle.next()
        if call is not None:
            self.dispatch()
        return call

    def _count_late(self, error: BaseException | None) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.late += 1

    def _abandon(self, runner: _Runner) -> None:
        # spec: Feeding!Abandon
        if runner not in self._runners or self._closed:
            return
        runner.abandoned = True
        self._runners.discard(runner)
        self._active -= 1
        self.abandoned += 1
        assert runner.task is not None
        abandon(runner.task, self._name, GRACE)
        self.dispatch()


async def cancel_all(tasks: list[asyncio.Task[None]], name: str, grace: float) -> None:
    """Cancel the calls of the function `name` and wait for their end, for `grace` seconds at most."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=grace)
        for task in pending:
            abandon(task, name, grace)


def abandon(task: asyncio.Task[None], name: str, grace: float) -> None:
    """Say that a call of the function `name` did not end within `grace` seconds and is left to itself."""
    log.warning(
        "a call of %s did not end within %g s after it was cancelled; it goes on without a slot", name, grace
    )
    # Otherwise asyncio reports it a second time, without its cause, when the task is collected.
    task._log_destroy_pending = False  # type: ignore[attr-defined]


async def collect(call: Callable[..., AsyncIterator[T]], row: Any) -> list[T]:
    """The list of what the async iterator `call(row)` yields; the iterator is closed in the end."""
    return await _gather(call(row))


async def _gather(results: AsyncIterator[T]) -> list[T]:
    try:
        return [result async for result in results]
    finally:
        close = getattr(results, "aclose", None)
        if close is not None:
            await close()
