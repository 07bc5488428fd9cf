"""Columns of `async_udf` on PySpark 4.0, which has no Arrow UDFs. Imported only there.

Its pandas UDFs would lose values: whole numbers with nulls become floats, structs and times change
their form. So the arguments travel as one struct that the worker hands on as the Arrow column that it
is, before pandas sees it; a result travels as an array of one value, whose form pandas leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.serializers import ArrowStreamPandasUDFSerializer  # type: ignore[attr-defined]

from pillarbox.spark.function import Shipment
from pillarbox.spark.records import decode_column

if TYPE_CHECKING:
    from pillarbox.spark.async_udf import UdfTask

ARGUMENT = "__pillarbox_argument_"


def call_as_pandas_udf(task: UdfTask, arguments: tuple[Any, ...], name: str) -> Column:
    """The column of `task`'s results for argument columns, by way of a pandas UDF. On the driver."""

    def run(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        results: Iterator[pd.Series] = shipment(batches)
        return results

    run.__name__ = name
    shipment = Shipment(PandasTask(task).run, name)
    columns = [F.col(argument) if isinstance(argument, str) else argument for argument in arguments]
    packed = F.struct(*[column.alias(f"{ARGUMENT}{i}") for i, column in enumerate(columns)])
    udf = pandas_udf(run, T.ArrayType(task.return_type)).asNondeterministic()  # type: ignore[call-overload]
    result: Column = udf(packed).getItem(0)
    # By itself it would be named after the struct; `Column<'id'>` has the name that Spark gives an argument.
    names = [repr(each)[len("Column<'") : -len("'>")] for each in columns]
    return result.alias(f"{name}({', '.join(names)})")


class PandasTask:
    """`UdfTask` over pandas series. Sent to the workers as it is."""

    def __init__(self, task: UdfTask) -> None:
        self._task = task
        self._arrow = _ArrowArguments()

    def run(self, batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        """The results, each as a list of one value."""
        with closing(self._arrow(self._task).results(batch.attrs[ARGUMENT] for batch in batches)) as arrays:
            for array in arrays:
                yield pd.Series([[value] for value in decode_column(array)], dtype=object)


class _ArrowArguments:
    """Has a worker that unpickles it hand on packed arguments as they are; called, it gives its argument."""

    def __call__(self, task: UdfTask) -> UdfTask:
        return task

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_worker, ()


def _in_worker() -> _ArrowArguments:
    # A worker unpickles its function before it reads the first batch.
    convert = ArrowStreamPandasUDFSerializer.arrow_to_pandas
    if convert.__name__ != _arrow_to_pandas.__name__:
        ArrowStreamPandasUDFSerializer.arrow_to_pandas = _arrow_to_pandas
        _arrow_to_pandas.convert = convert  # type: ignore[attr-defined]
    return _ArrowArguments()


def _arrow_to_pandas(serializer: Any, column: pa.Array, *rest: Any, **named: Any) -> Any:
    kind = column.type
    if not (pa.types.is_struct(kind) and kind.num_fields and kind.field(0).name == f"{ARGUMENT}0"):
        return _arrow_to_pandas.convert(serializer, column, *rest, **named)  # type: ignore[attr-defined]
    packed = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    series = pd.Series([None] * len(packed), dtype=object)
    series.attrs[ARGUMENT] = tuple(packed.flatten())
    return series
