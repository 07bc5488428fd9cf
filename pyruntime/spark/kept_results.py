"""Results of functions in the form in which a ledger keeps them: as their schema reads them.

What does not fit the schema is not kept, or no later attempt would call again. Most results are plain values
that fit as they are, which is seen at once; all others are made into Arrow columns and back. For the thread
of the event loop.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyspark.sql import types as T

from pillarbox.aio.journal import NOT_KEPT
from pillarbox.spark.results import ResultError, RowEncoder, ValueEncoder
from pillarbox.spark.types import decode_column, holds

Fits: TypeAlias = Callable[[Any], bool]

_RANGES: dict[type[T.DataType], int] = {
    T.ByteType: 2**7,
    T.ShortType: 2**15,
    T.IntegerType: 2**31,
    T.LongType: 2**63,
}
_EXACT: dict[type[T.DataType], type] = {
    T.DoubleType: float,
    T.FloatType: float,
    T.BooleanType: bool,
    T.BinaryType: bytes,
}
_FLOATS = {float}


def check_keepable(results: T.DataType) -> None:
    """Raise ValueError for a type of results that a ledger does not keep. For the driver."""
    if holds(results, T.UserDefinedType):
        raise ValueError(f"schema={results.simpleString()!r}: a ledger keeps no user-defined types")


class KeptRows:
    """Makes of what a function of `async_map` gave what is kept. results: the columns of a row."""

    def __init__(self, results: T.StructType, zone: datetime.tzinfo | None) -> None:
        self._encoder = RowEncoder(results, zone)
        self._names = results.names
        self._known = frozenset(results.names)
        self._fits = [_fits(field.dataType, field.nullable) for field in results.fields]
        single = len(results.fields) == 1
        kind = results.fields[0].dataType if single else None
        self._bare = self._fits[0] if single and not isinstance(kind, T.StructType | T.MapType) else None

    def __call__(self, result: Any) -> Any:
        """What is kept of `result`: a result that gives the same rows; `NOT_KEPT` if it does not fit."""
        if type(result) is list:
            if all(map(self._is_plain, result)):
                return result
        elif self._is_plain(result):
            return result
        try:
            arrays, _ = self._encoder.encode([None], [result])
        except ResultError:
            return NOT_KEPT
        columns = [decode_column(array) for array in arrays]
        return [tuple([plain(value) for value in row]) for row in zip(*columns, strict=True)]

    def _is_plain(self, row: Any) -> bool:
        kind = type(row)
        if kind is dict:
            if not row.keys() <= self._known:
                return False
            get = row.get
            return all(fits(get(name)) for name, fits in zip(self._names, self._fits, strict=True))
        if kind is tuple:
            return len(row) == len(self._fits) and all(
                fits(value) for value, fits in zip(row, self._fits, strict=True)
            )
        return self._bare is not None and self._bare(row)


class KeptValues:
    """The same for a function of `async_udf`, whose results are values of one type."""

    def __init__(self, result: T.DataType, zone: datetime.tzinfo | None) -> None:
        self._encoder = ValueEncoder(result, zone)
        self._fits = _fits(result, True)

    def __call__(self, result: Any) -> Any:
        """What is kept of `result`: an equal value; `NOT_KEPT` if it does not fit."""
        if self._fits(result):
            return result
        try:
            arrays, _ = self._encoder.encode([None], [result])
        except ResultError:
            return NOT_KEPT
        return plain(decode_column(arrays[0])[0])


def _fits(kind: T.DataType, nullable: bool) -> Fits:
    """Whether a value is of the plain form for this type; False also where that is not seen at once."""
    limit = _RANGES.get(type(kind))
    if limit is not None:
        return lambda value: -limit <= value < limit if type(value) is int else value is None and nullable
    if isinstance(kind, T.StringType):
        return lambda value: (
            value.isascii() or _is_text(value) if type(value) is str else (value is None and nullable)
        )
    exact = _EXACT.get(type(kind))
    if exact is not None:
        return lambda value: type(value) is exact or (value is None and nullable)
    if isinstance(kind, T.ArrayType):
        inner = _fits(kind.elementType, kind.containsNull)
        floats = isinstance(kind.elementType, T.DoubleType | T.FloatType)

        def fits(values: Any) -> bool:
            if type(values) is not list:
                return values is None and nullable
            if floats and set(map(type, values)) == _FLOATS:
                return True
            return all(map(inner, values))

        return fits
    return lambda value: value is None and nullable


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(value: Any) -> Any:
    """A value as it was read from an Arrow column, of kinds that a ledger keeps."""
    if isinstance(value, T.Row):
        return tuple([plain(part) for part in value])
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {plain(key): plain(part) for key, part in value.items()}
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)
    return value
