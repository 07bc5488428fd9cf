"""JSON lines: an object a line. See `FileFormat` for who calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files.csv import one_batch
from pillarbox.sources.connectors.files.formats import plain_schema
from pillarbox.sources.connectors.files.text import BOM, TextFormat

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class JsonFormat(TextFormat):
    """What a line does not have is null, what is not wanted is passed over, and so are empty lines."""

    def front(self, head: bytes) -> tuple[int, Any]:
        """No header, but perhaps a mark of the encoding."""
        return (len(BOM) if head.startswith(BOM) else 0), None

    def parse(self, block: bytes, said: Any, wanted: pa.Schema) -> pa.RecordBatch:
        """The rows."""
        return one_batch(_read(block, wanted), wanted)

    def schema_of(self, head: bytes) -> pa.Schema:
        """The columns and their types as Arrow infers them."""
        import pyarrow as pa

        text = head[self.front(head)[0] :]
        return plain_schema(_read(text, None).schema) if text.strip() else pa.schema([])


def _read(block: bytes, wanted: pa.Schema | None) -> pa.Table:
    import pyarrow as pa
    from pyarrow import json

    parse = json.ParseOptions()
    if wanted is not None:
        parse = json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    return json.read_json(
        pa.BufferReader(block),
        read_options=json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=parse,
    )
