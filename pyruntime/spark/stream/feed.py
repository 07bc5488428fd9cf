"""The input of an operator that makes the calls of a stream. For the thread of the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pillarbox.aio.sources import Lot
from pillarbox.spark.stream.entry import Entry


class Feed:
    """Lots of entries, and no end."""

    def __init__(self) -> None:
        self._lots: deque[tuple[list[Entry], int]] = deque()
        self._wake: Callable[[], None] | None = None
        self._closed = False

    def add(self, entries: list[Entry], size: int) -> None:
        """Entries of about `size` bytes each that are to be called."""
        self._lots.append((entries, size))
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()

    def poll(self) -> Lot | None:
        """The next lot, without those that nobody waits for."""
        if not self._lots:
            return None
        entries, size = self._lots.popleft()
        return (entry for entry in entries if not entry.dropped), size

    @property
    def ended(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def arm(self, wake: Callable[[], None]) -> bool:
        """Have `wake` called once when there is a lot; False if there is one."""
        if self._lots:
            return False
        self._wake = wake
        return True

    def close(self) -> None:
        """No lot will be asked for."""
        self._closed = True
        self._lots.clear()
