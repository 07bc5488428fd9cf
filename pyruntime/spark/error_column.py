"""The column `_error` of failed rows: its type, its Arrow array, and the functions that read it.

`call_failed`, `failed_rows` and `skipped_rows` are for the driver; the rest is pure and used by any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.aio.errors import CallFailed, CallTimeout, Failed, NotCalled, TooManyFailures, from_text
from pillarbox.spark.schema import arrow_type, kept_columns

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


def error_array(results: Sequence[Any], *, of_chain: bool = False) -> pa.Array:
    """The column `_error` of results: null where the result is not a `Failed`."""
    arrow = ERROR_ARROW_OF_CHAIN if of_chain else ERROR_ARROW
    # Most chunks have none that failed, and are not looked through.
    if Failed not in set(map(type, results)):
        return pa.nulls(len(results), arrow)
    return pa.array([_described(result) if type(result) is Failed else None for result in results], arrow)


def _described(result: Failed) -> dict[str, Any]:
    described = result.info._asdict()
    if described["type"] == NotCalled.__name__ and not result.not_called:
        # An error of the function's that has this name, or of an operator inside it: the row was called.
        described["type"] = RAISED
    return described


def failed_rows(df: DataFrame) -> DataFrame:
    """The rows of `df` whose call failed for good, with `_error`; those of `skipped_rows` are not among them.

    df: what `async_map` gave under `errors="column"`, or dead letters, read back.
    """
    _check_has_errors(df)
    return df.where(F.col(ERROR).isNotNull() & (F.col(f"{ERROR}.type") != NotCalled.__name__))


def call_failed(error: BaseException) -> CallFailed | CallTimeout | None:
    """The `CallFailed` or `CallTimeout` that ended a job of Spark, with row, attempts and cause.

    error: what the action raised, such as a `PythonException`, or a `StreamingQueryException`; the errors
    that it was raised from are looked at too. None where no call has failed.

    `cause` has the type's name and the text of the function's error, shortened to 1,000 characters; it is of
    the same class where Python itself has it. `trace` is the original traceback. Any thread of the driver.
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
    """The rows of `df` that were not called, or not again, since a budget was used up, to go on with.

    df: what `async_map` gave under `errors="column"`, or dead letters, read back.
    keep: the columns of the input, which are those that were kept; "*" for all but `_error` and `_failed_at`.

    Raises TypeError or ValueError for a column that is not there.
    """
    _check_has_errors(df)
    columns = kept_columns(keep, df.schema)
    if keep == "*":
        columns = [name for name in columns if name not in (ERROR, FAILED_AT)]
    rows = df.where(F.col(f"{ERROR}.type") == NotCalled.__name__)
    return rows.select(*[f"`{name.replace('`', '``')}`" for name in columns])


def _check_has_errors(df: DataFrame) -> None:
    if not callable(getattr(df, "where", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    if ERROR not in df.columns:
        raise ValueError(
            f"df: no column {ERROR!r}; it stands in results of errors='column' and in dead letters, "
            f"the columns are {', '.join(df.columns)}"
        )
