"""The normal forms of values: those that Arrow takes for a Spark type as they are, a whole column at a time.

A function may give a value in many forms: a row as a Pydantic object, a number as one of NumPy's, an array as
a tensor. `normalizer` brings each into its normal form, and `compile_test` tells at small cost whether a
value has it already, as most have. Each is made once for a schema. Pure functions: any thread.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import uuid
import zoneinfo
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from pyspark.sql import types as T

from pillarbox.aio.chained import field_names
from pillarbox.aio.errors import shorten
from pillarbox.spark.vectors import Vectors, is_vector

Convert: TypeAlias = Callable[[Any], Any]
Test: TypeAlias = Callable[[Any], bool]

_RANGES: dict[type[T.DataType], int] = {
    T.ByteType: 2**7,
    T.ShortType: 2**15,
    T.IntegerType: 2**31,
    T.LongType: 2**63,
}
_EXACT_INTS: dict[type[T.DataType], int] = {T.FloatType: 2**24, T.DoubleType: 2**53}
"""Integers that these types hold without a loss are below this."""

_SMALL = 2**30
"""Integers that Python compares in a few nanoseconds are below this."""

BY_NAME = "{row}[{name}]"
"""The value of a field, whose absence is a KeyError."""
NESTED = "{row}.get({name}, missing)"
"""The same in a struct: where it is absent, that is in no normal form."""

_MISSING = object()
_FIRST, _LAST = 1, 9999
"""Years of Python's datetimes. In these two years a change of zone may leave the range."""
_DAYS = 10**8
"""Days of an interval whose microseconds are well within 64 bits."""


# -- whether a value is in its normal form --------------------------------------------------------


class Expressions:
    """Writes tests as Python expressions, which are compiled once: a call for each part would cost more."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "Decimal": decimal.Decimal,
            "date": datetime.date,
            "datetime": datetime.datetime,
            "fits_decimal": _fits_decimal,
            "is_text": _is_text,
            "missing": _MISSING,
            "timedelta": datetime.timedelta,
            "zones": frozenset({datetime.timezone, zoneinfo.ZoneInfo}),
        }
        self._count = 0

    def new(self, value: Any = None) -> str:
        """A name that is not used yet, which stands for `value`."""
        self._count += 1
        name = f"x{self._count}"
        if value is not None:
            self.names[name] = value
        return name

    def compiled(self, expression: str, argument: str) -> Callable[[Any], Any]:
        """The function of `argument` that the expression says."""
        function: Callable[[Any], Any] = eval(f"lambda {argument}: {expression}", self.names)
        return function

    def converter(self, test: str, other: Convert) -> tuple[Convert, Convert, Test]:
        """Returns a function that gives back a result that passes the test, else `other` of it.

        And one that does so for a list of results, and the test. A KeyError in the test means that it is not
        passed.
        """
        self.names["other"] = other
        source = f"""
def convert(result):
    try:
        if {test}:
            return result
    except KeyError:
        pass
    return other(result)

def convert_all(results):
    try:
        for result in results:
            if not {test}:
                break
        else:
            return results
    except KeyError:
        pass
    return [convert(result) for result in results]

def is_plain(result):
    try:
        return {test}
    except KeyError:
        return False
"""
        exec(source, self.names)
        return self.names["convert"], self.names["convert_all"], self.names["is_plain"]

    def test(
        self, kind: T.DataType, nullable: bool, value: str, source: str | None = None, *, inside: bool = False
    ) -> str:
        """An expression that is true if `value` is in the normal form of `kind`.

        source: an expression that gives the value, which then gets that name. inside: of another container.
        """
        text = self._test(kind, value, inside)
        if nullable:
            text += f" or {value} is None"
        if source is None:
            return f"({text})"
        bound = f"type({value})"
        if text.startswith(bound):
            return f"(type({value} := {source}){text[len(bound) :]})"
        return f"((({value} := {source}) is not missing) and ({text}))"

    def row(self, fields: list[T.StructField], row: str, source: str) -> str:
        """An expression that is true if `row` is a dict of all fields, each in its normal form.

        source: an expression that gives the value of a field, of the row and the name of the field.
        """
        parts = [f"type({row}) is dict and len({row}) == {len(fields)}"]
        for field in fields:
            given = source.format(row=row, name=repr(field.name))
            parts.append(
                self.test(field.dataType, field.nullable, self.new(), given, inside=source == NESTED)
            )
        return " and ".join(parts)

    def _test(self, kind: T.DataType, value: str, inside: bool) -> str:
        limit = _RANGES.get(type(kind))
        if limit is not None:
            within = f"-{limit} <= {value} < {limit}"
            if limit > _SMALL:
                within = f"(-{_SMALL} < {value} < {_SMALL} or {within})"
            return f"type({value}) is int and {within}"
        exact = _EXACT_INTS.get(type(kind))
        if exact is not None:
            return f"type({value}) is float or type({value}) is int and -{exact} <= {value} <= {exact}"
        if isinstance(kind, T.StringType):
            return f"type({value}) is str and ({value}.isascii() or is_text({value}))"
        if isinstance(kind, T.DecimalType):
            return f"type({value}) is Decimal and fits_decimal({value}, {kind.precision}, {kind.scale})"
        if isinstance(kind, T.TimestampType):
            years = f"{_FIRST} < {value}.year < {_LAST}"
            return f"type({value}) is datetime and type({value}.tzinfo) in zones and {years}"
        simple = _SIMPLE.get(type(kind))
        if simple is not None:
            return simple.format(value=value)
        if isinstance(kind, T.ArrayType):
            return self._array(kind, value, inside)
        if isinstance(kind, T.MapType):
            pair = self.new()
            key = self.test(kind.keyType, False, self.new(), f"{pair}[0]", inside=True)
            item = self.test(kind.valueType, kind.valueContainsNull, self.new(), f"{pair}[1]", inside=True)
            test = f"type({pair}) is tuple and len({pair}) == 2 and {key} and {item}"
            return f"type({value}) is list and all(map({self.new(self.compiled(test, pair))}, {value}))"
        if isinstance(kind, T.StructType):
            return self.row(kind.fields, value, NESTED)
        # Nulls, and what only `normalizer` makes: times of day, user-defined types.
        return "False"

    def _array(self, kind: T.ArrayType, value: str, inside: bool) -> str:
        if is_vector(kind):
            vectors = make_vectors(kind)
            return f"{self.new(vectors.is_exact if inside else vectors.is_plain)}({value})"
        element = self.new()
        test = self.compiled(self.test(kind.elementType, kind.containsNull, element, inside=True), element)
        return f"type({value}) is list and all(map({self.new(test)}, {value}))"


_SIMPLE: dict[type[T.DataType], str] = {
    T.BooleanType: "type({value}) is bool",
    T.BinaryType: "type({value}) is bytes",
    T.DateType: "type({value}) is date",
    T.TimestampNTZType: "type({value}) is datetime and {value}.tzinfo is None",
    T.DayTimeIntervalType: f"type({{value}}) is timedelta and -{_DAYS} < {{value}}.days < {_DAYS}",
}


def compile_test(kind: T.DataType, nullable: bool, *, inside: bool = False) -> Test:
    """Return True if a value is in the normal form of `kind`. inside: of another container."""
    expressions = Expressions()
    return expressions.compiled(expressions.test(kind, nullable, "value", inside=inside), "value")


def _fits_decimal(value: decimal.Decimal, precision: int, scale: int) -> bool:
    exponent = value.as_tuple().exponent
    # Not an int for what is no number.
    return isinstance(exponent, int) and -exponent <= scale and value.adjusted() < precision - scale


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- the normal form of a value -------------------------------------------------------------------


def normalizer(spark: T.DataType, zone: datetime.tzinfo | None, *, inside: bool = False) -> Convert:
    """Returns a function that brings a value into its normal form, or as near to it as it knows.

    zone: where naive datetimes of a `timestamp` are. inside: of another container. The function raises
    TypeError, ValueError or what a property of the value raises.
    """
    if isinstance(spark, T.TimestampType):
        return functools.partial(_timestamp, zone=zone)
    if isinstance(spark, T.StructType):
        return _struct_normalizer(spark, zone)
    if isinstance(spark, T.UserDefinedType):
        inner = normalizer(spark.sqlType(), zone, inside=inside)
        return lambda value: None if value is None else inner(spark.serialize(value))
    if isinstance(spark, T.MapType):
        return _map_normalizer(spark, zone)
    if isinstance(spark, T.ArrayType):
        if is_vector(spark):
            vectors = make_vectors(spark)
            return vectors.exact if inside else vectors.normal
        return _array_normalizer(spark, zone)
    if isinstance(spark, T.StringType):
        return functools.partial(_text_or_bytes, refused=(bytes, bytearray), spark=spark, of_uuid=str)
    if isinstance(spark, T.BinaryType):
        return functools.partial(_text_or_bytes, refused=(str,), spark=spark, of_uuid=_bytes_of_uuid)
    return _whole if type(spark) in _RANGES else scalar


def scalar(value: Any) -> Any:
    """The plain value of an enum's member, or of a scalar of NumPy, pandas, Arrow or a tensor library."""
    if isinstance(value, enum.Enum):
        return scalar(value.value)
    if isinstance(value, np.generic):
        return _of_numpy(value)
    kind = type(value)
    if kind.__module__.startswith(("pandas.", "pyarrow.")):
        if kind.__name__ in ("NAType", "NaTType"):
            return None
        if hasattr(value, "to_pydatetime"):
            return value.to_pydatetime(warn=False)
        if hasattr(value, "to_pytimedelta"):
            return value.to_pytimedelta()
        return value.as_py() if hasattr(value, "as_py") else value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value


def _of_numpy(value: np.generic) -> Any:
    if not isinstance(value, np.datetime64 | np.timedelta64):
        return value.item()
    if np.isnat(value):
        return None
    found = value.astype("datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]").item()
    if isinstance(found, int):
        raise ValueError(f"{value} is not in the years {_FIRST} to {_LAST}")
    return found


def _whole(value: Any) -> Any:
    """An integer. Arrow would cut off what follows the point."""
    value = scalar(value)
    if isinstance(value, float | decimal.Decimal):
        if value != (whole := int(value)):
            raise ValueError(f"{value!r} is not a whole number")
        return whole
    return value


def _text_or_bytes(value: Any, refused: tuple[type, ...], spark: T.DataType, of_uuid: Convert) -> Any:
    value = scalar(value)
    if isinstance(value, refused):
        # Arrow would take the one for the other.
        raise TypeError(f"{shorten(value)} is no {spark.simpleString()} but {type(value).__name__}")
    return of_uuid(value) if isinstance(value, uuid.UUID) else value


def _bytes_of_uuid(value: uuid.UUID) -> bytes:
    return value.bytes


def _timestamp(value: Any, zone: datetime.tzinfo | None) -> Any:
    value = scalar(value)
    if not isinstance(value, datetime.datetime):
        return value
    if value.tzinfo is not None:
        # Whatever its zone does is done now, where an error is that of this value.
        return value.astimezone(datetime.timezone.utc)
    if zone is None:
        raise ValueError(f"{value!r}: give a datetime with a time zone, the session's is not known here")
    return value.replace(tzinfo=zone)


def _array_normalizer(spark: T.ArrayType, zone: datetime.tzinfo | None) -> Convert:
    element = normalizer(spark.elementType, zone, inside=True)
    fits = compile_test(spark.elementType, spark.containsNull, inside=True)

    def convert(values: Any) -> Any:
        if values is None:
            return None
        if hasattr(values, "as_py"):
            values = values.as_py()
        # Arrow would take a string for the list of its characters, a dict for that of its keys.
        if isinstance(values, str | bytes | bytearray | Mapping) or not (
            isinstance(values, Collection) or hasattr(values, "__array__")
        ):
            raise TypeError(f"{shorten(values)}: an array must be a list, not {type(values).__name__}")
        if not isinstance(values, list) and hasattr(values, "__array__"):
            values = list(np.asarray(values))
        return [value if fits(value) else element(value) for value in values]

    return convert


def _map_normalizer(spark: T.MapType, zone: datetime.tzinfo | None) -> Convert:
    key = normalizer(spark.keyType, zone, inside=True)
    item = normalizer(spark.valueType, zone, inside=True)

    def convert(value: Any) -> Any:
        return None if value is None else [(key(k), item(v)) for k, v in dict(value).items()]

    return convert


def _struct_normalizer(spark: T.StructType, zone: datetime.tzinfo | None) -> Convert:
    read = row_reader(spark.names)
    names = spark.names
    converts = [normalizer(field.dataType, zone, inside=True) for field in spark.fields]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        return {name: to(part) for name, to, part in zip(names, converts, read(value), strict=True)}

    return convert


def make_vectors(kind: T.ArrayType) -> Vectors:
    """The arrays of numbers of a column of this type."""
    return Vectors(
        kind, normalizer(kind.elementType, None), compile_test(kind.elementType, kind.containsNull)
    )


# -- rows -----------------------------------------------------------------------------------------


def row_reader(names: list[str]) -> Callable[[Any], list[Any]]:
    """Returns a function that gives the values of a row, in the order of `names`, whatever form the row has.

    A dict, Row, named tuple, dataclass or object of attrs, Pydantic or msgspec is read by name: absent names
    are null, unknown ones raise ValueError. A tuple or list is read by position. Anything else raises
    TypeError.
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
        elif (fields := field_names(row)) is not None:
            # Pydantic has what was given beyond its fields, where that is allowed, apart.
            extra = getattr(row, "__pydantic_extra__", None) or {}
            by_name = {**{name: getattr(row, name) for name in fields}, **extra}
        else:
            raise TypeError(
                f"a row of the columns {', '.join(names)} must be a dict, a tuple, a Row, a dataclass or an "
                f"object of attrs or Pydantic, not {type(row).__name__}"
            )
        if not by_name.keys() <= known:
            unknown = sorted(str(name) for name in by_name.keys() - known)
            raise ValueError(f"unknown columns {', '.join(unknown)}; the schema has {', '.join(names)}")
        get = by_name.get
        return [get(name) for name in names]

    return read
