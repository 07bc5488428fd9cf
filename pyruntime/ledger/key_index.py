"""The index of a ledger's records by their keys, small enough for tens of millions of them.

A `LedgerReader` guards it.
"""

# Tens of millions of records have a place in it: sorted arrays of the first 8 bytes of each key, and for each
# the number of its record, in the order in which records count; 16 bytes a record. What comes in while a task
# runs waits in a dict until it is worth sorting (Bentley and Saxe's logarithmic method; the runs of an LSM
# tree). Keys are hashes, so the first bits of one say in which small part of a sorted array it would be.
# Eight bytes may be shared by two keys: who finds a record compares the whole key.

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from typing import Any

from pillarbox.ledger.keys import KEY_BYTES

MAX_UNSORTED_RECORDS = 2**16
"""Records that wait in a dict."""
MIN_RUN_RATIO = 4
"""A sorted array is so many times as large as the next one, at least, or both become one."""
DIRECTORY_BITS = 16
"""Parts of a large array: so many bits of a key choose one."""

NO_RECORD = -1
SEVERAL_RECORDS = -2

_first_word = Struct("=Q8x").unpack


class _Run:
    """Sorted first words of keys, and the numbers of their records."""

    def __init__(self, words: object, numbers: object) -> None:
        self.words = _words_of(words)
        self.numbers = _words_of(numbers)
        bits = min(DIRECTORY_BITS, max(0, len(self.words).bit_length() - 4))
        self.shift = 64 - bits
        starts = array("Q", bytes(8))
        for part in range(1, 2**bits):
            starts.append(bisect_left(self.words, part << self.shift, starts[-1]))
        starts.append(len(self.words))
        self.starts = starts

    def __len__(self) -> int:
        return len(self.words)


class KeyIndex:
    """Numbers of records by key, in the order in which they were added. A `LedgerReader` guards it."""

    def __init__(self, max_unsorted: int = MAX_UNSORTED_RECORDS, min_run_ratio: int = MIN_RUN_RATIO) -> None:
        self._max_unsorted, self._min_run_ratio = max_unsorted, min_run_ratio
        self.count = 0
        self._waiting = bytearray()
        self._first = 0
        self._fresh: dict[int, int | list[int]] = {}
        self._indexed = 0
        self._runs: list[_Run] = []

    def add(self, keys: bytes) -> None:
        """Add keys, 16 bytes each; their records have the next numbers."""
        self._waiting += keys
        self.count += len(keys) // KEY_BYTES

    def find(self, key: bytes) -> Sequence[int]:
        """The numbers of the records that may have this key, the first one first."""
        if self._first + self._indexed != self.count:
            self._settle()
        return self._find(*_first_word(key))

    def may_have_any(self, keys: Sequence[bytes]) -> bool:
        """Return False if none of these keys has a record."""
        if self._first + self._indexed != self.count:
            self._settle()
        words = memoryview(b"".join(keys)).cast("Q")[::2].tolist()
        if not self._fresh.keys().isdisjoint(words):
            return True
        return bool(self._runs) and any(map(self._find, words))

    def repeated(self, words: Sequence[int]) -> list[int]:
        """The places of those first words of keys that several records have."""
        if self._first + self._indexed != self.count:
            self._settle()
        if not self._runs:
            # Of several numbers there is a list.
            return [place for place, there in enumerate(map(self._fresh.get, words)) if type(there) is list]
        find = self._find
        return [place for place, word in enumerate(words) if len(find(word)) > 1]

    def singles(self, words: Sequence[int]) -> list[int]:
        """The number of the only record of each of these first words of keys; below 0 for all others."""
        if self._first + self._indexed != self.count:
            self._settle()
        fresh, runs = self._fresh, self._runs
        found = []
        for word in words:
            there = fresh.get(word)
            number = NO_RECORD if there is None else there if isinstance(there, int) else SEVERAL_RECORDS
            for run in runs:
                part = word >> run.shift
                sorted_words, end = run.words, run.starts[part + 1]
                at = bisect_left(sorted_words, word, run.starts[part], end)
                if at < end and sorted_words[at] == word:
                    is_only = number == NO_RECORD and (at + 1 == end or sorted_words[at + 1] != word)
                    number = run.numbers[at] if is_only else SEVERAL_RECORDS
            found.append(number)
        return found

    def _find(self, word: int) -> Sequence[int]:
        there = self._fresh.get(word)
        fresh = () if there is None else (there,) if isinstance(there, int) else there
        if not self._runs:
            return fresh
        found: list[int] = []
        for run in self._runs:
            part = word >> run.shift
            words, end = run.words, run.starts[part + 1]
            at = bisect_left(words, word, run.starts[part], end)
            while at < end and words[at] == word:
                found.append(run.numbers[at])
                at += 1
        # Runs are merged in any order; what is fresh came later.
        found.sort()
        found += fresh
        return found

    def _settle(self) -> None:
        """Make what was added findable."""
        waiting = len(self._waiting) // KEY_BYTES
        if waiting > self._max_unsorted:
            self._sort()
            return
        words = memoryview(bytes(self._waiting[self._indexed * KEY_BYTES :])).cast("Q")[::2]
        fresh = self._fresh
        for number, word in enumerate(words, self._first + self._indexed):
            # Nearly all are the only one of their key, and a number alone is made faster than a list of one.
            there = fresh.setdefault(word, number)
            if there is not number:
                fresh[word] = [*([there] if isinstance(there, int) else there), number]
        self._indexed = waiting

    def _sort(self) -> None:
        """Turn what waits into a sorted run, and runs of a like size into one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        words = array("Q", memoryview(self._waiting).cast("Q")[::2].tobytes())
        prefixes: Any = _array_of(words)
        order = pc.sort_indices(prefixes)
        prefixes, numbers = prefixes.take(order), pc.add(order, pa.scalar(self._first, pa.uint64()))
        self._waiting, self._fresh, self._indexed = bytearray(), {}, 0
        self._first = self.count
        while self._runs and len(self._runs[-1]) < self._min_run_ratio * len(prefixes):
            run = self._runs.pop()
            prefixes = pa.concat_arrays([_array_of(run.words), prefixes])
            numbers = pa.concat_arrays([_array_of(run.numbers), numbers])
            del run
            order = pc.sort_indices(prefixes)
            prefixes, numbers = prefixes.take(order), numbers.take(order)
        self._runs.append(_Run(prefixes, numbers))


def _words_of(column: Any) -> array[int]:
    words = array("Q")
    words.frombytes(memoryview(column.buffers()[1]).cast("B")[column.offset * 8 :][: len(column) * 8])
    return words


def _array_of(words: array[int]) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.uint64(), len(words), [None, pa.py_buffer(words)])
