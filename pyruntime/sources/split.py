"""A split: the part of a source that one reader reads, from a position up to another; its lost data.

The idea is Flink's `SourceSplit` (FLIP-27). Here a split says from where to where, so that one shape serves a
range of a file, a partition of a log, and the piece of it that a micro-batch reads. Plain values, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pillarbox.kernel import PillarboxError


class DataLossError(PillarboxError):
    """Data that was to be read is gone: expired, trimmed or deleted before it was read. The text says which.

    Raised in a task it is the `__cause__` of a `ReadFailed`. Connectors that can go on without take
    `on_data_loss="ignore"`.
    """


S = TypeVar("S", bound="Split")


@dataclass(frozen=True)
class Split:
    """A part of a source. Derive a frozen dataclass from it for what a reader must know besides.

    Fields hold what JSON can: None, bool, int, float, str, and lists and dicts of these; or the source has a
    serializer of its own. Secrets belong into the source, not here: splits are written into checkpoints.
    """

    split_id: str
    """Names the part, whatever its positions are. Unique in the source, and the same after a restart."""
    start: Any = None
    """The position to read from; None is the beginning."""
    stop: Any = None
    """The position to read up to, itself excluded; None where there is no end, or only the reader knows."""

    @property
    def rows(self) -> int | None:
        """Rows from `start` to `stop`, or about so many; None if nobody knows."""
        return None

    @property
    def nbytes(self) -> int | None:
        """Bytes from `start` to `stop`, or about so many; None if nobody knows."""
        return None

    @property
    def files(self) -> int:
        """The number of files that it counts for in `max_files`."""
        return 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines that are near to it."""
        return ()

    def starting_at(self: S, position: Any) -> S:
        """The rest of it, from `position` on."""
        return replace(self, start=position)

    def up_to(self: S, position: Any) -> S:
        """The front of it, up to `position`."""
        return replace(self, stop=position)


@dataclass(frozen=True)
class OffsetSplit(Split):
    """A split whose positions are whole numbers, each of one row at most: offsets, ids, numbers of rows."""

    start: int = 0

    @property
    def rows(self) -> int | None:
        """At most so many, as numbers may be missing."""
        return None if self.stop is None else max(0, int(self.stop) - self.start)
