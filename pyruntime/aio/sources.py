"""Where the operator's rows come from: a collection in memory, or another thread by way of a handover.

Sources are used on the mailbox thread; `read_ahead` is the body of the thread that reads the input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

from pillarbox.kernel import Handover, HandoverClosedError


class Source(Protocol):
    """Where rows come from."""

    def poll(self) -> Iterator[Any] | None:
        """The next rows, or None when none are there now; raises what the input failed with."""

    @property
    def ended(self) -> bool:
        """True once no more rows can come."""

    def arm(self, wake: Callable[[], None]) -> bool:
        """Have `wake` called once, from any thread, when `poll` is worth another call; False if it is now."""

    def close(self) -> None:
        """The rows that are left will not be asked for."""


class CollectionSource:
    """Rows that are all in memory: read where they are used, with no thread between."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Collection[Any]) -> None:
        self._rows: Iterator[Any] | None = iter(rows)

    def poll(self) -> Iterator[Any] | None:
        """All rows at the first call, then None."""
        rows, self._rows = self._rows, None
        return rows

    @property
    def ended(self) -> bool:
        """True after the first `poll`."""
        return self._rows is None

    def arm(self, wake: Callable[[], None]) -> bool:
        """Nothing is ever waited for."""
        return False

    def close(self) -> None:
        """Forget the rows."""
        self._rows = None


class HandoverSource:
    """Rows that another thread puts into a handover, as `read_ahead` does.

    unpack: turns the items taken in one step into an iterator of rows.
    """

    __slots__ = ("_ended", "_handover", "_unpack")

    def __init__(self, handover: Handover, unpack: Callable[[Iterable[Any]], Iterator[Any]] = iter) -> None:
        self._handover = handover
        self._unpack = unpack
        self._ended = False

    def poll(self) -> Iterator[Any] | None:
        """Everything that has been read, or None; raises what the reading thread failed with."""
        try:
            items = self._handover.take_all()
        except HandoverClosedError:
            self._ended = True
            return None
        return self._unpack(chain.from_iterable(items)) if items else None

    @property
    def ended(self) -> bool:
        """True once `poll` has met the end of the input."""
        return self._ended

    def arm(self, wake: Callable[[], None]) -> bool:
        """Have `wake` called when something is read, or the input ends or fails."""
        return self._handover.arm_wakeup_consumer(wake)

    def close(self) -> None:
        """Stop the reading thread at its next row."""
        self._handover.close()


def read_ahead(items: Iterable[Any], handover: Handover, weigh: Callable[[Any], int] | None = None) -> None:
    """Put all `items` into `handover`, then its end, or the error that they ended with.

    weigh: the bytes of an item, where the handover is bounded by bytes. Runs in a thread of its own;
    returns early when the other side closes the handover.
    """
    try:
        for item in items:
            # In a tuple, since a handover does not take None, and an iterable may yield it.
            if not handover.put((item,), 0 if weigh is None else weigh(item)):
                return
    except BaseException as error:
        handover.fail(error)
    else:
        handover.finish()
