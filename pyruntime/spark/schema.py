"""Types and schemas of rows: Arrow's types for Spark's, and checks of what users give.

Inputs are decoded by their Arrow type (`records`); for results `normal_forms` has the values of each Spark
type. Pure functions: any thread, but for `parse_type` and `parse_schema`, which are for the driver's.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pillarbox.aio.errors import shorten
from pillarbox.aio.row_inputs import is_table
from pillarbox.providers import LOCAL_FRAME, provided
from pillarbox.spark import ddl
from pillarbox.spark.compat import TIME_TYPES, parse_ddl, refuses_analysis

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

ROOMIER_TYPES = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
"""Types of Arrow that Spark lacks, and those that have room for their values."""

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


def check_frame(df: object) -> None:
    """Raise TypeError unless `df` is a DataFrame of Spark, classic or of Connect."""
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(
            f"df={shorten(df)}: must be a Spark DataFrame, such as spark.createDataFrame makes of others, "
            f"not {type(df).__name__}"
        )
    _check_described(df)


def _check_described(df: Any) -> None:
    """Raise ValueError in a query function of a pipeline, where Spark does not describe a DataFrame."""
    if not type(df).__module__.startswith("pyspark.sql.connect"):
        return
    try:
        # It is kept by the DataFrame, which is asked once.
        _ = df.schema
    except Exception as error:
        if refuses_analysis(error):
            raise ValueError(
                "df: Spark does not tell the columns of a DataFrame within a query function of a Declarative "
                "Pipeline. Make the DataFrame of results outside of the function, which returns it; or use a "
                "column: async_udf needs to know no columns"
            ) from error
        raise


def frame_of(df: Any) -> Any:
    """Return a DataFrame as it is, classic or of Connect; for a table without Spark what stands for it.

    Raises TypeError for anything else, and for a table with columns that Spark has no types for; ValueError
    where Spark does not describe a DataFrame.
    """
    if callable(getattr(df, "mapInArrow", None)):
        _check_described(df)
        return df
    found = provided(LOCAL_FRAME, "df")(df) if is_table(df) else None
    if found is None:
        raise TypeError(
            f"df={shorten(df)}: must be a Spark DataFrame, or a table of pandas, Polars, Arrow, DuckDB or "
            f"datasets, not {type(df).__name__}"
        )
    return found


def _parsed_by_spark(text: str) -> T.DataType:
    try:
        return parse_ddl(text)
    except Exception as error:
        if refuses_analysis(error):
            return ddl.parsed(text)
        raise


def parse_type(name: str, value: object, *, has_spark: bool = True) -> T.DataType:
    """The Spark type of a DDL string or a DataType. Raises TypeError or ValueError naming the argument.

    has_spark: False where no session may be there, so that Spark cannot be asked.
    """
    if isinstance(value, str):
        try:
            parsed = _parsed_by_spark(value) if has_spark else ddl.parsed(value)
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


def parse_schema(name: str, value: object, *, has_spark: bool = True) -> T.StructType:
    """As `parse_type`, for the columns of a row."""
    parsed = parse_type(name, value, has_spark=has_spark)
    if not isinstance(parsed, T.StructType):
        raise TypeError(f"{name}={value!r}: must name columns, as in 'id long, price double'")
    check_unique(name, parsed.names)
    return parsed


def check_unique(name: str, columns: Sequence[str]) -> None:
    """Raise ValueError if two columns have the same name."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"{name}: the column names {', '.join(map(repr, twice))} stand more than once")


def kept_columns(keep: object, schema: T.StructType) -> list[str]:
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


def condition_of(where: object) -> Any:
    """The Column of a condition given as one, or as SQL: true or null. Raises TypeError."""
    condition: Any = F.expr(where) if isinstance(where, str) else where
    # By its name: classic and Connect have a class each, and neither imports the other's.
    if type(condition).__name__ != "Column":
        raise TypeError(f"where={where!r}: must be a Column or SQL, not {type(where).__name__}")
    # Spark refuses a condition that is not boolean here, and not the task later.
    return F.when(condition, F.lit(True))
