"""JSON lines: an object a line. See `FileFormat` for who calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.csv import one_batch
from pillarbox.sources.connectors.files.text import TextFormat

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class JsonFormat(TextFormat):
    """What a line does not have is null, what is not wanted is passed over, and so are empty lines."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that Arrow does not read from JSON."""
        import pyarrow as pa

        super().check_schema(schema)
        for column in schema:
            if pa.types.is_map(column.type):
                raise ValueError(
                    f"column {column.name!r} is {column.type}: JSON has no maps; read it as a struct of the "
                    "names that are wanted"
                )

    def parse(self, block: bytes, said: Any, wanted: pa.Schema) -> pa.RecordBatch:
        """The rows."""
        table = _read(block, wanted)
        # Arrow looks at no text of JSON, whether it is UTF-8.
        table.validate(full=True)
        return one_batch(table, wanted)

    def schema_of(self, head: bytes) -> pa.Schema:
        """The columns and their types as Arrow infers them."""
        import pyarrow as pa

        text = head[self.front(head)[0] :]
        return _read(text, None).schema if text.strip() else pa.schema([])


def _read(block: bytes, wanted: pa.Schema | None) -> pa.Table:
    import pyarrow as pa
    from pyarrow import json

    parse = json.ParseOptions()
    if wanted is not None:
        # Arrow takes dates for numbers here; `conform` reads them from their text.
        asked = pa.schema(
            field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in wanted
        )
        parse = json.ParseOptions(explicit_schema=asked, unexpected_field_behavior="ignore")
    return json.read_json(
        pa.BufferReader(block),
        read_options=json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=parse,
    )
