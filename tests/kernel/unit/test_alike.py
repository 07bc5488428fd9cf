"""Copies of an object with slots, runs of such, and one slot of many: `pillarbox.kernel.alike`."""

from __future__ import annotations

import gc
import sys
import weakref
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.kernel.alike import Copier, RunFinder, Slot, apart


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


# -- one slot of many ----------------------------------------------------------------------------------------

PLACE = Slot(Row, "place")


@given(st.lists(st.integers()), st.integers())
def test_a_slot_of_many_is_read_and_set_as_that_of_each(places: list[int], other: int) -> None:
    rows = [row_of("t", place) for place in places]
    assert PLACE.of(rows) == PLACE.of(tuple(rows)) == places
    PLACE.put_each(rows, [place + 1 for place in places])
    assert [row.place for row in rows] == [place + 1 for place in places]
    PLACE.put(rows, other)
    assert [row.place for row in rows] == [other] * len(rows)
    assert [row.table for row in rows] == ["t"] * len(rows)


def test_a_slot_holds_an_object_where_each_has_that_very_one() -> None:
    value = [1]
    rows = [row_of("t", value), row_of("t", value)]
    assert PLACE.holds(rows, value) and PLACE.holds([], value)
    assert not PLACE.holds(rows, [1])
    rows[1].place = [1]
    assert not PLACE.holds(rows, value)
    assert not PLACE.holds([Row()], value)


def test_what_a_slot_has_is_referred_to_once_more_and_no_longer_when_it_is_set() -> None:
    first, second = object(), object()
    rows = [row_of("t", first) for _ in range(8)]

    def references() -> tuple[int, int]:
        return sys.getrefcount(first), sys.getrefcount(second)

    before = references()
    found = PLACE.of(rows)
    read = references()
    PLACE.put(rows, second)
    PLACE.put_each(rows, [second] * 8)
    found.clear()
    after = references()
    assert read[0] - before[0] == 8
    assert (after[0] - before[0], after[1] - before[1]) == (-8, 8)


def test_an_end_that_empties_the_list_while_a_slot_is_set_does_no_harm() -> None:
    class Empties:
        def __init__(self, rows: list[Row]) -> None:
            self._rows = rows

        def __del__(self) -> None:
            self._rows.clear()

    for put in (lambda rows: PLACE.put(rows, 1), lambda rows: PLACE.put_each(rows, [1] * 3)):
        rows: list[Row] = []
        rows += [row_of("t", Empties(rows)), row_of("t", 2), row_of("t", 3)]
        first, _, last = rows
        put(rows)
        assert (rows, first.place, last.place) == ([], 1, 3)


def test_objects_without_the_slot_and_values_of_another_number_are_refused() -> None:
    other, rows = OtherRow(), [row_of("t", 1)]
    other.place = 5
    assert PLACE.of([*rows, other]) == [1, 5]
    for call in (PLACE.of, lambda rows: PLACE.put(rows, 1), lambda rows: PLACE.holds(rows, 1)):
        with pytest.raises(TypeError, match="must be objects of Row, not Base"):
            call([*rows, Base()])
        with pytest.raises(TypeError, match="a list or a tuple, not range"):
            call(range(3))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="object 1 of 2 has nothing"):
        PLACE.of([*rows, Row()])
    with pytest.raises(ValueError, match="2 values for 1 objects"):
        PLACE.put_each(rows, [1, 2])
    with pytest.raises(TypeError, match="has no slot 'place'"):
        Slot(WithDict, "place")


@given(st.lists(st.tuples(st.integers(), st.text())))
def test_pairs_are_taken_apart(pairs: list[tuple[int, str]]) -> None:
    firsts, seconds = apart(pairs)
    assert (firsts, seconds) == ([first for first, _ in pairs], [second for _, second in pairs])


@pytest.mark.parametrize("wrong", [(1,), (1, 2, 3), [1, 2], "ab", None])
def test_other_elements_than_pairs_are_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="element 1 of 2 must be a tuple of two"):
        apart([(1, 2), wrong])  # type: ignore[list-item]
