"""Columns of `async_udf` on PySpark 4.0, which has no Arrow UDFs. Imported only there.

Its pandas UDFs turn whole numbers with nulls into floats and null structs into structs of nulls, but
not inside of arrays; so arguments travel as an array of one struct, and a result as an array of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

if TYPE_CHECKING:
    from pillarbox.spark.async_udf import UdfTask


def call_as_pandas_udf(task: UdfTask, arguments: tuple[Any, ...]) -> Column:
    """The column of `task`'s results for argument columns, by way of a pandas UDF."""

    def run(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for array in task.results(_columns(batch) for batch in batches):
            yield pd.Series([[value] for value in array.to_pylist()], dtype=object)

    columns = [F.col(argument) if isinstance(argument, str) else argument for argument in arguments]
    packed = F.array(F.struct(*[column.alias(f"_{i}") for i, column in enumerate(columns)]))
    udf = pandas_udf(run, T.ArrayType(task.return_type)).asNondeterministic()  # type: ignore[call-overload]
    result: Column = udf(packed).getItem(0)
    return result


def _columns(batch: pd.Series) -> tuple[pa.Array, ...]:
    rows = [values[0] for values in batch]
    count = len(rows[0])
    by_name = isinstance(rows[0], dict)
    return tuple(pa.array([row[f"_{i}"] if by_name else row[i] for row in rows]) for i in range(count))
