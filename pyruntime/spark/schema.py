"""Types and schemas of rows: Arrow's types for Spark's, Spark's for JSON schemas, checks of what users give.

Inputs are decoded by their Arrow type (`records`); for results `normal_forms` has the values of each Spark
type. Pure functions: any thread, but for `parse_type` and `parse_schema`, which are for the driver's.
"""

from __future__ import annotations

import datetime
import json
import re
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.aio.errors import shorten
from pillarbox.clients.answers import moment
from pillarbox.spark.compat import TIME_TYPES, parse_ddl

# Not PySpark's `to_arrow_type`: its parameters are others in each minor version, and it takes types of which
# no result can be made (variants, geometries).
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
    **dict.fromkeys(TIME_TYPES, pa.time64("ns")),
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


def arrow_field(field: T.StructField) -> pa.Field:
    """The Arrow field of a Spark field."""
    return pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable)


def holds(kind: T.DataType, wanted: type[T.DataType] | tuple[type[T.DataType], ...]) -> bool:
    """Return True if a type is one of `wanted`, or has one inside."""
    if isinstance(kind, wanted):
        return True
    if isinstance(kind, T.StructType):
        return any(holds(field.dataType, wanted) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return holds(kind.elementType, wanted)
    if isinstance(kind, T.MapType):
        return holds(kind.keyType, wanted) or holds(kind.valueType, wanted)
    return False


def time_zone(name: str) -> datetime.tzinfo | None:
    """The time zone of a Spark session by its name; None when Python does not know it."""
    # Spark takes names of Java's, of which those with an offset alone are not in the database of zones.
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        pass
    match = _OFFSET.match(name)
    if match is None:
        return datetime.timezone.utc if name in ("Z", "UTC", "GMT") else None
    offset = datetime.timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    return datetime.timezone(offset if match[1] == "+" else -offset)


# -- checks on the driver -------------------------------------------------------------------------


def check_frame(df: Any) -> None:
    """Raise TypeError unless `df` is a DataFrame, classic or of Connect."""
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(
            f"df={shorten(df)}: must be a Spark DataFrame, such as spark.createDataFrame makes of others, "
            f"not {type(df).__name__}"
        )


def parse_type(name: str, value: Any) -> T.DataType:
    """The Spark type of a DDL string or a DataType. Raises TypeError or ValueError naming the argument."""
    if isinstance(value, str):
        try:
            parsed = parse_ddl(value)
        except Exception as error:
            # What follows the first line is the plan of a query that the user did not write.
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"{name}={value!r}: is not a type in DDL form ({reason})") from error
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
    return [check_column(f"keep={keep!r}", column, schema.names) for column in keep]


def check_column(option: str, name: str, columns: Sequence[str]) -> str:
    """Accept the name of a column among `columns`. Raises ValueError that names `option`."""
    if name not in columns:
        raise ValueError(
            f"{option}: {name!r} is not a column of the DataFrame (columns: {', '.join(columns)})"
        )
    return name


def condition_of(where: Any) -> Any:
    """The Column of a condition given as one, or as SQL: true or null. Raises TypeError."""
    if isinstance(where, str):
        where = F.expr(where)
    # By its name: classic and Connect have a class each, and neither imports the other's.
    if type(where).__name__ != "Column":
        raise TypeError(f"where={where!r}: must be a Column or SQL, not {type(where).__name__}")
    # Spark refuses a condition that is not boolean here, and not the task later.
    return F.when(where, F.lit(True))


_OF_VALUES: dict[type, T.DataType] = {
    bool: T.BooleanType(),
    int: T.LongType(),
    float: T.DoubleType(),
    str: T.StringType(),
}
_OF_NAMES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "integer": T.LongType(),
    "number": T.DoubleType(),
    "string": T.StringType(),
}
_FORMATS: dict[str, T.DataType] = {"date": T.DateType(), "date-time": T.TimestampType()}
"""Formats of strings that have a type of their own. A time of day has one from Spark 4.1 on only."""


def spark_type(schema: Any, path: str = "answer") -> T.DataType:
    """The type of a JSON schema without references: nullable throughout, enums as their values.

    path: the place of the schema, for errors. Raises ValueError for what has no type: a union of several, a
    schema that allows anything.
    """
    if not isinstance(schema, Mapping):
        raise _no_type(path, schema, "must say what it is")
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices:
        kinds = [each for each in choices if not (isinstance(each, Mapping) and each.get("type") == "null")]
        if len(kinds) != 1:
            raise _no_type(path, schema, "is one of several types")
        return spark_type(kinds[0], path)
    if "enum" in schema or "const" in schema:
        return _type_of_values(schema, path)
    kind = schema.get("type")
    if isinstance(kind, list):
        names = [each for each in kind if each != "null"]
        if len(names) != 1:
            raise _no_type(path, schema, "is one of several types")
        kind = names[0]
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), _OF_NAMES["string"])
    if kind == "array":
        return T.ArrayType(_element_type(schema, path))
    if kind == "object":
        return _type_of_object(schema, path)
    if kind not in _OF_NAMES:
        raise _no_type(path, schema, "must say what it is")
    return _OF_NAMES[kind]


def _type_of_values(schema: Mapping[str, Any], path: str) -> T.DataType:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) != 1 or not kinds <= _OF_VALUES.keys():
        raise _no_type(path, schema, "has values of several types")
    return _OF_VALUES[kinds.pop()]


def _element_type(schema: Mapping[str, Any], path: str) -> T.DataType:
    places = schema.get("prefixItems")
    if places:
        types = [spark_type(each, f"{path}[{place}]") for place, each in enumerate(places)]
        if any(each != types[0] for each in types):
            raise _no_type(path, schema, "has elements of several types")
        return types[0]
    return spark_type(schema.get("items"), f"{path}[]")


def _type_of_object(schema: Mapping[str, Any], path: str) -> T.DataType:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if not properties:
        if not isinstance(others, Mapping):
            raise _no_type(path, schema, "is an object of any fields")
        return T.MapType(T.StringType(), spark_type(others, f"{path}{{}}"))
    return T.StructType(
        [T.StructField(name, spark_type(each, f"{path}.{name}")) for name, each in properties.items()]
    )


def _no_type(path: str, schema: Any, why: str) -> ValueError:
    shown = json.dumps(schema, default=str)[:200]
    return ValueError(
        f"{path}: {why}, which Spark has no type for ({shown}); give it one type, or make it a string"
    )


def value_reader(kind: T.DataType) -> Callable[[Any], Any]:
    """A function that gives the value of Spark for one of JSON: dates and timestamps of their texts.

    Fields that a record lacks are null, those that the type lacks are left out. It raises ValueError.
    """
    if isinstance(kind, T.DateType):
        return lambda value: None if value is None else date.fromisoformat(value)
    if isinstance(kind, T.TimestampType):
        return lambda value: None if value is None else moment(value)
    if isinstance(kind, T.ArrayType):
        element = value_reader(kind.elementType)
        return lambda values: None if values is None else [element(each) for each in values]
    if isinstance(kind, T.MapType):
        item = value_reader(kind.valueType)
        return lambda values: None if values is None else {name: item(each) for name, each in values.items()}
    if isinstance(kind, T.StructType):
        fields = [(field.name, value_reader(field.dataType)) for field in kind.fields]
        return lambda record: (
            None if record is None else {name: read(record.get(name)) for name, read in fields}
        )
    return lambda value: value
