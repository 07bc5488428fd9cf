"""Entries of a Redis stream: their positions, the splits of a stream, the entries as Arrow. Pure; any thread.

A position is the least id that comes next, and the number of entries that were added to the stream before
it, where that is known: "1526919030474-56", or "1526919030474-56@1024". Columns whose names begin with `_`
tell of the entry: `_stream`, `_id`, `_time` (when it was added, from its id) and `_fields`, all its fields
as a map. Every other column is the field of that name, read as text of its type; null where an entry has no
such field.
"""

# Why a position has a count beside the id. Redis trims a stream at its front, and who reads on from an id
# that is gone gets the next that is there: ids alone do not tell whether anything was between.
# `entries-added` (Redis 7) counts all that ever came; less what is there, and less what was read, it is what
# was lost. A count that is only probable would end good jobs: where entries were deleted singly
# (`has_holes`), or nobody knows how many were read, the text says "may".
#
# Why the ids of a stream that was deleted and made again are not trusted alone: Redis gives a stream no
# identity, and a new one may go on with ids above the old. A count or an id that went back shows it.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pillarbox.sources.connectors.log import LogSplit, Part

LAST_SEQUENCE = 2**64 - 1


class EntryId(NamedTuple):
    """The id of an entry: milliseconds since 1970, and a number among those of one millisecond."""

    ms: int
    sequence: int

    @classmethod
    def parse(cls, text: str | bytes) -> EntryId:
        """The id that Redis writes so. Raises ValueError."""
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        ms, dash, sequence = text.partition("-")
        if not (ms.isdecimal() and (sequence.isdecimal() if dash else True)):
            raise ValueError(f"{text!r}: must be an id of a stream's entry, such as '1526919030474-55'")
        return cls(int(ms), int(sequence or 0))

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"

    @property
    def next(self) -> EntryId:
        """The least id above it."""
        if self.sequence == LAST_SEQUENCE:
            return EntryId(self.ms + 1, 0)
        return EntryId(self.ms, self.sequence + 1)

    @property
    def before(self) -> EntryId:
        """The greatest id below it; of the least one, itself."""
        if self.sequence:
            return EntryId(self.ms, self.sequence - 1)
        return EntryId(self.ms - 1, LAST_SEQUENCE) if self.ms else self


FIRST = EntryId(0, 0)
MIN_ID = EntryId(0, 1)
"""The least id that an entry can have."""


class StreamState(NamedTuple):
    """The state of a stream, as Redis says it."""

    length: int
    first: EntryId | None
    last: EntryId
    """The id that was given last; its entry may be gone."""
    added: int | None
    """Entries ever added; None before Redis 7."""
    deleted: EntryId
    """The greatest id that was deleted singly, by XDEL."""

    @classmethod
    def parse(cls, answer: Any) -> StreamState:
        """Return what XINFO STREAM has answered, as RESP 2 or 3 gives it."""
        if not isinstance(answer, Mapping):
            answer = dict(zip(answer[::2], answer[1::2], strict=True))
        first = answer[b"first-entry"]
        return cls(
            length=int(answer[b"length"]),
            first=EntryId.parse(first[0]) if first else None,
            last=EntryId.parse(answer[b"last-generated-id"]),
            added=answer.get(b"entries-added"),
            deleted=EntryId.parse(answer.get(b"max-deleted-entry-id", b"0-0")),
        )

    @property
    def end(self) -> Position:
        """The position behind all that was ever added."""
        return Position(self.last.next, self.added)

    @property
    def has_holes(self) -> bool:
        """True if entries were deleted behind the first that is left: then counts say too much."""
        return self.first is not None and self.deleted >= self.first


class Position(NamedTuple):
    """The least id that comes next, and how many entries were added before it; None if unknown."""

    next: EntryId = FIRST
    added: int | None = None

    @classmethod
    def parse(cls, written: str | None) -> Position:
        """The position that is written so; None is the beginning. Raises ValueError."""
        if written is None:
            return cls()
        text, mark, added = written.partition("@")
        if mark and not added.isdecimal():
            raise ValueError(f"position={written!r}: behind the @ must be a number of entries")
        return cls(EntryId.parse(text), int(added) if mark else None)

    def __str__(self) -> str:
        return str(self.next) if self.added is None else f"{self.next}@{self.added}"

    def missing(self, state: StreamState) -> str | None:
        """Say what is missing of the entries from here on, in words; None if all are there.

        Where it cannot be told, because the count is not known or single entries were deleted, it may be
        missing.
        """
        if state.added is None or self == Position():
            return None
        if self.added is not None and (self.added > state.added or self.next > state.last.next):
            return "the stream was deleted and made anew"
        if self.next > state.last or (state.first is not None and state.first < self.next):
            return None
        missing = state.added - state.length - (self.added or 0)
        if missing <= 0:
            return None
        entries = f"{missing} entries were" if missing > 1 else "1 entry was"
        if self.added is None or state.has_holes:
            entries = "some entries may have been"
        return f"{entries} trimmed or deleted before they were read"

    def settled(self, state: StreamState) -> Position:
        """The same place, with the count that `state` gives, where it gives one."""
        if state.added is None or self.next > state.last.next:
            # Nobody has been there yet. With a count it would be what was read of a stream that is no more.
            return Position(self.next)
        if self.next > state.last:
            return state.end
        if (state.first is None or state.first >= self.next) and not state.has_holes:
            return Position(self.next, state.added - state.length)
        if self.added is not None and self.added > state.added:
            return Position(self.next)
        return self

    def behind(self, last_read: EntryId, rows: int, state: StreamState) -> Position:
        """The position after `rows` entries from here on, the last of which is `last_read`."""
        if last_read >= state.last:
            return Position(last_read.next, state.added)
        if self.added is None or state.deleted >= max(self.next, MIN_ID):
            return Position(last_read.next)
        return Position(last_read.next, self.added + rows)


@dataclass(frozen=True)
class RedisStreamSplit(LogSplit):
    """The entries of a stream from position `start` up to `stop`.

    entries, size: how many there are, and bytes of their fields, where they were counted.
    """

    stream: str = ""
    entries: int | None = None
    size: int | None = None

    @property
    def rows(self) -> int | None:
        """As they were counted."""
        return self.entries

    @property
    def nbytes(self) -> int | None:
        """As they were counted."""
        return self.size

    @property
    def part(self) -> Part:
        """See `LogSplit.part`. Redis gives a stream no identity."""
        return Part(self.stream, 0, "")


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
