"""The frames of a scope by the numbers of their records, and the rows of those that were used last.

A `LedgerReader` guards it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable

from pillarbox.ledger.errors import Damage
from pillarbox.ledger.format import Frame, Rows, open_frame
from pillarbox.ledger.key_index import KeyIndex

CACHED_FRAME_BYTES = 16 * 2**20
"""Bytes of frames that are kept at hand: a replay asks in the order of the first time, more or less."""
FRAME_OBJECT_BYTES = 4096
"""Bytes of Python's objects for a frame, about."""


class FrameStore:
    """The frames that were found, in their order, and the index of their records by key.

    read: gives bytes of a segment, from an offset. report: takes damage.
    """

    __slots__ = ("_bytes", "_read", "_refused", "_report", "_rows", "frames", "index", "starts")

    def __init__(self, read: Callable[[str, int, int], bytes], report: Callable[[Damage], None]) -> None:
        self._read = read
        self._report = report
        self.index = KeyIndex()
        self.frames: list[Frame] = []
        self.starts = array("Q")
        """The number of the first record of each frame."""
        self._rows: OrderedDict[int, Rows] = OrderedDict()
        self._bytes = 0
        self._refused: set[int] = set()

    def add(self, frame: Frame, keys: bytes) -> None:
        """Know a frame; `keys` are those of its records."""
        self.starts.append(self.index.count)
        self.frames.append(frame)
        self.index.add(keys)

    def locate(self, record: int) -> tuple[int, Rows | None, int]:
        """The number of a record's frame, its rows, None if they are damaged, and the record's row there."""
        number = bisect_right(self.starts, record) - 1
        rows = self._rows.get(number)
        if rows is None:
            rows = self.rows(number)
        else:
            self._rows.move_to_end(number)
        return number, rows, record - self.starts[number]

    def rows(self, number: int) -> Rows | None:
        """The records of a frame; None if they are damaged."""
        rows = self._rows.get(number)
        if rows is not None:
            self._rows.move_to_end(number)
            return rows
        if number in self._refused:
            return None
        frame = self.frames[number]
        opened = open_frame(frame, lambda offset, length: self._read(frame.segment, offset, length))
        if isinstance(opened, Damage):
            self._refused.add(number)
            self._report(opened)
            return None
        self._rows[number] = rows = Rows(opened)
        self._bytes += frame.length + FRAME_OBJECT_BYTES
        while len(self._rows) > 1 and self._bytes > CACHED_FRAME_BYTES:
            self._bytes -= self.frames[self._rows.popitem(last=False)[0]].length + FRAME_OBJECT_BYTES
        return rows
