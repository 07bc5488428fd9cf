"""A correct source of rows that nearly look alike, and others like it that take one row for another.

Each fault is a class; its docstring says by what it knows a row. `make(kind)` makes a source.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pillarbox.sources.simple import SimpleSource
from pillarbox.sources.split import OffsetSplit

Row = tuple[Any, ...]


def vector(place: int, number: float) -> Any:
    """Numbers, one of which is another."""
    numbers = np.zeros(1500)
    numbers[place] = number
    return numbers


ROWS: list[Row] = [
    *((None, "1", 0), ("1", None, 0), (None, "1", 0), ("1", "1", 0), (None, None, 0)),
    *((0.0, "a", 0), (-0.0, "a", 0), (0, "a", 0), (False, "a", 0), (0.0, "a", 0)),
    *(("a", "\u00e4", 0), ("a", "a\u0308", 0), ("a", "a\0", 0), ("a", b"a", 0)),
    *((1.0, None, vector(0, 0.0)), (1.0, None, vector(700, 1e-300)), (1.0, None, vector(700, 2.0))),
    *((1.0, None, vector(0, 0.5)), (1.0, None, vector(0, 0.5000000000000001)), (1.0, None, vector(0, 0.5))),
]
"""Of each of the two splits."""


@dataclass(frozen=True)
class Alike(SimpleSource[OffsetSplit]):
    """The rows, two at a time; a position is the number of rows in front of it."""

    def arrow_schema(self) -> Any:
        """None: the rows are tuples of Python."""
        return None

    def list_splits(self) -> list[OffsetSplit]:
        return [OffsetSplit(name, 0, len(ROWS)) for name in ("one", "other")]

    def read(self, split: OffsetSplit) -> Iterator[Any]:
        start, stop = int(split.start or 0), int(split.stop or 0)
        rows = list(self.rows(self.place(start), stop))
        for at in range(0, stop - start, 2):
            yield rows[at : at + 2], min(start + at + 2, stop)

    def place(self, start: int) -> int:
        """The place of the first row from a position on."""
        return start

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        """The rows of a range."""
        yield from ROWS[start:stop]


class FoundAgainByValue(Alike):
    """Goes on behind the first row that is equal to the last one that was given."""

    def place(self, start: int) -> int:
        if not start:
            return 0
        last = ROWS[start - 1]
        return next(at for at, row in enumerate(ROWS) if _equal(row, last)) + 1


def _equal(one: Row, other: Row) -> bool:
    return all(bool(np.all(a == b)) for a, b in zip(one, other, strict=True))


class KnownBy(Alike):
    """Leaves rows out whose key has come before in the same range."""

    def key(self, row: Row) -> Hashable:
        return repr(row)

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        seen = set()
        for row in ROWS[start:stop]:
            if (key := self.key(row)) not in seen:
                seen.add(key)
                yield row


class KnownByRepr(KnownBy):
    """By its `repr`, in which equal rows are one, and long vectors too."""


class KnownByHash(KnownBy):
    """By a hash that skips nulls, as that of a database may."""

    def key(self, row: Row) -> Hashable:
        return repr([value for value in row if value is not None])


class Normalized(Alike):
    """Gives rows that were read before by another client: without signs of zeros."""

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        for row in ROWS[start:stop]:
            yield tuple([0.0 if start and type(each) is float and not each else each for each in row])


class Rounded(Alike):
    """Gives vectors of 32 bits where it goes on."""

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        for *front, last in ROWS[start:stop]:
            is_vector = start and isinstance(last, np.ndarray)
            yield (*front, np.array([*map(_rounded, last)]) if is_vector else last)


def _rounded(number: float) -> float:
    (found,) = struct.unpack("f", struct.pack("f", number))
    return float(found)


FAULTS: dict[str, type[Alike]] = {
    each.__name__: each for each in (FoundAgainByValue, KnownByRepr, KnownByHash, Normalized, Rounded)
}
