"""Runs the calls of a function that is handed a collector: it starts work elsewhere and returns.

`complete` and `fail` of the collector may be called by any thread; they reach the mailbox thread as mail. All
else is confined to that thread, which is the event loop's: the function runs there and must not block it. It
is Flink's `AsyncFunction`, whose `ResultFuture` is the collector.

There is nothing here that could be cancelled. So a call gives up its slot with its time-out, unlike a
coroutine or a thread, whose end can be waited for.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox.aio.function import refuse_awaitable
from pillarbox.kernel import Collector, CollectorFactory, TaskMailbox

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import Call, CallScheduler


class CollectorRunner:
    """Hands waiting calls of one operator to a function, `limit` at a time, each attempt with a collector."""

    def __init__(
        self,
        scheduler: CallScheduler,
        fn: Callable[[Any, Collector[Any]], object],
        name: str,
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop,
        mailbox: TaskMailbox,
        priority: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self._fn = fn
        self._name = name
        self.limit = scheduler.concurrency.limit
        self._context = context
        self._loop = loop
        # A mail of the kernel has nobody who would raise what is raised in it.
        self._factory = CollectorFactory(mailbox, self._completed, priority=priority)
        self._collectors: set[Collector[Any]] = set()
        self._overtaken = 0
        self._dispatching = False
        self._asked = False
        self._closed = False
        self.abandoned = 0

    @property
    def in_flight(self) -> int:
        """Calls that hold a slot now."""
        return len(self._collectors)

    @property
    def late(self) -> int:
        """Completions that were not the first of their attempt, or came when it had ended."""
        return self._overtaken + self._factory.late

    def dispatch(self) -> None:
        """Call the function with waiting rows while there are slots."""
        # What the function or a hook does may ask for it again, in the middle of a call.
        if self._dispatching:
            return
        scheduler = self._scheduler
        waiting = scheduler.waiting
        self._dispatching = True
        try:
            while waiting and len(self._collectors) < self.limit and not self._closed:
                if scheduler.look_first is not None and not scheduler.look_first():
                    return
                # Looked at anew: the gate of a breaker appears while calls are made.
                call = waiting.popleft() if scheduler.throttle is None else scheduler.throttle.next()
                if call is None:
                    return
                self._begin(call)
        finally:
            self._dispatching = False

    def turn(self) -> None:
        """Every completion is a mail: the event loop has its turn."""

    def revoke(self, call: Call) -> None:
        """Take `call` from its collector, whose completion is late from now on."""
        collector = call.execution
        call.execution = None
        self._collectors.discard(collector)
        self._factory.revoke(collector)
        # Afterwards: whoever takes the call away has not done with it.
        if not self._asked and not self._closed:
            self._asked = True
            self._loop.call_soon(self._scheduler.guarded, self._dispatch_again)

    async def close(self) -> None:
        """Let go of all calls: whatever completes them has no effect. Waits for nothing."""
        self._closed = True
        for collector in self._collectors:
            self._factory.close(collector)
        self._collectors.clear()

    def _dispatch_again(self) -> None:
        self._asked = False
        self.dispatch()

    def _begin(self, call: Call) -> None:
        # spec: Collector!Begin
        collector = self._factory.create(call)
        call.execution = collector
        self._collectors.add(collector)
        self._scheduler.begin(call)
        try:
            returned = self._context.copy().run(self._fn, call.row, collector)
            if returned is not None:
                refuse_awaitable(self._name, returned)
        except BaseException as error:
            if self._factory.revoke(collector):
                call.execution = None
                self._collectors.discard(collector)
                self._scheduler.failed(call, error)
            elif isinstance(error, Exception):
                # It had completed before it raised, and that came first.
                self._overtaken += 1
            else:
                raise

    def _completed(
        self, collector: Collector[Any], call: Call, result: Any, error: BaseException | None
    ) -> None:
        self._scheduler.guarded(self._end, collector, call, result, error)

    def _end(self, collector: Collector[Any], call: Call, result: Any, error: BaseException | None) -> None:
        # spec: Collector!RunMail
        if call.execution is not collector or self._closed:
            self._overtaken += 1
            if error is None:
                self._scheduler.late(call, result)
            return
        call.execution = None
        self._collectors.discard(collector)
        if error is None:
            self._scheduler.succeeded(call, result)
        else:
            self._scheduler.failed(call, error)
        self.dispatch()
