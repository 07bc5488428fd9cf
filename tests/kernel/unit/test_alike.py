"""Copies of an object with slots, and runs of such: `pillarbox.kernel.alike`."""

from __future__ import annotations

import gc
import sys
import weakref
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.kernel.alike import Copier, RunFinder


class Base:
    __slots__ = ("table",)


class Row(Base):
    __slots__ = ("note", "place")


class OtherRow(Row):
    __slots__ = ()


COPIES = Copier(Row, "place")
RUNS = RunFinder(Row, "table", "place")


def row_of(table: object, place: object = 0) -> Row:
    row = Row()
    row.table, row.place = table, place
    return row


def test_copies_have_the_slots_of_the_prototype_and_a_value_each() -> None:
    table, values = object(), [object(), None, 3]
    prototype = row_of(table)
    copies = COPIES(prototype, values)
    assert [type(each) for each in copies] == [Row] * 3
    assert all(each.table is table for each in copies)
    assert [each.place for each in copies] == values
    assert prototype.place == 0
    assert COPIES(prototype, ()) == []


def test_a_slot_that_is_empty_in_the_prototype_is_empty_in_its_copies() -> None:
    (copy,) = COPIES(row_of("t"), [1])
    with pytest.raises(AttributeError, match="note"):
        _ = copy.note
    copy.note = "written"
    assert copy.note == "written"


def test_copies_hold_one_reference_to_all_that_they_have() -> None:
    table, values = object(), [object() for _ in range(8)]

    def references() -> tuple[int, int]:
        return sys.getrefcount(table), sum(map(sys.getrefcount, values))

    before = references()
    copies = COPIES(row_of(table), values)
    held, usual = references(), [object()]
    own = sys.getrefcount(copies[0]), sys.getrefcount(usual[0])
    assert (held[0] - before[0], held[1] - before[1]) == (8, 8)
    assert own[0] == own[1]
    del copies
    after = references()
    assert after == before


def test_copies_in_a_cycle_are_collected() -> None:
    class Table:
        rows: list[Row]

    table = Table()
    table.rows = COPIES(row_of(table), [1, 2, 3])
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None


class WithDict:
    pass


class WithWeakReferences:
    __slots__ = ("__weakref__", "place")


class OfTuple(tuple[int, ...]):
    __slots__ = ()


@pytest.mark.parametrize("kind", [WithDict, OfTuple, int])
def test_a_class_without_the_slot_is_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="has no slot 'place'"):
        Copier(kind, "place")


def test_a_class_with_more_than_slots_is_refused() -> None:
    with pytest.raises(TypeError, match="more than slots"):
        Copier(WithWeakReferences, "place")


def test_a_prototype_of_another_class_is_refused() -> None:
    other = OtherRow()
    with pytest.raises(TypeError, match="must be a Row, not OtherRow"):
        COPIES(other, [1])  # type: ignore[type-var]


def test_values_that_are_no_list_are_refused() -> None:
    with pytest.raises(TypeError, match="a list or a tuple, not range"):
        COPIES(row_of("t"), range(3))
    with pytest.raises(TypeError, match="a list or a tuple, not set"):
        RUNS({row_of("t")})  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-2, 3))))
def test_runs_are_the_longest_of_one_table_and_places_that_follow(given_rows: list[tuple[str, int]]) -> None:
    rows = [row_of(*each) for each in given_rows]
    steps = [(table, place - number) for number, (table, place) in enumerate(given_rows)]
    expected, begin = [], 0
    for _, some in groupby(steps):
        end = begin + len([*some])
        expected.append((begin, end))
        begin = end
    assert RUNS(rows) == expected
    assert RUNS(tuple(rows)) == expected


def test_equal_tables_that_are_not_one_object_make_two_runs() -> None:
    assert RUNS([row_of([1], 0), row_of([1], 1)]) == [(0, 1), (1, 2)]


def test_objects_of_a_class_below_are_found_and_others_refused() -> None:
    other = OtherRow()
    other.table, other.place = "t", 1
    assert RUNS([row_of("t", 0), other]) == [(0, 2)]
    with pytest.raises(TypeError, match="must be objects of Row, not Base"):
        RUNS([row_of("t"), Base()])
    with pytest.raises(TypeError, match="no whole number, but 'x'"):
        RUNS([row_of("t", "x")])
    with pytest.raises(AttributeError, match="object 0 of 1 has nothing"):
        RUNS([Row()])
