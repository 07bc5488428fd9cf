"""What CSV, JSON lines and text share: positions are bytes, parts are ranges of bytes. See `FileFormat`.

A compressed file is one part, whatever its size, and is not cut: there is no way to its middle but through
all in front of it. Its positions are bytes after decompression.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.formats import FileFormat, Piece, Rows, check_same_file
from pillarbox.sources.connectors.files.lines import ReadAt, blocks, cut, line_start, reading
from pillarbox.sources.connectors.files.listing import FoundFile
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
LOOKED_AT = 2**20
"""Bytes of a file that say which columns it has."""
BOM = b"\xef\xbb\xbf"


def compression(path: str) -> str | None:
    """How a file is compressed, as its name says; None: not at all."""
    return COMPRESSED.get(os.path.splitext(path)[1].lower())


@dataclass(frozen=True)
class TextFormat(FileFormat):
    """Lines that end with a newline, in UTF-8; derive one and say what they hold."""

    @property
    def quote(self) -> bytes | None:
        """What a newline may stand between without ending a line; None: nothing."""
        return None

    def front(self, head: bytes) -> tuple[int, Any]:
        """How many bytes in front of a file are no rows, and what they say that `parse` needs.

        Here: a mark of the encoding, if there is one, which says nothing.
        """
        return (len(BOM) if head.startswith(BOM) else 0), None

    @abstractmethod
    def parse(self, block: bytes, said: Any, wanted: pa.Schema) -> pa.RecordBatch:
        """The rows of whole lines. Not called with nothing."""

    @abstractmethod
    def schema_of(self, head: bytes) -> pa.Schema:
        """The columns of a file that begins with these whole lines."""

    def pieces(self, filesystem: fs.FileSystem, file: FoundFile, nbytes: int, start: int) -> Iterator[Piece]:
        """Ranges of `nbytes`, but the whole file where its lines are not known without what is in front."""
        if compression(file.path):
            yield Piece(0, END, None)
        elif self.quote is not None:
            yield Piece(0, file.size, 1.0)
        else:
            for at in range(start, file.size, nbytes):
                yield Piece(at, min(at + nbytes, file.size), 1.0)

    def advance(self, filesystem: fs.FileSystem, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """So many lines and bytes. A line counts as a row, empty ones too."""
        if compression(split.path) or (limit.rows is None and limit.nbytes is None):
            return split
        with filesystem.open_input_file(split.path) as file:
            read_at = file.read_at
            check_same_file(filesystem, split)
            begin, end, _ = self._range(read_at, split)
            if begin >= end:
                return replace(split, counted=0)
            stop, lines = cut(
                read_at,
                begin,
                end,
                rows=limit.rows,
                nbytes=limit.nbytes,
                quote=self.quote,
                size=split.size,
            )
        return replace(split if stop >= end else split.up_to(stop), counted=lines)

    def file_schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """The columns as the first megabyte of the file looks."""
        return self.schema_of(self._head(filesystem, path, LOOKED_AT))

    def read(
        self, filesystem: fs.FileSystem, split: FileSplit, wanted: pa.Schema, nbytes: int
    ) -> Iterator[Rows]:
        """The lines that begin from `start` up to `stop`."""
        if compression(split.path):
            with filesystem.open_input_stream(split.path, compression=compression(split.path)) as stream:
                check_same_file(filesystem, split)
                begin, said = self.front(self._head(filesystem, split.path, nbytes))
                begin = max(begin, split.start)
                left = begin
                while left:
                    left -= len(stream.read(min(left, 2**20))) or left
                yield from self._rows(blocks(stream.read, begin, None, nbytes, self.quote), said, wanted)
            return
        with filesystem.open_input_file(split.path) as file:
            read_at = file.read_at
            check_same_file(filesystem, split)
            begin, end, said = self._range(read_at, split)
            if begin < end:
                file.seek(begin)
                yield from self._rows(blocks(file.read, begin, end, nbytes, self.quote), said, wanted)

    def check_block(self, block: bytes) -> None:
        """Raise ValueError for a block that is not whole lines."""

    def _rows(self, parts: Iterator[tuple[bytes, int]], said: Any, wanted: pa.Schema) -> Iterator[Rows]:
        for block, position in parts:
            self.check_block(block)
            yield Rows(self.parse(block, said, wanted), position)

    def _range(self, read_at: ReadAt, split: FileSplit) -> tuple[int, int, Any]:
        """Where the lines of a split begin and end, and what the front of the file says."""
        head = next(blocks(reading(read_at, 0), 0, None, 2**12, self.quote), (b"", 0))[0]
        front, said = self.front(head)
        if self.quote is not None:
            return max(front, split.start), split.stop, said
        begin = line_start(read_at, split.start, split.size)
        return max(front, begin), line_start(read_at, split.stop, split.size), said

    def _head(self, filesystem: fs.FileSystem, path: str, nbytes: int) -> bytes:
        """The first whole lines of a file."""
        with filesystem.open_input_stream(path, compression=compression(path)) as stream:
            return next(blocks(stream.read, 0, None, nbytes, self.quote), (b"", 0))[0]
