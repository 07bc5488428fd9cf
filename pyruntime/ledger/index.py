"""Which records have a key: compact, for tens of millions of them.

Sorted arrays of the first 8 bytes of each key, and for each the number of its record, in the order in which
records count; 16 bytes a record. What comes in while a task runs waits in a dict until it is worth sorting
(Bentley and Saxe's logarithmic method; the runs of an LSM tree). Eight bytes may be shared by two keys: who
finds a record compares the whole key. Not thread-safe: a `LedgerReader` guards it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from pillarbox.ledger.keys import KEY_BYTES

FRESH = 2**16
"""Records that wait in a dict."""
RUNS = 6
"""Sorted arrays, at most."""
PREFIX = 8


class KeyIndex:
    """Numbers of records by key, in the order in which they were added."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting = bytearray()
        self._first = 0
        self._fresh: dict[bytes, list[int]] = {}
        self._indexed = 0
        self._runs: list[tuple[memoryview, memoryview]] = []

    def add(self, keys: bytes) -> None:
        """Add keys, 16 bytes each; their records have the next numbers."""
        self._waiting += keys
        self.count += len(keys) // KEY_BYTES

    def find(self, key: bytes) -> Iterator[int]:
        """The numbers of the records that may have this key, the first one first."""
        self._settle()
        prefix = int.from_bytes(key[:PREFIX], sys.byteorder)
        found: list[int] = []
        for prefixes, numbers in self._runs:
            at = bisect_left(prefixes, prefix)
            while at < len(prefixes) and prefixes[at] == prefix:
                found.append(numbers[at])
                at += 1
        found.sort()
        yield from found
        yield from self._fresh.get(key[:PREFIX], ())

    def _settle(self) -> None:
        """Make what was added findable."""
        waiting = len(self._waiting) // KEY_BYTES
        if waiting > FRESH:
            self._sort()
            return
        while self._indexed < waiting:
            start = self._indexed * KEY_BYTES
            prefix = bytes(self._waiting[start : start + PREFIX])
            self._fresh.setdefault(prefix, []).append(self._first + self._indexed)
            self._indexed += 1

    def _sort(self) -> None:
        """Turn what waits into a sorted run, and many runs into one."""
        import pyarrow as pa

        words = memoryview(self._waiting).cast("Q")[::2].tobytes()
        count = len(self._waiting) // KEY_BYTES
        prefixes = pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(words)])
        self._runs.append(_sorted(prefixes, self._first))
        self._waiting, self._fresh, self._indexed = bytearray(), {}, 0
        self._first = self.count
        if len(self._runs) > RUNS:
            runs, self._runs = self._runs, []
            arrays = [
                pa.concat_arrays([_array(part) for part in column]) for column in zip(*runs, strict=True)
            ]
            del runs
            self._runs = [_sorted(*arrays)]


def _sorted(prefixes: Any, numbers: Any) -> tuple[memoryview, memoryview]:
    """Both arrays in the order of the first; instead of the second array the number of the first record."""
    import pyarrow as pa
    import pyarrow.compute as pc

    order = pc.sort_indices(prefixes)
    prefixes = prefixes.take(order)
    if isinstance(numbers, int):
        numbers = pc.add(order, pa.scalar(numbers, pa.uint64()))
    else:
        numbers = numbers.take(order)
    return _words(prefixes), _words(numbers)


def _words(array: Any) -> memoryview:
    return memoryview(array.buffers()[1]).cast("B").cast("Q")[array.offset : array.offset + len(array)]


def _array(words: memoryview) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.uint64(), len(words), [None, pa.py_buffer(words.cast("B"))])
