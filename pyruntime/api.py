"""`async_map`: the operator over a DataFrame or any iterable.

Importing this module imports no Spark: `async_map` does where it is given a DataFrame.
"""

# Why one function for DataFrames and iterables: a function is tried on a list before a cluster runs it, and
# what was tried must be what runs. Two functions would differ in a default sooner or later.
#
# Why a DataFrame is known by a method and not by its class. Classic and Connect have a class each, and to ask
# for either would import Spark for those who have none. `mapInArrow` is what is called in the end.

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from pillarbox.aio.async_map import AsyncMapIterator, iterate
from pillarbox.aio.batching import Batch
from pillarbox.aio.chained import Step, resolve_stages
from pillarbox.aio.errors import Outcome, shorten
from pillarbox.aio.limits.rate import Rate, SharedLimits
from pillarbox.aio.options import UNSET, Budget, ErrorMode, Errors, Options, Timeout, given_options
from pillarbox.ledger import Ledger

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames
    from pillarbox.kernel import Collector
    from pillarbox.spark.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

Rows: TypeAlias = Iterable[T] | AsyncIterable[T]
NoNull: TypeAlias = Literal["fail", "drop"]


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
    progress: Progress | None = ...,
    options: Options | None = ...,
    **more: Unpack[OptionNames],
) -> DataFrame: ...
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
def async_map(
    rows: Any,
    fn: Callable[..., Any] | Sequence[Callable[..., Any] | Step],
    *,
    schema: str | StructType | None = None,
    keep: str | Sequence[str] = (),
    # From `Options`:
    ordered: bool = UNSET,
    capacity: int = UNSET,
    timeout: float | Timeout | None = UNSET,
    retry: Any = UNSET,
    rate: Rate | None = UNSET,
    batch: Batch | None = UNSET,
    errors: ErrorMode | Errors = UNSET,
    budget: Budget | None = UNSET,
    ledger: Ledger | None = UNSET,
    limits: SharedLimits | None = UNSET,
    progress: Progress | None = None,
    options: Options | None = None,
) -> Any:
    """Call `fn` with each row, many at a time: of a DataFrame a DataFrame, of an iterable an iterator.

    rows: a Spark DataFrame, batch or streaming, classic or Connect; or an iterable. Lists, tuples, ranges,
        sets and dicts are read in place, an async iterable on the event loop, anything else in a thread of
        its own; some 256 items ahead at most.
    fn: an async function of one row; a plain one, which runs in threads; a plain one of the row and a
        `Collector`, which starts work elsewhere and returns; or an object with one of them as its `__call__`.
        An object with `__aenter__`/`__aexit__` (or `__enter__`/`__exit__`) is opened around all calls; over
        Spark once per worker process, and closed when no task has used it for 10 s. A list of such functions
        is a chain in one task: each is called with each row that the one in front gives, as it finishes. A
        `Step` in the list is a function with options of its own; those beside the list hold for each.
    schema, keep, progress: for a DataFrame only, where `schema` must be given.

    Over a DataFrame, `fn` gets a record, read as `record.name` or `record["name"]`, and returns a row (dict,
    tuple, Row, named tuple, dataclass; a bare value where the schema has one column that is not an array,
    map or struct), a list of 0..n rows, or an async iterator of rows. `schema` has the columns of these rows,
    or of those of the last function of a list, as a DDL string or a StructType. `keep`: input columns to
    carry in front of them, as Arrow; "*" for all. `progress`: a `Progress`, to see the job while it runs.
    Nothing is called before an action runs; a task that Spark runs again calls again. The limits hold for
    each task, but `budget` for all tasks together. A result that does not fit the schema is a failed attempt,
    with a `ResultError`, which `retry` sees like others. With `errors="column"` a last column `_error` is
    added, a struct of type, message, attempts, latency and status, null for good rows.

    Over an iterable, the results are for `for` or `async for`; an async generator gives the list of what it
    yields. With `errors="column"` each result is an `Outcome(result, error)`, with "null" a failed item
    gives None, with "drop" nothing. Calls run in a copy of the caller's context (`contextvars`). With `for`
    they run on an event loop in a thread of their own, and waiting for a result blocks the caller's thread.
    With `async for` they run on the caller's event loop, which is not blocked: sessions, locks and queues of
    that loop may be used. May be called in any thread.

    In a chain what one function gives goes on as a record if it has names (a dict, a dataclass, a Row), a
    list as several rows or none. A row that failed for good is not called by the functions behind, it keeps
    its place, and `_error.uid` or `error.uid` names the function.

    Raises TypeError or ValueError at once for a bad argument; while calls run, `CallFailed`, `CallTimeout` or
    `TooManyFailures` with the row. The operator is Flink's async I/O (FLIP-12).

    Options:
    ordered: results leave in the order of their rows; otherwise as calls finish.
    capacity: concurrency: calls in flight, at most (1 or more). A call that waits for its retry or for the
        rate is not counted.
    timeout: seconds over all attempts of a row, or a `Timeout`; None for no limit.
    retry: a number of attempts or a `Retry`; None to call once.
    rate: a `Rate`: calls a second, units a minute, for this task or shared.
    batch: a `Batch`: the function takes a list of rows and gives a list of results, by position.
    errors: what becomes of a row that fails for good: "fail" (the default) ends the job with the first;
        "null" gives None for it; "column" says it beside the results; "drop" leaves it out. Or an `Errors`.
    budget: a `Budget`: calls and cost of the whole job, at most.
    ledger: a `Ledger` with `uid` and `run`: what a call gave is kept before its row is emitted, and not
        called again by whoever runs the same rows again.
    limits: a `Coordinator`, or one `at` an address: `rate` and `budget` hold for all tasks that share it
        together, otherwise `rate` for each task alone.
    """
    given = given_options(locals())
    if callable(rows) and not isinstance(rows, Iterable | AsyncIterable):
        raise TypeError(
            f"rows={shorten(rows)}: must be a DataFrame or an iterable; rows come first, the function second"
        )
    stages = resolve_stages(fn, options, given)
    if callable(getattr(rows, "mapInArrow", None)):
        # Whoever has a DataFrame has imported Spark, which nobody else needs.
        from pillarbox.spark.dataframe import map_dataframe

        frame: Any = rows
        return map_dataframe(frame, stages, schema=schema, keep=keep, progress=progress)
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
    return iterate(rows, stages)
