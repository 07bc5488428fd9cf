"""Where the operator's rows come from: a collection in memory, or another thread by way of a handover.

Rows come in lots, whose rows weigh the same, so that nothing has to be weighed row by row. Sources are used
on the mailbox thread; `read_ahead` is the body of the thread that reads the input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, TypeAlias

from pillarbox.kernel import Handover, HandoverClosedError

Lot: TypeAlias = tuple[Iterator[Any], int | None]
"""Rows, and the bytes of each of them; None where each is to be weighed by itself."""


class Source(Protocol):
    """Where rows come from."""

    def poll(self) -> Lot | None:
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

    def poll(self) -> Lot | None:
        """All rows at the first call, then None. They weigh nothing more where they are admitted."""
        rows, self._rows = self._rows, None
        return None if rows is None else (rows, 0)

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


def one_lot(items: Iterable[Any]) -> Iterator[Lot]:
    """Items that are rows themselves."""
    yield iter(items), None


class HandoverSource:
    """Rows that another thread puts into a handover, as `read_ahead` does.

    unpack: makes lots of the items taken in one step.
    """

    __slots__ = ("_ended", "_handover", "_lots", "_unpack")

    def __init__(
        self, handover: Handover, unpack: Callable[[Iterable[Any]], Iterator[Lot]] = one_lot
    ) -> None:
        self._handover = handover
        self._unpack = unpack
        self._lots: Iterator[Lot] = iter(())
        self._ended = False

    def poll(self) -> Lot | None:
        """The next lot that has been read, or None; raises what the reading thread failed with."""
        for lot in self._lots:
            return lot
        try:
            items = self._handover.take_all()
        except HandoverClosedError:
            self._ended = True
            return None
        self._lots = self._unpack(chain.from_iterable(items))
        return next(self._lots, None)

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
