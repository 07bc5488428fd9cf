"""Rows that nearly look alike, for Hypothesis: nulls that move, signed zeros, equal and nearly equal rows.

    @given(unclean_tables())
    def test_a_connector_gives_each_row_once(table): ...

A model that knows rows by an id of their own cannot see that a subject takes one row for another. These rows
have none: hold the subject to them by `pillarbox.testing.identity.identity`. `unclean_tables` has columns
with types, for what goes through Spark, Arrow or a service; `unclean_rows` gives rows of Python, with values
of any types. Pure; any thread.
"""

# How rows come to look alike. Values are drawn from few, chosen so that each has neighbours that some way of
# comparing takes for it: `==`, `hash`, `repr`, a hash that skips nulls, texts put one behind the other, a
# collation, JSON. One row or two are drawn, and beside them stand their family: the same row again, the row
# with each value replaced by each of its neighbours, with each two values that have changed places, and a
# null that has. So twenty examples have what a thousand of rows that are drawn one by one would not.

from __future__ import annotations

import copy
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from pillarbox.testing.identity import identity

UTC = datetime.timezone.utc
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=UTC)
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
"""A NaN of other bits than `math.nan`."""
NEXT_TO_ONE = math.nextafter(1.0, 2.0)
NEXT_FLOAT_TO_ONE = 1.0 + 2.0**-23
"""The next one of 32 bits."""

DOUBLES = (0.0, -0.0, 5e-324, 1.0, NEXT_TO_ONE, 0.3, 0.1 + 0.2, math.inf, math.nan, OTHER_NAN)
TEXTS = ("", "\1", "a", "a\0", "A", "a ", "1", "1.0", "\u00e4", "a\u0308", "null", "None", "\U0001f600")

VALUES: dict[str, Sequence[Any]] = {
    "string": TEXTS,
    "double": DOUBLES,
    "float": (0.0, -0.0, 1.0, NEXT_FLOAT_TO_ONE, math.inf, math.nan),
    "bigint": (0, 1, 2**53, 2**53 + 1),
    "int": (0, 1, -1),
    "boolean": (False, True),
    "decimal(5,2)": tuple(map(decimal.Decimal, ("0.00", "1.00", "1.10"))),
    "binary": (b"", b"\1", b"\0", b"\0\0", b"a", b"a\0", b"1"),
    "date": (datetime.date(1970, 1, 1), datetime.date(2026, 11, 21)),
    "timestamp": (NOON, NOON + datetime.timedelta(microseconds=1), datetime.datetime(1970, 1, 1, tzinfo=UTC)),
}
"""The values of each plain type, by Spark's name of it, besides null: neighbours look alike."""
PLAIN = ("string", "double", "string", "double", *VALUES)
"""The plain types, the richest ones more than once."""

ALIKE: Sequence[Sequence[Any]] = (
    (0, False, 0.0, -0.0, decimal.Decimal(0), decimal.Decimal("-0"), "0", None),
    (1, True, 1.0, NEXT_TO_ONE, decimal.Decimal(1), decimal.Decimal("1.0"), "1", b"1"),
    ("", b"", None, "None", "null"),
    ("a", b"a", "a\0", b"a\0", "A", "a "),
    ("\u00e4", "a\u0308", "\u00e4".encode()),
    (math.nan, OTHER_NAN, None, "nan"),
    (0.3, 0.1 + 0.2, 5e-324, 0.0),
    (
        *(NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=1))), NOON.replace(tzinfo=None)),
        *(NOON.date(), NOON.time(), NOON.timetz(), NOON + datetime.timedelta(microseconds=1)),
    ),
)
"""Values of Python, those together that look alike."""


def _neighbours(value: object, of_scalar: Callable[[Any], list[Any]], empty: object = None) -> Iterator[Any]:
    """The values that look like `value`. of_scalar: gives those of a plain one, or of null."""
    if isinstance(value, dict):
        # Values change places between fields.
        yield dict(zip(value, [*value.values()][::-1], strict=True))
        for name, part in value.items():
            for near in _neighbours(part, of_scalar):
                yield {**value, name: near}
    elif isinstance(value, list | tuple):
        kind = type(value)
        yield value[::-1]
        yield kind([*value, None])
        for place, part in enumerate(value):
            for near in _neighbours(part, of_scalar):
                yield kind([*value[:place], near, *value[place + 1 :]])
    else:
        yield from of_scalar(value)
        return
    yield None


@dataclass(frozen=True)
class ColumnType:
    """The type of a column. `str` gives Spark's name of it.

    name: of a plain type, or "array", "map" (of texts), "struct" (of the fields f0, f1 and so on). parts: the
    types of elements, of values, or of fields.
    """

    name: str
    parts: tuple[ColumnType, ...] = ()

    def __str__(self) -> str:
        inner = [str(part) for part in self.parts]
        if self.name == "map":
            return f"map<string,{inner[0]}>"
        if self.name == "struct":
            return f"struct<{','.join(f'f{place}:{each}' for place, each in enumerate(inner))}>"
        return f"array<{inner[0]}>" if inner else self.name

    def values(self) -> st.SearchStrategy[Any]:
        """The values of this type, null among them: structs and maps are dicts, arrays lists."""
        if not self.parts:
            return st.sampled_from([*VALUES[self.name][:2], None, *VALUES[self.name]])
        there: st.SearchStrategy[Any]
        if self.name == "array":
            there = st.lists(self.parts[0].values(), max_size=2)
        elif self.name == "map":
            there = st.dictionaries(st.sampled_from(["", "a", "a\0"]), self.parts[0].values(), max_size=2)
        else:
            there = st.fixed_dictionaries(
                {f"f{place}": part.values() for place, part in enumerate(self.parts)}
            )
        return st.one_of(there, there, st.none())

    def neighbours(self, value: object) -> list[Any]:
        """The values of this type that look like `value`, one at least; null is among those of another."""
        leaf = self
        while leaf.parts:
            leaf = leaf.parts[0]
        known = VALUES[leaf.name]

        def of_scalar(part: object) -> list[Any]:
            if part is None:
                return [known[0]]
            at = [*map(_written, known)].index(_written(part))
            return [None, *known[max(0, at - 1) : at], *known[at + 1 : at + 2]]

        if value is None and self.parts:
            return [self._empty()]
        # In an array of arrays, too, a null has a value of its own type beside it.
        return [near for near in _neighbours(value, of_scalar) if self.has(near)]

    def has(self, value: object) -> bool:
        """Return True if `value` is one of this type."""
        if value is None:
            return True
        if not self.parts:
            return not isinstance(value, list | dict)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        return isinstance(value, list if self.name == "array" else dict) and all(
            self.parts[0].has(part) for part in inner
        )

    def _empty(self) -> Any:
        if self.name == "array":
            return []
        return {f"f{place}": None for place in range(len(self.parts))} if self.name == "struct" else {}


def _written(value: object) -> Any:
    return identity(value, nan_bits=True)


@dataclass(frozen=True)
class UncleanTable:
    """Rows with the names and types of their columns. rows: tuples, in the order of the columns."""

    types: dict[str, ColumnType]
    rows: list[tuple[Any, ...]]

    @property
    def ddl(self) -> str:
        """The columns as Spark writes them."""
        return ", ".join(f"{name} {kind}" for name, kind in self.types.items())


@st.composite
def column_types(draw: st.DrawFn, plain: Sequence[str] = PLAIN, depth: int = 1) -> ColumnType:
    """Types of columns. plain: names of the plain types. depth: of types in one another, at most."""
    form = draw(st.sampled_from(["plain", "plain", "array", "map", "struct"])) if depth else "plain"
    if form == "plain":
        return ColumnType(draw(st.sampled_from(plain)))
    part = draw(column_types(plain, depth - 1))
    # Two fields of one type, between which a value can move.
    return ColumnType(form, (part, part) if form == "struct" else (part,))


@st.composite
def unclean_tables(
    draw: st.DrawFn,
    *,
    columns: int = 3,
    rows: int = 12,
    min_rows: int = 0,
    plain: Sequence[str] = PLAIN,
    depth: int = 1,
) -> UncleanTable:
    """Tables of at most so many columns and rows, with null in every place.

    plain: names of the plain types, keys of `VALUES`. depth: of types in one another, at most.
    """
    first = draw(column_types(plain, depth))
    other = st.sampled_from([first, first, draw(column_types(plain, depth))])
    kinds = [first, *draw(st.lists(other, min_size=min(1, columns - 1), max_size=columns - 1))]
    types = dict(zip("abcdefgh", kinds, strict=False))
    values = st.tuples(*(kind.values() for kind in kinds))

    def near(place: int, value: object) -> list[Any]:
        return kinds[place].neighbours(value)

    def may_swap(one: int, two: int) -> bool:
        return kinds[one] == kinds[two]

    return UncleanTable(types, draw(_families(values, near, may_swap, min_rows, rows)))


@st.composite
def _families(
    draw: st.DrawFn,
    values: st.SearchStrategy[tuple[Any, ...]],
    near: Callable[[int, Any], list[Any]],
    may_swap: Callable[[int, int], bool],
    min_rows: int,
    max_rows: int,
) -> list[tuple[Any, ...]]:
    """Rows and their families, in any order."""
    count = draw(st.one_of(st.just(max_rows), st.integers(min_rows, max_rows)))
    made: list[tuple[Any, ...]] = []
    while len(made) < count and len(made) < 2 * max_rows:
        row = draw(values)
        made += [row, row]
        for one, two in combinations(range(len(row)), 2):
            if may_swap(one, two):
                first, second = row[one], row[two]
                for pair in ((second, first), (first, None), (None, first)):
                    moved = [*row]
                    moved[one], moved[two] = pair
                    made.append(tuple(moved))
        for place, value in enumerate(row):
            made += [(*row[:place], other, *row[place + 1 :]) for other in near(place, value)]
    # Equal rows are other objects.
    return [copy.deepcopy(row) for row in draw(st.permutations(made))[:count]]


def unclean_values(*, hashable: bool = False) -> st.SearchStrategy[Any]:
    """Values of Python of any types, in one another: empty, null and missing parts too.

    hashable: without lists and dicts.
    """

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        parts = st.lists(inner, max_size=2)
        if hashable:
            return parts.map(tuple)
        return st.one_of(parts, parts.map(tuple), st.dictionaries(st.sampled_from("ab"), inner, max_size=2))

    scalars = st.sampled_from([value for alike in ALIKE for value in alike])
    return scalars | st.recursive(scalars, nested, max_leaves=4)


@st.composite
def unclean_rows(
    draw: st.DrawFn, *, columns: int = 2, rows: int = 12, min_rows: int = 0, hashable: bool = True
) -> list[tuple[Any, ...]]:
    """Rows of Python, as tuples of at most so many values of any types. hashable: as of `unclean_values`."""
    width = draw(st.integers(1, columns))
    values = st.tuples(*[unclean_values(hashable=hashable)] * width)
    return draw(_families(values, lambda place, value: neighbours(value), _always, min_rows, rows))


def neighbours(value: object) -> list[Any]:
    """The values of Python, of any types, that look like `value`."""
    return [*_neighbours(value, _scalars_like)]


def _scalars_like(value: object) -> list[Any]:
    known = _written(value)
    found: list[Any] = []
    for alike in ALIKE:
        written = [*map(_written, alike)]
        if known in written:
            found += [each for each, other in zip(alike, written, strict=True) if other != known]
    return found


def _always(one: int, two: int) -> bool:
    return True
