"""Parquet: positions are rows, parts are row groups. See `FileFormat` for who calls it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
from pyarrow import compute, fs
from pyarrow import parquet as pq

from pillarbox.sources.connectors.files.listing import ChangedFileError, UnfitFileError
from pillarbox.sources.connectors.files.reading import FileFormat, Rows, check_columns, conform
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import ReadLimit

MAX_BATCH_ROWS = 2**17
"""Rows in a batch: more gain nothing, and columns of one value would give millions."""
LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
MAX_SUSPENDED = 4
"""Readings of a process that wait within a row group: each has a file open, and what it has read ahead."""


class ParquetFormat(FileFormat):
    """Row groups are read column by column, and only the columns that are wanted."""

    position_name = "row"

    def pieces(self, file: FileSplit, nbytes: int, start: int) -> Iterator[FileSplit]:
        """Row groups, together up to `nbytes`. A small file is one part; its footer is not read for that."""
        footer = None
        if file.size > nbytes or start:
            # If it fails, or is another's, whoever reads the rest says what is wrong, and with which file.
            with suppress(OSError, ChangedFileError, pa.ArrowException):
                self.check_same_file(file)
                footer = self._opened(file.path).metadata
        if footer is None:
            yield file.part(start, END)
            return
        groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
        # Footers have sizes before compression; those of the file are after it.
        ratio = file.size / max(1, sum(group.total_byte_size for group in groups))
        first = last = 0
        total = 0.0
        for rows, size in [
            *((each.num_rows, each.total_byte_size * ratio) for each in groups),
            (0, math.inf),
        ]:
            if last > first and total + size > nbytes:
                if first >= start:
                    yield file.part(first, last, total / (last - first))
                first, total = last, 0.0
            last += rows
            total += size

    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """So many rows; for bytes, about so many, as all rows of the file are alike."""
        with self._opened(split.path) as parquet:
            self.check_same_file(split)
            rows = parquet.metadata.num_rows
        split = replace(split, weight=split.weight or split.size / max(1, rows))
        left = most = min(split.stop, rows) - split.start
        if limit.rows is not None:
            most = min(most, limit.rows)
        if limit.nbytes is not None:
            most = min(most, int(limit.nbytes / (split.weight or 1.0)))
        return replace(split, counted=left) if most >= left else split.up_to(split.start + max(1, most))

    def file_schema(self, path: str) -> pa.Schema:
        """Return the columns that the footer names, with the types that Spark gives them."""
        with self._opened(path) as parquet:
            casts = _instants(parquet)
            schema = parquet.schema_arrow
            return pa.schema([field.with_type(casts.get(field.name, field.type)) for field in schema])

    def read(self, split: FileSplit, wanted: pa.Schema, nbytes: int) -> Iterator[Rows]:
        """Yield the rows from `start` to `stop`.

        A row group can be read from its front only. So a reading that ends within one is suspended, and the
        one that begins there in the same process resumes it; another begins with the front of the group.
        """
        self.check_same_file(split)
        # Readings are alike that are of the same file, with the same columns and batches.
        alike = (self.filesystem.type_name, split.path, split.size, split.modified, *wanted.names, nbytes)
        with _lock:
            reading = _suspended.pop((split.start, *alike), None)
        if reading is None:
            reading = _Reading(self._opened(split.path), split.start, wanted, nbytes)
        for batch in reading.batches(split.stop):
            if reading.is_julian:
                _check_calendar(batch)
            rows, bad = conform(batch, wanted, reading.casts, reading.position - batch.num_rows)
            yield Rows(rows, reading.position, bad)
        if reading.position not in reading.edges:
            with _lock:
                # Behind the others, as the newest.
                key = (reading.position, *alike)
                _suspended.pop(key, None)
                _suspended[key] = reading
                if len(_suspended) > MAX_SUSPENDED:
                    del _suspended[next(iter(_suspended))]

    def _opened(self, path: str) -> pq.ParquetFile:
        # Not mapped into memory: a file that is cut short then ends the process. Old timestamps (INT96) are
        # read as nanoseconds otherwise, which end in 2262 and then begin again.
        return pq.ParquetFile(
            path,
            filesystem=self.filesystem,
            pre_buffer=not isinstance(self.filesystem, fs.LocalFileSystem),
            coerce_int96_timestamp_unit="us",
        )


_lock = threading.Lock()
_suspended: dict[tuple[Any, ...], _Reading] = {}
"""The newest readings that ended within a row group. Guarded by `_lock`; what is taken out is the taker's."""


class _Reading:
    """An open file, read from a row on, some rows at a time. Confined to one thread at a time.

    The file is closed when nobody has the reading any more.
    """

    def __init__(self, parquet: pq.ParquetFile, position: int, wanted: pa.Schema, nbytes: int) -> None:
        names, footer = parquet.schema_arrow.names, parquet.metadata
        check_columns(names, wanted)
        columns = [name for name in wanted.names if name in names]
        self.casts = {name: kind for name, kind in _instants(parquet).items() if name in columns}
        self.is_julian = _is_julian(footer.metadata or {})
        self.position = position
        self.edges = [
            *accumulate((footer.row_group(at).num_rows for at in range(footer.num_row_groups)), initial=0)
        ]
        # A function, which does not hold this: or the file stays open until garbage is collected.
        self._batches = _batches_from(position, parquet, self.edges, columns, nbytes)
        self._held: pa.RecordBatch | None = None

    def batches(self, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows, up to row `stop` or the end."""
        while self.position < stop and (batch := self._held or next(self._batches, None)):
            left = stop - self.position
            self._held = batch.slice(left) if batch.num_rows > left else None
            self.position += min(left, batch.num_rows)
            yield batch.slice(0, left)


def _batches_from(
    start: int, parquet: pq.ParquetFile, edges: list[int], columns: list[str], nbytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows from `start` on, one row group after the other. edges: where these begin and end."""
    for group, (at, behind) in enumerate(pairwise(edges)):
        if behind <= start:
            continue
        rows = _batch_rows(parquet.metadata.row_group(group), columns, nbytes)
        # One thread: a task has one core, and other tasks have the others.
        for batch in parquet.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
            passed = min(max(start - at, 0), batch.num_rows)
            if passed < batch.num_rows:
                yield batch.slice(passed)
            at += batch.num_rows


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


def _batch_rows(group: Any, columns: list[str], nbytes: int) -> int:
    """Rows that take about `nbytes` in these columns of a row group."""
    sizes = [group.column(at) for at in range(group.num_columns)]
    total = sum(
        each.total_uncompressed_size for each in sizes if each.path_in_schema.partition(".")[0] in columns
    )
    return max(1, min(MAX_BATCH_ROWS, int(nbytes * group.num_rows / max(1, total))))
