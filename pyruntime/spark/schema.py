"""Schemas that users give, checked on the driver. On the driver's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import types as T

from pillarbox.spark.types import arrow_type


def parse_type(name: str, value: Any) -> T.DataType:
    """The Spark type of a DDL string or a DataType. Raises TypeError or ValueError naming the argument."""
    if isinstance(value, str):
        try:
            parsed = T.DataType.fromDDL(value)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"{name}={value!r}: is no type in DDL form ({reason})") from error
    elif isinstance(value, T.DataType):
        parsed = value
    else:
        raise TypeError(f"{name}={value!r}: must be a DDL string or a DataType, not {type(value).__name__}")
    try:
        arrow_type(parsed)
    except TypeError as error:
        raise TypeError(f"{name}={value!r}: {error}") from None
    return parsed


def parse_schema(name: str, value: Any) -> T.StructType:
    """As `parse_type`, for the columns of a row."""
    parsed = parse_type(name, value)
    if not isinstance(parsed, T.StructType):
        raise TypeError(f"{name}={value!r}: must name columns, as in 'id long, price double'")
    check_unique(name, parsed.names)
    return parsed


def check_unique(name: str, columns: Sequence[str]) -> None:
    """Raise ValueError if two columns have the same name."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"{name}: the column names {', '.join(map(repr, twice))} stand more than once")


def kept_columns(keep: Any, schema: T.StructType) -> list[str]:
    """The input columns that are carried, in the order of the input for "*", else as named."""
    if isinstance(keep, str) and keep == "*":
        return list(schema.names)
    if not isinstance(keep, list | tuple) or not all(isinstance(column, str) for column in keep):
        raise TypeError(f"keep={keep!r}: must be '*' or a list of column names")
    for column in keep:
        if column not in schema.names:
            raise ValueError(f"keep={keep!r}: no column {column!r}; the input has {', '.join(schema.names)}")
    return list(keep)
