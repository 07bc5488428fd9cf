"""Rows of a DataFrame that nearly look alike have keys of their own in a ledger, and calls with dedupe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark.sql")

import pyarrow as pa

from pillarbox import Options, async_map
from pillarbox.ledger.keys import RowIdentity
from pillarbox.spark.ledger_plan import LedgerPlan
from pillarbox.spark.records import arguments_of, rows_of
from pillarbox.testing.identity import identity
from pillarbox.testing.unclean import UncleanTable, unclean_tables
from tests.spark.unit.unclean_arrow import arrow_batch

TABLES = unclean_tables(min_rows=2, depth=2)


def plan_of(table: UncleanTable, **given: Any) -> LedgerPlan:
    plan = LedgerPlan(None, None, tuple(table.types), None, None, None, None, "plan", None)
    return replace(plan, **given)


IDENTITIES: dict[str, tuple[Callable[[LedgerPlan], RowIdentity], Callable[[Any], bool]]] = {
    "the whole row": (lambda plan: plan.row_identity(), lambda row: True),
    "a column": (lambda plan: replace(plan, key=(0,)).row_identity(), lambda row: row[0] is None),
    "the whole row, shared": (lambda plan: plan.row_identity().sharing(), lambda row: False),
    "a column, shared": (lambda plan: replace(plan, key=(0,)).row_identity().sharing(), lambda row: False),
    "what a cache takes": (lambda plan: plan.content_identity(), lambda row: False),
}
"""By what rows are known: what makes their keys and inputs, and whether equal rows are counted then."""


@pytest.mark.contract(
    "Rows of a DataFrame that differ anywhere, in where a null is, a sign or a nested part, have keys or "
    "inputs of their own in a ledger, in whichever order they come.",
    convicts=["nulls_not_fingerprinted", "zeros_fingerprinted_alike"],
)
@pytest.mark.parametrize("by", IDENTITIES)
@given(TABLES, st.booleans(), st.data())
def test_rows_have_one_key_and_input_where_all_values_are_the_same_and_else_two(
    by: str, table: UncleanTable, spread: bool, data: Any
) -> None:
    make, is_counted = IDENTITIES[by]
    plan = plan_of(table, arguments=",".join(table.types) if spread else None)
    batch = arrow_batch(table)
    order = data.draw(st.permutations(range(len(table.rows))))
    found = []
    for rows in (batch, batch.take(pa.array(order))):
        given = (arguments_of if spread else rows_of)(rows).rows
        keys = [*zip(*make(plan).of_rows(given), strict=True)]
        by_key: dict[Any, Any] = {}
        for key, row in zip(keys, given, strict=True):
            # The row alone has the key that it has among others, unless equal ones are counted.
            assert is_counted(row) or make(plan)(row) == key
            assert by_key.setdefault(key, identity(tuple(row))) == identity(tuple(row))
        written = Counter(identity(tuple(row)) for row in given if not is_counted(row))
        assert len(by_key) == len(written) + sum(map(is_counted, given))
        found.append(by_key)
    assert found[0] == found[1]


@pytest.mark.contract(convicts=["columns_of_records_not_compared"])
@given(unclean_tables(depth=0))
def test_equal_rows_of_a_dataframe_share_a_call_and_no_others(table: UncleanTable) -> None:
    called = []

    async def note(record: Any) -> str:
        called.append(repr(identity(tuple(record), nan_bits=True)))
        return called[-1]

    rows = rows_of(arrow_batch(table)).rows if table.rows else []
    written = [repr(identity(tuple(row), nan_bits=True)) for row in rows]
    assert [*async_map(rows, note, options=Options(dedupe=True), capacity=100)] == written
    assert sorted(called) == sorted(set(written))
