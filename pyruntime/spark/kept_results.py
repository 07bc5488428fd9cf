"""Results of functions in the form in which a ledger keeps them: as their schema reads them.

They have been converted (see `results`), so that they fit. Most are plain values that a ledger gives back as
they were; all others are made into Arrow columns and back. For the thread of the event loop.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as T

from pillarbox.spark.normal_forms import is_vector
from pillarbox.spark.records import decode_column
from pillarbox.spark.results import RowEncoder, ValueEncoder
from pillarbox.spark.schema import holds


def check_keepable(results: T.DataType) -> None:
    """Raise ValueError for a type of results that a ledger does not keep. For the driver."""
    if holds(results, T.UserDefinedType):
        raise ValueError(f"schema={results.simpleString()!r}: a ledger keeps no user-defined types")


class KeptRows:
    """Makes of converted results of `async_map` what is kept. results: the columns of a row."""

    def __init__(self, results: T.StructType, zone: datetime.tzinfo | None) -> None:
        self._encoder = RowEncoder(results, zone)
        self._is_exact = _is_exact(results)

    def __call__(self, result: Any) -> Any:
        """The kept form of `result`: a result that gives the same rows."""
        if self._is_exact:
            is_plain = self._encoder.is_plain
            if all(map(is_plain, result)) if type(result) is list else is_plain(result):
                return result
        arrays, _ = self._encoder.encode([result])
        columns = [decode_column(array) for array in arrays]
        return [tuple([plain(value) for value in row]) for row in zip(*columns, strict=True)]


class KeptValues:
    """The same for a function of `async_udf`, whose results are values of one type."""

    def __init__(self, result: T.DataType, zone: datetime.tzinfo | None) -> None:
        self._encoder = ValueEncoder(result, zone)
        self._is_exact = _is_exact(result)

    def __call__(self, result: Any) -> Any:
        """The kept form of `result`: an equal value."""
        if self._is_exact and self._encoder.is_plain(result):
            return result
        (array,), _ = self._encoder.encode([result])
        return plain(decode_column(array)[0])


def _is_exact(kind: T.DataType) -> bool:
    """Return True if a ledger gives back any value of this type, in its normal form, as it was."""
    if isinstance(kind, T.StructType):
        return all(_is_exact(field.dataType) for field in kind.fields)
    if isinstance(kind, T.MapType):
        return _is_exact(kind.keyType) and _is_exact(kind.valueType)
    if isinstance(kind, T.ArrayType):
        return not is_vector(kind) and _is_exact(kind.elementType)
    return not isinstance(kind, T.TimestampType)


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
