"""The differences between PySpark's versions, 3.5 to 4.3. No other module of the package asks for a version.

Constants, and functions for the driver. What `column_task` gives is for a task's thread.
"""

# What the versions lack:
#
# - before 4.0: `DataType.fromDDL`, `pyspark.util.PythonEvalType`, Python sources, `transformWithState`;
# - before 4.1: the type TIME, `arrow_udf`;
# - before 4.2: sources of streams that know where a micro-batch starts, and that may stay where they are.
#
# Why columns are Arrow's before 4.1 too. There a function of columns over an iterator of batches is one of
# pandas, and pandas changes values: 64-bit integers beside a null become floats, a null among floats is NaN,
# a timestamp must lie in 1677 to 2262 and loses its place in the hour that a change of clocks repeats. But
# Spark sends Arrow batches all the same. The serializer of the worker converts them in front of the function
# and back behind it, and `column_task` has the serializer of this one task leave them as they are: the
# results are those of a newer Spark, for every type, at less CPU. `mapInArrow` would not do: it makes a
# DataFrame, and has no place in an expression.

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import functions as F
from pyspark.sql import types as T

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column


class _Absent:
    """A stand-in for a class that this PySpark lacks; each caller asks `require` before it uses one."""


class _AbsentMixin:
    """The same, for one that is a base beside another."""


try:
    from pyspark.util import PythonEvalType
except ImportError:
    from pyspark.rdd import PythonEvalType  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
        SimpleDataSourceStreamReader,
    )
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

_CLASSES = {
    "pyspark.sql.datasource": (
        *("DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition"),
        "SimpleDataSourceStreamReader",
    ),
    "pyspark.sql.streaming.datasource": ("ReadAllAvailable", "ReadMaxFiles", "SupportsTriggerAvailableNow"),
    "pyspark.sql.streaming.stateful_processor": ("StatefulProcessor", "StatefulProcessorHandle"),
}
"""Classes that an old PySpark lacks, by their modules, which a worker that maps rows need not import."""

_MIXINS = _CLASSES["pyspark.sql.streaming.datasource"]


def __getattr__(name: str) -> Any:
    """Import a class of `_CLASSES` at its first use; a stand-in where this PySpark has none."""
    home = next((module for module, names in _CLASSES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    absent = _AbsentMixin if name in _MIXINS else _Absent
    try:
        value = getattr(import_module(home), name, absent)
    except ImportError:
        value = absent
    globals()[name] = value
    return value


__all__ = [
    "COLUMN_KIND",
    "NOT_IN_PARQUET",
    "TIME_TYPES",
    "VARIANT_TYPES",
    "VERSION",
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadMaxFiles",
    "SimpleDataSourceStreamReader",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "SupportsTriggerAvailableNow",
    "column_function",
    "column_task",
    "parse_ddl",
    "report_no_profile",
    "require",
]

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
"""The major and minor number of the installed PySpark."""

SOURCES_SINCE = (4, 0)
SOURCE_STREAMS_SINCE = (4, 2)
ASYNC_STREAM_SINCE = (4, 2)
ARROW_UDF_SINCE = (4, 1)
"""The first versions of PySpark with which these work."""

TIME_TYPES: tuple[type[T.DataType], ...] = (T.TimeType,) if hasattr(T, "TimeType") else ()
"""The type TIME, where there is one."""

VARIANT_TYPES: tuple[type[T.DataType], ...] = (T.VariantType,) if hasattr(T, "VariantType") else ()
"""The type VARIANT, where there is one."""

NOT_IN_PARQUET: tuple[type[T.DataType], ...] = (
    *((T.CalendarIntervalType,) if hasattr(T, "CalendarIntervalType") else ()),
    *((T.NullType,) if VERSION < (4, 1) else ()),
)
"""Types of columns that Spark does not read from Parquet. PySpark 3.5 has no schema with an INTERVAL."""

COLUMN_KIND = (
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF
    if VERSION >= ARROW_UDF_SINCE
    else PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF
)
"""The kind of function, for Spark, that `as_column_function` makes."""


def require(since: tuple[int, int], what: str) -> None:
    """Raise ValueError unless PySpark is as new as `what` needs."""
    if since > VERSION:
        needed = ".".join(map(str, since))
        raise ValueError(f"{what} needs PySpark {needed} or later, and this is {pyspark.__version__}")


def parse_ddl(text: str) -> T.DataType:
    """Return the type of a DDL string. Raises what Spark raises."""
    if hasattr(T.DataType, "fromDDL"):
        return T.DataType.fromDDL(text)
    return T._parse_datatype_string(text)


ANALYSIS_REFUSED = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"


def refuses_analysis(error: BaseException) -> bool:
    """Return True for the error of Spark 4.1 and later in a query function of a Declarative Pipeline.

    Such a function may ask Spark for nothing: neither for the columns of a DataFrame, nor to parse a type.
    """
    return ANALYSIS_REFUSED in str(error)


# -- sources ----------------------------------------------------------------------------------------------


def report_no_profile() -> None:
    """Report no accumulators of profiles, in a process in which Spark plans a source.

    Such a process has two of them, profiled or not, and reports them to the server, which sends them to
    `spark-pipelines` behind the last event of a run. That command of PySpark 4.3 takes them for an answer
    that it does not know, and fails. They would profile the planning of the source alone, not its tasks.
    """
    from pyspark.accumulators import _accumulatorRegistry

    # Accumulators of users have numbers from 0.
    for number in [each for each in _accumulatorRegistry if each < 0]:
        del _accumulatorRegistry[number]


# -- columns ----------------------------------------------------------------------------------------------


def column_function(
    run: Callable[[Iterator[Any]], Iterator[Any]], result: T.DataType, *, is_deterministic: bool = False
) -> Callable[..., Column]:
    """Return a function of columns which does in each task what `run` does.

    run: what `ship` made of what `column_task` gives. is_deterministic: Spark may compute it twice.
    """
    if VERSION >= ARROW_UDF_SINCE:
        udf = F.arrow_udf(run, result)  # type: ignore[attr-defined]
    else:
        import pandas as pd

        # Spark asks the hints which kind of function it is. Nothing of pandas reaches it; see above.
        whole: Any = pd.DataFrame if isinstance(result, T.StructType) else pd.Series
        run.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[whole]}
        udf = F.pandas_udf(run, result)  # type: ignore[attr-defined]
    made: Callable[..., Column] = udf if is_deterministic else udf.asNondeterministic()
    return made


def column_task(
    run: Callable[[Iterator[Any]], Iterator[pa.Array]], result: T.DataType
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what does the work of `run` in a task of this PySpark, as a function of columns.

    run: takes an iterator of Arrow arrays, of tuples of arrays where there are several columns, and yields
    arrays of the type `result`, as many rows as it got.
    """
    if VERSION >= ARROW_UDF_SINCE:
        return run
    return partial(_in_arrow, run, isinstance(result, T.StructType))


def _in_arrow(
    run: Callable[[Iterator[Any]], Iterator[pa.Array]], is_struct: bool, batches: Iterator[Any]
) -> Iterator[Any]:
    """Yield the results of `run`, in a task whose serializer converts nothing. Before PySpark 4.1."""
    serializer = _serializer()
    serializer.arrow_to_pandas = _unchanged
    serializer._create_batch = _batch_of
    for result in run(batches):
        yield _carrier(result, is_struct)


def _serializer() -> Any:
    """The serializer that the worker runs this task with: it stands below us, where it asks for results."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if hasattr(found, "arrow_to_pandas") and hasattr(found, "_create_batch"):
            return found
        frame = frame.f_back
    raise RuntimeError(
        f"async_udf: the worker of this PySpark, {pyspark.__version__}, hands columns over in a way that "
        "Pillarbox does not know; use async_map, or PySpark 4.1 or later"
    )


_ARRAY = "pillarbox.array"


def _unchanged(column: pa.ChunkedArray, *_: object, **__: object) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _carrier(array: pa.Array, is_struct: bool) -> Any:
    """Return a result of pandas, as Spark sees it, of so many rows, which carries the array."""
    import numpy as np
    import pandas as pd

    index = pd.RangeIndex(len(array))
    carrier = (
        pd.DataFrame(index=index)
        if is_struct
        else pd.Series(np.broadcast_to(np.zeros(1, np.int8), len(array)), index)
    )
    carrier.attrs[_ARRAY] = array
    return carrier


def _batch_of(result: tuple[Any, Any]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([result[0].attrs[_ARRAY]], ["_0"])


def send_text_alone() -> None:
    """Have PySpark's worker send an error to the driver by its text, without a traceback.

    In a worker, whose task ends with this error now: PySpark ends the process behind it.
    """
    if VERSION >= (4, 0):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # As a module it has another name where a daemon has not started it.
        if frame.f_code.co_name == "main" and "traceback" in frame.f_globals and "outfile" in frame.f_locals:
            frame.f_globals["traceback"] = _TextAlone
            return
        frame = frame.f_back


class _TextAlone:
    """Stands for the module `traceback` in a worker of PySpark 3.5 that ends with an error."""

    @staticmethod
    def format_exception(kind: type[BaseException], error: BaseException, tb: object) -> list[str]:
        return traceback.format_exception_only(kind, error)

    @staticmethod
    def format_exc() -> str:
        kind, error, _ = sys.exc_info()
        return "".join(traceback.format_exception_only(kind, error))
