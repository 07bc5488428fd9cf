"""Rows have one digest where all their values are the same, and two where one of them is not."""

from __future__ import annotations

import datetime
import decimal
import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa

from pillarbox.spark.stream.row_digests import DIGEST_BYTES, digests_of, row_digests

BYTES = st.binary(max_size=3)
TEXTS = st.text("a\0\U0001f600", max_size=3)
PLAIN: dict[Any, Any] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-2, 2),
    pa.int64(): st.sampled_from([0, 1, -1, 2**63 - 1]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.0, float("inf")]),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.0, 1.0000000000000002]),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): BYTES,
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.decimal128(5, 2): st.sampled_from([decimal.Decimal("0.00"), decimal.Decimal("1.10")]),
    pa.date32(): st.sampled_from([datetime.date(1970, 1, 1), datetime.date(2024, 2, 29)]),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.timezone.utc)),
    pa.null(): st.none(),
}


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """A type of Arrow, and values of it, some of them missing."""
    form = draw(st.sampled_from(["plain", "plain", "list", "struct", "map"] if depth else ["plain"]))
    if form == "plain":
        kind = draw(st.sampled_from([*PLAIN]))
        return kind, st.none() | PLAIN[kind]
    if form == "list":
        kind, values = draw(kinds(depth - 1))
        make = draw(st.sampled_from([pa.list_, pa.large_list]))
        return make(kind), st.none() | st.lists(values, max_size=3)
    if form == "map":
        kind, values = draw(kinds(depth - 1))
        return pa.map_(pa.string(), kind), st.none() | st.lists(st.tuples(TEXTS, values), max_size=2)
    parts = draw(st.lists(kinds(depth - 1), min_size=1, max_size=2))
    fields = [pa.field(f"f{at}", kind) for at, (kind, _) in enumerate(parts)]
    named = {field.name: values for field, (_, values) in zip(fields, parts, strict=True)}
    return pa.struct(fields), st.none() | st.fixed_dictionaries(named)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.Array], list[tuple[Any, ...]]]:
    columns = draw(st.lists(kinds(), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(values for _, values in columns)), max_size=8))
    if rows:
        # Rows that are equal, and rows whose values have changed places.
        rows += draw(st.lists(st.sampled_from(rows), max_size=2))
    arrays = [pa.array([row[at] for row in rows], kind) for at, (kind, _) in enumerate(columns)]
    return arrays, rows


def written(value: Any) -> Any:
    """A value in a form in which what differs in a bit is not equal."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, list | tuple):
        return ("list", *map(written, value))
    if isinstance(value, dict):
        return ("dict", *((name, written(each)) for name, each in value.items()))
    return (type(value).__name__, value)


def digests(columns: list[pa.Array], rows: int) -> list[bytes]:
    found: list[bytes] = row_digests(columns, rows).to_pylist()
    assert all(len(each) == DIGEST_BYTES for each in found)
    return found


@pytest.mark.contract(
    "Two rows of a stream are one where all values are the same, nulls and signs too, and else two."
)
@given(tables())
def test_rows_have_one_digest_where_all_values_are_the_same_and_else_two(table: Any) -> None:
    columns, rows = table
    found = digests(columns, len(rows))
    known = [tuple(map(written, row)) for row in rows]
    for (one, first), (other, second) in itertools.combinations(zip(known, found, strict=True), 2):
        assert (one == other) == (first == second)


@given(tables(), st.data())
def test_the_digest_of_a_row_does_not_depend_on_the_rows_beside_it(table: Any, data: Any) -> None:
    columns, rows = table
    found = digests(columns, len(rows))
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert digests([column.slice(start, end - start) for column in columns], end - start) == found[start:end]
    alone = [digests([column.take(pa.array([at])) for column in columns], 1)[0] for at in range(len(rows))]
    assert alone == found


@pytest.mark.contract(
    "Rows of a stream that differ in where their nulls are, in a sign, or in where a text ends, are two.",
    convicts=["null_digested_as_value", "empty_list_digested_as_null", "lengths_not_digested"],
)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((None, "1"), ("1", None)),
        (("a", "bc"), ("ab", "c")),
        (("a\1b", "c"), ("a", "b\1c")),
        (("", None), (None, "")),
        (([], None), (None, [])),
        (([None], []), ([], [None])),
        (([[None]], None), ([[]], None)),
        (({"a": None, "b": "1"}, 0), ({"a": "1", "b": None}, 0)),
        (({"a": None, "b": None}, 0), (None, 0)),
        ((0.0, 0), (-0.0, 0)),
        ((0, None), (None, 0)),
        ((False, None), (None, False)),
    ],
    ids=str,
)
def test_rows_that_nearly_look_alike_have_two_digests(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    columns = [pa.array([one[at], other[at]]) for at in (0, 1)]
    first, second = digests(columns, 2)
    assert first != second


def test_digests_of_a_part_of_a_column_are_its_own() -> None:
    whole = row_digests([pa.array([1, 2, 3])], 3)
    assert digests_of(whole).shape == (3, 2)
    assert digests_of(whole.slice(1)).tobytes() == b"".join(whole.to_pylist()[1:])


def test_values_of_other_forms_of_arrow_are_those_of_the_plain_one() -> None:
    texts = ["a", None, "b", "a"]
    plain = digests([pa.array(texts)], 4)
    assert digests([pa.array(texts).dictionary_encode()], 4) == plain
    assert digests([pa.array(texts, pa.large_string())], 4) == plain
    lists = [[1, 2], None, [3, 4]]
    assert digests([pa.array(lists, pa.list_(pa.int64(), 2))], 3) == digests([pa.array(lists)], 3)
    assert len(digests([], 2)) == 2
