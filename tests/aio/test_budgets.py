"""Budgets: a paid call counts, whenever it ends, and a row that is held back is not overtaken."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pillarbox import Batch, Budget, Coordinator, Dedupe, Options, Rate, Retry, async_map


@pytest.mark.contract
def test_a_result_that_comes_too_late_is_paid_for_all_the_same() -> None:
    release = threading.Event()

    def call(row: int) -> int:
        if row == 0:
            assert release.wait()
        return row

    results = async_map(
        range(3), call, capacity=1, timeout=0.3, errors="null", budget=Budget(usage=lambda row, result: 1)
    )
    assert next(results) is None
    release.set()
    assert list(results) == [1, 2]
    statistics = results.statistics()
    assert statistics is not None
    assert (statistics.cost, statistics.late) == (3.0, 1)


@pytest.mark.parametrize("batch", [None, Batch(1)])
def test_rows_that_are_tried_again_do_not_overtake_one_that_the_rate_holds_back(batch: Batch | None) -> None:
    begun: list[str] = []

    async def call(rows: str | list[str]) -> str | list[str]:
        row = rows if isinstance(rows, str) else rows[0]
        begun.append(row)
        await asyncio.sleep(0)
        if row != "heavy" and "heavy" not in begun:
            raise ConnectionError(row)
        return rows

    weights = {"heavy": 30.0}
    rate = Rate(units_per_minute=6000, weight=lambda row: weights.get(row, 1.0), burst=0.1)
    rows = ["light 1", "light 2", "heavy"]
    retry = Retry(1000, initial=0.0)
    with async_map(rows, call, rate=rate, retry=retry, batch=batch, timeout=60.0) as results:
        assert list(results) == rows
    # As many as had begun, and those that came back, before the heavy row was the next.
    assert begun.index("heavy") <= 16


@pytest.mark.contract
def test_rows_that_were_not_called_are_not_kept_as_results() -> None:
    async def call(row: int) -> int:
        return row

    options = Options(
        dedupe=Dedupe(memo=1), budget=Budget(max_calls=1), capacity=1, errors="column", ordered=True
    )
    outcomes = list(async_map([1, 2, 2, 1], call, options=options))
    assert [outcome.error.type if outcome.error else outcome.result for outcome in outcomes] == [
        1,
        "NotCalled",
        "NotCalled",
        1,
    ]


def test_an_error_whose_attributes_raise_fails_its_row() -> None:
    class Bad(Exception):
        @property
        def status(self) -> int:
            raise asyncio.CancelledError("from a property")

    async def call(row: int) -> int:
        raise Bad

    outcomes = list(async_map(range(2), call, errors="column", rate=Rate(per_second=1000.0)))
    assert [outcome.error and outcome.error.type for outcome in outcomes] == ["Bad", "Bad"]


@pytest.mark.contract
def test_options_that_are_used_twice_are_two_budgets() -> None:
    async def call(row: int) -> int:
        return row

    with Coordinator() as coordinator:
        options = Options(budget=Budget(max_calls=5), errors="drop", limits=coordinator)
        for _ in range(2):
            assert len(list(async_map(range(8), call, options=options))) == 5
