"""Rows have one digest where all their values are the same, and two where one of them is not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa

from pillarbox.spark.stream.row_digests import DIGEST_BYTES, digests_of, row_digests
from pillarbox.testing.identity import identity
from pillarbox.testing.unclean import UncleanTable, unclean_tables
from tests.search import examples
from tests.spark.unit.unclean_arrow import arrow_batch, for_arrow

TABLES = unclean_tables(depth=2)


def columns_of(table: UncleanTable, is_large: bool = False) -> list[pa.Array]:
    """The columns of a table, and one that has nothing. is_large: as Arrow keeps large ones."""
    columns = [column.cast(large(column.type)) if is_large else column for column in arrow_batch(table)]
    return [*columns, pa.nulls(len(table.rows))]


def large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(large(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, large(each.type)) for each in kind])
    return kind


def digests(columns: list[pa.Array], rows: int) -> list[bytes]:
    found: list[bytes] = row_digests(columns, rows).to_pylist()
    assert all(len(each) == DIGEST_BYTES for each in found)
    return found


@pytest.mark.contract(
    "Two rows of a stream are one where all values are the same, nulls and signs too, and else two."
)
@settings(max_examples=examples(300))
@given(TABLES, st.booleans())
def test_rows_have_one_digest_where_all_values_are_the_same_and_else_two(
    table: UncleanTable, is_large: bool
) -> None:
    found = digests(columns_of(table, is_large), len(table.rows))
    kinds = table.types.values()
    # The order of a map counts here: each execution reads it as it was written.
    known = [
        identity([for_arrow(kind, value) for kind, value in zip(kinds, row, strict=True)], nan_bits=True)
        for row in table.rows
    ]
    for (one, first), (other, second) in itertools.combinations(zip(known, found, strict=True), 2):
        assert (one == other) == (first == second)


@given(TABLES, st.data())
def test_the_digest_of_a_row_does_not_depend_on_the_rows_beside_it(table: UncleanTable, data: Any) -> None:
    columns, rows = columns_of(table), table.rows
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
