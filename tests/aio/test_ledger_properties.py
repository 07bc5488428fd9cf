"""Runs broken off anywhere and begun again, with random rows and options, against what a run gives."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Buffer, Dedupe, Options, async_map
from pillarbox.ledger import Ledger
from tests.search import examples

ROWS = st.lists(st.integers(0, 12), max_size=60)
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


class Service:
    """Fails for some rows; counts the calls that ended."""

    def __init__(self, yields: list[int]) -> None:
        self.ended: Counter[int] = Counter()
        self._yields = itertools.cycle(yields)

    async def one(self, row: int) -> str:
        for _ in range(next(self._yields)):
            await asyncio.sleep(0)
        self.ended[row] += 1
        if row % 6 == 5:
            raise ValueError(row)
        return f"answer {row}"

    async def many(self, rows: list[int]) -> list[Any]:
        for _ in range(next(self._yields)):
            await asyncio.sleep(0)
        self.ended.update(rows)
        return [ValueError(row) if row % 6 == 5 else f"answer {row}" for row in rows]


def expected(rows: list[int], errors: str) -> list[Any]:
    bad = [row % 6 == 5 for row in rows]
    if errors == "drop":
        return [f"answer {row}" for row, is_bad in zip(rows, bad, strict=True) if not is_bad]
    return [None if is_bad else f"answer {row}" for row, is_bad in zip(rows, bad, strict=True)]


@pytest.mark.contract
@settings(max_examples=examples(60), deadline=None)
@given(
    rows=ROWS,
    options=OPTIONS,
    breaks=st.lists(st.integers(0, 40), max_size=3),
    yields=st.lists(st.integers(0, 30), min_size=1, max_size=7),
    loss_window=st.sampled_from([0.001, 0.2]),
    commit_rows=st.sampled_from([1, 3, 1024]),
)
def test_whatever_breaks_off_the_last_run_is_whole_and_no_call_that_ended_is_made_again(
    rows: list[int],
    options: dict[str, Any],
    breaks: list[int],
    yields: list[int],
    loss_window: float,
    commit_rows: int,
) -> None:
    service = Service(yields)
    fn = service.one if options["batch"] is None else service.many
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder, loss_window=loss_window, commit_rows=commit_rows, retry_errors=False)
        chosen = Options(**options, ledger=dataclasses.replace(ledger, uid="uid", run="run"))

        def run(most: int | None) -> list[Any]:
            with async_map(iter(rows), fn, options=chosen) as results:
                taken: list[Any] = list(itertools.islice(results, most))
            if options["errors"] == "column":
                assert all((each.error is None) == (each.result is not None) for each in taken)
                return [each.result for each in taken]
            return taken

        whole = expected(rows, options["errors"])
        for most in breaks:
            part = run(most)
            assert Counter(part) <= Counter(whole)
            if options["ordered"]:
                assert part == whole[: len(part)]
        last = run(None)
        calls = service.ended.copy()
        again = run(None)
    assert service.ended == calls
    if options["ordered"]:
        assert last == again == whole
    assert Counter(last) == Counter(again) == Counter(whole)
    assert all(calls[row] <= count for row, count in Counter(rows).items())
