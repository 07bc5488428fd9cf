"""A part of a file: `FileSplit`. A plain value, any thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pillarbox.sources.split import Split

END = 2**63 - 1
"""A `stop` behind the end of every file: for what is read to its end, wherever that is."""


@dataclass(frozen=True)
class FileSplit(Split):
    """A part of a file, from position `start` up to `stop`.

    Positions are bytes in text, after decompression, and rows in Parquet. In text `start` and `stop` need not
    be at a line's edge: the lines are read that *begin* between them. So any cuts read each line once.
    """

    path: str = ""
    size: int = 0
    """Bytes of the file when it was found."""
    modified: int = 0
    """When it had been modified then, in nanoseconds since 1970."""
    weight: float | None = None
    """Bytes for one position; None if unknown."""
    by_rows: bool = False
    """Whether positions are rows."""
    counted: int | None = None
    """Rows from `start` to `stop`, where somebody has counted them; of text the lines, empty ones too."""

    @property
    def rows(self) -> int | None:
        """Exact in Parquet, where the end is known; of text, what was counted, or None."""
        if self.counted is not None:
            return self.counted
        return int(self.stop - self.start) if self.by_rows and self.stop != END else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the file that it takes, about."""
        count = self.rows if self.by_rows else self.stop - self.start
        return self.size if self.weight is None or count is None else round(count * self.weight)

    @property
    def files(self) -> int:
        """1 for the front of a file, so that a file counts once."""
        return int(self.start == 0)

    def starting_at(self, position: Any) -> FileSplit:
        """The rest of it, which nobody has counted."""
        return replace(self, start=position, counted=None)

    def up_to(self, position: Any) -> FileSplit:
        """The front of it, which nobody has counted."""
        return replace(self, stop=position, counted=None)
