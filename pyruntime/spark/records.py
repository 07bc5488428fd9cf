"""The rows of a task on Spark: records that a function of `async_map` gets, and the input that makes them.

A record is a view of one row of an Arrow batch. A column becomes Python objects when a record first asks for
it, for a slice of the batch at once; columns that the function does not touch never do. Used on the thread of
the event loop, or in worker threads by blocking functions.

Values are PySpark's (structs are `Row`s, maps are dicts), with one difference: a `timestamp` is a
datetime with a time zone, that of the session, so that it means the same instant on every machine.
"""

# The alternatives, and why they are worse. A dict or a `Row` for each row decodes every column, also those
# that only pass through (`keep`), which is most of the cost of a wide row. `to_pylist` of a whole Arrow batch
# (10,000 rows) decodes rows that a `limit` never needs, and holds them all while the first ones are called.
# PySpark's own conversion gives naive datetimes in the zone of the process, another one on each machine.

from __future__ import annotations

import datetime
import decimal
import functools
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, repeat
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from pillarbox.aio.errors import shorten
from pillarbox.aio.function import is_async
from pillarbox.aio.row_inputs import IterableInput
from pillarbox.kernel import HandoverClosedError
from pillarbox.kernel import columns as kernel_columns
from pillarbox.kernel.alike import Copier, RunFinder
from pillarbox.spark.schema import time_zone
from pillarbox.task import InputStatus
from pillarbox.task.protocols import LeftOut, RowBatch, TaskOutput

MAX_SLICE_ROWS = 1024
"""Rows of a batch that are decoded together."""

MAX_SLICE_BYTES = 16 * 1024 * 1024
"""Bytes of such rows, unless one row has more: decoded, they take some times as much."""

MAX_BYTES = (1 << 31) - 1
"""Bytes of the texts of one array, which Arrow counts in 32 bits."""

RECORD_BYTES = 56
"""Bytes of a record besides its share of the batch."""

ARGUMENTS_BYTES = 72
"""Bytes of a tuple of arguments besides its share of the batch."""

L = TypeVar("L", bound=LeftOut)

READ_AHEAD_SLICES = 64
READ_AHEAD_BYTES = 64 * 1024 * 1024


class Unreadable:
    """Stands for a value that cannot be read, in a list of decoded ones: a text that is not UTF-8.

    Spark keeps any bytes as a text: `CAST(binary AS STRING)` does not look at them. raw: the value with the
    bytes of such texts in their place, by which a row is known to a ledger and to equal rows.
    """

    __slots__ = ("_cause", "raw")

    def __init__(self, cause: UnicodeDecodeError, raw: object) -> None:
        self._cause, self.raw = cause, raw

    def error(self) -> ValueError:
        """Make the error of a row whose function asks for the value."""
        cause = self._cause
        return ValueError(
            f"a text of the row is not UTF-8: byte 0x{cause.object[cause.start]:02x} at {cause.start} of "
            f"{len(cause.object)}; cast the column to BINARY and decode that, or repair the text before"
        )


class PartlyReadable(list[Any]):
    """Decoded values, some of them `Unreadable`: to ask for one of these by its place raises ValueError."""

    __slots__ = ()

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        value: Any = super().__getitem__(place)
        if type(value) is Unreadable:
            raise value.error()
        return value


class UnreadableArguments(tuple[Any, ...]):
    """The arguments of a row of which some are `Unreadable`: to iterate over them, as a call does, raises.

    By its place an argument is given raw, as what tells rows apart asks for it.
    """

    __slots__ = ()

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        return _raw(super().__getitem__(place))

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            if type(value) is Unreadable:
                raise value.error()
            yield value


def _raw(value: object) -> Any:
    return value.raw if type(value) is Unreadable else value


def raw_value(column: list[Any], place: int) -> Any:
    """The value at `place` of a decoded column, with bytes for texts that cannot be read."""
    return _raw(list.__getitem__(column, place))


class Columns(dict[str, list[Any]]):
    """The decoded columns of a slice, by name; a missing one is decoded when it is asked for."""

    __slots__ = ("batch",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __missing__(self, name: str) -> list[Any]:
        # Two threads may decode the same column at a time; they store the same values.
        index = self.batch.schema.get_field_index(name)
        if index < 0:
            raise KeyError(f"{name!r}: the columns are {', '.join(self.batch.schema.names)}")
        values = decode_column(self.batch.column(index))
        self[name] = values
        return values


class Record:
    """One input row, by attribute and by name: `record.text`, `record["text"]`, `record[0]`.

    Structs are PySpark `Row`s, maps dicts, timestamps datetimes with a time zone. Does not change. Each name
    of a column that does not begin with two underscores is read as an attribute, `asDict` too, where there is
    such a column: `dict(zip(df.columns, record))` is the same then.
    """

    # Names of its own begin with two underscores, as no column is read by such an attribute: a column may be
    # called `_index`, as Elasticsearch has one.

    __slots__ = ("__columns__", "__place__")

    __is_view__ = True
    """A record keeps its batch: what is to be kept longer than the row is a tuple of its values."""

    def __init__(self, columns: Columns, index: int) -> None:
        self.__columns__ = columns
        self.__place__ = index

    @property
    def __names__(self) -> list[str]:
        """The names of the columns, in order."""
        names: list[str] = self.__columns__.batch.schema.names
        return names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.__columns__[name][self.__place__]
        except KeyError as error:
            raise AttributeError(f"no column {error.args[0]}") from None

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return self.__columns__[key][self.__place__]
        names = self.__columns__.batch.schema.names
        try:
            name = names[key]
        except IndexError:
            raise IndexError(f"{key}: the record has {len(names)} columns") from None
        return self.__columns__[name][self.__place__]

    def __iter__(self) -> Iterator[Any]:
        return (self.__columns__[name][self.__place__] for name in self.__columns__.batch.schema.names)

    def __len__(self) -> int:
        return len(self.__columns__.batch.schema.names)

    def __contains__(self, name: object) -> bool:
        return name in self.__columns__.batch.schema.names

    def asDict(self) -> dict[str, Any]:
        """All columns as a dict. Touches every column."""
        return _as_dict(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Record):
            return _as_dict(self) == _as_dict(other)
        if isinstance(other, tuple):
            return tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        columns, index = self.__columns__, self.__place__
        parts = []
        for position, name in enumerate(columns.batch.schema.names):
            if name in columns:
                value = raw_value(columns[name], index)
            else:
                # An error shows one row; the column of its whole slice need not be decoded for that.
                value = raw_value(decode_column(columns.batch.column(position).slice(index, 1)), 0)
            parts.append(f"{name}={shorten(value, 80)}")
        return f"Record({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A record that leaves its batch, by pickle or copy, becomes a Row of its own.
        return _as_row, tuple(_as_dict(self).items())

    def __snapshot__(self) -> tuple[Any, ...]:
        """The pickle of a record that stays one, of a batch of its own: a snapshot keeps no whole batch."""
        return record_from, (to_ipc(self.__columns__.batch.slice(self.__place__, 1)),)


def _as_dict(record: Record) -> dict[str, Any]:
    columns, place = record.__columns__, record.__place__
    return {name: columns[name][place] for name in columns.batch.schema.names}


def _as_row(*items: tuple[str, Any]) -> Row:
    return Row(*[name for name, _ in items])(*[value for _, value in items])


@functools.lru_cache(maxsize=64)
def record_type(names: tuple[str, ...]) -> type[Record]:
    """The class of the records of these columns: a `Record` that reads them by properties.

    A property is five times as fast as `__getattr__`, which remains for names that a class cannot have.
    """

    def reader(name: str) -> property:
        return property(lambda record: record.__columns__[name][record.__place__])

    columns = {name: reader(name) for name in names if not name.startswith("__")}
    return type("Record", (Record,), {"__slots__": (), "__module__": __name__, **columns})


def arguments_of(batch: pa.RecordBatch) -> RowBatch:
    """The rows of a batch that is not empty as tuples of their values."""
    columns = [*map(decode_column, batch.columns)]
    rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
    if any(type(column) is PartlyReadable for column in columns):
        rows = [UnreadableArguments(row) if Unreadable in map(type, row) else row for row in rows]
    return RowBatch(rows, batch.nbytes // batch.num_rows + ARGUMENTS_BYTES)


def rows_of(batch: pa.RecordBatch) -> RowBatch:
    """The records of an Arrow batch that is not empty."""
    count = batch.num_rows
    record, copies = _records_of(tuple(batch.schema.names))
    rows = copies(record(Columns(batch), 0), [*range(count)])
    return RowBatch(rows, batch.nbytes // count + RECORD_BYTES)


@functools.lru_cache(maxsize=64)
def _records_of(names: tuple[str, ...]) -> tuple[type[Record], Copier]:
    record = record_type(names)
    return record, Copier(record, "__place__")


def sliced(batches: Iterable[pa.RecordBatch | L]) -> Iterator[pa.RecordBatch | L]:
    """The batches in slices of at most `MAX_SLICE_ROWS` and some `MAX_SLICE_BYTES`, without copying.

    What is left out among them is passed on as it is.
    """
    is_first = True
    for batch in batches:
        if isinstance(batch, LeftOut):
            yield batch
            continue
        if is_first:
            is_first = False
            if imports_pandas(batch.schema.types, reading=True):
                import_for_values()
        rows = min(MAX_SLICE_ROWS, max(1, MAX_SLICE_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


# -- rows that a function gets as Arrow -----------------------------------------------------------


def take_rows(batch: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
    """The rows at these places of a batch, without a copy where they follow one another."""
    count = len(indices)
    if count and indices[-1] - indices[0] == count - 1:
        run = range(indices[0], indices[0] + count)
        if indices == run or (isinstance(indices, list) and indices == list(run)):
            return batch.slice(indices[0], count)
    return batch.take(array_of([*indices], pa.int64()))


_find_runs = RunFinder(Record, "__columns__", "__place__")


def batch_of(rows: Sequence[Record]) -> pa.RecordBatch:
    """One batch of these rows, of which there is one at least, in their order."""
    runs = _find_runs(rows)
    if len(runs) == 1:
        return rows[0].__columns__.batch.slice(rows[0].__place__, len(rows))
    pieces = []
    # Batches of calls are seldom of more than two slices: rows come in order, unless some are called again.
    for _, run in groupby(rows, key=lambda row: id(row.__columns__)):
        some = [*run]
        pieces.append(take_rows(some[0].__columns__.batch, [row.__place__ for row in some]))
    return concat_rows(pieces)


def concat_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one, which is not copied if it is the only one."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    for name, column in zip(table.column_names, table.columns, strict=True):
        # Arrow would leave such a column in several arrays, and the others with it.
        if (pa.types.is_string(column.type) or pa.types.is_binary(column.type)) and column.nbytes > MAX_BYTES:
            raise ValueError(
                f"column {name!r} has more than 2 GiB in one batch, which no array of Arrow holds; "
                "take fewer rows, as by spark.sql.execution.arrow.maxRecordsPerBatch"
            )
    # A table without rows has no batches.
    return (table.combine_chunks().to_batches() or batches)[0]


def columns_of(rows: Sequence[Record], names: Sequence[str]) -> list[Sequence[Any]]:
    """The values of these columns of many rows, as Python objects."""
    if len(_find_runs(rows)) == 1:
        # Rows that come in together are of one slice.
        first, begin = rows[0].__columns__, rows[0].__place__
        some = slice(begin, begin + len(rows))
        return [
            [*map(_raw, first[name][some])] if type(first[name]) is PartlyReadable else first[name][some]
            for name in names
        ]
    slices = [row.__columns__ for row in rows]
    places = [row.__place__ for row in rows]
    return [
        [raw_value(each[name], place) for each, place in zip(slices, places, strict=True)] for name in names
    ]


def arrow_function(
    fn: Callable[..., Any], *, spread: bool, in_tuples: bool = False
) -> Callable[[list[Any]], Any]:
    """A function of a list of records that calls `fn` with them as Arrow, as `Batch.arrow` says.

    spread: `fn` takes an array for each column. in_tuples: each record is the only value of a tuple. It is
    async if `fn` is.
    """

    def arguments(rows: list[Any]) -> list[Any]:
        batch = batch_of([record for (record,) in rows] if in_tuples else rows)
        return batch.columns if spread else [batch]

    async def call(rows: list[Any]) -> Any:
        return await fn(*arguments(rows))

    def call_blocking(rows: list[Any]) -> Any:
        return fn(*arguments(rows))

    made = call if is_async(fn) else call_blocking
    made.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
    return made


# -- the input of a task --------------------------------------------------------------------------


class ArrowInput(IterableInput):
    """The rows of Arrow batches, read ahead up to `READ_AHEAD_SLICES` and `READ_AHEAD_BYTES`.

    slices: none of them empty; rows that are left out among them. unpack: makes the batch of rows of a
    slice. A thread of its own reads them; the rest is confined to the mailbox thread.
    """

    def __init__(
        self,
        slices: Iterable[pa.RecordBatch | LeftOut],
        unpack: Callable[[pa.RecordBatch], RowBatch] = rows_of,
    ) -> None:
        super().__init__(slices, READ_AHEAD_SLICES, READ_AHEAD_BYTES)
        self._unpack = unpack
        self._ready: deque[pa.RecordBatch | LeftOut] = deque()

    def weigh(self, item: Any) -> int:
        """The bytes of a slice. On the reading thread."""
        return item.nbytes  # type: ignore[no-any-return]

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the rows of the next slice; raises what the reading thread failed with."""
        if not self._ready:
            try:
                self._ready.extend(item for (item,) in self._handover.take_all())
            except HandoverClosedError:
                return self._end()
            if not self._ready:
                return InputStatus.NOTHING_AVAILABLE
        item = self._ready.popleft()
        if isinstance(item, LeftOut):
            output.collect(RowBatch([item], self.weigh(item), is_left_out=True))
            return InputStatus.MORE_AVAILABLE
        batch = self._unpack(item)
        # Slices that were read ahead are in no snapshot: Spark has a task that is tried again read the same
        # rows in the same order, however the slices are cut then.
        self._emit(batch.rows, output, batch.row_bytes)
        return InputStatus.MORE_AVAILABLE


# -- rows as bytes --------------------------------------------------------------------------------


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_ipc(data: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow IPC stream."""
    with pa.ipc.open_stream(data) as reader:
        yield from reader


def record_from(ipc: bytes) -> Record:
    """The record of a batch of one row, as a snapshot of a task keeps it."""
    (batch,) = from_ipc(ipc)
    record: Record = rows_of(batch).rows[0]
    return record


# -- values of Arrow columns ----------------------------------------------------------------------

# Arrow's own conversions (`pa.array`, `Array.to_numpy`) import pandas with the first value, where it is
# installed, and a worker of Spark has no other use for it: a fifth of a second and 40 MB a process. So plain
# columns are made of buffers (`pillarbox.kernel.columns`), with the same results; what is left goes through
# Arrow. `docs/decisions/plain-columns.md` has the alternatives.

Make: TypeAlias = Callable[[Sequence[Any]], "tuple[Any, ...] | None"]

_MAKE: dict[pa.DataType, Make] = {
    pa.bool_(): kernel_columns.booleans,
    pa.int8(): functools.partial(kernel_columns.integers, width=1),
    pa.int16(): functools.partial(kernel_columns.integers, width=2),
    pa.int32(): functools.partial(kernel_columns.integers, width=4),
    pa.int64(): functools.partial(kernel_columns.integers, width=8),
    pa.float32(): functools.partial(kernel_columns.floats, width=4),
    pa.float64(): functools.partial(kernel_columns.floats, width=8),
    pa.string(): functools.partial(kernel_columns.sequences, is_text=True),
    pa.binary(): functools.partial(kernel_columns.sequences, is_text=False),
}

_NUMBERS = {kind: np.dtype(kind.to_pandas_dtype()) for kind in _MAKE if pa.types.is_primitive(kind)}
del _NUMBERS[pa.bool_()]

_TYPES = {dtype: kind for kind, dtype in _NUMBERS.items()} | {
    np.dtype(kind.to_pandas_dtype()): kind for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the array of this type: that of `pa.array(values, kind)`. Raises as that does.

    values: Python values; None is null. Nobody changes a list meanwhile.
    """
    array = plain_array_of(values, kind)
    return pa.array(values, kind) if array is None else array


def plain_array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return the array of plain values of this very type, as `array_of`; None where one is another."""
    make = _MAKE.get(kind)
    made = None if make is None else make(values)
    if made is None:
        return None
    nulls, *buffers = made
    return pa.Array.from_buffers(
        kind, len(values), [None if each is None else pa.py_buffer(each) for each in buffers], nulls
    )


def array_of_numpy(values: npt.NDArray[Any]) -> pa.Array:
    """Return the array of a NumPy array of one dimension, without a copy where it is contiguous."""
    if values.dtype == np.bool_ and values.ndim == 1:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    kind = _TYPES.get(values.dtype)
    if kind is None or values.ndim != 1 or not values.dtype.isnative:
        return pa.array(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numpy_of(array: pa.Array) -> npt.NDArray[Any] | None:
    """Return the values of an array of numbers as NumPy sees them, without a copy; None for another array.

    Nulls have any value. The array does not change, nor may the values.
    """
    dtype = _NUMBERS.get(array.type)
    if dtype is None:
        return None
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def flags_of(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return the truth values of an array; null is False."""
    size = array.offset + len(array)
    validity, data = (
        None if each is None else np.unpackbits(np.frombuffer(each, np.uint8), count=size, bitorder="little")
        for each in array.buffers()
    )
    if data is None:
        # An array of no rows may have no buffers.
        return np.zeros(len(array), np.bool_)
    flags = data if validity is None else data & validity
    return flags[array.offset :].astype(np.bool_)


def imports_pandas(kinds: Iterable[pa.DataType], *, reading: bool) -> bool:
    """Return True if Arrow imports pandas for values of one of these types, and has not done so yet.

    reading: whether they are read from arrays; otherwise they are put into such.
    """
    if "pandas" in sys.modules:
        return False
    return any(_has_zone(kind) if reading else kind not in _MAKE for kind in kinds)


def _has_zone(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_zone(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_zone(kind.key_type) or _has_zone(kind.item_type)
    if hasattr(kind, "value_type"):
        return _has_zone(kind.value_type)
    return pa.types.is_timestamp(kind) and kind.tz is not None


Convert: TypeAlias = Callable[[Any], Any]

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def decode_column(column: pa.Array) -> list[Any]:
    """The values of an Arrow column as Python objects; `PartlyReadable` if a text in it is not UTF-8."""
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_float64(column.type)):
        # Three times as fast as Arrow's own way: rows of numbers alone are called fastest of all.
        numbers = numpy_of(column)
        if numbers is not None:
            return numbers.tolist()  # type: ignore[no-any-return]
    values: list[Any]
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        return PartlyReadable(map(_read_or_not, column, repeat(decoder(column.type))))
    except (OverflowError, ValueError, KeyError):
        # It gives no time whose year in UTC or in its zone is 0 or 10000, and none of a zone of Java's alone.
        values = [_value(scalar) for scalar in column]
    convert = decoder(column.type)
    return values if convert is None else [convert(value) for value in values]


def import_for_values() -> None:
    """Import what the values of columns need, once: Arrow imports pandas and zones with the first of them.

    Any thread but that of an event loop, which an import would hold up for as long as the disk takes.
    """
    moment = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
    for value, kind in (
        (1, pa.int64()),
        (1.0, pa.float64()),
        ("", pa.string()),
        (b"", pa.binary()),
        (moment, pa.timestamp("us", "UTC")),
        (moment, pa.timestamp("us", "Europe/Paris")),
        (moment.replace(tzinfo=None), pa.timestamp("us")),
        (moment.date(), pa.date32()),
        (decimal.Decimal(1), pa.decimal128(3, 1)),
        (datetime.timedelta(1), pa.duration("us")),
        ([1], pa.list_(pa.int64())),
        ({"a": 1}, pa.struct([("a", pa.int64())])),
        ([("a", 1)], pa.map_(pa.string(), pa.int64())),
    ):
        # A machine without the data of time zones has none for values either.
        with suppress(Exception):
            array = pa.array([value], kind)
            decode_column(array)
            array.to_numpy(zero_copy_only=False)
            array.cast(array.type)


def _read_or_not(scalar: pa.Scalar, convert: Convert | None) -> Any:
    cause: UnicodeDecodeError | None = None

    def read(text: pa.Scalar) -> Any:
        nonlocal cause
        try:
            return text.as_py()
        except UnicodeDecodeError as error:
            cause = cause or error
            return text.as_buffer().to_pybytes()

    value = _value(scalar, read)
    value = value if convert is None else convert(value)
    return value if cause is None else Unreadable(cause, value)


def _value(scalar: pa.Scalar, read: Callable[[pa.Scalar], Any] = operator.methodcaller("as_py")) -> Any:
    """As `as_py`, with the times that it does not give; `read` gives the other values that hold none."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        fields = {field.name: _value(scalar[place], read) for place, field in enumerate(kind)}
        # Arrow says what is wrong with names that stand twice.
        return fields if len(fields) == kind.num_fields else scalar.as_py()
    if pa.types.is_map(kind):
        return [(_value(pair[0], read), _value(pair[1], read)) for pair in scalar.values]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_value(element, read) for element in scalar.values]
    return _moment(scalar) if pa.types.is_timestamp(kind) and kind.tz is not None else read(scalar)


def _moment(scalar: pa.TimestampScalar) -> datetime.datetime:
    zone = time_zone(scalar.type.tz) or datetime.timezone.utc
    # Spark's are of microseconds.
    since_epoch = datetime.timedelta(microseconds=scalar.value)
    try:
        in_utc = EPOCH + since_epoch
    except OverflowError:
        # The year is 1 or 9999 in its own zone only.
        edge = datetime.datetime.min if scalar.value < 0 else datetime.datetime.max
        since_epoch += zone.utcoffset(edge) or datetime.timedelta()
        return (EPOCH + since_epoch).replace(tzinfo=zone)
    try:
        return in_utc.astimezone(zone)
    except OverflowError:
        # And here in UTC only.
        return in_utc


def decoder(arrow: pa.DataType) -> Convert | None:
    """A function from Arrow's values of this type to PySpark's; None where they are the same."""
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

    def convert(value: Mapping[str, Any] | None) -> Any:
        if value is None:
            return None
        return make(*[to(value[name]) for name, to in zip(names, converts, strict=True)])

    return convert


def _same(value: object) -> Any:
    return value
