"""Text: a row for each line, without what ends it. See `FileFormat` for who calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.text import TextFormat

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class LinesFormat(TextFormat):
    """One column. A line ends with a newline, or a carriage return and a newline."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError unless the first column is of text or bytes. Others may be names of folders."""
        import pyarrow as pa

        super().check_schema(schema)
        if schema.field(0).type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            raise _not_text(schema)

    def parse(self, block: bytes, said: Any, wanted: pa.Schema) -> pa.RecordBatch:
        """The lines. Raises ValueError unless one column is wanted, of text or bytes."""
        import pyarrow as pa
        from pyarrow import compute

        if len(wanted) != 1:
            raise _not_text(wanted)
        if b"\r\n" in block:
            block = block.replace(b"\r\n", b"\n")
        kind = wanted.field(0).type
        ends = block.endswith(b"\n")
        newline = "\n" if kind in (pa.string(), pa.large_string()) else b"\n"
        lines = compute.split_pattern(pa.array([block], kind), newline).flatten()
        # What stands behind the last newline is no line.
        return pa.RecordBatch.from_arrays([lines[: len(lines) - ends]], schema=wanted)

    def schema_of(self, head: bytes) -> pa.Schema:
        """One column, `value`, as Spark calls it."""
        import pyarrow as pa

        return pa.schema([("value", pa.string())])


def _not_text(schema: pa.Schema) -> ValueError:
    return ValueError(f"schema={schema.to_string()!r}: text has one column, of text or bytes")
