"""Formats of lines: text, and JSON, an object a line. Positions are bytes, parts are ranges of bytes."""

# The rule is Hadoop's for text: a range of bytes has the lines that begin in it, so ranges that meet
# anywhere have each line once. A compressed file is one part, whatever its size, and is not cut: there is
# no way to its middle but through all in front of it. Its positions are bytes after decompression.
#
# Two parsers read lines of JSON. Arrow's is four times as fast as Python's, but it writes through a wild
# pointer where a `null` stands in the place of an object, which ends the process or not; knows no lines, so
# that two objects in one are two rows; and refuses a block of lines for one bad value. So a block goes to
# Arrow where its columns are flat, each line begins with `{` and ends with `}`, and no `n` follows a `}`: a
# newline in such a block cannot stand within an object, and no `null` between two. What Arrow refuses, or
# gives other rows of than there are lines, goes to Python, as does what the two read differently. Which
# parser has read a line makes no difference to its row.

from __future__ import annotations

import base64
import decimal
import json
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyarrow import compute
from pyarrow import json as arrow_json

from pillarbox.sources.connectors.files.listing import LostDataError
from pillarbox.sources.connectors.files.reading import (
    BadRow,
    FileFormat,
    Rows,
    null_where_refused,
    shown,
    unfit,
)
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import ReadLimit

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
BOM = b"\xef\xbb\xbf"
CHUNK_BYTES = 2**20
"""Bytes read at once where lines are counted or passed over."""
PROBE_BYTES, MAX_PROBE_BYTES = 2**16, 2**26
"""Bytes that are read to find the end of a line: more and more where it is long."""

ReadAt = Callable[[int, int], bytes]
"""At most so many bytes, from this offset on; fewer only at the end of the file."""
Read = Callable[[int], bytes]
"""The next bytes, at most so many; none at the end of the file."""


def line_start(read_at: ReadAt, position: int, size: int) -> int:
    """Return where the first line begins at `position` or behind it; `size`, the file's, if none does."""
    if position <= 0:
        return 0
    # A line begins at `position` if the byte in front of it ends one.
    at, step = position - 1, PROBE_BYTES
    while at < size and (found := read_at(min(step, size - at), at)):
        newline = found.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(found)
        step = min(2 * step, MAX_PROBE_BYTES)
    return size


def blocks(read: Read, position: int, end: int | None, nbytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines, of about `nbytes` or one line, each with the position behind it.

    `read` gives the bytes from `position` on, where a line begins. `end`: where the last line ends; None is
    the end of the file. Raises LostDataError if the file ends before `end`.
    """
    held = b""
    while True:
        # More and more where a line is long, so that it is not looked through again and again.
        want = max(nbytes - len(held), len(held), 1)
        if end is not None:
            want = min(want, end - position - len(held))
        more = read(want) if want else b""
        data = held + more if held else more
        if more and position + len(data) != end:
            whole = data.rfind(b"\n") + 1
        elif more or end is None or not want:
            whole = len(data)
        else:
            raise LostDataError(f"the file ends at byte {position + len(held)}, before byte {end}")
        if whole:
            position += whole
            yield data[:whole], position
        elif not more:
            return
        held = data[whole:]


def after_lines(data: bytes, count: int) -> tuple[int, int]:
    """Return how many lines of `data` end, at most `count`, and how many bytes they take."""
    *lines, rest = data.split(b"\n", count)
    return len(lines), len(data) - len(rest) * (len(lines) == count)


def line_starts(block: bytes) -> list[int]:
    """Return where each line of a block begins."""
    return [0, *accumulate(len(line) + 1 for line in block.split(b"\n"))]


def cut(file: Any, start: int, end: int, rows: int) -> tuple[int, int]:
    """Return where to stop to have at most so many lines, but one at least, and how many there are then.

    A line begins at `start`. `end`: where the last line ends that may be read.
    """
    file.seek(start)
    lines, most = 0, max(1, rows)
    for block, behind in blocks(file.read, start, end, CHUNK_BYTES):
        counted, taken = after_lines(block, most - lines)
        lines += counted
        if lines == most:
            return behind - len(block) + taken, lines
        # The last line of a file need not end with a newline.
        lines += not block.endswith(b"\n")
    return end, lines


def compression(path: str) -> str | None:
    """Return the codec that the name of a file tells; None if it tells none."""
    return COMPRESSED.get(os.path.splitext(path)[1].lower())


class TextFormat(FileFormat):
    """Lines that end with a newline, or a carriage return and a newline, in UTF-8; derive one and parse them.

    A mark of the encoding in front of a file is passed over.
    """

    @abstractmethod
    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
        """Return the rows of whole lines, and those that cannot be read, at their place in the block.

        `block` is never empty. A value that cannot be read is null.
        """

    def pieces(self, file: FileSplit, nbytes: int, start: int) -> Iterator[FileSplit]:
        """Yield ranges of `nbytes`; the whole file where it is compressed."""
        if compression(file.path):
            yield file.part(0, END)
        else:
            for at in range(start, file.size, nbytes):
                yield file.part(at, min(at + nbytes, file.size))

    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """Return the front of `split` with so many lines and bytes; empty lines count."""
        if compression(split.path):
            return split
        with self.filesystem.open_input_file(split.path) as file:
            self.check_same_file(split)
            start, end = _range(file.read_at, split)
            stop, lines = end, None
            if limit.nbytes is not None:
                # With the line that begins in front of the limit.
                stop = min(end, line_start(file.read_at, start + max(1, limit.nbytes), split.size))
            if limit.rows is not None:
                stop, lines = cut(file, start, stop, limit.rows)
        return replace(split if stop >= end else split.up_to(stop), counted=lines)

    def read(self, split: FileSplit, wanted: pa.Schema, nbytes: int) -> Iterator[Rows]:
        """Yield the lines that begin from `start` up to `stop`."""
        with self._opened(split) as (read, begin, end):
            for block, position in blocks(read, begin, end, nbytes):
                front = len(BOM) * (begin == 0 and block.startswith(BOM))
                if block[front:]:
                    batch, bad = self.parse(block[front:], wanted)
                    yield Rows(batch, position, [each._replace(at=each.at + begin + front) for each in bad])
                begin = position

    def file_schema(self, path: str) -> pa.Schema:
        """Return one column, `value`, as Spark calls it."""
        return pa.schema([("value", pa.string())])

    def place(self, path: str, at: int) -> str:
        """Return the number of the line that begins at byte `at`. Reads the file up to there."""
        lines = 1
        with self.filesystem.open_input_stream(path, compression=compression(path)) as stream:
            while at > 0 and (data := stream.read(min(at, CHUNK_BYTES))):
                lines += data.count(b"\n")
                at -= len(data)
        return f"line {lines}"

    @contextmanager
    def _opened(self, split: FileSplit) -> Iterator[tuple[Read, int, int | None]]:
        """Open a file at the first line of `split`: what reads on, and where its lines begin and end."""
        codec = compression(split.path)
        if codec is None:
            with self.filesystem.open_input_file(split.path) as file:
                self.check_same_file(split)
                begin, end = _range(file.read_at, split)
                file.seek(begin)
                yield file.read, begin, end
        else:
            with self.filesystem.open_input_stream(split.path, compression=codec) as stream:
                self.check_same_file(split)
                left = split.start
                while left:
                    left -= len(stream.read(min(left, CHUNK_BYTES))) or left
                yield stream.read, split.start, None


def _range(read_at: ReadAt, split: FileSplit) -> tuple[int, int]:
    start = line_start(read_at, split.start, split.size)
    return start, max(start, line_start(read_at, split.stop, split.size))


class LinesFormat(TextFormat):
    """A row for each line, without what ends it, in one column of text or bytes."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError unless the first column is of text or bytes. Others may be names of folders."""
        super().check_schema(schema)
        if schema.field(0).type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            raise _not_text(schema)

    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
        """Return the lines. Raises ValueError unless one column is wanted."""
        if len(wanted) != 1:
            raise _not_text(wanted)
        content = block.replace(b"\r\n", b"\n")
        (field,) = wanted
        lines = compute.split_pattern(pa.array([content], pa.large_binary()), b"\n").flatten()
        # What stands behind the last newline is not a line.
        lines = lines[: len(lines) - content.endswith(b"\n")]
        column, refused = null_where_refused(lines, field.type, lambda part: part.cast(field.type))
        starts = line_starts(block) if refused else []
        refused_lines = zip(refused, lines.take(pa.array(refused, pa.int64())).to_pylist(), strict=True)
        bad = [BadRow(starts[row], row, unfit(field, line), line) for row, line in refused_lines]
        return pa.RecordBatch.from_arrays([column], schema=wanted), bad


def _not_text(schema: pa.Schema) -> ValueError:
    return ValueError(f"schema={schema.to_string()!r}: text has one column, of text or bytes")


BLANK = " \t\r"
"""The characters that JSON allows around a value, but for the newline."""
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
    """Lines of JSON. A column that a line does not have is null; other columns and empty lines are ignored.

    Values are read as Spark reads them: a number with a fraction is not a whole number, text is in quotes,
    bytes are in base64. A time without an offset is UTC.
    """

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that JSON cannot give."""
        super().check_schema(schema)
        for field in schema:
            try:
                _column([], field.type)
            except TypeError as error:
                raise ValueError(f"column {field.name!r} is {field.type}: {error}") from None

    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
        """Return the rows, and those with a line that is not an object, or a value of another type."""
        batch = _by_arrow(block.replace(b"\r\n", b"\n"), wanted)
        return _by_python(block, wanted) if batch is None else (batch, [])


# -- Arrow's parser ----------------------------------------------------------------------------------


def _by_arrow(block: bytes, wanted: pa.Schema) -> pa.RecordBatch | None:
    """Return the rows as Arrow's parser has them; None where it may not or cannot read them."""
    kinds = [_arrow_kind(field.type) for field in wanted]
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if None in kinds or not _is_for_arrow(block, lines):
        return None
    try:
        # Arrow does not look whether text is UTF-8.
        block.decode()
        table = arrow_json.read_json(
            pa.BufferReader(block),
            arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            arrow_json.ParseOptions(
                explicit_schema=pa.schema(zip(wanted.names, kinds, strict=True)),
                unexpected_field_behavior="ignore",
            ),
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


def _arrow_kind(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which Arrow parses a column, and from which it is cast; None where it cannot."""
    is_kind = pa.types
    if is_kind.is_boolean(kind) or is_kind.is_integer(kind):
        return kind
    if is_kind.is_floating(kind):
        # Rounded twice, as Python's numbers are.
        return pa.float64()
    is_text = is_kind.is_string(kind) or is_kind.is_large_string(kind)
    return pa.string() if is_text or is_kind.is_date(kind) or is_kind.is_timestamp(kind) else None


# -- Python's parser ---------------------------------------------------------------------------------

Scan = Callable[[str, int], tuple[Any, int]]


def _by_python(block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
    # Bytes that are not UTF-8 become halves of surrogate pairs, which Arrow refuses in wanted columns.
    lines = block.decode(errors="surrogateescape").split("\n")
    # Numbers keep all their digits where a column of decimals is wanted.
    exact = "decimal" in wanted.to_string(show_field_metadata=False)
    scan: Scan = json.JSONDecoder(parse_float=decimal.Decimal if exact else None).scan_once  # type: ignore[attr-defined]
    rows = [_object(text, scan) for line in lines if (text := line.strip(BLANK))]
    refused: dict[int, str | None] = {row: None for row, values in enumerate(rows) if values is None}
    columns = []
    for field in wanted:
        values = [None if row is None else row.get(field.name) for row in rows]
        column, without = null_where_refused(values, field.type, partial(_column, kind=field.type))
        columns.append(column)
        for row in without:
            refused.setdefault(row, unfit(field, values[row]))
    bad = list(_bad_rows(block, refused)) if refused else []
    return pa.RecordBatch.from_arrays(columns, schema=wanted), bad


def _bad_rows(block: bytes, refused: dict[int, str | None]) -> Iterator[BadRow]:
    """Yield the rows of these numbers with the lines in which they stand; None: the line is not an object."""
    lines = zip(line_starts(block), block.split(b"\n"), strict=False)
    for row, (at, line) in enumerate((at, line) for at, line in lines if line.strip(BLANK.encode())):
        if row in refused:
            yield BadRow(at, row, refused[row] or f"{shown(line)} is not a JSON object", line)


def _object(text: str, scan: Scan) -> dict[str, Any] | None:
    """Return the object that `text` is; None if it is none."""
    try:
        value, end = scan(text, 0)
    except (ValueError, StopIteration, RecursionError, decimal.InvalidOperation):
        return None
    return value if end == len(text) and type(value) is dict else None


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values of JSON as an array.

    Raises ValueError, OverflowError or an error of Arrow for a value that does not fit, TypeError for a type
    that JSON does not have.
    """
    is_kind = pa.types
    if is_kind.is_struct(kind):
        _check(values, dict)
        children = [
            _column([None if value is None else value.get(field.name) for value in values], field.type)
            for field in kind
        ]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if is_kind.is_list(kind):
        _check(values, list)
        items = _column([item for value in values for item in value or ()], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), items).cast(kind)
    if is_kind.is_map(kind) and kind.key_type == pa.string():
        _check(values, dict)
        keys = pa.array([key for value in values for key in value or ()], pa.string())
        items = _column([item for value in values if value for item in value.values()], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items).cast(kind)
    if is_kind.is_boolean(kind):
        return pa.array(_check(values, bool), kind)
    if is_kind.is_integer(kind):
        return pa.array(_check(values, int), kind)
    if is_kind.is_floating(kind):
        _check(values, int, float, decimal.Decimal)
        return _cast(
            pa.array([None if value is None else float(value) for value in values], pa.float64()), kind
        )
    if is_kind.is_decimal(kind):
        _check(values, int, decimal.Decimal)
        return pa.array([None if value is None else decimal.Decimal(value) for value in values], kind)
    _check(values, str)
    if is_kind.is_binary(kind):
        decode = partial(base64.b64decode, validate=True)
        return pa.array([None if value is None else decode(value) for value in values], kind)
    if _arrow_kind(kind) is None:
        raise TypeError("JSON does not have such values: name another type, such as string")
    return _cast(pa.array(values, pa.string()), kind)


def _check(values: Sequence[Any], *kinds: type) -> Sequence[Any]:
    """Return `values` if each is None or of one of these types. Raises ValueError."""
    if set(map(type, values)) - {type(None), *kinds}:
        raise ValueError("a value of another type")
    return values


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return where the items of each value begin, and null for a value that is."""
    offsets: list[int | None] = []
    end = 0
    for value in values:
        offsets.append(None if value is None else end)
        end += len(value or ())
    return pa.array([*offsets, end], pa.int32())


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as `kind`. Text without an offset is a time in UTC, where none has one."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind):
            raise
        return column.cast(pa.timestamp(kind.unit)).cast(kind)
