"""The async operator as a column: `async_udf`, and what it runs in each task.

`async_udf` and calls of what it returns are for the driver. `UdfTask` is sent to the workers and
runs on their task thread.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.aio.function import is_async_generator
from pillarbox.aio.options import DEFAULT_CAPACITY, Options
from pillarbox.aio.retry import Retry
from pillarbox.spark.async_map import check_progress
from pillarbox.spark.function import check_sendable
from pillarbox.spark.progress import Progress
from pillarbox.spark.record import SLICE
from pillarbox.spark.results import FAILED, ValueEncoder
from pillarbox.spark.schema import parse_type
from pillarbox.spark.types import decode_column, time_zone
from pillarbox.spark.worker import run_job


def async_udf(
    returnType: str | T.DataType,
    *,
    capacity: int = DEFAULT_CAPACITY,
    reorder: int | None = None,
    timeout: float | None = None,
    attempt_timeout: float | None = None,
    retry: Retry | None = None,
    errors: str = "fail",
    progress: Progress | None = None,
) -> Callable[[Callable[..., Any]], AsyncUdf]:
    """Make a column function of an async function: called with each row's values, many at a time.

        @async_udf("array<float>", capacity=64, timeout=30.0, retry=Retry(attempts=4))
        async def embed(text: str) -> list[float]: ...

        df.withColumn("vector", embed("text"))

    returnType: the type of one result, as a DDL string or a DataType.
    The function gets the columns as arguments and returns one value; it may be plain (it then runs in
    threads), and it may be an object with `__aenter__`/`__aexit__`, as in `async_map`, where the other
    arguments are described too.

    The column is non-deterministic, so that Spark neither repeats its calls nor drops them. Results
    stand with their rows; calls of several rows overlap over the whole partition.
    Raises TypeError or ValueError at once for a bad argument; errors in the task are those of
    `async_map`.
    """
    options = Options(True, capacity, reorder, timeout, attempt_timeout, retry, errors)
    check_progress(progress)
    result = parse_type("returnType", returnType)

    def decorate(fn: Callable[..., Any]) -> AsyncUdf:
        token = check_sendable(fn)
        if is_async_generator(fn):
            raise TypeError(
                f"fn={fn!r}: must return one value, an async generator gives several: use async_map"
            )
        return AsyncUdf(fn, token, options, result, progress)

    return decorate


class AsyncUdf:
    """A function of columns. Built only by `async_udf`; for the driver, safe in any thread.

    `func` is the function that was given.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        token: str,
        options: Options,
        returnType: T.DataType,
        progress: Progress | None,
    ) -> None:
        if hasattr(fn, "__name__"):
            functools.update_wrapper(self, fn)
        self.func = fn
        self.returnType = returnType
        self._token = token
        self._options = options
        self._progress = progress

    def __call__(self, *columns: Column | str, **named: Column | str) -> Column:
        """The column of the results for the given columns, or names of columns.

        Raises TypeError where the function does not take such arguments.
        """
        name = getattr(self.func, "__qualname__", type(self.func).__qualname__)
        try:
            bound = inspect.signature(self.func).bind(*columns, **named)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        if bound.kwargs:
            raise TypeError(
                f"{name}: {', '.join(bound.kwargs)} must be given by position, after all before it"
            )
        if not bound.args:
            raise TypeError(f"{name}: needs at least one column, to know for which rows it is called")
        for argument in bound.args:
            # Classic and Connect have a Column class each, and neither imports the other's.
            if not isinstance(argument, str) and type(argument).__name__ != "Column":
                raise TypeError(
                    f"{name}: argument {argument!r} must be a Column or the name of one, "
                    f"not {type(argument).__name__}; use pyspark.sql.functions.lit for a constant"
                )
        zone = _session_time_zone()
        folder = None if self._progress is None else self._progress.new_operator()
        task = UdfTask(self.func, self._token, self._options, self.returnType, zone, folder)
        return _call(task, bound.args)


def _session_time_zone() -> str | None:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return None if session is None else session.conf.get("spark.sql.session.timeZone")


def _call(task: UdfTask, arguments: tuple[Any, ...]) -> Column:
    if not hasattr(F, "arrow_udf"):
        from pillarbox.spark.pandas_udf import call_as_pandas_udf

        return call_as_pandas_udf(task, arguments)
    run = task.run_one if len(arguments) == 1 else task.run_many
    column: Column = F.arrow_udf(run, task.return_type).asNondeterministic()(*arguments)
    return column


class UdfTask:
    """What a column of `async_udf` runs in each task. Sent to the workers as it is."""

    def __init__(
        self,
        fn: Callable[..., Any],
        token: str,
        options: Options,
        return_type: T.DataType,
        zone: str | None,
        progress: str | None,
    ) -> None:
        self._fn = fn
        self._token = token
        self._options = options
        self.return_type = return_type
        self._zone = zone
        self._progress = progress

    def run_one(self, columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """The results for a function of one column."""
        return self.results((column,) for column in columns)

    def run_many(self, columns: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """The results for a function of several columns."""
        return self.results(columns)

    def results(self, batches: Iterator[tuple[pa.Array, ...]]) -> Generator[pa.Array, None, None]:
        """The results for batches of argument columns, in batches of other sizes."""
        encoder = ValueEncoder(self.return_type, None if self._zone is None else time_zone(self._zone))
        chunks = run_job(
            self._fn,
            self._token,
            self._options,
            _sliced(batches),
            _rows,
            spread=True,
            failed=FAILED,
            progress=self._progress,
        )
        with closing(chunks):
            for chunk in chunks:
                arrays, _ = encoder.encode([call.row for call, _ in chunk], [result for _, result in chunk])
                yield arrays[0]


def _sliced(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[tuple[pa.Array, ...]]:
    for columns in batches:
        for start in range(0, len(columns[0]), SLICE):
            yield tuple(column.slice(start, SLICE) for column in columns)


def _rows(slices: Iterable[tuple[pa.Array, ...]]) -> Iterator[tuple[Any, ...]]:
    for columns in slices:
        yield from zip(*[decode_column(column) for column in columns], strict=True)
