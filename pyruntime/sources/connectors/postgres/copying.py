"""Rows that COPY has written as CSV, as Arrow. Pure; any thread.

CSV, because Arrow reads it in C++: of what psycopg offers, that costs half of what its binary cursor and
Arrow's conversion of Python objects do.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def read_csv(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The rows. Raises ValueError that names the column of a value that Arrow has none for, as 'infinity'."""
    import pyarrow as pa
    from pyarrow import csv

    types = {
        column.name: pa.string() if pa.types.is_binary(column.type) else column.type for column in schema
    }
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=max(1, len(data)) + 1, column_names=schema.names),
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid as error:
        found = re.search(r"In CSV column #(\d+): (.*)", str(error), re.DOTALL)
        if found is None:
            raise
        name = schema.names[int(found[1])]
        raise ValueError(
            f"column {name!r}: {found[2]}; a cast to text would read it, casts={{{name!r}: 'text'}}"
        ) from None
    columns = [
        _from_hex(column.combine_chunks()) if pa.types.is_binary(field.type) else column.combine_chunks()
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [each.chunk(0) if isinstance(each, pa.ChunkedArray) else each for each in columns], schema=schema
    )


def _from_hex(column: pa.StringArray) -> pa.Array:
    import pyarrow as pa

    return pa.array(
        [None if text is None else bytes.fromhex(text[2:]) for text in column.to_pylist()], pa.binary()
    )
