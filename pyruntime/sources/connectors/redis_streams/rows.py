"""Entries of a Redis stream as Arrow. Pure; any thread.

Columns whose names begin with `_` tell of the entry: `_stream`, `_id`, `_time` (when it was added,
from its id) and `_fields`, all its fields as a map. Every other column is the field of that name, read as
text of its type; null where an entry has no such field.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Entry = tuple[bytes, list[bytes]]
"""An id, and names and values of fields in turn."""
DEFAULT = pa.schema(
    [
        ("_stream", pa.string()),
        ("_id", pa.string()),
        ("_time", pa.timestamp("us", "UTC")),
        ("_fields", pa.map_(pa.string(), pa.string())),
    ]
)
"""The columns of a stream of which nothing is known."""
BAD_VALUE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError)


def check_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` if entries can be read so. Raises ValueError that names the column."""
    for column in schema:
        name, kind = column.name, column.type
        if name in ("_stream", "_id"):
            good, allowed = _is_text(kind), "a string"
        elif name == "_time":
            good, allowed = types.is_timestamp(kind), "a timestamp"
        elif name == "_fields":
            good, allowed = types.is_map(kind), "a map of strings or binaries"
            good = good and all(
                _is_text(part) or types.is_binary(part) for part in (kind.key_type, kind.item_type)
            )
        elif name.startswith("_"):
            raise ValueError(f"column {name!r}: must be _stream, _id, _time, _fields, or a field's name")
        else:
            good = not types.is_nested(kind) and not types.is_null(kind)
            allowed = "a type that text can be read as"
        if not good:
            raise ValueError(f"column {name!r} is {kind}: must be {allowed}")
    return schema


def to_batch(stream: str, entries: list[Entry], schema: pa.Schema) -> pa.RecordBatch:
    """The entries as rows of `schema`. Raises ValueError for a value that its column cannot hold."""
    try:
        held = _held(entries, schema)
        columns = [_column(stream, entries, held, column) for column in schema]
    except BAD_VALUE:
        # Which entry it was is only looked for when there is one.
        for entry in entries:
            held = _held([entry], schema)
            for column in schema:
                try:
                    _column(stream, [entry], held, column)
                except BAD_VALUE as error:
                    value = held[0].get(column.name.encode(), entry[1]) if held else entry[1]
                    raise ValueError(
                        f"stream {stream!r}, entry {entry[0].decode()}: {value!r:.50} cannot be read as "
                        f"column {column.name!r}, {column.type}: {error}"
                    ) from None
        raise
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def mean_size(entries: list[Entry]) -> int:
    """Bytes of an entry, about, of these, at least one; at least 1."""
    sample = entries[:: max(1, len(entries) // 20)]
    return max(1, sum(sum(map(len, fields)) + 20 for _, fields in sample) // len(sample))


def _held(entries: list[Entry], schema: pa.Schema) -> list[dict[bytes, bytes]]:
    """The fields of each entry, by their names, if any column asks for them."""
    if all(name.startswith("_") for name in schema.names):
        return []
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]


def _column(stream: str, entries: list[Entry], held: list[dict[bytes, bytes]], column: pa.Field) -> pa.Array:
    kind = column.type
    if column.name == "_stream":
        return pa.repeat(pa.scalar(stream, kind), len(entries))
    if column.name == "_id":
        return _cast([entry_id for entry_id, _ in entries], kind)
    if column.name == "_time":
        ms = pa.array([int(entry_id.partition(b"-")[0]) for entry_id, _ in entries], pa.int64())
        return ms.cast(pa.timestamp("ms", kind.tz)).cast(kind)
    if column.name == "_fields":
        counts = accumulate((len(fields) // 2 for _, fields in entries), initial=0)
        flat = list(chain.from_iterable(fields for _, fields in entries))
        parts = _cast(flat[::2], kind.key_type), _cast(flat[1::2], kind.item_type)
        return pa.MapArray.from_arrays(pa.array(counts, pa.int32()), *parts, type=kind)
    name = column.name.encode()
    return _cast([fields.get(name) for fields in held], kind)


def _cast(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    made = pa.array(values, pa.binary())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return made.cast(kind)
    text: Any = made.cast(pa.string())
    if types.is_timestamp(kind) and kind.tz is not None:
        # Arrow wants a zone in all or in none: what has none is UTC.
        bare = pc.invert(pc.match_substring_regex(text, r":.*(Z|[+-]\d\d(:?\d\d)?)$"))
        text = pc.if_else(bare, pc.binary_join_element_wise(text, "Z", ""), text)
    return text.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))
