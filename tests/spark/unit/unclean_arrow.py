"""Unclean tables as columns of Arrow, with the types that Spark gives them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.spark.schema import arrow_type
from pillarbox.testing.unclean import ColumnType, UncleanTable

PLAIN: dict[str, T.DataType] = {
    "string": T.StringType(),
    "double": T.DoubleType(),
    "float": T.FloatType(),
    "bigint": T.LongType(),
    "int": T.IntegerType(),
    "boolean": T.BooleanType(),
    "decimal(5,2)": T.DecimalType(5, 2),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
}


def spark_type(kind: ColumnType) -> T.DataType:
    """The type of Spark that `str(kind)` names."""
    parts = [spark_type(part) for part in kind.parts]
    if kind.name == "array":
        return T.ArrayType(parts[0])
    if kind.name == "map":
        return T.MapType(T.StringType(), parts[0])
    if kind.name == "struct":
        return T.StructType([T.StructField(f"f{place}", part) for place, part in enumerate(parts)])
    return PLAIN[kind.name]


def arrow_batch(table: UncleanTable) -> pa.RecordBatch:
    """The rows of a table as a batch."""
    columns = [
        pa.array([for_arrow(kind, row[place]) for row in table.rows], arrow_type(spark_type(kind)))
        for place, kind in enumerate(table.types.values())
    ]
    return pa.RecordBatch.from_arrays(columns, [*table.types])


def for_arrow(kind: ColumnType, value: Any) -> Any:
    """A value with its maps as pairs, which Arrow takes."""
    if value is None or not kind.parts:
        return value
    if kind.name == "map":
        return [(name, for_arrow(kind.parts[0], part)) for name, part in value.items()]
    if kind.name == "struct":
        return {name: for_arrow(kind.parts[0], part) for name, part in value.items()}
    return [for_arrow(kind.parts[0], part) for part in value]
