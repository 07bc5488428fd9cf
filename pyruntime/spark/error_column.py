"""Rows that failed for good, as the driver sees them: the column `_error`, and what is asked of it.

`call_failed`, `failed_rows` and `skipped_rows` are for the driver; the rest is pure and used by any thread.
`DeadLetters` is where a task puts such rows aside, if a user asks for it: the ring `dead_letters`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.aio.errors import CallFailed, CallTimeout, Failed, NotCalled, TooManyFailures, from_text
from pillarbox.spark.schema import arrow_type, check_frame, kept_columns

ERROR = "_error"
"""The name of the column."""

FAILED_AT = "_failed_at"
"""The column of dead letters that says when the row was written."""

RAISED = f"{NotCalled.__name__} (raised)"
"""The type of an error that the function raised, where its class has the name of that mark."""

ERROR_TYPE = (
    T.StructType()
    .add("type", T.StringType())
    .add("message", T.StringType())
    .add("attempts", T.IntegerType())
    .add("latency", T.DoubleType())
    .add("status", T.IntegerType())
)

ERROR_TYPE_OF_CHAIN = T.StructType([*ERROR_TYPE.fields]).add("uid", T.StringType())
"""The type of the column where several functions are called, one of which failed."""

ERROR_ARROW = arrow_type(ERROR_TYPE)
ERROR_ARROW_OF_CHAIN = arrow_type(ERROR_TYPE_OF_CHAIN)


def error_array(results: Sequence[Any], kind: pa.DataType = ERROR_ARROW) -> pa.Array:
    """The column `_error` of results: null where the result is not a `Failed`."""
    # Most chunks have none that failed, and are not looked through.
    if Failed not in set(map(type, results)):
        return pa.nulls(len(results), kind)
    return pa.array([_described(result) if type(result) is Failed else None for result in results], kind)


def _described(result: Failed) -> dict[str, Any]:
    described = result.info._asdict()
    if described["type"] == NotCalled.__name__ and not result.not_called:
        # An error of the function's that has this name, or of an operator inside it: the row was called.
        described["type"] = RAISED
    return described


def failed_rows(df: DataFrame) -> DataFrame:
    """Return the rows of `df` whose call failed for good, with `_error`, without those of `skipped_rows`.

    df: a result of `async_map` under `errors="column"`, or dead letters that were read back.

        >>> from pillarbox.spark import async_map, failed_rows
        >>> async def call(row):
        ...     return 10 // row.id
        >>> done = async_map(spark.range(2), call, schema="n long", keep=["id"], errors="column")
        >>> failed_rows(done).select("id", "_error.type").collect()
        [Row(id=0, type='ZeroDivisionError')]

    On the driver. Raises ValueError for a DataFrame without the column.
    """
    _check_has_errors(df)
    return df.where(F.col(ERROR).isNotNull() & (F.col(f"{ERROR}.type") != NotCalled.__name__))


def call_failed(error: BaseException) -> CallFailed | CallTimeout | None:
    """Return the `CallFailed` or `CallTimeout` that ended a Spark job, with row, attempts and cause.

    error: the error of the action, such as a `PythonException`, or a `StreamingQueryException`; its causes
        are searched too. The result is None if no call has failed.

        >>> from pillarbox.spark import async_map, call_failed
        >>> async def call(row):
        ...     return 10 // row.id
        >>> try:
        ...     async_map(spark.range(1), call, schema="n long").collect()
        ... except Exception as error:
        ...     failed = call_failed(error)
        >>> failed.attempts, repr(failed.cause)
        (1, "ZeroDivisionError('integer division or modulo by zero')")

    `cause` has the name of the class and the text of the function's error, shortened to 1,000 characters; it
    is of the same class if the class is Python's own. `trace` has the frames of your code. Any thread of
    the driver.
    """
    # Errors of Python may be raised from one another in a circle.
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, CallFailed | CallTimeout):
            return each
        if isinstance(each, TooManyFailures):
            return each.cause
        try:
            found = from_text(str(each))
        except Exception:
            # An error of Spark's asks the JVM for its text, which may have ended.
            found = None
        if found is not None:
            return found
        each = each.__cause__ or each.__context__
    return None


def skipped_rows(df: DataFrame, keep: str | Sequence[str] = "*") -> DataFrame:
    """Return the rows of `df` that were not called, or not again, because a budget was used up.

    df: a result of `async_map` under `errors="column"`, or dead letters that were read back.
    keep: the input columns, those that were kept; "*" for all but `_error` and `_failed_at`.

        >>> from pillarbox import Budget
        >>> from pillarbox.spark import async_map, skipped_rows
        >>> async def call(row):
        ...     return row.id
        >>> df = spark.range(3).coalesce(1)
        >>> most = Budget(max_calls=2)
        >>> done = async_map(df, call, schema="n long", keep=["id"], errors="column", capacity=1, budget=most)
        >>> skipped_rows(done, ["id"]).collect()
        [Row(id=2)]

    On the driver. Raises TypeError or ValueError for a missing column.
    """
    _check_has_errors(df)
    columns = kept_columns(keep, df.schema)
    if keep == "*":
        columns = [name for name in columns if name not in (ERROR, FAILED_AT)]
    rows = df.where(F.col(f"{ERROR}.type") == NotCalled.__name__)
    return rows.select(*[f"`{name.replace('`', '``')}`" for name in columns])


def _check_has_errors(df: DataFrame) -> None:
    check_frame(df)
    if ERROR not in df.columns:
        raise ValueError(
            f"df: no column {ERROR!r}; it stands in results of errors='column' and in dead letters, "
            f"the columns are {', '.join(df.columns)}"
        )


class PutsAside(Protocol):
    """Takes the rows of one task that failed for good; they are seen when its block ends well."""

    def add(self, rows: pa.RecordBatch, results: Sequence[Any]) -> None:
        """Put rows aside; `results` are the `Failed` of each. Raises OSError."""

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Put a batch of `DeadLetters.batch` aside. Raises OSError."""

    def commit(self) -> None:
        """Make them seen: the rows of the task are through. Raises OSError."""

    def abort(self) -> None:
        """Leave nothing behind. Never raises."""

    def __enter__(self) -> PutsAside: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class DeadLetters(Protocol):
    """A place for rows that failed for good. A value, which is sent to tasks."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """The place, for a comparison with others."""

    def check_types(self, schema: T.StructType) -> None:
        """Raise ValueError if the input has a column that the place cannot hold."""

    def batch(self, rows: pa.RecordBatch, results: Sequence[Any]) -> pa.RecordBatch:
        """The dead letters of rows; `results` are the `Failed` of each."""

    def writer(self) -> PutsAside:
        """Make the writer of one task attempt."""
