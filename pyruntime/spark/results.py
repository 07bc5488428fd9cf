"""Results of calls as Arrow columns: each is converted when it comes, a chunk is encoded when it leaves.

`convert` is for the thread of the event loop: whether a result fits its schema is part of its call's outcome.
Most results are in their normal form (see `normal_forms`), which one compiled expression sees; others are
brought into it. `encode` is for the task's thread and converts whole columns, which after this cannot fail.
Pure: any thread.
"""

# A result passes twice, once on each thread. All of it on the loop's thread would be as much work in the one
# place that every call waits for; all of it on the task's thread, by whole columns, would find out too late
# that a result does not fit: its call has ended, `retry` cannot have it tried again, and the ledger has
# recorded it.

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from pillarbox.aio.errors import Failed, shorten
from pillarbox.aio.row_fields import field_names
from pillarbox.aio.sizes import Weighed
from pillarbox.kernel import PillarboxError
from pillarbox.kernel.alike import Copier, RunFinder
from pillarbox.spark.border import forbidden_null
from pillarbox.spark.normal_forms import (
    Expressions,
    Vectors,
    compile_test,
    elements_of,
    has_mask,
    is_vector,
    normalizer,
    row_reader,
    with_nulls,
)
from pillarbox.spark.records import (
    array_of,
    array_of_numpy,
    from_ipc,
    import_for_values,
    imports_pandas,
    record_from,
    to_ipc,
)
from pillarbox.spark.schema import arrow_field, holds

_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


class ResultError(PillarboxError, TypeError):
    """Error of a function's result that does not fit the schema; the text has the result and the column.

        >>> from pillarbox.spark import async_map, failed_rows
        >>> async def call(row):
        ...     return "not a number"
        >>> done = async_map(spark.range(1), call, schema="n long", errors="column")
        >>> failed_rows(done).select("_error.type").collect()
        [Row(type='ResultError')]

    It fails the attempt, so `retry` sees it like other errors.
    """


class Block(list[pa.Array]):
    """The columns of many rows in Arrow's form. matrix: the numbers of one column that came as such."""

    matrix: np.ndarray[Any, Any] | None = None


class EncodedRow(Weighed):
    """A row that is in Arrow's form already: `array[index]` of each column of a block of many rows.

    nbytes: its share of the block.
    """

    __slots__ = ("block", "index")

    def __init__(self, block: Block, index: int, nbytes: int) -> None:
        self.block = block
        self.index = index
        self.nbytes = nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the rest of its block.
        columns = [array.slice(self.index, 1) for array in self.block]
        batch = pa.RecordBatch.from_arrays(columns, [*map(str, range(len(columns)))])
        return encoded_from, (to_ipc(batch), self.nbytes)


def encoded_from(ipc: bytes, nbytes: int) -> EncodedRow:
    """The row of a batch of one row, as its pickle keeps it."""
    (batch,) = from_ipc(ipc)
    return EncodedRow(Block(batch.columns), 0, nbytes)


_rows_of_block, runs_of_rows = Copier(EncodedRow, "index"), RunFinder(EncodedRow, "block", "index")

ALLOWED_IN_SNAPSHOTS: tuple[Any, ...] = (
    *(record_from, encoded_from, np.dtype, np.ndarray),
    # Their pickles name functions, under names that differ from version to version.
    *(
        example.__reduce_ex__(5)[0]
        for example in (Row(a=1), np.zeros(2), np.zeros((2, 2))[:, 0], np.int64(1))
    ),
)
"""The types of rows and results on Spark, for a `SnapshotCodec`."""


class _Column:
    """One column of results: brings values into their normal form, and makes arrays of them."""

    def __init__(self, field: T.StructField, zone: datetime.tzinfo | None) -> None:
        self.field = arrow_field(field)
        self._fits = compile_test(field.dataType, field.nullable)
        self._normal = normalizer(field.dataType, zone)
        self._vectors = Vectors(field.dataType) if is_vector(field.dataType) else None
        self.has_times = holds(field.dataType, _TIMES)

    def convert(self, value: object) -> Any:
        """The normal form of a value. Raises ValueError that names the column, for one that does not fit."""
        if self._fits(value):
            return value
        try:
            value = self._normal(value)
            if not self._fits(value):
                array = self.array([value])
                if self.has_times:
                    # Arrow holds more years than Python and Spark read.
                    array[0].as_py()
                place = forbidden_null(array, self.field)
                if place is not None:
                    raise ValueError(f"{place} is null, but the schema says NOT NULL")
        except Exception as error:
            raise ValueError(f"column {self.field.name} ({self.field.type}): {error}") from None
        return value

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The array of values in their normal form."""
        return array_of(values, self.field.type) if self._vectors is None else self._vectors.column(values)

    def together(self, values: list[Any]) -> pa.Array | None:
        """The array of values that are vectors of one form; None where they are others."""
        return None if self._vectors is None else self._vectors.together(values)

    def block(self, results: object) -> pa.Array | None:
        """The array of results that are one block, a matrix or an Arrow array; None where they are none."""
        if self._vectors is not None and not isinstance(results, pa.Array | pa.ChunkedArray):
            return self._vectors.matrix(results)
        if getattr(results, "ndim", None) == 1 and hasattr(results, "__array__"):
            results = with_nulls(results) if has_mask(results) else _array_of(np.asarray(results))
        if self.has_times or not isinstance(results, pa.Array | pa.ChunkedArray):
            return None
        if _family(results.type) != _family(self.field.type):
            return None
        try:
            array = results.cast(self.field.type)
            array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            # Text that is not UTF-8, too: nothing has looked at it.
            array.validate(full=True)
        except (pa.ArrowException, ValueError):
            return None
        # What is wrong with which row is found where each is looked at.
        return array if forbidden_null(array, self.field) is None else None


def _array_of(values: np.ndarray[Any, Any]) -> pa.Array | None:
    """The Arrow array of numbers of NumPy; None for other values."""
    return array_of_numpy(values) if values.dtype.kind in "biuf" and values.dtype.isnative else None


def _each_of(results: object, *, has_times: bool) -> list[Any] | None:
    """The rows of results of Arrow, one by one, where Python has not all of their values; else None."""
    if not isinstance(results, pa.RecordBatch | pa.Table | pa.Array | pa.ChunkedArray):
        return None
    try:
        results.validate(full=True)
        if has_times:
            results.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        # Text that is none, a year that is none: the error is that of its row, and of no other.
        if not isinstance(results, pa.RecordBatch | pa.Table):
            return [_of_arrow(value) for value in results]
        names = results.schema.names
        return [
            {name: _of_arrow(value) for name, value in zip(names, values, strict=True)}
            for values in zip(*results.columns, strict=True)
        ]
    return None


def _of_arrow(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        # What is wrong with it is found where it is converted.
        return value


def _family(kind: pa.DataType) -> Any:
    """The same for types of which one is cast to the other by changing no more than a width."""
    # Arrow casts far more, as text to numbers, which a single result would be refused for.
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if hasattr(kind, "value_field") and not pa.types.is_map(kind):
        return "list", _family(kind.value_type)
    return kind


class RowEncoder:
    """Makes Arrow columns of the rows that a function gave.

    schema: the columns of a result row. zone: where naive datetimes are. drop: whether a `Failed` gives no
    row at all, otherwise it gives a row of nulls. one_row: a list is a value, not several rows.
    `convert` takes a result when it comes; `is_plain` says whether one is a single row that `convert` gives
    back as it is.
    """

    def __init__(
        self,
        schema: T.StructType,
        zone: datetime.tzinfo | None,
        *,
        drop: bool = False,
        one_row: bool = False,
    ) -> None:
        self._one_row = one_row
        self._columns = [_Column(field, zone) for field in schema.fields]
        plain = [arrow_field(field).type for field in schema.fields if not is_vector(field.dataType)]
        if imports_pandas(plain, reading=False):
            import_for_values()
        self._names = schema.names
        self._read = row_reader(schema.names)
        self._single = len(schema.fields) == 1
        self._bare = self._single and not isinstance(schema.fields[0].dataType, T.StructType | T.MapType)
        self._of_failed: list[Any] = [] if drop else [(None,) * len(schema.fields)]
        expressions = Expressions()
        test = self._test(schema, expressions)
        self.convert, self._convert_each, self.is_plain = expressions.converter(test, self._convert)

    def convert_all(self, results: list[Any]) -> list[Any]:
        """The converted results of a batch. Raises `ResultError`."""
        # Rows of a block were converted as one.
        if results and type(results[0]) is EncodedRow and set(map(type, results)) == {EncodedRow}:
            return results
        values = self._values_alone(results)
        if values and (array := self._columns[0].together(values)) is not None:
            # As one block: an array for each would cost more than its numbers.
            return _rows_of_columns(Block([array]))
        converted: list[Any] = self._convert_each(results)
        return converted

    def _values_alone(self, results: list[Any]) -> list[Any] | None:
        """The only value of each result; None where one has more, or has another form."""
        if not self._bare or set(map(type, results)) != {tuple} or set(map(len, results)) != {1}:
            return None
        return [value for (value,) in results]

    def _test(self, schema: T.StructType, expressions: Expressions) -> str:
        """An expression that is true if `result` is one row in its normal form."""
        tests = [expressions.row(schema.fields, "result")]
        by_position = [f"type(result) is tuple and len(result) == {len(schema.fields)}"]
        for place, field in enumerate(schema.fields):
            by_position.append(expressions.test(field.dataType, field.nullable, f"result[{place}]"))
        tests.append(" and ".join(by_position))
        if self._bare and not isinstance(schema.fields[0].dataType, T.ArrayType):
            tests.insert(0, expressions.test(schema.fields[0].dataType, schema.fields[0].nullable, "result"))
        return "(" + " or ".join(tests) + ")"

    def _convert(self, result: object) -> Any:
        """A result with the same rows in their normal form. Raises `ResultError`.

        A list is several rows, or none. None is one null where there is one column, otherwise an error:
        whether a row without a match is dropped or kept must be said.
        """
        if type(result) is EncodedRow:
            return result
        try:
            if isinstance(result, list) and not self._one_row:
                return [row if self.is_plain(row) else self._row(row) for row in result]
            return self._row(result)
        except Exception as error:
            raise self.misfit(result, error) from None

    def misfit(self, result: object, error: Exception | str) -> ResultError:
        """The error of a result that does not fit, as `error` says."""
        columns = ", ".join(f"{column.field.name} {column.field.type}" for column in self._columns)
        hint = ""
        if result is None:
            hint = "; is a `return` missing in the function?"
        elif "coroutine" in str(error):
            hint = "; a coroutine was not awaited: write `await` in front of its call"
        return ResultError(f"result {shorten(result)} does not fit the schema ({columns}): {error}{hint}")

    def _row(self, row: object) -> tuple[Any, ...]:
        values = self._values(row)
        return tuple([column.convert(value) for column, value in zip(self._columns, values, strict=True)])

    def _values(self, row: object) -> Sequence[Any]:
        if self._one_row and isinstance(row, list):
            if self._single:
                return (row,)
            raise TypeError(
                f"a client gives one row for each row, and a list of {len(row)} is none: name its fields "
                "with `take`, or call the client in an async function that returns the rows"
            )
        if self._bare:
            if isinstance(row, tuple | Mapping) or field_names(row) is not None:
                return self._read(row)
            return (row,)
        if row is None:
            if self._single:
                return (None,)
            raise TypeError(
                f"None is not a row of the columns {', '.join(self._names)}: "
                "return [] for no row, or a row whose values are None"
            )
        if self._single and isinstance(row, Mapping) and self._names[0] not in row:
            raise TypeError(
                f"{shorten(row)}: wrap the value of the column, as in {{{self._names[0]!r}: ...}}"
            )
        return self._read(row)

    def rows_of(self, results: object) -> list[Any] | None:
        """The converted results of a batch that are one block; of those that are not `elements_of`.

        Where Python has not all values they are rows to be converted, each by itself; else None.
        """
        block = (
            self._table(results)
            if isinstance(results, pa.RecordBatch | pa.Table)
            else self._bare_block(results)
        )
        if block is None:
            rows = self.elements_of(results)
            if rows is not None:
                return rows
            return _each_of(results, has_times=any(column.has_times for column in self._columns))
        return _rows_of_columns(block)

    def elements_of(self, results: object) -> list[Any] | None:
        """The results of a batch as they are, None for each that a mask says is missing; None without one."""
        is_row = getattr(results, "ndim", None) == 1 and has_mask(results)
        return elements_of(results) if is_row else None

    def _table(self, results: pa.RecordBatch | pa.Table) -> Block | None:
        if sorted(results.schema.names) != sorted(self._names):
            return None
        arrays = [
            column.block(results.column(name))
            for name, column in zip(self._names, self._columns, strict=True)
        ]
        return None if any(array is None for array in arrays) else Block(arrays)

    def _bare_block(self, results: object) -> Block | None:
        array = self._columns[0].block(results) if self._bare else None
        if array is None:
            return None
        block = Block([array])
        if isinstance(results, np.ndarray) and pa.types.is_list(array.type) and results.size:
            element = array.type.value_type
            if not pa.types.is_boolean(element) and results.dtype == element.to_pandas_dtype():
                block.matrix = np.ascontiguousarray(results)
        return block

    def encode(self, results: Sequence[Any]) -> tuple[list[pa.Array], list[int] | None]:
        """Arrow columns of converted results, and how many rows each result gave (None for one each)."""
        # By the types in a whole chunk, which are one or two: no line of Python runs for each result then.
        kinds = set(map(type, results))
        if kinds == {EncodedRow}:
            return self._joined(
                [_part_of_block(results[begin], end - begin) for begin, end in runs_of_rows(results)]
            ), None
        if EncodedRow in kinds:
            return self._with_blocks(results)
        counts = None
        columns = self._plain_columns(results, kinds)
        if columns is None and kinds == {list}:
            rows = list(chain.from_iterable(results))
            columns = self._plain_columns(rows, set(map(type, rows)))
            counts = list(map(len, results))
        if columns is None:
            per_result = [self._rows(result) for result in results]
            columns = self._by_column([row for some in per_result for row in some])
            counts = list(map(len, per_result))
        arrays = [column.array(values) for column, values in zip(self._columns, columns, strict=True)]
        return arrays, None if counts is None or set(counts) <= {1} else counts

    def _with_blocks(self, results: Sequence[Any]) -> tuple[list[pa.Array], list[int] | None]:
        pieces: list[list[pa.Array]] = []
        counts: list[int] = []
        for is_block, run in _runs(results):
            theirs: list[int] | None = None
            if is_block:
                pieces.append(_part_of_block(run[0], len(run)))
            else:
                arrays, theirs = self.encode(run)
                pieces.append(arrays)
            counts += [1] * len(run) if theirs is None else theirs
        return self._joined(pieces), None if set(counts) <= {1} else counts

    def _joined(self, pieces: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
        """The columns of pieces, one after another."""
        return [each[0] if len(each) == 1 else pa.concat_arrays(each) for each in zip(*pieces, strict=True)]

    def _rows(self, result: object) -> list[Any]:
        """The rows of one converted result, each with its values in the order of the columns."""
        if type(result) is Failed:
            return self._of_failed
        return [self._in_order(row) for row in (result if type(result) is list else [result])]

    def _in_order(self, row: object) -> Sequence[Any]:
        if type(row) is tuple:
            return row
        return [row[name] for name in self._names] if type(row) is dict else (row,)

    def _by_column(self, rows: Sequence[Any]) -> list[Any]:
        return list(zip(*rows, strict=True)) if rows else [[] for _ in self._columns]

    def _plain_columns(self, results: Sequence[Any], kinds: set[type]) -> list[Any] | None:
        """The columns of results that are all of one usual form, a row each; None for any others."""
        if kinds == {tuple}:
            return self._by_column(results)
        if kinds == {dict}:
            return [[row[name] for row in results] for name in self._names]
        if self._bare and not kinds & _ROWS:
            return [results]
        return None


OFFSET_BYTES = 4
"""Bytes of the offset that a column of Arrow has for each list."""
_ROWS: frozenset[type] = frozenset({dict, list, tuple, Failed})


def _rows_of_columns(block: Block) -> list[Any]:
    count = len(block[0])
    # Arrow counts its bytes buffer by buffer, without the GIL, which costs more than the block is made for.
    nbytes = sum([each.nbytes for each in block]) if block.matrix is None else _bytes_of_lists(block.matrix)
    share = nbytes // max(1, count)
    return _rows_of_block(EncodedRow(block, 0, share), [*range(count)])


def _bytes_of_lists(matrix: np.ndarray[Any, Any]) -> int:
    """Bytes of a column of Arrow with the rows of a matrix for lists: the numbers, and an offset a row."""
    return matrix.nbytes + OFFSET_BYTES * len(matrix)


def _part_of_block(first: EncodedRow, rows: int) -> list[pa.Array]:
    """The columns of so many rows of a block, from `first` on, without a copy."""
    return [array.slice(first.index, rows) for array in first.block]


def _runs(results: Sequence[Any]) -> Iterator[tuple[bool, Sequence[Any]]]:
    """Results in their order, as runs: rows that follow one another in a block (True), and all others."""
    for kind, some in groupby(results, type):
        run = [*some]
        if kind is not EncodedRow:
            yield False, run
            continue
        for begin, end in runs_of_rows(run):
            yield True, run[begin:end]


class ValueEncoder(RowEncoder):
    """Makes one Arrow column of results that are one value each, whatever their form."""

    def __init__(self, kind: T.DataType, zone: datetime.tzinfo | None) -> None:
        super().__init__(T.StructType([T.StructField("result", kind)]), zone)
        # A struct or a map is one value here.
        self._bare = True

    def _values_alone(self, results: list[Any]) -> list[Any] | None:
        return results

    def _test(self, schema: T.StructType, expressions: Expressions) -> str:
        return expressions.test(schema.fields[0].dataType, True, "result")

    def _convert(self, result: object) -> Any:
        if type(result) is EncodedRow:
            return result
        try:
            return self._columns[0].convert(result)
        except Exception as error:
            raise self.misfit(result, error) from None

    def _rows(self, result: object) -> list[Any]:
        return [(None if type(result) is Failed else result,)]

    def _plain_columns(self, results: Sequence[Any], kinds: set[type]) -> list[Any] | None:
        if Failed not in kinds:
            return [results]
        return [[None if type(result) is Failed else result for result in results]]
