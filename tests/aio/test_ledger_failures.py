"""The operator with a ledger, and rows that fail: in this run or in one before, and how they count."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox import CallFailed, ErrorInfo, Errors, Options, Outcome, TooManyFailures, async_map
from pillarbox.ledger import Ledger

pytestmark = pytest.mark.usefixtures("each_loop")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


async def odd_fails(row: int) -> int:
    if row % 2:
        raise ValueError(f"odd: {row}")
    return row


def failing_calls(calls: Counter[int]) -> Callable[[int], Any]:
    async def call(row: int) -> int:
        calls[row] += 1
        return await odd_fails(row)

    return call


@pytest.mark.contract
def test_failed_rows_are_called_again_unless_their_errors_count_as_results(ledger: Ledger) -> None:
    calls = Counter[int]()
    ledger = dataclasses.replace(ledger, uid="uid", run="run")
    first = list(async_map(range(10), failing_calls(calls), ledger=ledger, errors="column"))
    assert first[1].error is not None
    list(async_map(range(10), failing_calls(calls), ledger=ledger, errors="column"))
    assert calls == {row: 1 + row % 2 for row in range(10)}
    taken = dataclasses.replace(ledger, retry_errors=False)
    job = async_map(range(10), failing_calls(calls), ledger=taken, errors="column")
    again = list(job)
    assert calls.total() == 15
    assert [outcome.result for outcome in again] == [outcome.result for outcome in first]
    error = again[3].error
    assert isinstance(error, ErrorInfo)
    assert (error.type, error.message, error.attempts, error.status) == ("ValueError", "odd: 3", 1, None)
    statistics = job.statistics()
    assert statistics is not None
    assert (statistics.errors, statistics.found) == (5, 10)


@pytest.mark.contract
def test_a_job_that_fails_keeps_what_had_an_answer(ledger: Ledger) -> None:
    calls = Counter[int]()

    async def call(row: int) -> int:
        calls[row] += 1
        if row == 30 and calls[row] == 1:
            raise ConnectionError
        return row

    options = Options(ledger=Ledger(ledger.location, retry_errors=False, uid="uid", run="run"), capacity=1)
    with pytest.raises(CallFailed):
        list(async_map(range(60), call, options=options))
    assert list(async_map(range(60), call, options=options)) == [*range(60)]
    assert calls == {row: 1 + (row == 30) for row in range(60)}


def test_an_outcome_of_a_found_row_looks_like_that_of_a_called_one(ledger: Ledger) -> None:
    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"), errors="column")
    for _ in range(2):
        assert list(async_map([2], odd_fails, options=options)) == [Outcome(2, None)]


def test_a_share_of_failures_counts_rows_whose_results_are_not_durable_yet(ledger: Ledger) -> None:
    async def call(row: int) -> int:
        if row % 20 == 0:
            raise ValueError(row)
        return row

    # 5 of 100 failed, however few of the others are on the disk when the hundredth has finished.
    options = Options(
        errors=Errors("null", stop_after=0.08),
        capacity=10,
        ledger=dataclasses.replace(ledger, uid="uid", run="run"),
    )
    assert len(list(async_map(range(500), call, options=options))) == 500


def test_failures_that_are_found_count_like_those_of_calls(ledger: Ledger) -> None:
    ledger = Ledger(ledger.location, retry_errors=False)
    for fail_after in (5, 0.3):
        options = Options(
            errors="null", ledger=dataclasses.replace(ledger, uid="uid", run=f"{fail_after}"), capacity=1
        )
        list(async_map(range(200), odd_fails, options=options))
        with pytest.raises(TooManyFailures, match="ValueError: odd: 1"):
            list(
                async_map(
                    range(200), odd_fails, options=options, errors=Errors("null", stop_after=fail_after)
                )
            )


def test_failures_that_are_found_ahead_of_their_rows_end_no_good_job(ledger: Ledger) -> None:
    ledger = Ledger(ledger.location, retry_errors=False)
    given: dict[str, Any] = {
        "ledger": dataclasses.replace(ledger, uid="uid", run="run"),
        "capacity": 30,
    }

    async def call(row: int) -> int:
        if row % 10 == 9:
            raise ValueError(row)
        return row

    # Of every tenth row it is known that it failed, of all others nothing.
    list(async_map(range(9, 2000, 10), call, errors="null", **given))
    assert len(list(async_map(range(2000), call, **given, errors=Errors("null", stop_after=0.15)))) == 2000
    with pytest.raises(TooManyFailures):
        list(async_map(range(2000), call, **given, errors=Errors("null", stop_after=0.05)))
