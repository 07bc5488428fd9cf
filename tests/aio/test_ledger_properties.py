"""Runs broken off anywhere and begun again, over rows that look alike, against what a whole run gives."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Buffer, Dedupe, Options, async_map
from pillarbox.ledger import Ledger
from pillarbox.testing.identity import identity
from pillarbox.testing.unclean import unclean_rows
from tests.search import examples

OPTIONS = st.fixed_dictionaries(
    {
        "ordered": st.booleans(),
        "capacity": st.integers(1, 9),
        "dedupe": st.sampled_from([False, True, Dedupe(memo=5)]),
        "batch": st.sampled_from([None, None, Batch(3), Batch(8, linger=0.001)]),
        "errors": st.sampled_from(["column", "null", "drop"]),
        "buffer": st.builds(Buffer, max_bytes=st.sampled_from([None, 200])),
    }
)


@pytest.fixture(scope="module", autouse=True)
def _unsynced() -> Iterator[None]:
    """Sync no file: runs break off here, no machine does, and a busy disk takes its time for thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


def shown(row: Any) -> str:
    """A row as the service gets it: a text in which all rows that differ do."""
    return repr(identity(row))


def is_bad(row: Any) -> bool:
    return zlib.crc32(shown(row).encode()) % 6 == 5


class Service:
    """Fails for some rows; counts the calls that ended, by the row."""

    def __init__(self, yields: list[int]) -> None:
        self.ended: Counter[str] = Counter()
        self._yields = itertools.cycle(yields)

    async def one(self, row: Any) -> str:
        for _ in range(next(self._yields)):
            await asyncio.sleep(0)
        self.ended[shown(row)] += 1
        if is_bad(row):
            raise ValueError("bad")
        return shown(row)

    async def many(self, rows: list[Any]) -> list[Any]:
        for _ in range(next(self._yields)):
            await asyncio.sleep(0)
        self.ended.update(map(shown, rows))
        return [ValueError("bad") if is_bad(row) else shown(row) for row in rows]


def expected(rows: list[Any], errors: str) -> list[Any]:
    if errors == "drop":
        return [shown(row) for row in rows if not is_bad(row)]
    return [None if is_bad(row) else shown(row) for row in rows]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Any], list[tuple[list[int], int | None]]]:
    """Rows, and runs over them: the order in which each reads them, and after how many rows it breaks off."""
    rows = draw(unclean_rows(rows=40))
    orders = draw(st.lists(st.permutations(range(len(rows))), min_size=2, max_size=5))
    breaks = [*(draw(st.integers(0, 40)) for _ in orders[2:]), None, None]
    return rows, [*zip(orders, breaks, strict=True)]


@pytest.mark.contract(convicts=["nulls_not_fingerprinted", "zeros_fingerprinted_alike"])
@settings(max_examples=examples(200), deadline=None)
@given(
    history=runs(),
    options=OPTIONS,
    yields=st.lists(st.integers(0, 30), min_size=1, max_size=7),
    loss_window=st.sampled_from([0.001, 0.2]),
    commit_rows=st.sampled_from([1, 3, 1024]),
)
def test_whatever_breaks_off_the_last_run_is_whole_and_no_call_that_ended_is_made_again(
    history: Any,
    options: dict[str, Any],
    yields: list[int],
    loss_window: float,
    commit_rows: int,
) -> None:
    rows, begun = history
    service = Service(yields)
    fn = service.one if options["batch"] is None else service.many
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder, loss_window=loss_window, commit_rows=commit_rows, retry_errors=False)
        chosen = Options(**options, ledger=dataclasses.replace(ledger, uid="uid", run="run"))

        def run(given: list[Any], most: int | None) -> list[Any]:
            with async_map(iter(given), fn, options=chosen) as results:
                taken: list[Any] = list(itertools.islice(results, most))
            if options["errors"] == "column":
                assert all((each.error is None) == (each.result is not None) for each in taken)
                return [each.result for each in taken]
            return taken

        for number, (order, most) in enumerate(begun):
            # Each run sees the rows in an order of its own.
            given = [rows[place] for place in order]
            whole = expected(given, options["errors"])
            before = service.ended.copy()
            found = run(given, most)
            assert Counter(found) <= Counter(whole)
            if options["ordered"]:
                assert found == whole[: len(found)]
            if most is None:
                assert len(found) == len(whole)
            if number == len(begun) - 1:
                assert service.ended == before
    counts = Counter(map(shown, rows))
    assert service.ended.keys() == counts.keys()
    if options["dedupe"]:
        assert all(service.ended[row] <= count for row, count in counts.items())
    else:
        # Rows without a key are counted: equal ones have a call each.
        assert service.ended == counts
