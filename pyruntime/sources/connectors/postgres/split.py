"""A range of a table's rows: `PostgresSplit`. A plain value, any thread."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.sources.split import Split


@dataclass(frozen=True)
class PostgresSplit(Split):
    """Rows of a table in the order of a key. A position is the text of a key: the place just behind it."""

    snapshot: str | None = None
    """The exported snapshot in which it is read; None for a snapshot of its own."""
    count: int | None = None
    """Rows in it, about."""
    size: int | None = None
    """Bytes of it in the table, about."""

    @property
    def rows(self) -> int | None:
        """About so many."""
        return self.count

    @property
    def nbytes(self) -> int | None:
        """About so many."""
        return self.size
