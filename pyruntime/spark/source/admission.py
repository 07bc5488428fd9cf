"""What is left of a micro-batch's limit, and its sharing out among splits. Pure; confined to one planning.

A limit is that of the options `max_rows`, `max_bytes` and `max_files`, or what Spark says.
"""

from __future__ import annotations

from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.split import Split

DEFAULT_MAX_FILES = 10_000
"""Files of a micro-batch where no option says how many: its plan stands in the offset, and in its tasks."""


class Budget:
    """What a micro-batch may still read.

    A split whose size nobody knows counts for nothing. One that is larger than the whole limit is read all
    the same where nothing was read yet, if it cannot be cut: otherwise it would never be.
    """

    def __init__(self, limit: ReadLimit) -> None:
        self._rows = limit.rows
        self._nbytes = limit.nbytes
        self._files = limit.files
        self._taken = False
        few_files = limit.files is not None and limit.files < DEFAULT_MAX_FILES
        self.limited = limit.rows is not None or limit.nbytes is not None or few_files
        """True if splits are cut, or if many of those that are found may have to wait."""

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read."""
        return any(left is not None and left <= 0 for left in (self._rows, self._nbytes, self._files))

    def share(self, splits: int) -> ReadLimit:
        """What one split may read of what is left, when so many are still to come; at least one of each."""
        return ReadLimit(
            None if self._rows is None else max(1, self._rows // splits),
            None if self._nbytes is None else max(1, self._nbytes // splits),
            None if self._files is None else max(1, self._files),
        )

    def admits(self, split: Split) -> bool:
        """Whether there is room for this."""
        return not self._taken or all(
            left is None or size is None or size <= left
            for left, size in (
                (self._rows, split.rows),
                (self._nbytes, split.nbytes),
                (self._files, split.files),
            )
        )

    def take(self, split: Split) -> None:
        """Count it."""
        self._taken = True
        if self._rows is not None:
            self._rows -= split.rows or 0
        if self._nbytes is not None:
            self._nbytes -= split.nbytes or 0
        if self._files is not None:
            self._files -= split.files
