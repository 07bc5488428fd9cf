"""Formats of files: `FileFormat`, Parquet, lines of text and of JSON.

A format is a plain value. Its methods block, and are called on whichever thread has the file to read.
"""

# Why a value that no cast can give is found by halves: Arrow casts a column whole or not at all, and does not
# say which value it was. Row by row, in Python, would cost every column what now the bad ones cost.
#
# The rule for ranges of text is Hadoop's: a range of bytes has the lines that begin in it, so ranges that
# meet anywhere have each line once. A compressed file is one part, whatever its size: there is no way to its
# middle but through all in front of it. Its positions are bytes after decompression.
#
# Two parsers read lines of JSON. Arrow's is four times as fast as Python's, but it writes through a wild
# pointer where a `null` stands in the place of an object, which ends the process or not; knows no lines, so
# that two objects in one are two rows; and refuses a block of lines for one bad value. So a block goes to
# Arrow where each line begins with `{` and ends with `}`, and no `n` follows a `}`: a newline in such a block
# cannot stand within an object, and no `null` between two. What Arrow refuses, or gives other rows of than
# there are lines, goes to Python, as does what the two read differently. Which parser has read a line makes
# no difference to its row.

from __future__ import annotations

import json
import logging
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BufferedReader
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
from pyarrow import compute, fs
from pyarrow import json as arrow_json
from pyarrow import parquet as pq

from pillarbox.sources.connectors.file_listing import (
    END,
    FileSplit,
    FoundFile,
    LostDataError,
    UnfitFileError,
)
from pillarbox.sources.connectors.parquet_pages import PagedFile, stepped
from pillarbox.sources.enumerator import ReadLimit

log = logging.getLogger("pillarbox")

UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
"""Units of times, the coarsest first, and as `floor_temporal` calls them."""
SHOWN_CHARACTERS = 100
"""Characters of a value that an error shows."""


class BadRow(NamedTuple):
    """A row with a value that cannot be read, which is null. A plain value."""

    at: int
    """Its position in the file."""
    row: int
    """Its place in the batch."""
    problem: str
    line: bytes = b""
    """The line in which it stands, in formats of lines."""


class Rows(NamedTuple):
    """Rows of a file, the position behind them, and those that could not be read. A plain value."""

    batch: pa.RecordBatch
    position: int
    bad: Sequence[BadRow] = ()


class FileFormat(ABC):
    """Divides and reads the files of one format. A plain value that pickles; any thread."""

    position_name = "byte"

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self.filesystem = filesystem

    @abstractmethod
    def pieces(self, file: FileSplit, path: str, nbytes: int, start: int) -> Iterator[FileSplit]:
        """The parts of a whole file of about `nbytes` each, from the one that begins at `start`."""

    def advance(self, split: FileSplit, path: str, limit: ReadLimit) -> FileSplit:
        """Return the front of `split` within the limit of rows or bytes, one of which is given.

        May read the file. Raises what names no file. At least one position, as any range can be read at the
        cost of that range.
        """
        if limit.nbytes is None or split.stop == END:
            return split
        return split.up_to(min(split.stop, split.start + max(1, limit.nbytes)))

    @abstractmethod
    def file_schema(self, path: str) -> pa.Schema:
        """Return the columns of a file."""

    @abstractmethod
    def read(self, split: FileSplit, path: str, wanted: pa.Schema, nbytes: int) -> Iterator[Rows]:
        """Yield the rows of `split` in batches of about `nbytes`, with the columns `wanted`."""

    def place(self, path: str, at: int) -> str:
        """Return the words for a position, for errors. May read the file."""
        return f"{self.position_name} {at}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that files of this format cannot have."""
        names = schema.names
        if not names or len(set(names)) < len(names):
            raise ValueError(f"schema={names!r}: must have columns, and each name once")

    def check_same_file(self, split: FileSplit, path: str) -> None:
        """Raise unless a file, opened already, is what it was when the split was made.

        Raises FileNotFoundError, or LostDataError for another size or time.
        """
        # By size and time: a checksum would have to read every file once more.
        info = self.filesystem.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"{path!r}: there is no such file")
        modified, _, size = FoundFile.of(info)
        if (size, modified) != (split.size, split.modified):
            raise LostDataError(
                f"{path!r} was rewritten after it had been found: it had {split.size} bytes then and "
                f"has {size} now, modified {(modified - split.modified) / 1e9:g} s later. Files must not "
                "change: write them elsewhere, or under a name that begins with a dot, and rename them when "
                "they are whole"
            )


# -- columns ---------------------------------------------------------------------------------------


def scalars(
    values: Mapping[str, str | None], wanted: pa.Schema, path: str | None = None
) -> dict[str, pa.Scalar]:
    """Return the values of folders that are wanted, of the types that are wanted.

    path: of a file whose values are null where they cannot be read, which is logged; None: that raises
    UnfitFileError. A time without an offset is in UTC.
    """
    found = {}
    for name in [name for name in wanted.names if name in values]:
        kind = wanted.field(name).type
        try:
            (found[name],) = _cast(pa.array([values[name]], pa.string()), kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            said = f"its folder says {name}={values[name]}, which cannot be read as {kind}"
            if path is None:
                raise UnfitFileError(f"{said}. on_bad_row='null' reads all other values") from None
            log.warning("%r: %s: it is null", path, said)
            found[name] = pa.scalar(None, kind)
    return found


def without(schema: pa.Schema, names: Mapping[str, Any]) -> pa.Schema:
    """The columns of `schema` but these."""
    return pa.schema([field for field in schema if field.name not in names])


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
    values: pa.Array | Sequence[Any], kind: pa.DataType, convert: Callable[[Any], pa.Array]
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


def unfit(field: pa.Field, value: object) -> str:
    """Return what is wrong with a value, of which the first characters are shown."""
    return f"column {field.name!r}: {shown(value)} cannot be read as {field.type}"


def shown(value: object) -> str:
    """Return the representation of a value, cut to `SHOWN_CHARACTERS`."""
    text = repr(value[:SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def conform(
    batch: pa.RecordBatch, wanted: pa.Schema, instants: Mapping[str, pa.DataType], at: int
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Return `batch` with the columns `wanted`, by name, and the rows with a value that no cast can give.

    instants: types that columns are cast to first. at: the position of the first row. Times
    of a finer unit are floored to the unit that is wanted. A column that the file has not is null. Raises
    ValueError for one that has a type of which there is no cast.
    """
    if batch.schema.equals(wanted):
        return batch, []
    columns = []
    bad: dict[int, BadRow] = {}
    for field in wanted:
        place = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
        if field.name in instants:
            column = column.cast(instants[field.name])
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


# -- Parquet ---------------------------------------------------------------------------------------

MAX_BATCH_ROWS = 2**17
"""Rows in a batch: more gain nothing, and columns of one value would give millions."""
LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


class ParquetFormat(FileFormat):
    """Row groups are read column by column, and only the columns that are wanted. Positions are rows."""

    position_name = "row"

    def advance(self, split: FileSplit, path: str, limit: ReadLimit) -> FileSplit:
        """So many rows; for bytes about so many, as if all rows of the file had the same size."""
        stop = split.stop
        if stop == END:
            # A small file, whose footer has not been read.
            self.check_same_file(split, path)
            with self._opened(path) as parquet:
                stop = parquet.metadata.num_rows
            if not stop:
                return split
            split = replace(split, weight=split.size / stop, counts_rows=True)
        most = stop - split.start
        if limit.rows is not None:
            most = min(most, limit.rows)
        if limit.nbytes is not None:
            most = min(most, int(limit.nbytes / split.weight))
        cut = split.start + max(1, most)
        # The last piece keeps the split's own `stop`, by which its end is known: that of a small file is END.
        return split if cut >= stop else split.up_to(cut)

    def pieces(self, file: FileSplit, path: str, nbytes: int, start: int) -> Iterator[FileSplit]:
        """Row groups, together up to `nbytes`. A small file is one part; its footer is not read for that."""
        footer = None
        if file.size > nbytes or start:
            # If it fails, or is another's, whoever reads the rest says what is wrong, and with which file.
            with suppress(OSError, LostDataError, pa.ArrowException):
                self.check_same_file(file, path)
                footer = self._opened(path).metadata
        if footer is None:
            yield file.part(start, END)
            return
        groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
        # Footers have sizes before compression; those of the file are after it.
        ratio = file.size / max(1, sum(group.total_byte_size for group in groups))
        sizes = [(group.num_rows, group.total_byte_size * ratio) for group in groups]
        first = last = 0
        total = 0.0
        for rows, size in [*sizes, (0, math.inf)]:
            if last > first and total + size > nbytes:
                if first >= start:
                    yield file.part(first, last, total / (last - first))
                first, total = last, 0.0
            last += rows
            total += size

    def file_schema(self, path: str) -> pa.Schema:
        """Return the columns that the footer names, with the types that Spark gives them."""
        with self._opened(path) as parquet:
            instants = _instants(parquet)
            schema = parquet.schema_arrow
            return pa.schema([field.with_type(instants.get(field.name, field.type)) for field in schema])

    def read(self, split: FileSplit, path: str, wanted: pa.Schema, nbytes: int) -> Iterator[Rows]:
        """Yield the rows from `start` to `stop`, decoded from the pages that hold them."""
        self.check_same_file(split, path)
        with self._opened(path) as parquet:
            names, footer, at = parquet.schema_arrow.names, parquet.metadata, 0
            check_columns(names, wanted)
            columns = [name for name in wanted.names if name in names]
            instants, is_julian = _instants(parquet), _is_julian(footer.metadata or {})
            for group in range(footer.num_row_groups):
                info = footer.row_group(group)
                first, last = max(0, split.start - at), min(info.num_rows, split.stop - at)
                if first < last:
                    rows = _batch_rows(info, columns, nbytes)
                    position = at + first
                    for batch in self._slice(parquet, path, group, columns, first, last, rows):
                        if is_julian:
                            _check_calendar(batch)
                        conformed, bad = conform(batch, wanted, instants, position)
                        position += batch.num_rows
                        yield Rows(conformed, position, bad)
                at += info.num_rows

    def _slice(
        self,
        parquet: pq.ParquetFile,
        path: str,
        group: int,
        columns: list[str],
        first: int,
        last: int,
        batch_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows `first` to `last` of a row group."""

        def from_front(names: list[str]) -> Iterator[pa.RecordBatch]:
            # One thread: a task has one core, and other tasks have the others.
            batches: Iterator[pa.RecordBatch] = parquet.iter_batches(
                batch_rows, row_groups=[group], columns=names, use_threads=False
            )
            return batches

        if not first:
            for batch in from_front(columns):
                yield batch.slice(0, last - first)
                first += batch.num_rows
                if first >= last:
                    return
            return
        with self.filesystem.open_input_file(path) as file:
            paged = PagedFile(file, file.size())
            streams = []
            for name in columns:
                stream = paged.column(parquet.schema_arrow.field(name), group, first, last, batch_rows)
                if stream is None:
                    arrays = (batch.column(0) for batch in from_front([name]))
                    stream = stepped(arrays, first, last - first, batch_rows)
                streams.append(stream)
        for parts in zip(*streams, strict=True):
            yield pa.RecordBatch.from_arrays(list(parts), columns)

    def _opened(self, path: str) -> pq.ParquetFile:
        # Not mapped into memory: a file that is cut short then ends the process. Old timestamps (INT96) are
        # read as nanoseconds otherwise, which end in 2262 and then begin again.
        return pq.ParquetFile(
            path,
            filesystem=self.filesystem,
            pre_buffer=not isinstance(self.filesystem, fs.LocalFileSystem),
            coerce_int96_timestamp_unit="us",
        )


def _is_julian(metadata: Mapping[bytes, bytes]) -> bool:
    """Return True for a file in which Spark wrote old dates in the calendar that was then in use."""
    writer = metadata.get(b"org.apache.spark.version", b"")
    return writer.startswith((b"2.", b"3.0.")) or any(key in metadata for key in LEGACY_KEYS)


def _check_calendar(batch: pa.RecordBatch) -> None:
    """Raise ValueError for dates and times that are others in the Gregorian calendar."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            first = compute.min(column).as_py()
            limit = (1582, 10, 15) if pa.types.is_date(field.type) else (1900, 1, 1)
            if first is not None and first.timetuple()[:3] < limit:
                raise UnfitFileError(
                    f"column {field.name!r} has {first} in the calendar of Spark 2 (LEGACY): read the file "
                    "with spark.read.parquet, which rebases such values"
                )


def _instants(parquet: pq.ParquetFile) -> dict[str, pa.DataType]:
    """Return the types of the columns in which Spark wrote instants as INT96: Arrow takes them for local."""
    leaves = iter([parquet.schema.column(at).physical_type for at in range(len(parquet.schema.names))])
    kinds = [(field, _instant(field.type, leaves)) for field in parquet.schema_arrow]
    return {field.name: kind for field, kind in kinds if kind != field.type}


def _instant(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_instant(field.type, leaves)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_instant(kind.key_type, leaves), _instant(kind.item_type, leaves))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_instant(kind.value_type, leaves)))
    return pa.timestamp("us", "UTC") if next(leaves) == "INT96" else kind


def _batch_rows(group: pq.RowGroupMetaData, columns: list[str], nbytes: int) -> int:
    """Rows that take about `nbytes` in these columns of a row group."""
    sizes = [group.column(at) for at in range(group.num_columns)]
    total = sum(
        each.total_uncompressed_size for each in sizes if each.path_in_schema.partition(".")[0] in columns
    )
    return max(1, min(MAX_BATCH_ROWS, int(nbytes * group.num_rows / max(1, total))))


# -- lines -----------------------------------------------------------------------------------------

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
BOM = b"\xef\xbb\xbf"
CHUNK_BYTES = 2**20
"""Bytes read at once where lines are passed over or counted."""
BUFFER_BYTES = 2**16
"""Bytes that are read at once to find the end of a line."""


def line_start(file: BinaryIO, position: int) -> int:
    """Go to the first line that begins at `position` or behind it, or to the end; return where that is."""
    if position > 0:
        # A line begins at `position` if the byte in front of it ends one.
        file.seek(position - 1)
        file.readline()
    return file.tell()


def blocks(file: BinaryIO, position: int, stop: int, size: int, nbytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of the lines that begin before `stop`, each with the position behind it.

    Blocks are of about `nbytes`, or one line. `file` is at `position`, where a line begins. Raises
    LostDataError if the file ends before its `size`.
    """
    while position < stop:
        block = file.read(min(nbytes, stop - position))
        if not block.endswith(b"\n"):
            block += file.readline()
        end = position + len(block)
        if end < size and not block.endswith(b"\n"):
            raise LostDataError(f"the file ends at byte {end}, before byte {size}")
        if not block:
            return
        position = end
        yield block, position


def compression(path: str) -> str | None:
    """Return the codec that the name of a file tells; None if it tells none."""
    return COMPRESSED.get(os.path.splitext(path)[1].lower())


class TextFormat(FileFormat):
    """A row for each line, without what ends it, in one column of text or bytes. Positions are bytes.

    Lines end with a newline, or a carriage return and a newline, and are in UTF-8. A mark of the encoding in
    front of a file is passed over.
    """

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError unless the first column is of text or bytes. Others may be names of folders."""
        super().check_schema(schema)
        if schema.field(0).type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            raise _not_text(schema)

    def pieces(self, file: FileSplit, path: str, nbytes: int, start: int) -> Iterator[FileSplit]:
        """Yield ranges of `nbytes`; the whole file where it is compressed."""
        if compression(path):
            yield file.part(0, END)
        else:
            for at in range(start, file.size, nbytes):
                yield file.part(at, min(at + nbytes, file.size))

    def file_schema(self, path: str) -> pa.Schema:
        """Return one column, `value`, as Spark calls it."""
        return pa.schema([("value", pa.string())])

    def read(self, split: FileSplit, path: str, wanted: pa.Schema, nbytes: int) -> Iterator[Rows]:
        """Yield the lines that begin from `start` up to `stop`."""
        with self._opened(split, path, nbytes) as (file, begin, size):
            for block, position in blocks(file, begin, split.stop, size, nbytes):
                front = len(BOM) * (begin == 0 and block.startswith(BOM))
                content = block[front:].replace(b"\r\n", b"\n")
                if content:
                    batch, refused = self.parse(content, wanted)
                    bad: list[BadRow] = []
                    if refused:
                        starts = [0, *accumulate(len(line) + 1 for line in block.split(b"\n"))]
                        lines = content.split(b"\n")
                        for row, number, why in refused:
                            at = begin + max(front, starts[number])
                            bad.append(BadRow(at, row, why, lines[number]))
                    yield Rows(batch, position, bad)
                begin = position

    def place(self, path: str, at: int) -> str:
        """Return the number of the line that begins at byte `at`. Reads the file up to there."""
        number = 1
        with self.filesystem.open_input_stream(path, compression=compression(path)) as stream:
            while at > 0 and (data := stream.read(min(at, CHUNK_BYTES))):
                number += data.count(b"\n")
                at -= len(data)
        return f"line {number}"

    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[tuple[int, int, str]]]:
        """Return the rows of whole lines, at least one; and of bad ones row, line from 0, and what is wrong.

        Lines end with a newline. A value that cannot be read is null. Raises ValueError unless one column is
        wanted.
        """
        if len(wanted) != 1:
            raise _not_text(wanted)
        (field,) = wanted
        lines = compute.split_pattern(pa.array([block], pa.large_binary()), b"\n").flatten()
        # What stands behind the last newline is not a line.
        lines = lines[: len(lines) - block.endswith(b"\n")]
        column, refused = null_where_refused(lines, field.type, lambda part: part.cast(field.type))
        batch = pa.RecordBatch.from_arrays([column], schema=wanted)
        return batch, [(line, line, unfit(field, lines[line].as_py())) for line in refused]

    @contextmanager
    def _opened(self, split: FileSplit, path: str, nbytes: int) -> Iterator[tuple[BinaryIO, int, int]]:
        """Open a file at the first line of `split`; with where that begins, and the size if it is known."""
        codec, buffer_bytes = compression(path), BUFFER_BYTES
        if not isinstance(self.filesystem, fs.LocalFileSystem):
            # Each read is a request: one for a block, its last line included.
            buffer_bytes = max(BUFFER_BYTES, nbytes)
        if codec is None:
            with self.filesystem.open_input_file(path) as raw:
                self.check_same_file(split, path)
                file: Any = BufferedReader(raw, buffer_bytes)
                yield file, line_start(file, split.start), split.size
        else:
            with self.filesystem.open_input_stream(path, compression=codec) as raw:
                self.check_same_file(split, path)
                file, left = BufferedReader(raw, buffer_bytes), split.start
                while left:
                    left -= len(file.read(min(left, CHUNK_BYTES))) or left
                yield file, split.start, 0


def _not_text(schema: pa.Schema) -> ValueError:
    return ValueError(f"schema={schema.to_string()!r}: text has one column, of text or bytes")


NOT_FOR_ARROW = [
    # Ends the process.
    re.compile(rb"\}[ \t\r]*n"),
    # Ends the block.
    re.compile(rb"\0"),
    # A whole number is never below zero by its sign alone; Python knows `Infinity`, and no `-NaN`.
    re.compile(rb"-0[\s,}\]]"),
    re.compile(rb"NaN[\s,}\]]"),
    re.compile(rb"Inf(?:inity)?[\s,}\]]"),
]
# Python's parser has ends where Arrow's has none: the depth of its stack, and 4,300 digits of a whole number.
MAX_BRACKETS, MAX_DIGITS = 300, 4000
LONG_NUMBER = re.compile(rb"\d{%d}" % MAX_DIGITS)


class JsonFormat(TextFormat):
    """Lines of JSON, in flat columns. One that a line does not have is null; others are ignored.

    Empty lines are passed over. A number with a fraction is not a whole number, text is in quotes, a time
    without an offset is UTC.
    """

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that JSON cannot give."""
        FileFormat.check_schema(self, schema)
        for field in schema:
            if not _json_types(field.type):
                raise ValueError(
                    f"column {field.name!r} is {field.type}: format='json' has columns of numbers, booleans, "
                    "text, dates and times; for others read lines, with format='text', and parse them with "
                    "Spark's from_json"
                )

    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[tuple[int, int, str]]]:
        """Return the rows, and those with a line that is not an object, or a value of another type."""
        if (batch := _by_arrow(block, wanted)) is not None:
            return batch, []
        lines = block.split(b"\n")
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        rows = [_object(lines[number]) for number in numbers]
        refused = {
            at: f"{shown(lines[numbers[at]])} is not a JSON object"
            for at, row in enumerate(rows)
            if row is None
        }
        columns = []
        for field in wanted:
            values = [None if row is None else row.get(field.name) for row in rows]
            column, unread = null_where_refused(values, field.type, partial(_json_column, kind=field.type))
            columns.append(column)
            for row in unread:
                refused.setdefault(row, unfit(field, values[row]))
        bad = [(row, numbers[row], refused[row]) for row in sorted(refused)]
        return pa.RecordBatch.from_arrays(columns, schema=wanted), bad


def _by_arrow(block: bytes, wanted: pa.Schema) -> pa.RecordBatch | None:
    """Return the rows as Arrow's parser has them; None where it may not or cannot read them."""
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if not _is_for_arrow(block, lines):
        return None
    # Numbers are rounded twice, as Python's are; dates and times are cast from text.
    through: dict[tuple[type, ...], pa.DataType] = {(int, float): pa.float64(), (str,): pa.string()}
    kinds = [(field.name, through.get(_json_types(field.type), field.type)) for field in wanted]
    try:
        # Arrow does not look whether text is UTF-8.
        block.decode()
        table = arrow_json.read_json(
            pa.BufferReader(block),
            arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            arrow_json.ParseOptions(explicit_schema=pa.schema(kinds), unexpected_field_behavior="ignore"),
        )
        (batch,) = table.combine_chunks().to_batches()
        columns = [_cast(column, field.type) for column, field in zip(batch.columns, wanted, strict=True)]
    except (pa.ArrowException, ValueError):
        return None
    # Too large a number may be infinite here, and is refused there.
    numbers = [column for column in columns if pa.types.is_floating(column.type)]
    if batch.num_rows != lines or any(compute.any(compute.is_inf(column)).as_py() for column in numbers):
        return None
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _is_for_arrow(block: bytes, lines: int) -> bool:
    """Return True for lines that Arrow reads as Python does, or refuses."""
    are_objects = block.startswith(b"{") and block.endswith((b"}", b"}\n"))
    if not are_objects or block.count(b"}\n{") != lines - 1:
        return False
    long = [line for line in block.split(b"\n") if len(line) > MAX_BRACKETS]
    parts = [part for line in long if len(line) > MAX_DIGITS for part in line.split(b",")]
    return not (
        any(pattern.search(block) for pattern in NOT_FOR_ARROW)
        or any(line.count(b"[") + line.count(b"{") > MAX_BRACKETS for line in long)
        or any(len(part) > MAX_DIGITS and LONG_NUMBER.search(part) for part in parts)
    )


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object that a line is; None if it is none."""
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return value if type(value) is dict else None


def _json_types(kind: pa.DataType) -> tuple[type, ...]:
    """Return the types of Python that values of a column have; none if JSON does not have such values."""
    is_kind = pa.types
    if is_kind.is_boolean(kind):
        return (bool,)
    if is_kind.is_integer(kind):
        return (int,)
    if is_kind.is_floating(kind):
        return (int, float)
    text = is_kind.is_string(kind) or is_kind.is_large_string(kind)
    return (str,) if text or is_kind.is_date(kind) or is_kind.is_timestamp(kind) else ()


def _json_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array. Raises ValueError, OverflowError or an error of Arrow for what cannot be."""
    types = _json_types(kind)
    if set(map(type, values)) - {type(None), *types}:
        raise ValueError("a value of another type")
    if types == (int, float):
        values = [None if value is None else float(value) for value in values]
        return pa.array(values, pa.float64()).cast(kind)
    return pa.array(values, kind) if types != (str,) else _cast(pa.array(values, pa.string()), kind)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as `kind`. Text without an offset is a time in UTC, where none has one."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind):
            raise
        return column.cast(pa.timestamp(kind.unit)).cast(kind)
