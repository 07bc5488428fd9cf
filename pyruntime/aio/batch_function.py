"""The user's function of a list of rows, as an async function whose results are checked.

For the mailbox thread, which is the event loop's; a blocking function runs in a thread for each call.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from concurrent.futures import CancelledError, Future
from itertools import islice
from typing import Any, TypeAlias

from pillarbox.aio.errors import BatchResultError
from pillarbox.aio.function import is_async, refuse_awaitable

BatchFunction: TypeAlias = Callable[[list[Any]], Awaitable[list[Any]]]

_NOT_BY_POSITION = (str, bytes, bytearray, memoryview, Mapping, Set)

_numbers = itertools.count(1)


def batch_function(
    fn: Callable[..., Any],
    name: str,
    *,
    spread: bool,
    rows_of: Callable[[Any], list[Any] | None] | None = None,
) -> BatchFunction:
    """What gives the list of results for a list of rows, by `fn`.

    fn: an async function, or one that blocks, of a list of rows. spread: rows are tuples of arguments, and
    `fn` takes a list for each argument. name: what errors call it. rows_of: see `ResultConverter`.

    The async function raises what `fn` raises, and `BatchResultError` for results that are not one
    for each row.
    """
    if is_async(fn):

        async def call(rows: list[Any]) -> list[Any]:
            results = await (fn(*_columns(rows)) if spread else fn(rows))
            return _checked(results, len(rows), name, rows_of)

        return call

    def blocking(rows: list[Any]) -> Any:
        results = fn(*_columns(rows)) if spread else fn(rows)
        if isinstance(results, Future):
            return results
        refuse_awaitable(name, results)
        return _checked(results, len(rows), name, rows_of)

    async def in_thread(rows: list[Any]) -> list[Any]:
        results = await _in_thread(blocking, rows)
        if isinstance(results, Future):
            return _checked(await _resolved(results, name), len(rows), name, rows_of)
        return results  # type: ignore[no-any-return]

    return in_thread


def _columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _checked(
    results: Any, rows: int, name: str, rows_of: Callable[[Any], list[Any] | None] | None
) -> list[Any]:
    if type(results) is not list and rows_of is not None:
        parts = rows_of(results)
        results = results if parts is None else parts
    if type(results) is not list:
        # A table of pandas, polars or Arrow gives its columns, or their names.
        by_columns = hasattr(type(results), "columns")
        if by_columns or not isinstance(results, Iterable) or isinstance(results, _NOT_BY_POSITION):
            what = (
                "None" if results is None else f"{type(results).__name__}, which has no results by position"
            )
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


async def _resolved(future: Future[Any], name: str) -> Any:
    """The result of `future`, which is cancelled if this is; raises what it raises."""
    waiter = asyncio.wrap_future(future)
    try:
        await asyncio.wait([waiter])
    finally:
        # Cancelled while it waited, and nothing otherwise.
        waiter.cancel()
    if waiter.cancelled():
        raise CancelledError(f"the Future that {name} returned was cancelled")
    return waiter.result()


async def _in_thread(fn: Callable[[list[Any]], Any], rows: list[Any]) -> Any:
    """`fn(rows)` in a thread of its own, which has ended when this ends: cancelling it waits for the thread.

    A daemon, because a call that never returns must not hold the process.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    context = contextvars.copy_context()
    outcome: list[Any] = []
    was_cancelled = False
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(context.run(fn, rows))
        except BaseException as error:
            errors.append(error)
        try:
            loop.call_soon_threadsafe(_set, done)
        except RuntimeError:
            # The loop was closed without waiting any longer.
            return

    thread = threading.Thread(target=run, name=f"pillarbox-batch-{next(_numbers)}", daemon=True)
    thread.start()
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError:
            # A thread cannot be cancelled; its slot is kept for it as long as for a coroutine that goes on.
            was_cancelled = True
    thread.join()
    if errors:
        error = errors.pop()
        try:
            raise error
        finally:
            # Or the frame and the error would keep each other, and the rows.
            del error
    if was_cancelled and isinstance(outcome[0], Future):
        outcome[0].cancel()
    return outcome[0]


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
