"""Runs the calls of a function that takes many rows at once. Confined to the mailbox thread.

Each call of a batch is a task of its own, in a copy of the job's context: what it does there reaches no
other. There is no task, no timer and no future for a row. A blocking function runs in threads.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from itertools import islice
from typing import Any, TypeAlias

from pillarbox.aio.batches.batch_execution import BatchExecution
from pillarbox.aio.batches.batch_scheduler import BatchScheduler
from pillarbox.aio.call_threads import CallThreads
from pillarbox.aio.calls import ROW
from pillarbox.aio.current_call import CURRENT, CurrentCall
from pillarbox.aio.errors import BatchResultError
from pillarbox.aio.function import is_async, refuse_awaitable
from pillarbox.aio.runners import Runner
from pillarbox.aio.usage import Result
from pillarbox.kernel import TaskMailbox

BatchFunction: TypeAlias = Callable[[list[Any]], Awaitable["list[Any] | Result"]]
"""Gives a result for each row; in one `Result` where the function says what the call used."""

_NOT_BY_POSITION = (str, bytes, bytearray, memoryview, Mapping, Set)


class BatchRunner(Runner):
    """Carries batches of one operator through a function, `limit` of them at a time."""

    # Batches whose tasks have not had their first step.
    _starting = 0

    @property
    def others(self) -> int:
        """Batches that run beside the one whose end is being reported."""
        return self._active - self._starting

    def dispatch(self) -> None:
        """Call batches while there are slots."""
        self._hooks.arrived()
        super().dispatch()

    def _begin_next(self) -> bool:
        # Before rows are taken, which would have to be put back.
        starting = self._starting
        if not self._hooks.may_start(starting, self._active - starting) or not self._has_thread(starting):
            return False
        batch: BatchExecution | None = self._hooks.take(None)
        if batch is None:
            return False
        self._starting += 1
        self._start(batch, self._call(batch))
        return True

    async def _call(self, batch: BatchExecution) -> None:
        results: list[Any] | Result = []
        failed: BaseException | None = None
        gen_ai, span = self._hooks.gen_ai, None
        batch.started = True
        self._starting -= 1
        try:
            if not self._hooks.begin(batch):
                raise asyncio.CancelledError
            calls = batch.calls
            CURRENT.set(CurrentCall(self._hooks.services, calls))
            span = gen_ai.begin(calls) if gen_ai.span_share else None
            results = await self._fn(ROW.of(calls))
        except BaseException as raised:
            if self._loop.is_closed():
                # The task is being collected after its loop; nobody waits for the call.
                raise
            failed = raised
        self._hooks.guarded(self._ended, batch, results, failed)
        if span is not None:
            gen_ai.end(calls, span)

    def _ended(self, batch: BatchExecution, results: list[Any] | Result, error: BaseException | None) -> None:
        self._has_ended(batch)
        self._hooks.ended(batch, results, error)
        if not self._closed:
            self.dispatch()


def batch_runner(
    fn: Callable[..., Any],
    scheduler: BatchScheduler,
    mailbox: TaskMailbox,
    priority: int,
    *,
    name: str,
    context: contextvars.Context,
    spread: bool,
    more_rows: Callable[[], bool],
) -> BatchRunner:
    """Make the runner of the batches of `scheduler`, and have that fill them. Arguments as of `runner_of`."""
    batch, policies = scheduler.options.batch, scheduler.policies
    assert batch is not None
    # What looks at results sees each as the function gave it.
    whole = policies.fit.elements_of if policies.looks_at_results else policies.fit.rows_of
    # Rows that go on as Arrow are taken apart into their columns by what knows their types.
    by_columns = spread and not batch.arrow
    in_batches = batch_function(fn, name, scheduler.loop, mailbox, priority, spread=by_columns, rows_of=whole)
    scheduler.fill(more_rows)
    return BatchRunner(scheduler.hooks(), in_batches, name, context)


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
