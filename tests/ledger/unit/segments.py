"""Small segments in memory, and what a scan finds in them. For the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pillarbox.ledger.errors import Damage
from pillarbox.ledger.format import (
    NOBODY,
    VALUE,
    encode_frame,
    header,
    message_of,
    open_frame,
    scan,
    to_batch,
)
from pillarbox.ledger.values import encode

ID = "00112233aabbccdd"


class Entry(NamedTuple):
    """A finished call on its way to a segment; with names for the items of a `Row`."""

    key: bytes
    kind: str
    json: str
    floats: Sequence[Sequence[float]]
    blobs: Sequence[bytes]
    attempts: int
    latency: float
    cost: float
    at: int
    """Microseconds since 1970."""
    input: bytes = b""
    """The fingerprint of the row's input."""


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(8)


def entry(number: int, value: Any) -> Entry:
    return Entry(key(number), VALUE, *encode(value), 1, 0.5, 0.0, 0)


def segment(frames: list[dict[int, Any]], segment_id: str = ID, owner: str = NOBODY) -> bytes:
    """A segment with a frame for each dict of numbers and values."""
    content = header(segment_id, {"run": "test"})
    for frame in frames:
        batch = to_batch([entry(number, value) for number, value in frame.items()])
        content += b"".join(encode_frame(message_of(batch), segment_id, len(content), owner)[1])
    return content


def ends(content: bytes, segment_id: str = ID) -> list[int]:
    """The ends of the frames of a sound segment."""
    found = scan(reader_of(content), len(content), "s", segment_id)
    return [item[0].end for item in found if not isinstance(item, Damage)]


def reader_of(content: bytes) -> Any:
    return lambda offset, length: content[offset : offset + length]


def look(content: bytes, segment_id: str = ID) -> tuple[dict[bytes, str], list[Damage]]:
    """The JSON of every record that is trusted, by key, and the damage."""
    records: dict[bytes, str] = {}
    damage = []
    for item in scan(reader_of(content), len(content), "s", segment_id):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        frame, keys = item
        batch = open_frame(frame, reader_of(content))
        if isinstance(batch, Damage):
            damage.append(batch)
            continue
        assert keys == b"".join(batch.column(0).to_pylist())
        for row in range(batch.num_rows):
            records[batch.column(0)[row].as_py()] = batch.column(2)[row].as_py()
    return records, damage
