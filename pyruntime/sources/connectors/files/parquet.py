"""Parquet: positions are rows, parts are row groups. See `FileFormat` for who calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.formats import (
    FileFormat,
    Piece,
    Rows,
    check_columns,
    check_same_file,
    conform,
)
from pillarbox.sources.connectors.files.listing import FoundFile
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

MOST_ROWS = 2**17
"""Rows in a batch: more gain nothing, and columns of one value would give millions."""


@dataclass(frozen=True)
class ParquetFormat(FileFormat):
    """Row groups are read column by column, and only the columns that are wanted."""

    by_rows = True

    def pieces(self, filesystem: fs.FileSystem, file: FoundFile, nbytes: int, start: int) -> Iterator[Piece]:
        """Row groups, together up to `nbytes`. A small file is one part; its footer is not read for that."""
        import pyarrow as pa

        if file.size <= nbytes and start == 0:
            yield Piece(0, END, None)
            return
        try:
            with _opened(filesystem, file.path) as parquet:
                footer = parquet.metadata
                groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
                sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        except (OSError, pa.ArrowException):
            # Whoever reads it says what is wrong, and with which file.
            if start == 0:
                yield Piece(0, END, None)
            return
        # Footers have sizes before compression; those of the file are after it.
        ratio = file.size / max(1, sum(size for _, size in sizes))
        first = last = 0
        total = 0.0
        for rows, size in sizes:
            if last > first and total + size * ratio > nbytes:
                if first >= start:
                    yield Piece(first, last, total / (last - first))
                first, total = last, 0.0
            last += rows
            total += size * ratio
        if last > first and first >= start:
            yield Piece(first, last, total / (last - first))

    def advance(self, filesystem: fs.FileSystem, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """So many rows; for bytes, about so many, as all rows of the file are alike."""
        if limit.rows is None and limit.nbytes is None:
            return split
        with _opened(filesystem, split.path) as parquet:
            check_same_file(filesystem, split)
            rows = parquet.metadata.num_rows
        left = min(split.stop, rows) - split.start
        split = replace(split, weight=split.weight or split.size / max(1, rows))
        most = left
        if limit.rows is not None:
            most = min(most, limit.rows)
        if limit.nbytes is not None:
            most = min(most, int(limit.nbytes / (split.weight or 1.0)))
        if most >= left:
            return replace(split, counted=left)
        return split.up_to(split.start + max(1, most))

    def file_schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """The columns that the footer names."""
        with _opened(filesystem, path) as parquet:
            schema: pa.Schema = parquet.schema_arrow
            return schema

    def read(
        self, filesystem: fs.FileSystem, split: FileSplit, wanted: pa.Schema, nbytes: int
    ) -> Iterator[Rows]:
        """The rows from `start` to `stop`; a row group is read as a whole, whatever part of it is wanted."""
        with _opened(filesystem, split.path) as parquet:
            check_same_file(filesystem, split)
            footer = parquet.metadata
            stop = min(split.stop, footer.num_rows)
            groups: list[int] = []
            at = position = 0
            for number in range(footer.num_row_groups):
                behind = at + footer.row_group(number).num_rows
                if at < stop and behind > split.start:
                    position = position if groups else at
                    groups.append(number)
                at = behind
            check_columns(parquet.schema_arrow.names, wanted)
            columns = [name for name in wanted.names if name in parquet.schema_arrow.names]
            if not groups:
                return
            # One thread: a task has one core, and other tasks have the others.
            for batch in parquet.iter_batches(
                batch_size=_batch_rows(footer.row_group(groups[0]), columns, nbytes),
                row_groups=groups,
                columns=columns,
                use_threads=False,
            ):
                begin, position = position, position + batch.num_rows
                if position <= split.start:
                    continue
                front, back = max(0, split.start - begin), max(0, position - stop)
                if front or back:
                    batch = batch.slice(front, batch.num_rows - front - back)
                yield Rows(conform(batch, wanted), position - back)
                if back:
                    return


def _batch_rows(group: Any, columns: list[str], nbytes: int) -> int:
    """Rows that take about `nbytes` in these columns of a row group."""
    wanted = set(columns)
    sizes = (group.column(at) for at in range(group.num_columns))
    total = sum(
        each.total_uncompressed_size for each in sizes if each.path_in_schema.partition(".")[0] in wanted
    )
    return max(1, min(MOST_ROWS, int(nbytes * group.num_rows / max(1, total))))


@contextmanager
def _opened(filesystem: fs.FileSystem, path: str) -> Iterator[Any]:
    from pyarrow import fs
    from pyarrow import parquet as pq

    # Not mapped into memory: a file that is cut short then ends the process.
    with filesystem.open_input_file(path) as file:
        # Old timestamps (INT96) are read as nanoseconds otherwise, which end in 2262 and then begin again.
        yield pq.ParquetFile(
            file,
            pre_buffer=not isinstance(filesystem, fs.LocalFileSystem),
            coerce_int96_timestamp_unit="us",
        )
