"""How long an input has looked for rows and found none, for readers that cannot say it of their clients.

A split is idle only if it has nothing. That the task did not look, for it was busy or held up, says nothing:
its rows may be there. Used by `SourceInput`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class Looking:
    """Counts the seconds between a `poll` that found nothing and the moment at which something was there.

    Confined, but for `something`. clock: seconds, monotonic; any thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._total = 0.0
        self._began: float | None = None
        self._ended: float | None = None
        self._from: dict[str, float] = {}

    def begin(self, split_ids: Collection[str]) -> None:
        """Begin to count for these splits, again."""
        self._from.update(dict.fromkeys(split_ids, self._total))

    def forget(self, split_id: str) -> None:
        """Count for this split no more."""
        self._from.pop(split_id, None)

    def nothing(self) -> None:
        """A poll has found nothing."""
        now = self._clock()
        # Whatever rang in between: there were no rows up to now.
        if self._began is not None:
            self._total += now - self._began
        self._began, self._ended = now, None

    def something(self) -> None:
        """Rows may be there from now on. Any thread."""
        if self._ended is None:
            self._ended = self._clock()

    def found(self) -> None:
        """A poll has found rows."""
        began, ended = self._began, self._ended
        self._began = None
        if began is not None and ended is not None:
            self._total += max(0.0, ended - began)

    def looked(self, split_id: str) -> float:
        """Seconds counted for the split, up to the last poll that found nothing."""
        return self._total - self._from.get(split_id, self._total)
