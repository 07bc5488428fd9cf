"""Results of calls as Arrow columns. Pure but for caches of the type converters; any one thread at a time."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.aio.errors import shorten
from pillarbox.aio.failure import Failed
from pillarbox.kernel import PillarboxError
from pillarbox.spark.types import arrow_field, encoder, row_reader


class ResultError(PillarboxError, TypeError):
    """A function's result that does not fit the schema; says the result, the row and the column."""


_ERRORS = (TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException)

_SCALARS = frozenset(
    {bool, int, float, str, bytes, type(None)}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal}
)


class RowEncoder:
    """Makes Arrow columns of the rows that a function gave.

    schema: the columns of a result row. zone: where naive datetimes are. drop: whether a `Failed` gives no
    row at all, otherwise it gives a row of nulls.
    """

    def __init__(self, schema: T.StructType, zone: datetime.tzinfo | None, *, drop: bool = False) -> None:
        self.fields = [arrow_field(field) for field in schema.fields]
        self._names = schema.names
        self._known = frozenset(schema.names)
        self._encoders = [encoder(field.dataType, zone) for field in schema.fields]
        self._read = row_reader(schema.names)
        self._single = len(schema.fields) == 1
        self._bare = self._single and not isinstance(schema.fields[0].dataType, T.StructType | T.MapType)
        self._of_failed: list[Any] = [] if drop else [[None] * len(schema.fields)]

    def rows(self, result: Any) -> list[Any]:
        """The rows of one call's result, each a list of values in column order.

        A list is several rows, or none. None is one null where there is one column, otherwise an error:
        whether a row without a match is dropped or kept must be said.
        """
        if isinstance(result, list):
            return [self._row(row) for row in result]
        if type(result) is Failed:
            return self._of_failed
        return [self._row(result)]

    def _row(self, row: Any) -> Any:
        if self._bare:
            if isinstance(row, tuple | Mapping) or hasattr(row, "__dataclass_fields__"):
                return self._read(row)
            return (row,)
        if row is None:
            if self._single:
                return (None,)
            raise TypeError(
                f"None is no row of the columns {', '.join(self._names)}: "
                "return [] for no row, or a row whose values are None"
            )
        if self._single and isinstance(row, Mapping) and self._names[0] not in row:
            raise TypeError(
                f"{shorten(row)}: wrap the value of the column, as in {{{self._names[0]!r}: ...}}"
            )
        return self._read(row)

    def arrays(self, columns: list[Any]) -> list[pa.Array]:
        """Arrow columns of columns of values; raises what Arrow or a converter raises."""
        arrays = []
        for values, field, convert in zip(columns, self.fields, self._encoders, strict=True):
            if convert is not None:
                values = [convert(value) for value in values]
            array = pa.array(values, type=field.type)
            if not field.nullable and array.null_count:
                raise ValueError(f"column {field.name}: null, but the schema says NOT NULL")
            arrays.append(array)
        return arrays

    def encode(
        self, inputs: Iterable[Any], results: Sequence[Any]
    ) -> tuple[list[pa.Array], list[int] | None]:
        """Arrow columns of calls' results, and how many rows each result gave (None for one each).

        inputs: the input row of each result, read only for errors. Raises `ResultError`.
        """
        counts = None
        try:
            columns = self._plain_columns(results)
            if columns is None and set(map(type, results)) == {list}:
                columns = self._plain_columns(list(chain.from_iterable(results)))
                counts = _unless_ones(list(map(len, results)))
            if columns is None:
                per_result = [self.rows(result) for result in results]
                columns = self._columns([row for some in per_result for row in some])
                counts = _unless_ones(list(map(len, per_result)))
            return self.arrays(columns), counts
        except _ERRORS as error:
            raise self._explain(inputs, results) or error from None

    def _columns(self, rows: Sequence[Any]) -> list[Any]:
        return list(zip(*rows, strict=True)) if rows else [[] for _ in self.fields]

    def _plain_columns(self, results: Sequence[Any]) -> list[Any] | None:
        """The columns of results that are all of one usual form, a row each; None for any others."""
        types = set(map(type, results))
        if self._bare and types <= _SCALARS:
            return [results]
        if types == {tuple} and set(map(len, results)) == {len(self.fields)}:
            return self._columns(results)
        if (
            types == {dict}
            and (self._bare or not self._single)
            and self._known.issuperset(chain.from_iterable(results))
        ):
            return [[row.get(name) for row in results] for name in self._names]
        return None

    def _explain(self, inputs: Iterable[Any], results: Sequence[Any]) -> ResultError | None:
        # Columns are converted whole, so which row was at fault is looked for only once one was.
        for row, result in zip(inputs, results, strict=True):
            try:
                self.arrays(self._columns(self.rows(result)))
            except _ERRORS as error:
                columns = ", ".join(f"{field.name} {field.type}" for field in self.fields)
                return ResultError(
                    f"result {shorten(result)} of row {shorten(row)} does not fit the schema "
                    f"({columns}): {error}"
                )
        return None


def _unless_ones(counts: list[int]) -> list[int] | None:
    return None if set(counts) <= {1} else counts


class ValueEncoder(RowEncoder):
    """Makes one Arrow column of results that are one value each, whatever their form."""

    def __init__(self, kind: T.DataType, zone: datetime.tzinfo | None) -> None:
        super().__init__(T.StructType([T.StructField("result", kind)]), zone)

    def rows(self, result: Any) -> list[Any]:
        """The one row of one call's result."""
        return [(None if type(result) is Failed else result,)]

    def _plain_columns(self, results: Sequence[Any]) -> list[Any] | None:
        if Failed not in set(map(type, results)):
            return [results]
        return [[None if type(result) is Failed else result for result in results]]
