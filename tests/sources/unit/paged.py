"""Slices of a row group of Parquet beside what Arrow reads of all of it."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from pillarbox.sources.connectors.parquet_pages import PagedFile


def opened(content: bytes) -> Any:
    """The file as the source opens it."""
    return pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")


def check_slices(content: bytes, group: int, edges: list[tuple[int, int]], batch_rows: int) -> None:
    """Compare slices of a row group of a file of one column with those of Arrow's reading of all of it."""
    parquet = opened(content)
    whole = parquet.read_row_group(group, use_threads=False).column(0).combine_chunks()
    paged = PagedFile(BytesIO(content), len(content))
    for start, stop in edges:
        arrays = paged.column(parquet.schema_arrow.field(0), group, start, stop, batch_rows)
        assert arrays is not None
        at = start
        for array in arrays:
            assert len(array) == min(batch_rows, stop - at)
            # Below a null Arrow gives indices of no value, in what it reads as a whole, too.
            array.validate(full="dictionary" not in str(array.type))
            assert array.type == whole.type
            # Not as arrays: the dictionaries of the pages of a slice may be smaller.
            assert array.to_pylist() == whole.slice(at, len(array)).to_pylist()
            at += len(array)
        assert at == stop
