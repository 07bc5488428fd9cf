"""Makes what runs a function: collectors, coroutines or threads, or batches of them. Mailbox thread."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

from pillarbox.aio.call_threads import blocking_function
from pillarbox.aio.function import (
    check_function,
    collector_parameter,
    is_async,
    is_async_generator,
)
from pillarbox.aio.hedge import check_cancellable
from pillarbox.aio.runners import CoroutineRunner, Runner, collect
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.kernel import TaskMailbox
from pillarbox.providers import BATCH_RUNNER, COLLECTOR_RUNNER, provided


def runner_of(
    fn: Callable[..., Any],
    scheduler: CallScheduler,
    mailbox: TaskMailbox,
    priority: int,
    *,
    name: str,
    context: contextvars.Context,
    spread: bool,
    more_rows: Callable[[], bool],
) -> Runner:
    """Make the runner of the calls of `scheduler`.

    mailbox, priority: of the mail of answers. name: the function's. context: what each call's context is a
    copy of. spread: rows are tuples of arguments. more_rows: returns True if rows may come before a result
    has left.
    """
    hooks, loop, batch = scheduler.hooks(), scheduler.loop, scheduler.options.batch
    if batch is not None:
        # Once more: of a resource only what entering it gave is known.
        check_function(fn, in_batches=True)
        if scheduler.options.hedge is not None:
            check_cancellable(fn)
        make_runner = provided(BATCH_RUNNER, "batch")
        batches: Runner = make_runner(
            fn, scheduler, mailbox, priority, name=name, context=context, spread=spread, more_rows=more_rows
        )
        return batches
    if scheduler.options.hedge is not None:
        check_cancellable(fn)
    parameter = collector_parameter(fn)
    if parameter is not None:
        check_function(fn)
        collectors: Runner = provided(COLLECTOR_RUNNER, "a Collector")(
            fn, parameter, hooks, mailbox, priority, name=name, context=context, spread=spread
        )
        return collectors
    call = (lambda row: fn(*row)) if spread else fn
    if is_async_generator(fn):
        call = partial(collect, call)
    elif not is_async(fn):
        call = blocking_function(call, name, loop, mailbox, priority)
    return CoroutineRunner(hooks, call, name, context)
