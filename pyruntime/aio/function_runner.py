"""Makes what runs a function: batches, collectors, coroutines or threads. Mailbox thread."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

from pillarbox.aio.batch_runner import BatchRunner, batch_function
from pillarbox.aio.batch_scheduler import BatchScheduler
from pillarbox.aio.call_threads import blocking_function
from pillarbox.aio.function import (
    check_function,
    collector_parameter,
    is_async,
    is_async_generator,
    with_collector,
)
from pillarbox.aio.hedge import check_cancellable
from pillarbox.aio.runners import CollectorRunner, CoroutineRunner, Runner, collect
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.kernel import TaskMailbox


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
    if isinstance(scheduler, BatchScheduler) and batch is not None:
        # Once more: of a resource only what entering it gave is known.
        check_function(fn, in_batches=True)
        policies = scheduler.policies
        # What looks at results sees each as the function gave it.
        whole = policies.fit.elements_of if policies.looks_at_results else policies.fit.rows_of
        # Rows that go on as Arrow are taken apart into their columns by what knows their types.
        by_columns = spread and not batch.arrow
        in_batches = batch_function(fn, name, loop, mailbox, priority, spread=by_columns, rows_of=whole)
        scheduler.fill(more_rows)
        return BatchRunner(hooks, in_batches, name, context)
    if scheduler.options.hedge is not None:
        check_cancellable(fn)
    parameter = collector_parameter(fn)
    if parameter is not None:
        check_function(fn)
        handed = with_collector(fn, parameter, spread=spread)
        return CollectorRunner(hooks, handed, name, context, mailbox, priority)
    call = (lambda row: fn(*row)) if spread else fn
    if is_async_generator(fn):
        call = partial(collect, call)
    elif not is_async(fn):
        call = blocking_function(call, name, loop, mailbox, priority)
    return CoroutineRunner(hooks, call, name, context)
