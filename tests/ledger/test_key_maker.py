"""A record's key is the same in every process and version, and differs where values differ."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
from hypothesis import strategies as st

from pillarbox.ledger import KeyMaker

Point = namedtuple("Point", "x y")


@pytest.mark.contract
def test_equal_rows_of_a_task_have_keys_of_their_own_and_the_same_ones_again_in_a_replay() -> None:
    rows = [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 1}]
    first, again = KeyMaker(), KeyMaker()
    keys = [first(row) for row in rows]
    assert len(set(keys)) == 4
    assert [again(row) for row in rows] == keys
    # Other rows in between, as another cut of the partitions gives, change nothing.
    other = KeyMaker()
    assert [other(row) for row in ({"id": 9}, *rows)][1:] == keys


@pytest.mark.parametrize("row", [{"id": 7, "text": "a"}, Point(7, "a")])
def test_a_key_of_columns_depends_on_these_only(row: Any) -> None:
    columns = ["id"] if isinstance(row, dict) else ["x"]
    other = {**row, "text": "b"} if isinstance(row, dict) else row._replace(y="b")
    keys = KeyMaker(columns)
    assert keys(row) == keys(other) == keys(row)
    assert KeyMaker([0])((7, "a")) == keys(row)
    assert KeyMaker()(row) != keys(row)


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ("id", TypeError, "columns='id': must be a list"),
        ([], ValueError, "columns=\\[\\]: must name a column"),
        ([1.5], TypeError, "1.5 is neither a name nor a position"),
        ([True], TypeError, "True is neither"),
    ],
)
def test_columns_are_checked_when_they_are_named(columns: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        KeyMaker(columns)


@pytest.mark.parametrize("row", [{"a": 1}, (), 5, None])
def test_a_row_without_the_column_is_an_error_that_names_it(row: Any) -> None:
    with pytest.raises(KeyError, match="no column 'id'"):
        KeyMaker(["id"])(row)


cells = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
cells |= st.integers(10**99, 10**101) | st.lists(st.integers(), max_size=2)
