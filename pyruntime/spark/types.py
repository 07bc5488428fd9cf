"""Between Arrow columns and the Python values that functions take and give.

Inputs are decoded by their Arrow type, results are encoded by the Spark type that the user named.
Pure functions: any thread.

Values are PySpark's (structs are `Row`s, maps are dicts), with one difference: a `timestamp` is a
datetime with a time zone, that of the session, so that it means the same instant on every machine.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.types import Row

from pillarbox.aio.errors import shorten

Convert: TypeAlias = Callable[[Any], Any]

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


def holds(kind: T.DataType, wanted: type[T.DataType]) -> bool:
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


def decode_column(column: pa.Array) -> list[Any]:
    """The values of an Arrow column as Python objects."""
    values: list[Any] = column.to_pylist()
    convert = decoder(column.type)
    return values if convert is None else [convert(value) for value in values]


def decoder(arrow: pa.DataType) -> Convert | None:
    """What makes a PySpark value of a value that Arrow gave for this type; None where they are the same."""
    if pa.types.is_struct(arrow):
        return _struct_decoder(arrow)
    if pa.types.is_map(arrow):
        key, value = decoder(arrow.key_type) or _same, decoder(arrow.item_type) or _same
        return lambda pairs: None if pairs is None else {key(k): value(v) for k, v in pairs}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        element = decoder(arrow.value_type)
        if element is None:
            return None
        return lambda values: None if values is None else [element(value) for value in values]
    return None


def _struct_decoder(arrow: pa.StructType) -> Convert:
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    names = [field.name for field in fields]
    if any(b"variant" in (field.metadata or {}) for field in fields):
        return lambda value: None if value is None else T.VariantVal(value["value"], value["metadata"])
    make = Row(*names)
    converts = [decoder(field.type) or _same for field in fields]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        return make(*[to(value[name]) for name, to in zip(names, converts, strict=True)])

    return convert


def _same(value: Any) -> Any:
    return value


def encoder(spark: T.DataType, zone: datetime.tzinfo | None) -> Convert | None:
    """What makes of a result of this Spark type a value that Arrow takes; None where they are the same.

    zone: where naive datetimes of a `timestamp` are.
    """
    if isinstance(spark, T.TimestampType):
        return _timestamp_encoder(zone)
    if isinstance(spark, T.StructType):
        return _struct_encoder(spark, zone)
    if isinstance(spark, T.UserDefinedType):
        inner = encoder(spark.sqlType(), zone) or _same
        return lambda value: None if value is None else inner(spark.serialize(value))
    if isinstance(spark, T.MapType):
        key, item = encoder(spark.keyType, zone) or _same, encoder(spark.valueType, zone) or _same
        return lambda value: None if value is None else [(key(k), item(v)) for k, v in dict(value).items()]
    if isinstance(spark, T.ArrayType):
        return _array_encoder(spark, zone)
    if isinstance(spark, T.StringType):
        return _refusing(spark, bytes | bytearray)
    if isinstance(spark, T.BinaryType):
        return _refusing(spark, str)
    return None


def _refusing(spark: T.DataType, kind: Any) -> Convert:
    # Arrow would take the one for the other.
    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            raise TypeError(f"{shorten(value)} is no {spark.simpleString()} but {type(value).__name__}")
        return value

    return convert


def _array_encoder(spark: T.ArrayType, zone: datetime.tzinfo | None) -> Convert:
    element = encoder(spark.elementType, zone)

    def convert(values: Any) -> Any:
        # Arrow would take a string for the list of its characters, a dict for that of its keys.
        if isinstance(values, str | bytes | bytearray | Mapping):
            raise TypeError(f"{shorten(values)}: an array must be a list, not {type(values).__name__}")
        return values if values is None or element is None else [element(value) for value in values]

    return convert


def _timestamp_encoder(zone: datetime.tzinfo | None) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, datetime.datetime) or value.tzinfo is not None:
            return value
        if zone is None:
            raise ValueError(f"{value!r}: give a datetime with a time zone, the session's is not known here")
        return value.replace(tzinfo=zone)

    return convert


def _struct_encoder(spark: T.StructType, zone: datetime.tzinfo | None) -> Convert:
    row = row_reader(spark.names)
    names = spark.names
    converts = [encoder(field.dataType, zone) or _same for field in spark.fields]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        return {name: to(part) for name, to, part in zip(names, converts, row(value), strict=True)}

    return convert


def row_reader(names: list[str]) -> Callable[[Any], list[Any]]:
    """What makes a list of values, in the order of `names`, of a row in any of the forms that are accepted.

    A dict, Row, named tuple or dataclass is read by name: absent names are null, unknown ones raise
    ValueError. A tuple or list is read by position. Anything else raises TypeError.
    """
    known = frozenset(names)
    count = len(names)

    def read(row: Any) -> list[Any]:
        if isinstance(row, Mapping):
            by_name: Mapping[Any, Any] = row
        elif isinstance(row, tuple) and hasattr(row, "__fields__"):
            by_name = dict(zip(row.__fields__, row, strict=True))
        elif isinstance(row, tuple) and hasattr(row, "_fields"):
            by_name = dict(zip(row._fields, row, strict=True))
        elif isinstance(row, tuple | list):
            if len(row) != count:
                raise ValueError(f"{len(row)} values for the {count} columns {', '.join(names)}")
            return list(row)
        elif dataclasses.is_dataclass(row) and not isinstance(row, type):
            by_name = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        else:
            raise TypeError(
                f"a row of the columns {', '.join(names)} must be a dict, a tuple, a Row or a dataclass, "
                f"not {type(row).__name__}"
            )
        if not by_name.keys() <= known:
            unknown = sorted(str(name) for name in by_name.keys() - known)
            raise ValueError(f"unknown columns {', '.join(unknown)}; the schema has {', '.join(names)}")
        get = by_name.get
        return [get(name) for name in names]

    return read
