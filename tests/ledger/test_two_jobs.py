"""Two jobs of one run in an object store: one calls, the other is told so; no run is lost with its job."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import async_map
from pillarbox.ledger import Ledger, LedgerError

fs = pytest.importorskip("pyarrow.fs")
ROWS = 400


def rows(count: int = ROWS) -> list[dict[str, int]]:
    return [{"id": number} for number in range(count)]


def run_each_at_once(call: Callable[[dict[str, int]], Any], ledger: Ledger) -> None:
    """Two jobs at a time, of a row each."""
    threads = [
        threading.Thread(target=lambda some=some: list(async_map(some, call, ledger=ledger)))
        for some in (rows(2)[:1], rows(2)[1:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.contract(
    "Jobs of one run that need no guard may do without, where nothing is written on a condition."
)
def test_without_a_guard_two_jobs_of_a_run_work_at_a_time(
    folder: tuple[Ledger, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = dataclasses.replace(folder[0], exclusive=False)
    assert "exclusive=False" in repr(ledger)
    both = threading.Barrier(2)
    calls = Counter[int]()

    async def call(row: dict[str, int]) -> int:
        calls[row["id"]] += 1
        await asyncio.to_thread(both.wait)
        return row["id"]

    run_each_at_once(call, ledger)
    assert calls == {0: 1, 1: 1}


@pytest.mark.contract
def test_who_waits_for_results_in_vain_is_told_at_once_where_nothing_can_be_written_on_a_condition(
    folder: tuple[Ledger, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.ledger.objects.conditional.STORES", {})
    monkeypatch.setattr("pillarbox.ledger.objects.conditional.LocalStore", lambda path: opened(path))

    def opened(path: str) -> Any:
        raise LedgerError("nothing is written on a condition")

    async def call(row: dict[str, int]) -> int:
        raise AssertionError("is called")

    with pytest.raises(LedgerError, match="nothing is written on a condition"):
        list(async_map(rows(1), call, ledger=folder[0]))


@pytest.mark.contract
def test_a_cache_in_an_object_store_is_nobodys_run(folder: tuple[Ledger, str]) -> None:
    cache = dataclasses.replace(folder[0], run=None, key=None, cache=True)
    both = threading.Barrier(2)

    async def call(row: dict[str, int]) -> int:
        await asyncio.to_thread(both.wait)
        return row["id"]

    run_each_at_once(call, cache)
    assert len(list(async_map(rows(2), call, ledger=cache))) == 2
