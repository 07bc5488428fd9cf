"""Text: a row for each line, without what ends it. See `FileFormat` for who calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.text import BOM, TextFormat

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class LinesFormat(TextFormat):
    """One column. A line ends with a newline, or a carriage return and a newline."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError unless there is one column, of text or bytes."""
        import pyarrow as pa

        kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
        if len(schema) != 1 or schema.field(0).type not in kinds:
            raise ValueError(f"schema={schema.to_string()!r}: text has one column, of text or bytes")

    def front(self, head: bytes) -> tuple[int, Any]:
        """No header, but perhaps a mark of the encoding."""
        return (len(BOM) if head.startswith(BOM) else 0), None

    def parse(self, block: bytes, said: Any, wanted: pa.Schema) -> pa.RecordBatch:
        """The lines."""
        import pyarrow as pa
        from pyarrow import compute

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
