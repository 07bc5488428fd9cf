"""Lines of text, and what formats of lines share: positions are bytes, parts are ranges of bytes.

A compressed file is one part, whatever its size, and is not cut: there is no way to its middle but through
all in front of it. Its positions are bytes after decompression.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pillarbox.sources.connectors.files.formats import (
    BadRow,
    FileFormat,
    Piece,
    Rows,
    check_same_file,
    null_where_refused,
    unfit,
)
from pillarbox.sources.connectors.files.lines import Read, ReadAt, after_lines, blocks, cut, line_start
from pillarbox.sources.connectors.files.listing import FoundFile
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
BOM = b"\xef\xbb\xbf"
CHUNK_BYTES = 2**20
"""Bytes read at once where lines are counted or passed over."""


def compression(path: str) -> str | None:
    """Return the codec that the name of a file tells; None if it tells none."""
    return COMPRESSED.get(os.path.splitext(path)[1].lower())


@dataclass(frozen=True)
class TextFormat(FileFormat):
    """Lines that end with a newline, or a carriage return and a newline, in UTF-8; derive one and parse them.

    A mark of the encoding in front of a file is passed over.
    """

    @abstractmethod
    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
        """Return the rows of whole lines, and those that cannot be read, at their place in the block.

        `block` is never empty. A value that cannot be read is null.
        """

    def pieces(self, filesystem: fs.FileSystem, file: FoundFile, nbytes: int, start: int) -> Iterator[Piece]:
        """Yield ranges of `nbytes`; the whole file where it is compressed."""
        if compression(file.path):
            yield Piece(0, END, None)
        else:
            for at in range(start, file.size, nbytes):
                yield Piece(at, min(at + nbytes, file.size), 1.0)

    def advance(self, filesystem: fs.FileSystem, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """Return the front of `split` with so many lines and bytes; empty lines count."""
        if compression(split.path) or (limit.rows is None and limit.nbytes is None):
            return split
        with filesystem.open_input_file(split.path) as file:
            check_same_file(filesystem, split)
            begin, end = _range(file.read_at, split)
            if begin >= end:
                return replace(split, counted=0)
            stop, lines = cut(file.read_at, begin, end, rows=limit.rows, nbytes=limit.nbytes, size=split.size)
        return replace(split if stop >= end else split.up_to(stop), counted=lines)

    def read(
        self, filesystem: fs.FileSystem, split: FileSplit, wanted: pa.Schema, nbytes: int
    ) -> Iterator[Rows]:
        """Yield the lines that begin from `start` up to `stop`."""
        with _opened(filesystem, split) as (read, begin, end):
            for block, position in blocks(read, begin, end, nbytes):
                front = len(BOM) * (begin == 0 and block.startswith(BOM))
                batch, bad = self.parse(block[front:], wanted) if block[front:] else (None, [])
                if batch is not None:
                    yield Rows(batch, position, [each._replace(at=each.at + begin + front) for each in bad])
                begin = position

    def place(self, filesystem: fs.FileSystem, path: str, at: int) -> str:
        """Return the number of the line that begins at byte `at`. Reads the file up to there."""
        lines = 1
        with filesystem.open_input_stream(path, compression=compression(path)) as stream:
            while at > 0 and (data := stream.read(min(at, CHUNK_BYTES))):
                lines += data.count(b"\n")
                at -= len(data)
        return f"line {lines}"


@contextmanager
def _opened(filesystem: fs.FileSystem, split: FileSplit) -> Iterator[tuple[Read, int, int | None]]:
    """Open a file at the first line of `split`: what reads on, and where its lines begin and end."""
    codec = compression(split.path)
    if codec is None:
        with filesystem.open_input_file(split.path) as file:
            check_same_file(filesystem, split)
            begin, end = _range(file.read_at, split)
            file.seek(begin)
            yield file.read, begin, max(begin, end)
    else:
        with filesystem.open_input_stream(split.path, compression=codec) as stream:
            check_same_file(filesystem, split)
            left = split.start
            while left:
                left -= len(stream.read(min(left, CHUNK_BYTES))) or left
            yield stream.read, split.start, None


def _range(read_at: ReadAt, split: FileSplit) -> tuple[int, int]:
    return line_start(read_at, split.start, split.size), line_start(read_at, split.stop, split.size)


@dataclass(frozen=True)
class LinesFormat(TextFormat):
    """A row for each line, without what ends it, in one column of text or bytes."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError unless the first column is of text or bytes. Others may be names of folders."""
        import pyarrow as pa

        super().check_schema(schema)
        if schema.field(0).type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            raise _not_text(schema)

    def parse(self, block: bytes, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[BadRow]]:
        """Return the lines. Raises ValueError unless one column is wanted."""
        import pyarrow as pa
        from pyarrow import compute

        if len(wanted) != 1:
            raise _not_text(wanted)
        content = block.replace(b"\r\n", b"\n") if b"\r\n" in block else block
        (field,) = wanted
        lines = compute.split_pattern(pa.array([content], pa.large_binary()), b"\n").flatten()
        # What stands behind the last newline is no line.
        lines = lines[: len(lines) - content.endswith(b"\n")]
        column, refused = null_where_refused(lines, field.type, lambda part: part.cast(field.type))
        bad = [
            BadRow(after_lines(block, row)[1] if row else 0, row, unfit(field, line), line)
            for row, line in ((row, lines[row].as_py()) for row in refused)
        ]
        return pa.RecordBatch.from_arrays([column], schema=wanted), bad

    def file_schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """Return one column, `value`, as Spark calls it."""
        import pyarrow as pa

        return pa.schema([("value", pa.string())])


def _not_text(schema: pa.Schema) -> ValueError:
    return ValueError(f"schema={schema.to_string()!r}: text has one column, of text or bytes")
