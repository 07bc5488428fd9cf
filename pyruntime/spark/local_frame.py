"""Frames without Spark: tables of pandas, Polars, Arrow, DuckDB and datasets in place of a DataFrame.

A `LocalFrame` has what the functions of `pillarbox.spark` use of a DataFrame. It runs the task of a partition
over the whole table, on the caller's thread, with the event loop in a thread of its own, and gives the result
as a table of the kind that was given. No session and no Java are needed; the package of PySpark is, for its
types.
"""

# Why by way of the task that Spark's workers run: what was tried over a hundred rows must be what runs over a
# hundred million, to the last null. The ledger's keys, errors as data, decimals, times and the fill of
# requests are the same code. What it costs is a copy of the table in Arrow, where it was not Arrow before.

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from pillarbox.aio.options import Options
from pillarbox.spark.dataframe import MapTask
from pillarbox.spark.error_column import ERROR, ERROR_TYPE, ERROR_TYPE_OF_CHAIN
from pillarbox.spark.large_columns import as_type, rows_at, small_parts
from pillarbox.spark.operator_plan import OperatorPlan, check_callable
from pillarbox.spark.records import array_of_numpy, numpy_of, sliced
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.schema import ROOMIER_TYPES, arrow_field, check_unique
from pillarbox.spark.worker_garbage import collected_rarely
from pillarbox.spark.writer import RowWriter

BATCH_ROWS = 10_000
"""Rows of a batch of the input, as Spark's default is."""
ROW = "__pillarbox_row"
"""The column of the results that has the positions of their rows."""
Positions: TypeAlias = "npt.NDArray[np.int64]"


class Taken(NamedTuple):
    """A table of the user, as Arrow's, and the way back.

    build: makes one of the user's kind of the columns `kept` of the rows at some positions (None: all rows,
    in their order) and of the columns of another table beside them. is_new: nothing else holds the memory of
    that table.
    """

    table: pa.Table
    build: Build


class Build(Protocol):
    """Makes a table of the user's kind."""

    def __call__(
        self, kept: list[str], positions: Positions | None, new: pa.Table, *, is_new: bool = False
    ) -> Any:
        """See `Taken`."""


def taken(frame: Any) -> Taken | None:
    """Return the table of a frame of a known kind; None for anything else. Raises ArrowException."""
    # With those that it derives from; by name, so that none is imported.
    kinds = {(each.__module__.partition(".")[0], each.__name__) for each in type(frame).__mro__}
    if ("pandas", "DataFrame") in kinds:
        return _of_pandas(frame)
    if ("polars", "DataFrame") in kinds:
        return _of_polars(frame)
    if ("datasets", "Dataset") in kinds:
        return _of_dataset(frame)
    if not hasattr(frame, "__arrow_c_stream__"):
        return None
    table = frame if isinstance(frame, pa.Table) else _table_of(frame)
    if table is None:
        return None
    if kinds & {("duckdb", "DuckDBPyRelation"), ("_duckdb", "DuckDBPyRelation")}:
        return _of_arrow(table, lambda made: _relation_beside(frame, made))
    return _of_arrow(table, lambda made: made)


def _relation_beside(relation: Any, pillarbox_result: pa.Table) -> Any:
    """The relation of a table on the connection of another one; others may be in use in other threads.

    On DuckDB's own connection where that one takes no table, as its calls are made by now.
    """
    duckdb, alias = import_module("duckdb"), f"pillarbox_{uuid.uuid4().hex}"
    try:
        # DuckDB finds the table by the name of the variable, unless the connection has one of that name.
        made = relation.query(alias, "select * from pillarbox_result").set_alias(alias)
        if made.columns == pillarbox_result.column_names:
            with suppress(duckdb.Error):
                # The view of the first relation that the query has left; the second one does not use it.
                relation.query(alias, f"drop view {alias}")
            return made
    except duckdb.Error:
        pass
    return duckdb.from_arrow(pillarbox_result)


def _table_of(frame: Any) -> pa.Table | None:
    """The table of a stream of Arrow; None for one of a column, which has no names."""
    try:
        reader = pa.RecordBatchReader.from_stream(frame)
    except pa.ArrowException:
        return None
    return reader.read_all()


NAMES_OF_TIMES = frozenset({"DatetimeIndex", "PeriodIndex", "TimedeltaIndex"})
"""The kinds of an index of pandas that look up a text as a time."""


def _of_pandas(frame: Any) -> Taken:
    # A name may be any object, such as a number: in Spark it is a text.
    names = [*map(str, frame.columns)]
    check_unique("df", names)
    if not names and len(frame):
        raise ValueError(f"df: has {len(frame):,} rows and no columns; give it one, as by df.reset_index()")

    def build(kept: list[str], positions: Positions | None, new: pa.Table, *, is_new: bool = False) -> Any:
        made = frame.iloc[:, [*map(names.index, kept)]]
        made = made.copy() if positions is None else made.iloc[positions].copy()
        levels = frame.columns.nlevels
        if type(made.columns).__name__ in NAMES_OF_TIMES:
            # These take a name that looks like a time for one, and so for columns that are kept.
            made.columns = made.columns.astype(object)
        for name, column in zip(new.schema.names, new.columns, strict=True):
            vectors = _vectors_of(column, is_new=is_new)
            place = name if levels == 1 else (name, *[""] * (levels - 1))
            made[place] = column.to_pandas().array if vectors is None else vectors
        return made

    dense = frame.set_axis(names, axis=1)
    for place, kind in enumerate(frame.dtypes):
        if hasattr(kind, "subtype") and hasattr(frame.iloc[:, place], "sparse"):
            dense[names[place]] = frame.iloc[:, place].sparse.to_dense()
    return Taken(pa.Table.from_pandas(dense, preserve_index=False), build)


def _vectors_of(column: pa.ChunkedArray, *, is_new: bool) -> npt.NDArray[np.object_] | None:
    """Arrays of numpy, which may be written, of a column of lists of numbers; None for any other column.

    None for a list that is null. As `to_pandas` has them, which looks at each number for a null. is_new: the
    memory of the numbers was made for these rows, and nothing else holds it; it is not copied then.
    """
    if not pa.types.is_list(column.type):
        return None
    parts: list[_Lists] = []
    for chunk in column.chunks:
        found = numpy_of(chunk.values)
        if found is None or chunk.values.null_count:
            return None
        offsets = np.asarray(numpy_of(chunk.offsets))
        valid = chunk.is_valid().to_pylist() if chunk.null_count else None
        parts.append(_Lists(found[offsets[0] : offsets[-1]], offsets - offsets[0], valid))
    # Memory that may not be written is that of a file or of a text; rows that are equal may share theirs.
    may_keep = is_new and not _overlap([part.numbers for part in parts])
    vectors = chain.from_iterable(part.arrays(copy=not may_keep) for part in parts)
    return np.fromiter(vectors, np.object_, len(column))


class _Lists(NamedTuple):
    """Lists of numbers in one array, by where each begins and the last one ends; valid: None for all."""

    numbers: npt.NDArray[Any]
    offsets: npt.NDArray[Any]
    valid: list[bool] | None

    def arrays(self, *, copy: bool) -> Iterable[Any]:
        """An array for each list, None for one that is null."""
        numbers = self.numbers.copy() if copy or not self.numbers.flags.writeable else self.numbers
        lengths = self.offsets[1:] - self.offsets[:-1]
        if self.valid is None and (lengths == lengths[:1]).all():
            return numbers.reshape(len(lengths), -1) if len(lengths) else ()
        parts = np.split(numbers, self.offsets[1:-1])
        valid = self.valid or [True] * len(lengths)
        return [part if is_valid else None for part, is_valid in zip(parts, valid, strict=True)]


def _overlap(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """True if two arrays share memory."""
    spans = sorted((each.ctypes.data, each.nbytes) for each in arrays if each.nbytes)
    return any(begin + size > after for (begin, size), (after, _) in pairwise(spans))


def _of_polars(frame: Any) -> Taken:
    for name, kind in frame.schema.items():
        if str(kind) == "Object":
            raise TypeError(f"df: column {name!r} has objects of Python, which Arrow cannot take")

    def build(kept: list[str], positions: Positions | None, new: pa.Table, *, is_new: bool = False) -> Any:
        columns = import_module("polars").from_arrow(new)
        if not kept:
            return columns
        made = frame.select(kept)
        return (made if positions is None else made[positions]).hstack(columns)

    return Taken(frame.to_arrow(), build)


def _of_arrow(table: pa.Table, restore: Callable[[pa.Table], Any]) -> Taken:
    def build(kept: list[str], positions: Positions | None, new: pa.Table, *, is_new: bool = False) -> Any:
        made = table.select(kept)
        if positions is not None:
            made = rows_at(made, positions)
        for field, column in zip(new.schema, new.columns, strict=True):
            made = made.append_column(field, column)
        return restore(made)

    return Taken(table, build)


def _of_dataset(frame: Any) -> Taken:
    """Takes a dataset, whose features say more than their types in Arrow: labels, images, translations."""
    datasets, shown = import_module("datasets"), frame.format
    if shown["type"] == "custom":
        raise TypeError(
            "df: a dataset with a transform, which shows other values than it has: give "
            "dataset.map(function), or dataset.with_format(None) for the values that it has"
        )

    def restore(table: pa.Table) -> Any:
        table = table.replace_schema_metadata(None)
        features = datasets.Features.from_arrow_schema(table.schema)
        old = [name for name in table.schema.names if name in frame.features]
        features.update({name: frame.features[name] for name in old})
        info = datasets.DatasetInfo(features=features)
        made = datasets.Dataset(datasets.table.InMemoryTable(table), info=info)
        if shown["type"] is None:
            return made
        # What was not shown is not shown now, and what is new is.
        columns = [name for name in table.schema.names if name not in old or name in shown["columns"]]
        return made.with_format(shown["type"], columns, **shown["format_kwargs"])

    return _of_arrow(frame.with_format("arrow")[:], restore)


class LocalFrame:
    """A table in place of a DataFrame of Spark. For one thread.

    Raises TypeError or ValueError for columns that have no type in Spark, or no room in it.
    """

    isStreaming = False
    sparkSession = None

    def __init__(self, found: Taken) -> None:
        table = found.table
        self._build = found.build
        self.schema = T.StructType([spark_field(field) for field in table.schema])
        self.columns = self.schema.names
        self.rows = table.num_rows
        self.zone = system_zone()
        self._batches = [
            batch
            for part in small_parts(table, BATCH_ROWS)
            for batch in _as_spark_has_it(part, self.schema).to_batches()
        ]

    def mapInArrow(self, function: object, schema: object) -> Any:
        """Refuse what only Spark can do: this frame runs its functions at once, by `run`."""
        raise TypeError("a frame without Spark has no plan; give a Spark DataFrame")

    def run(self, plans: Sequence[OperatorPlan], results: T.StructType, kept: list[str], errors: str) -> Any:
        """Return the results of the functions of `plans` over all rows, beside the columns `kept`.

        In the kind of the frame. results, errors: as of `MapTask`. Blocks. Raises the errors of the job.
        """
        # Of functions in a chain, results of the last one stand in the columns. By its class: an object that
        # answers for another one by any name may keep what that one gives.
        fn = plans[-1].fn
        is_new = hasattr(type(fn), "gives_new_memory") and fn.gives_new_memory  # type: ignore[attr-defined]
        with collected_rarely():
            task = _LocalTask(plans, results, [ROW], errors, skips=False)
            made = [*task.run(iter(self._batches))]
            fields = [pa.field(ROW, pa.int64()), *(arrow_field(field) for field in results.fields)]
            if errors == "column":
                error_type = ERROR_TYPE if plans[0].uid is None else ERROR_TYPE_OF_CHAIN
                fields.append(arrow_field(T.StructField(ERROR, error_type)))
            schema = pa.schema([field.with_nullable(True) for field in fields])
            found = pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in made)])
            positions = np.asarray(numpy_of(found.column(ROW).combine_chunks()), np.int64)
            is_whole = np.array_equal(positions, np.arange(self.rows))
            new = found.select(schema.names[1:])
            return self._build(kept, None if is_whole else positions, new, is_new=is_new)

    def watched(self, label: str) -> AbstractContextManager[Any]:
        """Return a `Progress` of a job over these rows."""
        from pillarbox.spark.progress import Progress

        return Progress(self.rows, label=label)

    def token(self, fn: Callable[..., Any], options: Options) -> str:
        """Return an identity for a function of one job. Raises TypeError for one that cannot be called."""
        check_callable(fn, options)
        return uuid.uuid4().hex


def system_zone() -> str:
    """Return the name of the machine's time zone, which a session of Spark here would have."""
    if name := os.environ.get("TZ", "").lstrip(":"):
        return name
    with suppress(OSError):
        if name := Path("/etc/timezone").read_text("utf-8").strip():
            return name
    return os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2] or "UTC"


START = b"pillarbox.start"
"""The key in the metadata of a slice under which the position of its first row stands."""


class _PiecesEncoder(RowEncoder):
    """Leaves the blocks of results apart where they stand in one column: joined they would be copied."""

    def _joined(self, pieces: Sequence[Sequence[pa.Array]]) -> list[Any]:
        return [each[0] if len(each) == 1 else pa.chunked_array(each) for each in zip(*pieces, strict=True)]


class _PositionWriter(RowWriter):
    """Writes beside results the positions of their rows, in place of the rows' columns."""

    _encoder_type = _PiecesEncoder

    def _made(self, columns: list[Any]) -> pa.Table:
        return pa.Table.from_arrays(columns, self._names)

    def _kept_rows(self, batch: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
        start = int(batch.schema.metadata[START])
        if isinstance(indices, range):
            positions = np.arange(start + indices.start, start + indices.stop, dtype=np.int64)
        else:
            positions = np.fromiter(indices, np.int64, len(indices)) + start
        return pa.RecordBatch.from_arrays([array_of_numpy(positions)], [ROW])


class _LocalTask(MapTask):
    """The task of `async_map`, over all rows of a table; kept are their positions."""

    _writer_type = _PositionWriter

    def _slices(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        position = 0
        for part in sliced(batches):
            yield part.replace_schema_metadata({START: b"%d" % position})
            position += part.num_rows


def local_frame(frame: object) -> LocalFrame | None:
    """Return what stands for `frame` in place of a DataFrame of Spark; None if its kind is not known.

    Raises TypeError or ValueError for a frame with columns that cannot be.
    """
    try:
        found = taken(frame)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise TypeError(f"df: a {type(frame).__name__} that Arrow cannot take: {error}") from error
    return None if found is None else LocalFrame(found)


def spark_field(field: pa.Field) -> T.StructField:
    """Return the field that Spark has for one of Arrow's. Raises TypeError where it has none."""
    try:
        made = T.StructField(field.name, from_arrow_type(_plain(field.type), prefer_timestamp_ntz=True))
        # Of a decimal with too many digits for Spark only this knows.
        arrow_field(made)
        return made
    except Exception as error:
        raise TypeError(f"df: column {field.name!r} is of Arrow's type {field.type}: {error}") from None


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that Spark has in place of one of Arrow's."""
    types = pa.types
    if kind in ROOMIER_TYPES:
        return ROOMIER_TYPES[kind]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    # By their names: pyarrow 15 has no views.
    if types.is_large_string(kind) or str(kind) == "string_view":
        return pa.string()
    if types.is_large_binary(kind) or str(kind) == "binary_view" or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_date64(kind):
        return pa.date32()
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return kind


def _as_spark_has_it(table: pa.Table, schema: T.StructType) -> pa.Table:
    """The table in the types in which Spark hands its columns to a task."""
    columns = []
    for field, column in zip(schema.fields, table.columns, strict=True):
        wanted = arrow_field(field).type
        try:
            # Python's times have no nanoseconds either; what is kept of a row is as it was.
            is_time = pa.types.is_temporal(column.type)
            if pa.types.is_run_end_encoded(column.type):
                # No cast takes these.
                column = import_module("pyarrow.compute").run_end_decode(column)
            columns.append(column if column.type == wanted else as_type(column, wanted, safe=not is_time))
        except pa.ArrowException as error:
            raise ValueError(
                f"df: column {field.name!r}, of Arrow's type {column.type}, has values that Spark's "
                f"{field.dataType.simpleString()} has no room for: {error}"
            ) from None
    return pa.table(columns, names=table.schema.names)
