"""Positions in a Redis stream, its splits, and how missing entries are noticed. Pure; any thread.

A position is the least id that comes next, and the number of entries that were added to the stream before it,
where that is known: "1526919030474-56", or "1526919030474-56@1024". Redis counts what it ever added
(`entries-added`, since 7.0), so the count before the first entry that is left is known too. If that is more
than a reader's own count, entries have gone that it has not read. The counting is that of Redis for the lag
of its consumer groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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
