"""Lines of text, and what formats of lines share: positions are bytes, parts are ranges of bytes.

The rule is Hadoop's for text: a range of bytes has the lines that begin in it, so ranges that meet anywhere
have each line once. A compressed file is one part, whatever its size, and is not cut: there is no way to its
middle but through all in front of it. Its positions are bytes after decompression.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyarrow import compute

from pillarbox.sources.connectors.files.formats import BadRow, FileFormat, Rows, null_where_refused, unfit
from pillarbox.sources.connectors.files.listing import LostDataError
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
        # What stands behind the last newline is no line.
        lines = lines[: len(lines) - content.endswith(b"\n")]
        column, refused = null_where_refused(lines, field.type, lambda part: part.cast(field.type))
        starts = line_starts(block) if refused else []
        refused_lines = zip(refused, lines.take(pa.array(refused, pa.int64())).to_pylist(), strict=True)
        bad = [BadRow(starts[row], row, unfit(field, line), line) for row, line in refused_lines]
        return pa.RecordBatch.from_arrays([column], schema=wanted), bad


def _not_text(schema: pa.Schema) -> ValueError:
    return ValueError(f"schema={schema.to_string()!r}: text has one column, of text or bytes")
