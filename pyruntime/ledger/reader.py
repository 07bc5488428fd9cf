"""Finds finished calls again: scans a scope's segments, and reads what is asked for, checked and durable.

Starting costs reading heads and keys; results are read when they are asked for. Thread-safe.
"""

from __future__ import annotations

import threading
import warnings
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pillarbox.ledger.errors import Damage, LedgerWarning
from pillarbox.ledger.folder import SUFFIX, LocalFolder
from pillarbox.ledger.frames import Frame, open_frame, scan
from pillarbox.ledger.index import KeyIndex
from pillarbox.ledger.objects import ObjectFolder
from pillarbox.ledger.records import ERROR, Record, record_at

Folder = LocalFolder | ObjectFolder
T = TypeVar("T")
OPEN_BATCHES = 16
"""Batches that are kept at hand: a replay asks in the order of the first time."""


class LedgerReader:
    """The finished calls of one scope. Any thread.

    accept_errors: `get` gives rows that failed for good, too.
    allow_pickle: values may be pickled, and reading them runs what they say.

    Damage is skipped, kept in `damage`, and said with a `LedgerWarning`, except at the end of a segment,
    where a kill leaves it as a matter of course.
    """

    def __init__(self, folder: Folder, *, accept_errors: bool = True, allow_pickle: bool = False) -> None:
        self._folder = folder
        self.accepts_errors = accept_errors
        self._allow_pickle = allow_pickle
        self._mutex = threading.RLock()
        self._damage: list[Damage] = []
        self._forget()
        self.refresh()

    def __len__(self) -> int:
        """Records found so far, of two with the same key both."""
        return self._index.count

    @property
    def damage(self) -> list[Damage]:
        """What is not trusted, in the order in which it was met; ends of segments that are open left out."""
        with self._mutex:
            tails = [tail for name, tail in self._tails.items() if not self._folder.is_open(name)]
            return [*self._damage, *tails]

    def refresh(self) -> None:
        """Look what others have written since. Any thread.

        Raises OSError if the folder cannot be read.
        """
        # spec: Ledger!Start, Ledger!Look
        with self._mutex:
            for name, size in self._folder.segments():
                if size != self._sizes.get(name):
                    self._scan(name, size)

    def get(self, key: bytes, *, errors: bool | None = None) -> Record | None:
        """The first whole record of a key, on the disk when this returns; None if there is none. Any thread.

        errors: give the record of a row that failed for good; None for what the reader was told.
        A result counts before an error: the row was called again.
        Raises LedgerValueError for a value that may not or cannot be read, and OSError.
        """
        with_errors = self.accepts_errors if errors is None else errors
        return self._undisturbed(lambda: self._get(key, with_errors))

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def kind_of(self, key: bytes) -> str | None:
        """The kind of a key's record, durable or not yet: "value", "error"; None without one. Any thread."""
        return self._undisturbed(lambda: self._kind_of(key))

    def batches(self) -> Iterator[tuple[Any, list[bool]]]:
        """The Arrow batches of all whole frames, and which of their rows count for their key.

        One thread at a time. Of several records of a key one counts: without a lock two attempts may each
        have written theirs.
        """
        for number in range(len(self._frames)):
            with self._mutex:
                batch = self._batch(number)
                if batch is None:
                    continue
                keys = batch.column(0).to_pylist()
                counts = [self._counts(key, number, row) for row, key in enumerate(keys)]
            yield batch, counts

    def records(self) -> Iterator[Record]:
        """Every record that counts, segment by segment. One thread at a time; raises as `get` does."""
        for batch, counts in self.batches():
            for row, count in enumerate(counts):
                if count:
                    yield record_at(batch, row, self._allow_pickle)

    def close(self) -> None:
        """Close the files. A reader that is used again opens them again."""
        self._folder.close()

    # -- inside, with the mutex held ----------------------------------------------------------

    def _forget(self) -> None:
        self._index = KeyIndex()
        self._frames: list[Frame] = []
        self._starts = array("Q")
        self._sizes: dict[str, int] = {}
        self._scanned: dict[str, int] = {}
        self._tails: dict[str, Damage] = {}
        self._synced: dict[str, int] = {}
        self._batches: OrderedDict[int, Any] = OrderedDict()
        self._refused: set[int] = set()

    def _scan(self, name: str, size: int) -> None:
        """Take in what a segment has since the last time."""
        try:
            found = scan(
                lambda offset, length: self._folder.read(name, offset, length),
                size,
                name,
                name[: -len(SUFFIX)],
                self._scanned.get(name, 0),
            )
            self._tails.pop(name, None)
            for item in found:
                if isinstance(item, Damage):
                    if item.is_tail:
                        # It may be what somebody is writing now.
                        self._tails[name] = item
                        break
                    self._report(item)
                else:
                    frame, keys = item
                    self._starts.append(self._index.count)
                    self._frames.append(frame)
                    self._index.add(keys)
                    self._scanned[name] = frame.end
        except FileNotFoundError:
            return
        self._sizes[name] = size

    def _report(self, damage: Damage) -> None:
        if damage not in self._damage:
            self._damage.append(damage)
            warnings.warn(
                LedgerWarning(f"{self._folder.path}: {damage}. Its calls are made again"), stacklevel=2
            )

    def _undisturbed(self, ask: Callable[[], T]) -> T:
        with self._mutex:
            try:
                return ask()
            except FileNotFoundError:
                # Merged in the meantime; what it became has the same records.
                self._forget()
                self.refresh()
                return ask()

    def _get(self, key: bytes, errors: bool) -> Record | None:
        place = self._place(key)
        if place is None:
            return None
        number, row = place
        batch = self._batch(number)
        if batch is None or (not errors and batch.column(1)[row].as_py() == ERROR):
            return None
        frame = self._frames[number]
        if frame.end > self._synced.get(frame.segment, 0):
            # Its writer may not have come to that, and never will if it was killed.
            size = self._folder.size(frame.segment)
            self._folder.sync(frame.segment)  # spec: Ledger!Sync
            self._synced[frame.segment] = size
        return record_at(batch, row, self._allow_pickle)

    def _kind_of(self, key: bytes) -> str | None:
        place = self._place(key)
        batch = None if place is None else self._batch(place[0])
        return None if place is None or batch is None else str(batch.column(1)[place[1]].as_py())

    def _place(self, key: bytes) -> tuple[int, int] | None:
        """Frame and row of the record that counts for a key."""
        error, error_at = None, 0
        for record in self._index.find(key):
            number = bisect_right(self._starts, record) - 1
            batch = self._batch(number)
            row = record - self._starts[number]
            if batch is None or batch.column(0)[row].as_py() != key:
                continue
            if batch.column(1)[row].as_py() != ERROR:
                return number, row
            at = batch.column(8)[row].value
            # Where failed rows are called again, the last failure is the one that was seen.
            if error is None or (not self.accepts_errors and at >= error_at):
                error, error_at = (number, row), at
        return error

    def _counts(self, key: bytes, number: int, row: int) -> bool:
        records = list(self._index.find(key))
        return len(records) == 1 or self._place(key) == (number, row)

    def _batch(self, number: int) -> Any | None:
        """The records of a frame; None if they are damaged."""
        if number in self._refused:
            return None
        batch = self._batches.get(number)
        if batch is not None:
            self._batches.move_to_end(number)
            return batch
        frame = self._frames[number]
        opened = open_frame(frame, lambda offset, length: self._folder.read(frame.segment, offset, length))
        if isinstance(opened, Damage):
            self._refused.add(number)
            self._report(opened)
            return None
        self._batches[number] = opened
        if len(self._batches) > OPEN_BATCHES:
            self._batches.popitem(last=False)
        return opened
