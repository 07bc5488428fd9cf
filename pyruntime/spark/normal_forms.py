"""The normal forms of values: those that Arrow takes for a Spark type as they are, a whole column at a time.

A function may give a value in many forms: a row as a Pydantic object, a number as one of NumPy's, an array as
a tensor. `normalizer` brings each into its normal form, and `compile_test` tells at small cost whether a
value has it already, as most have. Each is made once for a schema. Pure functions: any thread.
"""

# The alternatives, and why they are worse, of a result that is a dict of two numbers (0.25 us here):
#
# - `pa.array([value], type)` for each result finds out whether it fits, for 2 us a column, and takes what it
#   should not: a string for a list of its characters, 1.5 for a whole number, bytes for text.
# - One `pa.array` for a whole chunk is as fast as this, but the error comes when the call is long over:
#   nothing could try it again, and one bad result would take 2,047 others with it.
# - Closures, one for each part of a schema, cost a Python call for each value. So the test of a row is
#   written as one expression, which is compiled once.
# - NumPy arrays are not made into Arrow's when they come, which costs 2 us each, but a chunk at a time.

from __future__ import annotations

import array
import datetime
import decimal
import enum
import functools
import itertools
import operator
import sys
import uuid
import zoneinfo
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.aio.errors import shorten
from pillarbox.aio.row_fields import field_names
from pillarbox.spark.compat import TIME_TYPES
from pillarbox.spark.records import array_of, array_of_numpy, plain_array_of
from pillarbox.spark.schema import arrow_type

Convert: TypeAlias = Callable[[Any], Any]
Test: TypeAlias = Callable[[Any], bool]

MIN_YEAR, MAX_YEAR = 1, 9999
"""Years of Python's datetimes. In these two years a change of zone may leave the range."""

MAX_CODES = 256
"""Compiled sources of a process, of which a schema has one and each array or map in it one or two."""

_NO_VALUE = object()
"""The value of a name that a library does not have."""

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_NUMBERS = (T.BooleanType, *_INTEGERS, T.FloatType, T.DoubleType)
_TIMES: dict[type[T.DataType], type] = {
    T.DateType: datetime.date,
    T.TimestampNTZType: datetime.datetime,
    T.DayTimeIntervalType: datetime.timedelta,
    **dict.fromkeys(TIME_TYPES, datetime.time),
}

# Each begins with `type(`, as what else it says is true of values of that type only.
_TESTS: dict[type[T.DataType], str] = {
    T.BooleanType: "type({v}) is bool",
    T.ByteType: f"type({{v}}) is int and {-(2**7)} <= {{v}} < {2**7}",
    T.ShortType: f"type({{v}}) is int and {-(2**15)} <= {{v}} < {2**15}",
    T.IntegerType: f"type({{v}}) is int and {-(2**31)} <= {{v}} < {2**31}",
    # Python compares integers of one digit, below 2^30, in a few nanoseconds.
    T.LongType: (f"type({{v}}) is int and ({-(2**30)} < {{v}} < {2**30} or {-(2**63)} <= {{v}} < {2**63})"),
    # Integers are taken that these types hold without a loss.
    T.FloatType: f"type({{v}}) is float or type({{v}}) is int and {-(2**24)} <= {{v}} <= {2**24}",
    T.DoubleType: f"type({{v}}) is float or type({{v}}) is int and {-(2**53)} <= {{v}} <= {2**53}",
    T.StringType: "type({v}) is str and ({v}.isascii() or is_text({v}))",
    T.BinaryType: "type({v}) is bytes",
    T.DecimalType: "type({v}) is Decimal and fits_decimal({v}, {kind.precision}, {kind.scale})",
    T.DateType: "type({v}) is date",
    T.TimestampType: (
        f"type({{v}}) is datetime and type({{v}}.tzinfo) in zones and {MIN_YEAR} < {{v}}.year < {MAX_YEAR}"
    ),
    T.TimestampNTZType: "type({v}) is datetime and {v}.tzinfo is None",
    # Their microseconds are well within 64 bits.
    T.DayTimeIntervalType: f"type({{v}}) is timedelta and {-(10**8)} < {{v}}.days < {10**8}",
}


# -- whether a value is in its normal form --------------------------------------------------------


@functools.lru_cache(MAX_CODES)
def _code(source: str, mode: str) -> CodeType:
    """The compiled form of a source, which each task of a worker process writes anew. Any thread."""
    # The name of its file is that of no user's.
    return compile(source, f"<frozen {__name__}>", mode)


class Expressions:
    """Writes tests as Python expressions, which are compiled once in a process."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "Decimal": decimal.Decimal,
            "date": datetime.date,
            "datetime": datetime.datetime,
            "fits_decimal": _fits_decimal,
            "is_text": _is_text,
            "timedelta": datetime.timedelta,
            "zones": frozenset({datetime.timezone, zoneinfo.ZoneInfo}),
        }
        self._numbers = itertools.count()

    def function(self, value: object) -> str:
        """A name for a function that the expressions call."""
        name = f"f{next(self._numbers)}_"
        self.names[name] = value
        return name

    def compiled(self, expression: str, argument: str) -> Callable[[Any], Any]:
        """The function of `argument` that the expression says."""
        function: Callable[[Any], Any] = eval(_code(f"lambda {argument}: {expression}", "eval"), self.names)
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
        exec(_code(source, "exec"), self.names)
        return self.names["convert"], self.names["convert_all"], self.names["is_plain"]

    def test(self, kind: T.DataType, nullable: bool, source: str, *, inside: bool = False) -> str:
        """An expression that is true if what `source` gives is in the normal form of `kind`.

        inside: of another container.
        """
        value = source if source.isidentifier() else f"v{next(self._numbers)}_"
        text = self._test(kind, value, inside)
        if nullable:
            text += f" or {value} is None"
        if value != source:
            text = text.replace(value, f"({value} := {source})", 1)
        return f"({text})"

    def row(self, fields: list[T.StructField], row: str, *, inside: bool = False) -> str:
        """An expression that is true if `row` is a dict of all fields, each in its normal form.

        An absent field is a KeyError, inside of another container a null where there may not be one.
        """
        parts = [f"type({row}) is dict and len({row}) == {len(fields)}"]
        for field in fields:
            source = f"{row}.get({field.name!r}, ...)" if inside else f"{row}[{field.name!r}]"
            parts.append(self.test(field.dataType, field.nullable, source, inside=inside))
        return " and ".join(parts)

    def _test(self, kind: T.DataType, value: str, inside: bool) -> str:
        simple = _TESTS.get(type(kind))
        if simple is not None:
            return simple.format(v=value, kind=kind)
        if is_vector(kind):
            vectors = Vectors(kind)
            return f"{self.function(vectors.is_exact if inside else vectors.is_plain)}({value})"
        if isinstance(kind, T.ArrayType):
            element = self.compiled(
                self.test(kind.elementType, kind.containsNull, "each", inside=True), "each"
            )
            return f"type({value}) is list and all(map({self.function(element)}, {value}))"
        if isinstance(kind, T.MapType):
            key = self.test(kind.keyType, False, "pair[0]", inside=True)
            item = self.test(kind.valueType, kind.valueContainsNull, "pair[1]", inside=True)
            test = self.compiled(f"type(pair) is tuple and len(pair) == 2 and {key} and {item}", "pair")
            distinct = self.function(_are_distinct)
            return (
                f"type({value}) is list and all(map({self.function(test)}, {value})) and {distinct}({value})"
            )
        if isinstance(kind, T.StructType):
            return self.row(kind.fields, value, inside=True)
        # Nulls, and what only `normalizer` makes: times of day, user-defined types.
        return "False"


def compile_test(kind: T.DataType, nullable: bool, *, inside: bool = False) -> Test:
    """Returns a test whether a value is in the normal form of `kind`. inside: of another container."""
    expressions = Expressions()
    return expressions.compiled(expressions.test(kind, nullable, "value", inside=inside), "value")


def _fits_decimal(value: decimal.Decimal, precision: int, scale: int) -> bool:
    exponent = value.as_tuple().exponent
    # Not an int for NaN and the infinities.
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

    zone: that of naive datetimes of a `timestamp`. inside: of another container. The function raises
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
        key = normalizer(spark.keyType, zone, inside=True)
        item = normalizer(spark.valueType, zone, inside=True)
        return functools.partial(_pairs, key=key, item=item)
    if is_vector(spark):
        vectors = Vectors(spark)
        return vectors.exact if inside else vectors.normal
    if isinstance(spark, T.ArrayType):
        return _array_normalizer(spark, zone)
    if isinstance(spark, T.StringType):
        return functools.partial(_text_or_bytes, refused=(bytes, bytearray), spark=spark, of_uuid=str)
    if isinstance(spark, T.BinaryType):
        of_uuid = operator.attrgetter("bytes")
        return functools.partial(_text_or_bytes, refused=(str,), spark=spark, of_uuid=of_uuid)
    if type(spark) in _TIMES:
        kind = _TIMES[type(spark)]
        naive = kind is datetime.time or isinstance(spark, T.TimestampNTZType)
        return functools.partial(_time, kind=kind, naive=naive)
    return _whole if isinstance(spark, _INTEGERS) else scalar


def is_missing(value: object) -> bool:
    """Return True for what NumPy and pandas have in place of a missing value: `masked`, `NA` and `NaT`."""
    if isinstance(value, np.ma.MaskedArray):
        return value.ndim == 0 and bool(np.ma.getmaskarray(value))
    # Whoever has such a value has imported pandas, and where its classes say that they are from differs by
    # version.
    pandas = sys.modules.get("pandas")
    return pandas is not None and (
        value is getattr(pandas, "NA", _NO_VALUE) or value is getattr(pandas, "NaT", _NO_VALUE)
    )


def with_nulls(values: object) -> pa.Array | None:
    """The array of a collection that says by a mask which values are missing, with nulls in their places.

    So do masked arrays of NumPy, what pandas has for types of its own, and Series of Polars. None for any
    other collection, for one of several dimensions, and for one that Arrow has no form of.
    """
    if isinstance(values, np.ma.MaskedArray):
        is_plain = values.ndim == 1 and values.dtype.kind in "biuf" and values.dtype.isnative
        return pa.array(values.data, mask=np.ma.getmaskarray(values)) if is_plain else None
    if not has_mask(values):
        return None
    try:
        to_arrow = getattr(values, "to_arrow", None)
        found = pa.array(getattr(values, "array", values)) if to_arrow is None else to_arrow()
    except (TypeError, pa.ArrowException):
        return None
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def elements_of(values: Any) -> list[Any]:
    """The elements of a collection with a mask, as it gives them, with None for each that is missing.

    Texts and categories of pandas say so by a NaN, which would be a number otherwise.
    """
    elements = list(values)
    missing = getattr(values.dtype, "na_value", None)
    if isinstance(missing, float) and missing != missing:
        elements = [None if isinstance(each, float) and each != each else each for each in elements]
    return elements


def has_mask(values: object) -> bool:
    """Return True for a collection that NumPy would take missing values of for numbers, or for NaN."""
    if isinstance(values, np.ma.MaskedArray):
        return True
    polars, pandas = sys.modules.get("polars"), sys.modules.get("pandas")
    if polars is not None and isinstance(values, polars.Series):
        return True
    if pandas is None or isinstance(getattr(values, "dtype", None), np.dtype | None):
        return False
    return isinstance(values, (pandas.Series, pandas.Index, pandas.api.extensions.ExtensionArray))


def scalar(value: object) -> Any:
    """The plain value of an enum's member, or of a scalar of NumPy, pandas, Arrow or a tensor library."""
    if isinstance(value, enum.Enum):
        return scalar(value.value)
    if isinstance(value, np.generic):
        return _of_numpy(value)
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if is_missing(value):
        return None
    # pandas has times with nanoseconds, of classes of its own.
    if isinstance(value, datetime.datetime) and hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False)
    if isinstance(value, datetime.timedelta) and hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
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
        raise ValueError(f"{value} is not in the years {MIN_YEAR} to {MAX_YEAR}")
    return found


def _whole(value: object) -> Any:
    """An integer. Arrow would cut off what follows the point."""
    value = scalar(value)
    if isinstance(value, float | decimal.Decimal):
        if value != (whole := int(value)):
            raise ValueError(f"{value!r} is not a whole number")
        return whole
    return value


def _pairs(value: Any, key: Convert, item: Convert) -> Any:
    """The pairs of a map. Raises ValueError for a key that it has twice."""
    if value is None or is_missing(value):
        return None
    given = value.items() if isinstance(value, Mapping) else value
    pairs = [(key(k), item(v)) for k, v in given]
    if not _are_distinct(pairs):
        seen: list[Any] = []
        for k, _ in pairs:
            if k in seen:
                raise ValueError(f"the key {shorten(k)} stands twice in a map")
            seen.append(k)
    return pairs


def _are_distinct(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Return True if no two pairs have one key; False too where keys have no hash and there are several."""
    try:
        return len({pair[0] for pair in pairs}) == len(pairs)
    except TypeError:
        return len(pairs) < 2


def _text_or_bytes(value: object, refused: tuple[type, ...], spark: T.DataType, of_uuid: Convert) -> Any:
    value = scalar(value)
    if isinstance(value, refused):
        # Arrow would take the one for the other.
        raise TypeError(f"{shorten(value)} is not a {spark.simpleString()} but {type(value).__name__}")
    return of_uuid(value) if isinstance(value, uuid.UUID) else value


def _timestamp(value: object, zone: datetime.tzinfo | None) -> Any:
    value = scalar(value)
    if not isinstance(value, datetime.datetime):
        return _null(value, datetime.datetime)
    if value.tzinfo is not None:
        # Whatever its zone does is done now, where an error is that of this value.
        return value.astimezone(datetime.timezone.utc)
    if zone is None:
        raise ValueError(f"{value!r}: give a datetime with a time zone, the session's is not known here")
    return value.replace(tzinfo=zone)


def _time(value: object, kind: type, naive: bool) -> Any:
    value = scalar(value)
    if not isinstance(value, kind):
        return _null(value, kind)
    if naive and getattr(value, "tzinfo", None) is not None:
        # Arrow would take its time in UTC, or leave the zone out.
        what = "a timestamp_ntz" if kind is datetime.datetime else "a time"
        raise ValueError(f"{value!r} has a time zone, {what} has none: give a {kind.__name__} without one")
    return value


def _null(value: object, kind: type) -> None:
    if value is not None:
        # Arrow would take a number for days or microseconds since 1970.
        raise TypeError(f"{shorten(value)}: must be a {kind.__name__}, not {type(value).__name__}")


def _elements(values: object) -> Any:
    """The collection or array that a value is. Raises TypeError for others.

    Arrow would take a string for the list of its characters, a mapping for that of its keys.
    """
    if isinstance(values, str | bytes | bytearray | Mapping) or not (
        isinstance(values, Collection) or hasattr(values, "__array__")
    ):
        raise TypeError(f"{shorten(values)}: an array must be a list, not {type(values).__name__}")
    return values


def _array_normalizer(spark: T.ArrayType, zone: datetime.tzinfo | None) -> Convert:
    element = normalizer(spark.elementType, zone, inside=True)
    fits = compile_test(spark.elementType, spark.containsNull, inside=True)

    def convert(values: Any) -> Any:
        if values is None or is_missing(values):
            return None
        values = _elements(values.as_py() if hasattr(values, "as_py") else values)
        if not isinstance(values, list) and hasattr(values, "__array__"):
            values = elements_of(values) if has_mask(values) else list(np.asarray(values))
        return [value if fits(value) else element(value) for value in values]

    return convert


def _struct_normalizer(spark: T.StructType, zone: datetime.tzinfo | None) -> Convert:
    read = row_reader(spark.names)
    converts = [normalizer(field.dataType, zone, inside=True) for field in spark.fields]

    def convert(value: object) -> Any:
        if value is None or is_missing(value):
            return None
        return {name: to(part) for name, to, part in zip(spark.names, converts, read(value), strict=True)}

    return convert


def row_reader(names: list[str]) -> Callable[[Any], list[Any]]:
    """Returns a function that gives the values of a row, in the order of `names`, whatever form the row has.

    A dict, Row, named tuple, dataclass or object of attrs, Pydantic or msgspec is read by name: absent names
    are null, unknown ones raise ValueError. A tuple or list is read by position. Anything else raises
    TypeError.
    """
    known = frozenset(names)

    def read(row: object) -> list[Any]:
        by_name: Mapping[Any, Any]
        if isinstance(row, Mapping):
            by_name = row
        elif isinstance(row, tuple) and (fields := getattr(row, "__fields__", getattr(row, "_fields", None))):
            by_name = dict(zip(fields, row, strict=True))
        elif isinstance(row, tuple | list):
            if len(row) != len(names):
                raise ValueError(f"{len(row)} values for the {len(names)} columns {', '.join(names)}")
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


# -- arrays of numbers: embeddings for the most part ----------------------------------------------

MAX_SHORT_LIST = 16
"""Elements of a list that stays one; a longer one is made into an Arrow array when it comes."""

MAX_ELEMENTS = 2**31 - 1
"""Elements of all arrays of an Arrow list column together."""

_HALF = np.dtype(np.float16)
_DTYPES = [np.dtype(name) for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")]


def is_vector(kind: T.DataType) -> TypeGuard[T.ArrayType]:
    """Return True if a type is an array of numbers or of booleans."""
    return isinstance(kind, T.ArrayType) and isinstance(kind.elementType, _NUMBERS)


@functools.cache
def _values_of_halves() -> pa.Array:
    """The value of each float of 16 bits. Looking them up is twice as fast as NumPy's conversion."""
    return array_of_numpy(np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32))


def _check_elements(count: int) -> None:
    if count > MAX_ELEMENTS:
        raise OverflowError(f"{count:,} elements in one batch of results: Arrow takes {MAX_ELEMENTS:,}")


@functools.lru_cache(maxsize=8)
def _even_offsets(rows: int, length: int) -> pa.Buffer:
    """The offsets of so many lists of one length: those of nearly all blocks of a job."""
    _check_elements(rows * length)
    return pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(length))


class Vectors:
    """The arrays of numbers of one column, in all forms in which libraries give them.

    Each is brought into a form that a whole chunk of them can be put together from, block by block: a NumPy
    array, an Arrow array, or a short list.
    """

    def __init__(self, kind: T.ArrayType) -> None:
        self._list = arrow_type(kind)
        self._element = self._list.value_type
        self._dtype = dtype = np.dtype(self._element.to_pandas_dtype())
        # Those that NumPy casts without a look at the values. Floats are rounded, as Arrow rounds them.
        self._direct = frozenset(
            each
            for each in _DTYPES
            if np.can_cast(each, dtype, "safe") or (dtype.kind == "f" and each.kind == "f")
        )
        self._codes = frozenset(
            code for code in array.typecodes if code not in "uw" and np.dtype(code) in self._direct
        )
        self._class = type(pa.nulls(0, self._element))
        self._nullable = kind.containsNull
        self._of_element = normalizer(kind.elementType, None)
        self._fits = compile_test(kind.elementType, kind.containsNull)

    def is_plain(self, value: Any) -> bool:
        """Return True if `column` takes this value as it is."""
        kind = type(value)
        if kind is np.ndarray:
            return value.ndim == 1 and value.dtype in self._direct
        if kind is array.array:
            return value.typecode in self._codes
        if kind is list:
            return len(value) <= MAX_SHORT_LIST and all(map(self._fits, value))
        return kind is self._class and (self._nullable or not value.null_count)

    def normal(self, value: object) -> Any:
        """The value in a form that `column` takes. Raises TypeError, ValueError or an error of Arrow."""
        if isinstance(value, list | tuple):
            return self._of_list(value)
        if isinstance(value, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
            value = value.values
        if value is None or is_missing(value):
            return None
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        if has_mask(value):
            # NumPy has no nulls.
            masked = with_nulls(value)
            if masked is None:
                return self._of_list(elements_of(value))
            value = masked
        if isinstance(value, pa.Array):
            return self._checked(value if value.type == self._element else self._cast(value))
        if isinstance(value, array.array | memoryview) or hasattr(value, "__array__"):
            return self._of_array(np.asarray(value))
        return self._of_list(list(_elements(value)))

    def _of_list(self, values: Sequence[Any]) -> pa.Array:
        # Arrow cuts what follows the point off where it makes integers of a list.
        if self._dtype.kind != "i" or set(map(type, values)) <= {int}:
            try:
                return self._checked(array_of(values, self._element))
            except (TypeError, ValueError, pa.ArrowException):
                # An element that only `normalizer` knows, or that does not fit.
                pass
        each = [None if value is None else self._of_element(value) for value in values]
        return self._checked(array_of(each, self._element))

    def _of_array(self, values: np.ndarray[Any, Any]) -> Any:
        if values.ndim != 1:
            raise ValueError(f"an array of {values.ndim} dimensions: must have one")
        if values.dtype.kind not in "biuf":
            return self._of_list(values.tolist())
        if not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        return values if values.dtype in self._direct else self._cast(array_of_numpy(values))

    def _cast(self, values: pa.Array) -> pa.Array:
        is_one_of = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
        if not any(is_one(values.type) for is_one in is_one_of):
            raise TypeError(f"an array of {values.type}: must be of numbers, as {self._element}")
        if pa.types.is_float16(values.type) and not values.null_count:
            values = array_of_numpy(values.to_numpy().astype(np.float32))
        return values.cast(self._element)

    def _checked(self, values: pa.Array) -> pa.Array:
        if values.null_count and not self._nullable:
            raise ValueError("null, but the schema says that elements are not")
        return values

    def exact(self, value: object) -> Any:
        """A list, or a NumPy array of the very type: what Arrow takes inside of other containers."""
        value = value if self.is_plain(value) else self.normal(value)
        if isinstance(value, pa.Array):
            return value.to_pylist() if value.null_count else value.to_numpy(zero_copy_only=False)
        if isinstance(value, array.array):
            value = np.array(value)
        if isinstance(value, np.ndarray):
            with np.errstate(over="ignore"):
                return value.astype(self._dtype, copy=False)
        return value

    def is_exact(self, value: object) -> bool:
        """Return True if a value is as `exact` gives it."""
        if type(value) is np.ndarray:
            return value.ndim == 1 and value.dtype == self._dtype
        return type(value) is list and all(map(self._fits, value))

    def column(self, values: Sequence[Any]) -> pa.Array:
        """The column of values that are None or in one of the forms of `normal`."""
        there = [value for value in values if value is not None]
        kinds = set(map(type, there))
        lengths = np.fromiter(map(len, there), np.int64, len(there))
        if kinds == {array.array}:
            # Only now, as its owner cannot make one larger while it is seen as another's.
            there = list(map(np.array if len(there) == 1 else np.asarray, there))
            kinds = {np.ndarray}
        if kinds == {np.ndarray}:
            elements = self._joined(there)
        elif kinds <= {list}:
            elements = array_of([*itertools.chain.from_iterable(there)], self._element)
        else:
            parts = there if len(kinds) == 1 else list(map(self._as_arrow, there))
            elements = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if len(there) == len(values):
            return self._lists(lengths, elements)
        is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
        all_lengths = np.zeros(len(values), np.int64)
        all_lengths[is_there] = lengths
        return self._lists(all_lengths, elements, array_of_numpy(~is_there))

    def matrix(self, rows: object) -> pa.Array | None:
        """The column of the rows of a matrix, which is not copied if it has the right type.

        None where `rows` is not a matrix of numbers that are taken without a look at each.
        """
        if getattr(rows, "ndim", None) != 2 or not hasattr(rows, "__array__") or has_mask(rows):
            return None
        block = np.asarray(rows)
        if block.dtype not in self._direct:
            return None
        numbers = block.ravel()
        # As it is, or brought into the type of the column.
        elements = array_of_numpy(numbers) if block.dtype == self._dtype else self._joined([numbers])
        return pa.Array.from_buffers(
            self._list, len(block), [None, _even_offsets(*block.shape)], children=[elements]
        )

    def together(self, values: list[Any]) -> pa.Array | None:
        """The column of NumPy arrays, or of long lists of floats, made at once.

        None for any others, which are looked at one by one.
        """
        kinds = set(map(type, values))
        if kinds == {np.ndarray} and all(each.ndim == 1 and each.dtype in self._direct for each in values):
            # Not into memory of Arrow, which gives what another thread frees back to the system each time.
            whole = np.concatenate(values) if len(values) > 1 else values[0]
            return self._lists(np.fromiter(map(len, values), np.int64, len(values)), self._joined([whole]))
        if kinds != {list} or self._dtype.kind != "f" or min(map(len, values)) <= MAX_SHORT_LIST:
            return None
        elements = plain_array_of([*itertools.chain.from_iterable(values)], self._element)
        if elements is None or (elements.null_count and not self._nullable):
            return None
        return self._lists(np.fromiter(map(len, values), np.int64, len(values)), elements)

    def _as_arrow(self, value: object) -> pa.Array:
        if isinstance(value, pa.Array):
            return value
        return array_of(value, self._element) if type(value) is list else self._joined([np.array(value)])

    def _joined(self, parts: list[np.ndarray[Any, Any]]) -> pa.Array:
        if all(part.dtype == _HALF for part in parts):
            halves = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return _values_of_halves().take(array_of_numpy(halves.view(np.uint16))).cast(self._element)
        with np.errstate(over="ignore"):
            if len(parts) == 1:
                return array_of_numpy(parts[0].astype(self._dtype, copy=False))
            if self._dtype.kind == "b":
                return array_of_numpy(np.concatenate(parts, dtype=self._dtype, casting="same_kind"))
            # Into memory of Arrow, which has some left of the last chunk: new pages cost more than a copy.
            length = sum(map(len, parts))
            buffer = pa.allocate_buffer(length * self._dtype.itemsize)
            np.concatenate(parts, out=np.frombuffer(buffer, self._dtype), casting="same_kind")
            return pa.Array.from_buffers(self._element, length, [None, buffer])

    def _lists(self, lengths: Any, elements: pa.Array, mask: pa.Array | None = None) -> pa.Array:
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        _check_elements(int(offsets[-1]))
        return pa.ListArray.from_arrays(
            array_of_numpy(offsets.astype(np.int32)), elements, type=self._list, mask=mask
        )
