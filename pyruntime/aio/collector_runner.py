"""Runs the calls of a function with a collector: it starts work elsewhere, and brings its result by that.

Confined to the mailbox thread.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.current_call import CURRENT, CurrentCall
from pillarbox.aio.function import refuse_awaitable
from pillarbox.aio.runners import Runner, RunnerHooks
from pillarbox.kernel import Collector, CollectorFactory, TaskMailbox


class CollectorRunner(Runner):
    """Hands calls to a function that starts work elsewhere and returns, each attempt with a collector.

    `complete` and `fail` of the collector may be called by any thread; they reach the mailbox thread as mail.
    The function runs on the event loop and must not block it. It is Flink's `AsyncFunction`, whose
    `ResultFuture` is the collector.
    """

    # There is nothing here that could be cancelled. So a call gives up its slot with its time-out, unlike a
    # coroutine or a thread, whose end can be waited for.

    def __init__(
        self,
        hooks: RunnerHooks,
        fn: Callable[[Any, Collector[Any]], object],
        name: str,
        context: contextvars.Context,
        mailbox: TaskMailbox,
        priority: int = 0,
    ) -> None:
        super().__init__(hooks, fn, name, context)
        # A mail of the kernel has nobody who would raise what is raised in it.
        self._factory = CollectorFactory(mailbox, self._completed, priority=priority)
        self._asked = False
        self._calls: dict[Collector[Any], Call] = {}
        # Errors that were raised behind a completion.
        self._late = 0

    @property
    def late(self) -> int:
        """Completions that were not the first of their attempt."""
        return self._late + self._factory.late

    def running_since(self, moment: float) -> int:
        """See `Runner.running_since`."""
        return sum([call.began <= moment for call in self._calls.values()])

    def _begin_next(self) -> bool:
        call = self._hooks.take(None)
        if call is not None:
            self._begin(call)
        return call is not None

    def revoke(self, execution: Any, call: Call) -> None:
        """Take `call` from its collector, whose completion is late from now on."""
        collector = execution
        self._free(collector)
        self._factory.revoke(collector)
        # Afterwards: whoever takes the call away has not done with it.
        if not self._asked and not self._closed:
            self._asked = True
            self._loop.call_soon(self._hooks.guarded, self._dispatch_again)

    async def close(self) -> None:
        """Give up all calls: whatever completes them has no effect. Waits for nothing."""
        self._closed = True
        for collector in self._calls:
            self._factory.close(collector)
        self._calls.clear()
        self._active = 0

    def _free(self, collector: Any) -> None:
        """Have a collector give up its slot."""
        self._calls.pop(collector, None)
        self._active -= 1

    def _dispatch_again(self) -> None:
        self._asked = False
        self.dispatch()

    def _begin(self, call: Call) -> None:
        # spec: Collector!Begin
        collector = self._factory.create(call)
        self._hooks.begin(call, collector)
        self._calls[collector] = call
        self._active += 1
        own = self._context.copy()
        own.run(CURRENT.set, CurrentCall(self._hooks.services, (call,)))
        try:
            returned = own.run(self._fn, call.row, collector)
            if returned is not None:
                refuse_awaitable(self._name, returned)
        except BaseException as error:
            if self._factory.revoke(collector):
                self._free(collector)
                self._hooks.ended(call, collector, None, error)
            elif isinstance(error, Exception):
                # It had completed before it raised, and that came first.
                self._late += 1
            else:
                raise

    def _completed(
        self, collector: Collector[Any], call: Call, result: Any, error: BaseException | None
    ) -> None:
        self._hooks.guarded(self._end, collector, call, result, error)

    def _end(self, collector: Collector[Any], call: Call, result: Any, error: BaseException | None) -> None:
        # spec: Collector!RunMail
        if self._closed:
            return
        if collector in self._calls:
            self._free(collector)
        self._hooks.ended(call, collector, result, error)
        self.dispatch()


def collector_runner(
    fn: Callable[..., object],
    parameter: Parameter,
    hooks: RunnerHooks,
    mailbox: TaskMailbox,
    priority: int,
    *,
    name: str,
    context: contextvars.Context,
    spread: bool,
) -> CollectorRunner:
    """Make the runner of `fn`, which takes a collector by `parameter`. Others as of `runner_of`."""
    handed = with_collector(fn, parameter, spread=spread)
    return CollectorRunner(hooks, handed, name, context, mailbox, priority)


def with_collector(
    fn: Callable[..., object], parameter: Parameter, *, spread: bool
) -> Callable[[Any, Collector[Any]], object]:
    """A function of a row and a collector that calls `fn`, which takes that by `parameter`.

    spread: the row is a tuple of arguments.
    """
    name = parameter.name
    if parameter.kind is Parameter.POSITIONAL_ONLY:
        return (lambda row, collector: fn(*row, collector)) if spread else fn
    if spread:
        return lambda row, collector: fn(*row, **{name: collector})
    if [*inspect.signature(fn).parameters].index(name) == 1 and parameter.kind is not Parameter.KEYWORD_ONLY:
        return fn
    return lambda row, collector: fn(row, **{name: collector})
