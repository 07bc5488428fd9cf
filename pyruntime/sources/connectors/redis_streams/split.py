"""A part of a Redis stream: `RedisStreamSplit`. A plain value, any thread."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.sources.split import Split


@dataclass(frozen=True)
class RedisStreamSplit(Split):
    """The entries of a stream from position `start` up to `stop`: see `redis_streams.position`."""

    stream: str = ""
    entries: int | None = None
    """How many there are, where they were counted."""
    size: int | None = None
    """Bytes of their fields, where they were counted."""

    @property
    def rows(self) -> int | None:
        """As they were counted."""
        return self.entries

    @property
    def nbytes(self) -> int | None:
        """As they were counted."""
        return self.size
