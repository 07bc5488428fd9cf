"""One reader for all tasks of a process that ask for the same scope, so that its index is built once.

A worker process serves task after task; each would scan the scope anew and hold an index of its own. Readers
in use are shared, and some that nobody uses are kept for the next task. Thread-safe. A process that is forked
begins without any.
"""

from __future__ import annotations

import os
import threading
import weakref

from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.reader import LedgerReader
from pillarbox.ledger.scope import Scope

KEPT = 4
"""Readers that are kept although nobody uses them, at most."""
KEPT_RECORDS = 10_000_000
"""Records of which they know, at most, except the one that was asked for last; 16 bytes each and more."""


class _Place:
    """The reader of one scope, while anybody has it."""

    def __init__(self, ledger: Ledger, scope: Scope) -> None:
        self.ledger = ledger
        self.scope = scope
        # Who builds an index does not hold up who asks for another one.
        self.mutex = threading.Lock()
        self.reader: weakref.ref[LedgerReader] | None = None

    def opened(self) -> LedgerReader:
        with self.mutex:
            reader = None if self.reader is None else self.reader()
            if reader is None:
                reader = self.ledger.reader(self.scope)
                self.reader = weakref.ref(reader)
            else:
                reader.refresh()
            return reader


class _Cache:
    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._places: list[_Place] = []
        self._kept: list[LedgerReader] = []

    def reader(self, ledger: Ledger, scope: Scope) -> LedgerReader:
        place = self._place(ledger, scope)
        try:
            reader = place.opened()
        except BaseException:
            with self._mutex:
                self._places = [other for other in self._places if other is not place]
            raise
        with self._mutex:
            others = [kept for kept in self._kept if kept is not reader]
            self._kept, records = [reader], 0
            for kept in others[: KEPT - 1]:
                records += len(kept)
                if records <= KEPT_RECORDS:
                    self._kept.append(kept)
        # Outside of the lock the others are let go, and their files closed.
        del others
        return reader

    def _place(self, ledger: Ledger, scope: Scope) -> _Place:
        with self._mutex:
            for place in self._places:
                if place.scope == scope and place.ledger == ledger:
                    return place
            # One without a reader yet is one that somebody is about to fill.
            self._places = [
                place for place in self._places if place.reader is None or place.reader() is not None
            ]
            self._places.append(place := _Place(ledger, scope))
            return place


_cache = _Cache()
_of_parents: list[_Cache] = []


def shared_reader(ledger: Ledger, scope: Scope) -> LedgerReader:
    """The reader of a scope that this process has, up to date as of now, or a new one. Any thread.

    Others use it at the same time: it must not be closed. Its files are closed when it is let go, by its last
    user and by this cache, which keeps the last `KEPT` ones. Raises as `Ledger.reader` does.
    """
    return _cache.reader(ledger, scope)


def _begin_anew() -> None:
    global _cache
    # Never let go: a thread that is not there in the fork may have held its locks.
    _of_parents.append(_cache)
    _cache = _Cache()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
