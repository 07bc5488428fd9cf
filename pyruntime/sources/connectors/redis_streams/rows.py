"""Entries of a Redis stream as Arrow. Pure; any thread.

Columns whose names begin with `_` tell of the entry: `_stream`, `_id`, `_time` (when it was added,
from its id) and `_fields`, all its fields as a map. Every other column is the field of that name, read as
text of its type; null where an entry has no such field.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Entry = tuple[bytes, list[bytes]]
"""An id, and names and values of fields in turn."""


def default_schema() -> pa.Schema:
    """The columns of a stream of which nothing is known."""
    import pyarrow as pa

    return pa.schema(
        [
            ("_stream", pa.string()),
            ("_id", pa.string()),
            ("_time", pa.timestamp("us", "UTC")),
            ("_fields", pa.map_(pa.string(), pa.string())),
        ]
    )


def check_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` if entries can be read so. Raises ValueError that names the column."""
    import pyarrow as pa

    for column in schema:
        name, kind = column.name, column.type
        if name in ("_stream", "_id"):
            good, allowed = _is_text(kind), "a string"
        elif name == "_time":
            good, allowed = pa.types.is_timestamp(kind), "a timestamp"
        elif name == "_fields":
            good = pa.types.is_map(kind) and all(
                _is_text(part) or pa.types.is_binary(part) for part in (kind.key_type, kind.item_type)
            )
            allowed = "a map of strings or binaries"
        elif name.startswith("_"):
            raise ValueError(f"column {name!r}: must be _stream, _id, _time, _fields, or a field's name")
        else:
            good = not pa.types.is_nested(kind) and not pa.types.is_null(kind)
            allowed = "a type that text can be read as"
        if not good:
            raise ValueError(f"column {name!r} is {kind}: must be {allowed}")
    return schema


def to_batch(stream: str, entries: list[Entry], schema: pa.Schema) -> pa.RecordBatch:
    """The entries as rows of `schema`. Raises ValueError for a value that its column cannot hold."""
    import pyarrow as pa

    asked = [column.name for column in schema if not column.name.startswith("_")]
    held = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries] if asked else []
    columns = []
    for column in schema:
        if column.name == "_stream":
            made = pa.repeat(pa.scalar(stream, column.type), len(entries))
        elif column.name == "_id":
            made = pa.array([entry_id for entry_id, _ in entries], pa.binary()).cast(column.type)
        elif column.name == "_time":
            made = _times(stream, entries, column.type)
        elif column.name == "_fields":
            made = _map(stream, entries, column.type)
        else:
            name = column.name.encode()
            values = [fields.get(name) for fields in held]
            made = _read(stream, entries, column.name, values, column.type)
        columns.append(made)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def mean_size(entries: list[Entry]) -> int:
    """Bytes of an entry, about, of these, at least one; at least 1."""
    sample = entries[:: max(1, len(entries) // 20)]
    return max(1, sum(sum(map(len, fields)) + 20 for _, fields in sample) // len(sample))


def _times(stream: str, entries: list[Entry], kind: pa.TimestampType) -> pa.Array:
    import pyarrow as pa

    try:
        ms = pa.array([int(entry_id.partition(b"-")[0]) for entry_id, _ in entries], pa.int64())
        return ms.cast(pa.timestamp("ms", kind.tz)).cast(kind)
    except (OverflowError, pa.ArrowInvalid):
        if len(entries) > 1:
            for entry in entries:
                _times(stream, [entry], kind)
        raise ValueError(
            f"stream {stream!r}, entry {entries[0][0].decode()}: its id is no time in milliseconds that "
            f"column '_time', {kind}, can hold: leave the column out"
        ) from None


def _map(stream: str, entries: list[Entry], kind: pa.MapType) -> pa.Array:
    import pyarrow as pa

    offsets = [0]
    for _, fields in entries:
        offsets.append(offsets[-1] + len(fields) // 2)
    flat = list(chain.from_iterable(fields for _, fields in entries))
    parts = []
    for words, part in ((flat[::2], kind.key_type), (flat[1::2], kind.item_type)):
        try:
            parts.append(pa.array(words, pa.binary()).cast(part))
        except pa.ArrowInvalid:
            raise ValueError(_first_bad(stream, entries, None, [], part)) from None
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), *parts, type=kind)


def _read(
    stream: str, entries: list[Entry], name: str, values: list[bytes | None], kind: pa.DataType
) -> pa.Array:
    import pyarrow as pa

    try:
        return _cast(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise ValueError(_first_bad(stream, entries, name, values, kind)) from None


def _cast(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    made = pa.array(values, pa.binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return made.cast(kind)
    text = made.cast(pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Arrow wants a zone in all or in none: what has none is UTC.
        import pyarrow.compute as pc

        bare = pc.invert(pc.match_substring_regex(text, r":.*(Z|[+-]\d\d(:?\d\d)?)$"))
        text = pc.if_else(bare, pc.binary_join_element_wise(text, "Z", ""), text)
    return text.cast(kind)


def _first_bad(
    stream: str, entries: list[Entry], name: str | None, values: list[bytes | None], kind: pa.DataType
) -> str:
    """Which entry it was; only looked for when there is one."""
    import pyarrow as pa

    for at, (entry_id, fields) in enumerate(entries):
        for value in fields if name is None else [values[at]]:
            try:
                _cast([value], kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                what = "a field" if name is None else f"field {name!r}"
                return (
                    f"stream {stream!r}, entry {entry_id.decode()}: {what} is {(value or b'')[:50]!r}, "
                    f"which cannot be read as {kind}: {error}"
                )
    return f"stream {stream!r}: fields cannot be read as {kind}"


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
