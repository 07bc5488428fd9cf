"""`async_map`: the operator over a DataFrame or any iterable, and the iterator of its results.

With `for` the calls run on an event loop in a thread, with `async for` on the caller's own. Importing this
module imports no Spark: `async_map` does where it is given a DataFrame.
"""

# Why one function for DataFrames and iterables: a function is tried on a list before a cluster runs it, and
# what was tried must be what runs. Two functions would differ in a default sooner or later.
#
# Why a DataFrame is known by a method and not by its class. Classic and Connect have a class each, and to ask
# for either would import Spark for those who have none. `mapInArrow` is what is called in the end.
#
# Alternatives of the iterator, and why they are worse.
#
# To run the loop on the caller's thread while it waits for a result: it stands still while the caller
# computes, so that no call begins, no answer is read and no time-out fires. The figures stand in
# docs/decisions/loop-thread.md.
#
# To run the calls of `async for` on a loop of its own too: what the function uses, a session or a lock,
# belongs to the caller's loop, and fails on another.
#
# To decide by the function that is called, with a name for each: a reader would have two functions with the
# same twenty options. The way of iterating decides, and the first result binds it.

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

from pillarbox.aio.batching import Batch
from pillarbox.aio.calls import Chunk
from pillarbox.aio.errors import Failed, Outcome, shorten
from pillarbox.aio.function import request_bytes_of, with_parse
from pillarbox.aio.intervals import CLOSE_TIMEOUT_S
from pillarbox.aio.options import (
    ErrorMode,
    Errors,
    Options,
    RowOptionNames,
)
from pillarbox.aio.row_inputs import check_rows, is_table
from pillarbox.aio.stage_ledgers import open_ledgers, release_ledgers
from pillarbox.aio.stages import Stage, Step, form_of_failures, resolve_stages
from pillarbox.aio.task_run import ResultStream
from pillarbox.aio.totals import Totals
from pillarbox.ledger.keys import identity_of_source
from pillarbox.loop_thread import LoopThread
from pillarbox.providers import DEAD_LETTER_FILES, provided
from pillarbox.thread_start import start_thread
from pillarbox.validate import suggesting_options

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames
    from pillarbox.kernel import Collector
    from pillarbox.spark.observation import JobProgress

T = TypeVar("T")
R = TypeVar("R")

Rows: TypeAlias = Iterable[T] | AsyncIterable[T]
NoNull: TypeAlias = Literal["fail", "drop"]

log = logging.getLogger("pillarbox")

READ_AHEAD_ITEMS = 128
"""Items read from an iterable before there is room for them."""
READ_AHEAD_LARGE_ITEMS = 2
"""The same of rows with images, of which each takes megabytes."""

_numbers = itertools.count(1)


# A result's type depends on what the function is and on what a failed row gives. What returns R is last,
# as an async function returns one too, a coroutine.
@overload
def async_map(
    rows: DataFrame,
    fn: Callable[[Any], Any] | Sequence[Callable[[Any], Any] | Step],
    *,
    schema: str | StructType,
    keep: str | Sequence[str] = ...,
    batch: Batch | None = ...,
    errors: ErrorMode | Errors = ...,
    progress: JobProgress | None = ...,
    options: Options | None = ...,
    **more: Unpack[OptionNames],
) -> DataFrame: ...
@overload
def async_map(
    rows: Any,
    fn: Callable[[Any], Any] | Sequence[Callable[[Any], Any] | Step],
    *,
    schema: str | StructType,
    keep: str | Sequence[str] = ...,
    batch: Batch | None = ...,
    errors: ErrorMode | Errors = ...,
    progress: JobProgress | bool | None = ...,
    options: Options | None = ...,
    **more: Unpack[OptionNames],
) -> Any: ...
@overload
def async_map(
    rows: Rows[T],
    fn: Callable[[Any], Any],
    *,
    errors: Literal["column"],
    batch: Batch | None = ...,
    **more: Unpack[OptionNames],
) -> AsyncMapIterator[Outcome]: ...
@overload
def async_map(
    rows: Rows[T],
    fn: Callable[..., Any],
    *,
    errors: Literal["null"],
    batch: Batch | None = ...,
    **more: Unpack[OptionNames],
) -> AsyncMapIterator[Any | None]: ...
@overload
def async_map(
    rows: Rows[T], fn: Callable[[T], AsyncIterator[R]], *, errors: NoNull = ..., **more: Unpack[OptionNames]
) -> AsyncMapIterator[list[R]]: ...
@overload
def async_map(
    rows: Rows[T],
    fn: Callable[[list[T]], Awaitable[Iterable[R]]],
    *,
    errors: NoNull = ...,
    batch: Batch,
    **more: Unpack[OptionNames],
) -> AsyncMapIterator[R]: ...
@overload
def async_map(
    rows: Rows[T],
    fn: Callable[[list[T]], Iterable[R]],
    *,
    errors: NoNull = ...,
    batch: Batch,
    **more: Unpack[OptionNames],
) -> AsyncMapIterator[R]: ...
@overload
def async_map(
    rows: Rows[T], fn: Callable[[T], Awaitable[R]], *, errors: NoNull = ..., **more: Unpack[OptionNames]
) -> AsyncMapIterator[R]: ...
@overload
def async_map(
    rows: Rows[T],
    fn: Callable[[T, Collector[R]], object],
    *,
    errors: NoNull = ...,
    **more: Unpack[OptionNames],
) -> AsyncMapIterator[R]: ...
@overload
def async_map(
    rows: Rows[T], fn: Callable[[T], Future[R]], *, errors: NoNull = ..., **more: Unpack[OptionNames]
) -> AsyncMapIterator[R]: ...
@overload
def async_map(
    rows: Rows[T], fn: Callable[[T], R], *, errors: NoNull = ..., **more: Unpack[OptionNames]
) -> AsyncMapIterator[R]: ...
@overload
def async_map(
    rows: Rows[T],
    fn: Callable[[Any], Any] | Sequence[Callable[..., Any] | Step],
    *,
    errors: ErrorMode | Errors = ...,
    batch: Batch | None = ...,
    options: Options | None = ...,
    **more: Unpack[OptionNames],
) -> AsyncMapIterator[Any]: ...
@suggesting_options(Options, RowOptionNames)
def async_map(
    rows: Any,
    fn: Callable[..., Any] | Sequence[Callable[..., Any] | Step],
    *,
    schema: str | StructType | None = None,
    keep: str | Sequence[str] = (),
    progress: JobProgress | bool | None = None,
    options: Options | None = None,
    # From `Options`:
    **more: Unpack[RowOptionNames],
) -> Any:
    """Call `fn` concurrently with each row of a DataFrame or iterable; return a DataFrame or an iterator.

    rows: a Spark DataFrame, batch or streaming, classic or Connect; with `schema` also a table of pandas,
        Polars, Arrow, DuckDB or datasets (`pillarbox.frames`); or an iterable. Lists, tuples, ranges and sets
        are read in place, an async iterable on the event loop, any other iterable in its own thread, about
        256 items ahead at most. Values that are not iterated by rows are refused: a table without `schema`, a
        column, a dict, a str.
    fn: an async function of one row; a plain function, which runs in threads; a plain function of the row and
        a `Collector`, which starts work elsewhere and returns; or an object whose `__call__` is one of them.
        An object with `__aenter__`/`__aexit__` (or `__enter__`/`__exit__`) is opened around all calls; over
        Spark once per worker process, and closed when no task has used it for 10 s. A list of functions is a
        chain in one task: each is called with the rows that the previous one returns, as they finish. A
        `Step` in the list is a function with its own options; the options beside the list apply to each.
    schema: for a DataFrame or a table, and required there: the columns of the rows that the function, or the
        last function of a list, returns, as a DDL string or a StructType.
    keep: for a DataFrame or a table: input columns to add in front of them; "*" for all.
    progress: for a DataFrame or a table: a `Progress`, to watch the job while it runs; True for one of a
        table.

        >>> from pillarbox import async_map
        >>> async def call(row):
        ...     return {"upper": row.text.upper()}
        >>> df = spark.createDataFrame([(1, "a"), (2, "b")], "id long, text string")
        >>> async_map(df, call, schema="upper string", keep=["id"], capacity=64, retry=4).collect()
        [Row(id=1, upper='A'), Row(id=2, upper='B')]

        >>> async def double(number):
        ...     return number * 2
        >>> list(async_map([1, 2, 3], double))
        [2, 4, 6]

    Over a DataFrame, `fn` takes a record, read as `record.name` or `record["name"]`, and returns a row (dict,
    tuple, Row, named tuple, dataclass; a bare value if the schema has one column that is not an array, map or
    struct), a list of 0..n rows, or an async iterator of rows. Calls are made when an action runs; a task
    that Spark repeats makes them again. Limits apply to each task, except `budget`, which applies to all
    tasks together. A result that does not fit the schema is a failed attempt with a `ResultError`, which
    `retry` treats like others. `errors="column"` adds a last column `_error`, a struct of type, message,
    attempts, latency and status, null for good rows.

    Over an iterable, read the results with `for` or `async for`; an async generator gives the list of its
    values. With `errors="column"` each result is an `Outcome(result, error)`; with "null" a failed item gives
    None, with "drop" nothing. Calls run in a copy of the caller's context (`contextvars`). With `for` they
    run on an event loop in its own thread, and waiting for a result blocks the caller's thread. With `async
    for` they run on the caller's event loop without blocking it: its sessions, locks and queues may be used.
    Any thread may call this function.

    In a chain, a result with names (a dict, a dataclass, a Row) is passed on as a record, a list as several
    rows or none. The next functions are not called with a row that failed for good; it keeps its place, and
    `_error.uid` or `error.uid` names the function.

    Raises TypeError or ValueError at once for a bad argument; while calls run, `CallFailed`, `CallTimeout` or
    `TooManyFailures` with the row. The operator is Flink's async I/O (FLIP-12).

    Options:
    ordered: emit results in the order of their rows; otherwise in the order in which calls finish.
    capacity: the concurrency: calls in flight, at most (1 or more). A call that waits for a retry or for the
        rate does not count. "auto" or an `Adaptive` finds the number at run time; a `Shared` is a number for
        all tasks together, which needs `limits`.
    timeout: seconds for all attempts of a row, or a `Timeout`; None for no limit.
    retry: the number of attempts (1 or more) or a `Retry`; None for one attempt.
    rate: a `Rate` that limits calls per second or units per minute, for this task or shared.
    hedge: a `Hedge`: while the call of a row is slow another one is made, and the first good answer counts;
        for async functions that may be called twice with one row without harm.
    batch: a `Batch`: the function takes a list of rows and returns a list of results, by position.
    errors: the treatment of rows that fail for good: "fail" (the default) ends the job at the first one;
        "null" emits None; "column" emits the error beside the result; "drop" omits the row. Or an `Errors`.
    budget: a `Budget` that limits the calls and the cost of the whole job.
    endpoints: the `Endpoints` of the service that the function calls: each attempt gets one of them, which
        the function finds as `current_call().endpoint`. Clients have their own.
    ledger: a `Ledger` with `uid` and `run`: it stores each result before the row is emitted, and a later run
        of the same rows does not repeat the call.
    limits: a `Coordinator`, or one `at` an address: all tasks that use it share one `rate` and one `budget`.
        Without it `rate` applies to each task alone.
    """
    if callable(rows) and not isinstance(rows, Iterable | AsyncIterable):
        raise TypeError(
            f"rows={shorten(rows)}: must be a DataFrame or an iterable; rows come first, the function second"
        )
    stages = resolve_stages(fn, options, more)
    if callable(getattr(rows, "mapInArrow", None)) or (schema is not None and is_table(rows)):
        # A job over a DataFrame has imported Spark, which no other job needs.
        from pillarbox.spark.dataframe import map_dataframe

        frame: Any = rows
        return map_dataframe(frame, stages, schema=schema, keep=keep, progress=progress)
    check_rows(rows)
    for name, value in (("schema", schema), ("keep", keep or None), ("progress", progress)):
        if value is not None:
            raise TypeError(
                f"{name}={value!r}: is for a Spark DataFrame, and rows is a {type(rows).__name__}"
            )
    if any(stage.options.batch is not None and stage.options.batch.arrow for stage in stages):
        raise ValueError(
            f"batch: arrow=True is for a Spark DataFrame, whose rows come as Arrow, and rows is a "
            f"{type(rows).__name__}; leave arrow out, and the function gets lists"
        )
    return _iterate(rows, stages)


def _iterate(rows: Iterable[Any] | AsyncIterable[Any], stages: Sequence[Stage]) -> AsyncMapIterator[Any]:
    if not isinstance(rows, Iterable | AsyncIterable):
        raise TypeError(
            f"rows={rows!r}: must be an iterable, an async iterable or a Spark DataFrame, "
            f"not {type(rows).__name__}"
        )
    places: dict[str | None, Any] = {}
    for stage in stages:
        options, ledger = stage.options, stage.options.ledger
        if options.where is not None or options.latency != "normal":
            raise ValueError("where, latency: are for a DataFrame; filter an iterable before it is given")
        if ledger is not None:
            if ledger.run_name is None:
                raise ValueError(
                    "run=None: with a ledger a run needs a name: Ledger(folder, run='2026-11-21')"
                )
            ledger.check()
        if options.errors.dead_letter is not None:
            places[stage.uid] = options.errors.dead_letter
    dead_letters: WritesDeadLetters | None = None
    if places:
        dead_letters = provided(DEAD_LETTER_FILES, "dead_letter")(places, has_source=len(stages) > 1)
    return AsyncMapIterator(stages, rows, dead_letters)


class WritesDeadLetters(Protocol):
    """Puts failed items aside. For the thread that takes the results."""

    def write(self, chunk: Chunk) -> None:
        """Write the failed items among results. Raises OSError."""


class AsyncMapIterator(Iterator[R], AsyncIterator[R], Generic[R]):
    """The results of `async_map`, for `for` and `with` or `async for` and `async with`. Built by `async_map`.

    1. Nothing runs before the first result is asked for.
    2. With `for`, calls run on an event loop in a thread of their own. With `async for` they run on the
       caller's event loop, which is not blocked: calls and an async iterable may use what belongs to it.
    3. `close` or `aclose`, the end of a `with` block, the end of the results, an error, the cancellation of
       the task that waits for a result, and dropping the iterator, as `break` does, cancel the calls in
       flight and end its threads; a blocking call cannot be cancelled, it is waited for, for a second.
    4. One thread at a time, or one task of one event loop, may use it.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        rows: Iterable[Any] | AsyncIterable[Any],
        dead_letters: WritesDeadLetters | None,
    ) -> None:
        self._dead_letters = dead_letters
        self._form = form_of_failures(stages)
        self._dropped = frozenset(stage.uid for stage in stages if stage.drops)
        # Taken away when it begins: what fails then is not tried again by the next `next`.
        self._start: tuple[Sequence[Stage], Iterable[Any] | AsyncIterable[Any]] | None = (stages, rows)
        self._way: str | None = None
        self._stream: ResultStream | None = None
        # That of the stream's loop, with `for`.
        self._thread: LoopThread | None = None
        self._is_awaited = False
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._results: Iterator[Any] = iter(())
        self._last: dict[str | None, Totals | None] = {}

    def _results_of(self, chunk: Chunk) -> Iterator[Any]:
        # A list at once, and not a generator: `next` of a list's iterator is what each row costs here.
        dropped = self._dropped
        results = [
            result for _, result in chunk if type(result) is not Failed or result.info.uid not in dropped
        ]
        if self._form == "column":
            results = [
                Outcome(None, each.info) if type(each) is Failed else Outcome(each, None) for each in results
            ]
        elif self._form == "null":
            results = [None if type(each) is Failed else each for each in results]
        return iter(results)

    def _begin(self, way: str) -> tuple[Sequence[Stage], Iterable[Any] | AsyncIterable[Any]] | None:
        """Take away, once, what is to be begun. Raises RuntimeError where they are iterated the other way."""
        self._check_way(way, way)
        start, self._start = self._start, None
        if start is not None:
            self._way = way
        return start

    def _check_way(self, way: str, wanted: str) -> None:
        if self._way not in (None, way):
            raise RuntimeError(
                f"these results are iterated with `{self._way}`; go on so, and not with `{wanted}`"
            )

    # -- for, with ----------------------------------------------------------------------------

    def __iter__(self) -> AsyncMapIterator[R]:
        return self

    def __next__(self) -> R:
        for result in self._results:
            return result  # type: ignore[no-any-return]
        self._check_way("for", "for")
        try:
            while (chunk := self._take()) is not None:
                self._results = self._results_of(chunk)
                for result in self._results:
                    return result  # type: ignore[no-any-return]
        except BaseException:
            self._end(_close_quietly)
            raise
        self.close()
        raise StopIteration

    def _take(self) -> Chunk | None:
        if (start := self._begin("for")) is not None:
            stages, rows = start
            stages = open_ledgers(stages)
            try:
                self._thread = thread = LoopThread(f"pillarbox-loop-{next(_numbers)}")
                self._stream = _stream_of(stages, rows, thread)
            except BaseException:
                release_ledgers(stages)
                raise
            # It must not hold this iterator, or that would never be dropped.
            self._finalizer = weakref.finalize(self, _close_dropped, self._stream, thread)
        chunk = None if self._stream is None else self._stream.take()
        if self._dead_letters is not None and chunk is not None:
            self._dead_letters.write(chunk)
        return chunk

    def close(self) -> None:
        """Cancel the calls in flight and end the threads; results not taken are dropped. Idempotent.

        Raises RuntimeError where the results are iterated with `async for`: use `aclose` there.
        """
        if self._stream is not None and self._thread is None:
            self._check_way("for", "close`, but with `aclose")
        self._end(_close)

    def _end(self, close: Callable[[ResultStream, LoopThread], None]) -> None:
        stream, thread = self._forget(), self._thread
        if stream is not None and thread is not None:
            self._thread = None
            close(stream, thread)

    def __enter__(self) -> AsyncMapIterator[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- async for, async with ----------------------------------------------------------------

    def __aiter__(self) -> AsyncMapIterator[R]:
        return self

    async def __anext__(self) -> R:
        for result in self._results:
            return result  # type: ignore[no-any-return]
        self._check_way("async for", "async for")
        if self._is_awaited:
            raise RuntimeError("two tasks wait for results of one async_map; take them in one task")
        self._is_awaited = True
        try:
            while (chunk := await self._take_in_loop()) is not None:
                self._results = self._results_of(chunk)
                for result in self._results:
                    return result  # type: ignore[no-any-return]
        except BaseException:
            # The cancellation of the task that waits, for one: its calls are cancelled with it.
            try:
                await self.aclose()
            except Exception:
                log.warning("the function of async_map could not be closed", exc_info=True)
            raise
        finally:
            self._is_awaited = False
        await self.aclose()
        raise StopAsyncIteration

    async def _take_in_loop(self) -> Chunk | None:
        if (start := self._begin("async for")) is not None:
            stages, rows = start
            if any(stage.options.ledger is not None for stage in stages):
                # It reads files or a bucket.
                stages = await asyncio.to_thread(open_ledgers, stages)
            try:
                self._stream = _stream_of(stages, rows, None)
            except BaseException:
                release_ledgers(stages)
                raise
            # Nobody waits for the end then: the loop goes on, and runs it.
            self._finalizer = weakref.finalize(self, self._stream.stop_soon)
        chunk = None if self._stream is None else await self._stream.take_async()
        if self._dead_letters is not None and any(type(each) is Failed for _, each in chunk or ()):
            await asyncio.to_thread(self._dead_letters.write, chunk or [])
        return chunk

    async def aclose(self) -> None:
        """Cancel the calls in flight and wait for their end; results not taken are dropped. Idempotent.

        On the event loop where the results are iterated. Raises RuntimeError where that is done with `for`.
        """
        if self._thread is not None:
            self._check_way("async for", "aclose`, but with `close")
        stream = self._forget()
        if stream is not None:
            await stream.aclose()

    async def __aenter__(self) -> AsyncMapIterator[R]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- either way ---------------------------------------------------------------------------

    def statistics(self) -> Totals | None:
        """Counts so far: rows, results, calls, retries, errors, time-outs; None before the first result.

        Of several functions those of the last one: see `statistics_by_uid`.
        """
        return next(reversed(self._totals().values()), None)

    def statistics_by_uid(self) -> dict[str, Totals | None]:
        """Counts so far of each function of a list, by its `uid`; none before the first result."""
        return {uid: totals for uid, totals in self._totals().items() if uid is not None}

    def _totals(self) -> dict[str | None, Totals | None]:
        stream = self._stream
        return (None if stream is None else stream.statistics()) or self._last

    def _forget(self) -> ResultStream | None:
        """Ask for nothing more; returns what is to be closed."""
        self._last = self._totals()
        self._start = None
        self._results = iter(())
        if self._finalizer is not None:
            self._finalizer.detach()
        stream, self._stream = self._stream, None
        return stream


def _stream_of(
    stages: Sequence[Stage], rows: Iterable[Any] | AsyncIterable[Any], thread: LoopThread | None
) -> ResultStream:
    ledgers = [stage.options.ledger for stage in stages if stage.options.ledger is not None]
    key = ledgers[0].key if ledgers else None
    has_small_rows = request_bytes_of(stages[0].fn) is None
    stages = [
        stage._replace(convert=with_parse(stage.fn, stage.convert, keeps=stage.ledger_session is not None))
        for stage in stages
    ]
    return ResultStream(
        stages,
        rows,
        loop_thread=thread,
        read_ahead_items=READ_AHEAD_ITEMS if has_small_rows else READ_AHEAD_LARGE_ITEMS,
        opens=True,
        identify=identity_of_source(key),
    )


def _close(stream: ResultStream, thread: LoopThread) -> None:
    has_ended = False
    try:
        has_ended = stream.close()
    finally:
        # A call that blocks the loop has been waited for, and its thread is a daemon.
        thread.close(CLOSE_TIMEOUT_S if has_ended else 0.0)


def _close_quietly(stream: ResultStream, thread: LoopThread) -> None:
    """Close while another error is on its way, or where nobody would get this one."""
    try:
        _close(stream, thread)
    except TimeoutError as error:
        log.warning("%s", error)
    except Exception:
        log.warning("the function of async_map could not be closed", exc_info=True)


def _close_dropped(stream: ResultStream, thread: LoopThread) -> None:
    # The garbage collector runs where it likes: on a thread of this run, which must not wait for itself, or
    # on another's event loop.
    if threading.current_thread() is threading.main_thread():
        _close_quietly(stream, thread)
    else:
        args = (stream, thread)
        start_thread(threading.Thread(target=_close_quietly, args=args, name="pillarbox-close", daemon=True))
