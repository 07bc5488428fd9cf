"""What a format of files must know: `FileFormat`; and what all of them share: errors, columns made to fit.

A format is a plain value. Its methods block, and are called on whichever thread has the file to read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.sources.connectors.files.listing import FoundFile, UnfitFileError
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.enumerator import ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


UNITS = ("s", "ms", "us", "ns")


class Piece(NamedTuple):
    """A part of a file that may be a split. A plain value."""

    start: int
    stop: int
    weight: float | None
    """Bytes for one position."""


class Rows(NamedTuple):
    """Rows of a file, and the position behind them. A plain value."""

    batch: pa.RecordBatch
    position: int


class FileFormat(ABC):
    """How files of one format are divided, cut and read. A plain value that pickles; any thread."""

    by_rows = False

    @abstractmethod
    def pieces(self, filesystem: fs.FileSystem, file: FoundFile, nbytes: int, start: int) -> Iterator[Piece]:
        """The parts of a file of about `nbytes` each, from the one that begins at `start`."""

    @abstractmethod
    def advance(self, filesystem: fs.FileSystem, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """The front of `split`, at most so much of it, but a row at least."""

    @abstractmethod
    def file_schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """The columns of a file; of text, as its front looks. Their type is null where nothing was seen."""

    @abstractmethod
    def read(
        self, filesystem: fs.FileSystem, split: FileSplit, wanted: pa.Schema, nbytes: int
    ) -> Iterator[Rows]:
        """The rows of `split` in batches of about `nbytes`, with the columns `wanted`."""

    def in_folders(self, names: Collection[str]) -> FileFormat:
        """The format of a file where columns of these names stand in the names of its folders."""
        return self

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that files of this format cannot have."""
        names = schema.names
        twice = {name for name in names if names.count(name) > 1}
        if twice or not names:
            raise ValueError(f"schema={names!r}: must have columns, and each name once")


def check_same_file(filesystem: fs.FileSystem, split: FileSplit) -> None:
    """Raise unless a file, opened already, is what it was when the split was made.

    Raises FileNotFoundError, or ValueError for another size or time.
    """
    from pyarrow import fs

    info = filesystem.get_file_info(split.path)
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{split.path!r}: there is no such file")
    modified = info.mtime_ns or 0
    if (info.size or 0) != split.size or modified != split.modified:
        raise UnfitFileError(
            f"{split.path!r} was rewritten after it had been found: it had {split.size} bytes then and "
            f"has {info.size} now, modified {(modified - split.modified) / 1e9:g} s later. Files must not "
            "change: write them elsewhere, or under a name that begins with a dot, and rename them when they "
            "are whole"
        )


def check_columns(names: Sequence[str], wanted: pa.Schema) -> None:
    """Raise ValueError if a file with columns of these names has none that is wanted, or one twice."""
    twice = {name for name in wanted.names if names.count(name) > 1}
    if twice:
        raise UnfitFileError(
            f"it has columns {sorted(twice)!r} more than once: it must have each column once"
        )
    if not set(names) & set(wanted.names):
        raise UnfitFileError(
            f"it has none of the columns {wanted.names!r} but {list(names)!r}: the names must be those "
            "of the file, with the same upper and lower case"
        )


def conform(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """`batch` with the columns `wanted`: by name, cast where the type is another, null where it has none.

    Times of a finer unit are floored to the unit that is wanted. All else that would lose data raises
    ValueError.
    """
    import pyarrow as pa

    if batch.schema.equals(wanted):
        return batch
    columns = []
    for field in wanted:
        at = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        if column.type != field.type:
            try:
                column = _floored(column, field.type).cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UnfitFileError(
                    f"column {field.name!r} is {column.type} and cannot be read as {field.type}: {error}"
                ) from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _floored(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa
    from pyarrow import compute

    if not (pa.types.is_timestamp(column.type) and pa.types.is_timestamp(wanted)):
        return column
    if UNITS.index(column.type.unit) <= UNITS.index(wanted.unit):
        return column
    # Without a zone: where it has one, the time is in UTC, and stays so.
    plain = column.cast(pa.timestamp(column.type.unit))
    unit = {"s": "second", "ms": "millisecond", "us": "microsecond"}[wanted.unit]
    return compute.floor_temporal(plain, unit=unit).cast(pa.timestamp(wanted.unit))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that a source says it has: no metadata, no dictionaries, text where nothing was seen."""
    import pyarrow as pa

    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_null(kind):
            kind = pa.string()
        fields.append(pa.field(field.name, kind, nullable=True))
    return pa.schema(fields)
