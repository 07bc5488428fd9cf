"""Columns of more text than one array of Arrow holds: parts of them, without joining what is apart.

Pure; any thread.
"""

# Arrow's `string` and `binary`, the types that Spark has, count the bytes of an array in 32 bits. A column of
# a table may have more, in several chunks, or in the types with 64 bits. Whatever makes one array of it
# fails: `combine_chunks`, a cast, and a `take` of a few rows, which joins the chunks first.

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox.spark.records import MAX_BYTES

MAX_PART_BYTES = 1 << 30
"""Bytes of a part of several rows, at most: half the capacity of an array, as rows differ in size."""


def small_parts(table: pa.Table, rows: int, max_bytes: int = MAX_PART_BYTES) -> Iterator[pa.Table]:
    """Yield the rows of a table in parts of at most so many rows and bytes, each of one chunk, uncopied."""
    for batch in table.to_batches(max_chunksize=rows):
        for start, count in _cuts(batch, max_bytes):
            yield pa.Table.from_batches([batch.slice(start, count)])


def small_chunks(column: pa.Array | pa.ChunkedArray, max_bytes: int = MAX_PART_BYTES) -> list[pa.Array]:
    """Return a column in arrays of at most so many bytes, uncopied; one at least."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [chunk.slice(start, count) for chunk in chunks for start, count in _cuts(chunk, max_bytes)]
    return parts or [pa.array([], column.type)]


def _cuts(whole: pa.Array | pa.RecordBatch, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the number of rows of each part."""
    waiting = [(0, len(whole))] if len(whole) else []
    while waiting:
        start, count = waiting.pop()
        if count == 1 or whole.slice(start, count).nbytes <= max_bytes:
            yield start, count
            continue
        half = count // 2
        waiting += [(start + half, count - half), (start, half)]


def as_type(column: pa.ChunkedArray, wanted: pa.DataType, *, safe: bool) -> pa.ChunkedArray:
    """Return a column in another type, part by part. Raises ArrowException, as Arrow's own `cast`."""
    try:
        return column.cast(wanted, safe=safe)
    except pa.ArrowInvalid:
        # A part of an array counts its bytes from the begin of the whole, which may be beyond 32 bits: copied
        # it counts from its own.
        apart = [pa.concat_arrays([chunk]) for chunk in column.chunks]
        return pa.chunked_array(apart, column.type).cast(wanted, safe=safe)


def rows_at(table: pa.Table, positions: npt.NDArray[np.int64]) -> pa.Table:
    """Return the rows of a table at these positions, in their order."""
    try:
        return table.take(pa.array(positions))
    except pa.ArrowInvalid:
        return _rows_of_chunks(table, positions)


def _rows_of_chunks(table: pa.Table, positions: npt.NDArray[np.int64]) -> pa.Table:
    """The rows, each taken from the batch in which it is."""
    batches = table.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    places = np.searchsorted(starts, positions, "right") - 1
    runs = np.split(np.arange(len(positions)), np.flatnonzero(np.diff(places)) + 1)
    taken = [
        batches[places[run[0]]].take(pa.array(positions[run] - starts[places[run[0]]]))
        for run in runs
        if len(run)
    ]
    return pa.Table.from_batches(taken, table.schema)


def joined(parts: Sequence[pa.Array], max_bytes: int = MAX_BYTES) -> pa.Array:
    """Return arrays of one type as one, of texts with 64 bits where there are more than `max_bytes`."""
    if len(parts) == 1:
        return parts[0]
    if pa.types.is_string(parts[0].type) and sum(part.nbytes for part in parts) > max_bytes:
        parts = [part.cast(pa.large_string()) for part in parts]
    return pa.concat_arrays(parts)
