"""The interface of formats of files, `FileFormat`; shared by all: columns made to fit, bad rows.

A format is a plain value. Its methods block, and are called on whichever thread has the file to read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute, fs

from pillarbox.sources.connectors.files.listing import ChangedFileError, UnfitFileError, found
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.enumerator import ReadLimit

UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
"""Units of times, the coarsest first, and as `floor_temporal` calls them."""
SHOWN_CHARACTERS = 100
"""Characters of a value that an error shows."""


class BadRow(NamedTuple):
    """A row with a value that cannot be read. A plain value."""

    at: int
    """Its position in the file."""
    row: int
    """Its place in the batch."""
    problem: str
    """Says the column, the value and the type that was wanted, or the line."""
    line: bytes = b""
    """The line in which it stands, in formats of lines."""


class Rows(NamedTuple):
    """Rows of a file, the position behind them, and which of them could not be read. A plain value."""

    batch: pa.RecordBatch
    position: int
    bad: Sequence[BadRow] = ()


class FileFormat(ABC):
    """Divides, cuts and reads the files of one format. A plain value that pickles; any thread."""

    position_name = "byte"

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self.filesystem = filesystem

    @abstractmethod
    def pieces(self, file: FileSplit, nbytes: int, start: int) -> Iterator[FileSplit]:
        """The parts of a whole file of about `nbytes` each, from the one that begins at `start`."""

    @abstractmethod
    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """The front of `split`, at most so much of it, but a row at least. Some limit there is."""

    @abstractmethod
    def file_schema(self, path: str) -> pa.Schema:
        """Return the columns of a file."""

    @abstractmethod
    def read(self, split: FileSplit, wanted: pa.Schema, nbytes: int) -> Iterator[Rows]:
        """Yield the rows of `split` in batches of about `nbytes`, with the columns `wanted`.

        A value that cannot be read is null, and its row is among the bad ones.
        """

    def place(self, path: str, at: int) -> str:
        """Return what people call position `at`."""
        return f"{self.position_name} {at}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that files of this format cannot have."""
        names = schema.names
        if not names or len(set(names)) < len(names):
            raise ValueError(f"schema={names!r}: must have columns, and each name once")

    def check_same_file(self, split: FileSplit) -> None:
        """Raise unless a file, opened already, is what it was when the split was made.

        Raises FileNotFoundError, or ChangedFileError for another size or time.
        """
        info = self.filesystem.get_file_info(split.path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"{split.path!r}: there is no such file")
        modified, _, size = found(info)
        if (size, modified) != (split.size, split.modified):
            raise ChangedFileError(
                f"{split.path!r} was rewritten after it had been found: it had {split.size} bytes then and "
                f"has {size} now, modified {(modified - split.modified) / 1e9:g} s later. Files must not "
                "change: write them elsewhere, or under a name that begins with a dot, and rename them when "
                "they are whole"
            )


def check_columns(names: Sequence[str], wanted: pa.Schema) -> None:
    """Raise ValueError if a file with columns of these names has none that is wanted, or one twice."""
    twice = sorted({name for name in wanted.names if names.count(name) > 1})
    if twice:
        raise UnfitFileError(f"it has columns {twice!r} more than once: it must have each column once")
    if not set(names) & set(wanted.names):
        raise UnfitFileError(
            f"it has none of the columns {wanted.names!r} but {list(names)!r}: the names must be those "
            "of the file, with the same upper and lower case"
        )


def null_where_refused(
    values: Any, kind: pa.DataType, convert: Callable[[Any], pa.Array]
) -> tuple[pa.Array, list[int]]:
    """Return `values` converted, null where `convert` refuses a value, and the places of those.

    By halves: one that is refused among n costs about twice the conversion of n.
    """
    try:
        return convert(values), []
    except pa.ArrowNotImplementedError:
        raise
    except (pa.ArrowException, ValueError, OverflowError):
        if len(values) == 1:
            return pa.nulls(1, kind), [0]
    half = len(values) // 2
    front, refused = null_where_refused(values[:half], kind, convert)
    back, refused_behind = null_where_refused(values[half:], kind, convert)
    return pa.concat_arrays([front, back]), refused + [half + at for at in refused_behind]


def unfit(field: pa.Field, value: Any) -> str:
    """Return what is wrong with a value, of which the first characters are shown."""
    return f"column {field.name!r}: {shown(value)} cannot be read as {field.type}"


def shown(value: Any) -> str:
    """Return the representation of a value, cut to `SHOWN_CHARACTERS`."""
    text = repr(value[:SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def conform(
    batch: pa.RecordBatch, wanted: pa.Schema, casts: Mapping[str, pa.DataType], at: int
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Return `batch` with the columns `wanted`, by name, and the rows with a value that no cast can give.

    casts: types that columns are cast to first. at: the position of the first row. Times of a finer unit are
    floored to the unit that is wanted. A column that the file has not is null. Raises ValueError for one
    that has a type of which there is no cast.
    """
    if batch.schema.equals(wanted):
        return batch, []
    columns = []
    bad: dict[int, BadRow] = {}
    for field in wanted:
        place = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
        if field.name in casts:
            column = column.cast(casts[field.name])
        if column.type != field.type:
            given = column
            try:
                column, refused = null_where_refused(given, field.type, partial(_floored, field.type))
            except pa.ArrowNotImplementedError as error:
                raise UnfitFileError(
                    f"column {field.name!r} is {given.type} and cannot be read as {field.type}: {error}"
                ) from None
            for row in refused:
                bad.setdefault(row, BadRow(at + row, row, unfit(field, given[row].as_py())))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted), [bad[row] for row in sorted(bad)]


def _floored(wanted: pa.DataType, column: pa.Array) -> pa.Array:
    """Return `column` as `wanted`, times of finer units rounded down."""
    are_times = pa.types.is_timestamp(column.type) and pa.types.is_timestamp(wanted)
    if are_times and [*UNITS].index(column.type.unit) > [*UNITS].index(wanted.unit):
        # Without a zone: where it has one, the time is in UTC, and stays so.
        plain = column.cast(pa.timestamp(column.type.unit))
        column = compute.floor_temporal(plain, unit=UNITS[wanted.unit]).cast(pa.timestamp(wanted.unit))
    return column.cast(wanted)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that a source says it has: no metadata, no dictionaries, text where nothing was seen."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    kinds = [pa.string() if pa.types.is_null(kind) else kind for kind in kinds]
    return pa.schema(zip(schema.names, kinds, strict=True))
