"""Parquet: positions are rows, parts are row groups. See `FileFormat` for who calls it."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.sources.connectors.files.formats import (
    FileFormat,
    Piece,
    Rows,
    check_columns,
    check_same_file,
    conform,
)
from pillarbox.sources.connectors.files.listing import FoundFile, UnfitFileError
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

MAX_BATCH_ROWS = 2**17
"""Rows in a batch: more gain nothing, and columns of one value would give millions."""
LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
MAX_SUSPENDED = 4
"""Readings of a process that wait within a row group: each has a file open, and what it has read ahead."""


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
        """Return the columns that the footer names, with the types that Spark gives them."""
        import pyarrow as pa

        with _opened(filesystem, path) as parquet:
            schema: pa.Schema = parquet.schema_arrow
            casts = _instants(parquet)
            return pa.schema([field.with_type(casts.get(field.name, field.type)) for field in schema])

    def place(self, filesystem: fs.FileSystem, path: str, at: int) -> str:
        """Return the number of a row, from 0 on."""
        return f"row {at}"

    def read(
        self, filesystem: fs.FileSystem, split: FileSplit, wanted: pa.Schema, nbytes: int
    ) -> Iterator[Rows]:
        """Yield the rows from `start` to `stop`.

        A row group can be read from its front only. So a reading that ends within one is suspended, and the
        one that begins there in the same process resumes it; another begins with the front of the group.
        """
        check_same_file(filesystem, split)
        key = _Key(filesystem.type_name, split.path, split.size, split.modified, tuple(wanted.names), nbytes)
        reading = _SUSPENDED.take(key, split.start)
        if reading is None:
            reading = _Reading(filesystem, split, wanted, nbytes)
        try:
            while (batch := reading.next_batch(split.stop)) is not None:
                at = reading.position - batch.num_rows
                if reading.is_julian:
                    _check_calendar(batch)
                rows, bad = conform(batch, wanted, reading.casts, at)
                yield Rows(rows, reading.position, bad)
            _SUSPENDED.put(key, reading)
        except BaseException:
            reading.close()
            raise


class _Key(NamedTuple):
    """Says which readings are alike: of the same file, with the same columns and batches. A plain value."""

    filesystem: str
    path: str
    size: int
    modified: int
    columns: tuple[str, ...]
    nbytes: int


class _Reading:
    """An open file, read from a row on, some rows at a time. Confined to one thread at a time."""

    def __init__(self, filesystem: fs.FileSystem, split: FileSplit, wanted: pa.Schema, nbytes: int) -> None:
        self._opened = _opened(filesystem, split.path)
        self._parquet = parquet = self._opened.__enter__()
        try:
            names = parquet.schema_arrow.names
            check_columns(names, wanted)
            self._columns = [name for name in wanted.names if name in names]
            self._nbytes = nbytes
            footer = parquet.metadata
            self._ends = list(
                accumulate(footer.row_group(at).num_rows for at in range(footer.num_row_groups))
            )
            self.is_julian = _is_julian(footer.metadata or {})
            self.casts = {name: kind for name, kind in _instants(parquet).items() if name in self._columns}
            self.position = split.start
            self._batches: Iterator[pa.RecordBatch] = iter(())
            self._behind = 0
            """The last row of the groups that `_batches` reads, exclusive."""
            self._held: pa.RecordBatch | None = None
        except BaseException:
            self.close()
            raise

    def next_batch(self, stop: int) -> pa.RecordBatch | None:
        """Return the next rows, up to row `stop`; None if there are no more."""
        stop = min(stop, self._ends[-1] if self._ends else 0)
        while self.position < stop:
            batch = self._held or next(self._batches, None)
            if batch is None:
                self._begin(stop)
                continue
            left = stop - self.position
            self._held = batch.slice(left) if batch.num_rows > left else None
            batch = batch.slice(0, left)
            self.position += batch.num_rows
            return batch
        return None

    def is_within_group(self) -> bool:
        """Return True where a row group has been read in part."""
        return bool(self.position < self._behind)

    def _begin(self, stop: int) -> None:
        """Read on with the row groups from the one of `position` to the one in front of `stop`."""
        first = bisect.bisect_right(self._ends, self.position)
        last = bisect.bisect_left(self._ends, stop)
        self._behind = self._ends[last]
        # One thread: a task has one core, and other tasks have the others.
        self._batches = self._parquet.iter_batches(
            batch_size=_batch_rows(self._parquet.metadata.row_group(first), self._columns, self._nbytes),
            row_groups=[*range(first, last + 1)],
            columns=self._columns,
            use_threads=False,
        )
        skipped = self.position - (self._ends[first - 1] if first else 0)
        while skipped > 0:
            batch = next(self._batches)
            self._held = batch.slice(skipped) if batch.num_rows > skipped else None
            skipped -= batch.num_rows

    def close(self) -> None:
        """Close the file."""
        self._batches, self._held = iter(()), None
        self._opened.__exit__(None, None, None)


class _Suspended:
    """The readings that ended within a row group, the newest `MAX_SUSPENDED` of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: dict[tuple[_Key, int], _Reading] = {}

    def take(self, key: _Key, position: int) -> _Reading | None:
        """Return the reading that stands at `position`, which is the caller's from now on."""
        with self._lock:
            return self._readings.pop((key, position), None)

    def put(self, key: _Key, reading: _Reading) -> None:
        """Keep a reading that ended within a row group; close any other."""
        closed = [reading]
        if reading.is_within_group():
            with self._lock:
                closed = [*filter(None, [self._readings.pop((key, reading.position), None)])]
                self._readings[key, reading.position] = reading
                if len(self._readings) > MAX_SUSPENDED:
                    closed.append(self._readings.pop(next(iter(self._readings))))
        for each in closed:
            each.close()


_SUSPENDED = _Suspended()


def _is_julian(metadata: Mapping[bytes, bytes]) -> bool:
    """Return True for a file in which Spark wrote old dates in the calendar that was then in use."""
    writer = metadata.get(b"org.apache.spark.version", b"")
    return writer.startswith((b"2.", b"3.0.")) or any(key in metadata for key in LEGACY_KEYS)


def _check_calendar(batch: pa.RecordBatch) -> None:
    """Raise ValueError for dates and times that are others in the Gregorian calendar."""
    import pyarrow as pa
    from pyarrow import compute

    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            first = compute.min(column).as_py()
            if first is not None and first.timetuple()[:3] < (
                (1582, 10, 15) if pa.types.is_date(field.type) else (1900, 1, 1)
            ):
                raise UnfitFileError(
                    f"column {field.name!r} has {first} in the calendar of Spark 2 (LEGACY): read the file "
                    "with spark.read.parquet, which rebases such values"
                )


def _instants(parquet: Any) -> dict[str, pa.DataType]:
    """Return the types of the columns in which Spark wrote instants as INT96: Arrow takes them for local."""
    leaves = iter([parquet.schema.column(at).physical_type for at in range(len(parquet.schema.names))])
    kinds = [(field, _instant(field.type, leaves)) for field in parquet.schema_arrow]
    return {field.name: kind for field, kind in kinds if kind != field.type}


def _instant(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_instant(field.type, leaves)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_instant(kind.key_type, leaves), _instant(kind.item_type, leaves))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_instant(kind.value_type, leaves)))
    return pa.timestamp("us", "UTC") if next(leaves) == "INT96" else kind


def _batch_rows(group: Any, columns: list[str], nbytes: int) -> int:
    """Rows that take about `nbytes` in these columns of a row group."""
    wanted = set(columns)
    sizes = (group.column(at) for at in range(group.num_columns))
    total = sum(
        each.total_uncompressed_size for each in sizes if each.path_in_schema.partition(".")[0] in wanted
    )
    return max(1, min(MAX_BATCH_ROWS, int(nbytes * group.num_rows / max(1, total))))


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
