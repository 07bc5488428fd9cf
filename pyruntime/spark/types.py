"""Arrow's types for Spark's, and the time zone of a session. Pure functions: any thread.

Inputs are decoded by their Arrow type (`record`); for results `forms` has the values of each Spark type.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo

import pyarrow as pa
from pyspark.sql import types as T

_SIMPLE: dict[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", tz="UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
    T.NullType: pa.null(),
}

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?$")


def arrow_type(spark: T.DataType) -> pa.DataType:
    """The Arrow type in which results of the Spark type are handed over.

    Raises TypeError for a type that Arrow does not carry as a result (intervals of months, variants,
    geometries).
    """
    simple = _SIMPLE.get(type(spark))
    if simple is not None:
        return simple
    if isinstance(spark, T.StringType):
        return pa.string()
    if isinstance(spark, T.DecimalType):
        return pa.decimal128(spark.precision, spark.scale)
    if type(spark).__name__ == "TimeType":
        return pa.time64("ns")
    if isinstance(spark, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(spark.elementType), nullable=spark.containsNull))
    if isinstance(spark, T.MapType):
        key = pa.field("key", arrow_type(spark.keyType), nullable=False)
        value = pa.field("value", arrow_type(spark.valueType), nullable=spark.valueContainsNull)
        return pa.map_(key, value)
    if isinstance(spark, T.StructType):
        return pa.struct([arrow_field(field) for field in spark.fields])
    if isinstance(spark, T.UserDefinedType):
        return arrow_type(spark.sqlType())
    raise TypeError(f"type {spark.simpleString()!r}: results of this type are not supported")


def holds(kind: T.DataType, wanted: type[T.DataType] | tuple[type[T.DataType], ...]) -> bool:
    """Whether a type is one of `wanted`, or has one inside."""
    if isinstance(kind, T.StructType):
        return any(holds(field.dataType, wanted) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return holds(kind.elementType, wanted)
    if isinstance(kind, T.MapType):
        return holds(kind.keyType, wanted) or holds(kind.valueType, wanted)
    return isinstance(kind, wanted)


def arrow_field(field: T.StructField) -> pa.Field:
    """The Arrow field of a Spark field."""
    return pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable)


def time_zone(name: str) -> datetime.tzinfo | None:
    """The time zone of a Spark session by its name; None when Python does not know it."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        pass
    match = _OFFSET.match(name)
    if match is None:
        return datetime.timezone.utc if name in ("Z", "UTC", "GMT") else None
    offset = datetime.timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    return datetime.timezone(offset if match[1] == "+" else -offset)
