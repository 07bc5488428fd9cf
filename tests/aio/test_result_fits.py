"""A result that does not fit what is asked for is a failed attempt of its call, like an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pillarbox import (
    Batch,
    Budget,
    CallFailed,
    Dedupe,
    ErrorInfo,
    Errors,
    Ledger,
    Retry,
    Timeout,
    TooManyFailures,
    async_map,
)
from tests.aio.virtual import Job, Scripted, again, play


class Misfit(TypeError):
    """A result that is not a number."""


class Numbers:
    """Calls `fn`, and makes texts of the numbers that it gives; keeps in `seen` what it was asked about."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.seen: list[Any] = []

    async def __call__(self, row: Any) -> Any:
        return await self.fn(row)

    def parse(self, result: Any) -> str:
        self.seen.append(result)
        if isinstance(result, int):
            return str(result)
        if not isinstance(result, str) or not result.isdigit():
            raise Misfit(f"{result!r} is not a number")
        return result


def failures(job: Job) -> dict[Any, tuple[str, int]]:
    return {row: (r.type, r.attempts) for row, r in job.emitted if type(r) is ErrorInfo}


MODES: dict[str, dict[str, Any]] = {
    "coroutine": {},
    "limits": {"timeout": Timeout(60.0, attempt=30.0)},
    "usage": {"budget": Budget(usage=lambda row, result: 1)},
    "batch": {"batch": Batch(4)},
    "batch and usage": {"batch": Batch(4), "budget": Budget(usage=lambda row, result: 1)},
}


def in_mode(answer: Any, given: dict[str, Any]) -> Any:
    if "batch" in given:

        async def many(rows: list[int]) -> list[Any]:
            return [answer(row) for row in rows]

        return many

    async def one(row: int) -> Any:
        return answer(row)

    return one


@pytest.mark.contract
@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_does_not_fit_is_a_failure_of_its_row_and_of_no_other(mode: str) -> None:
    async def script() -> None:
        fn = in_mode(lambda row: "twelve" if row == 3 else row, MODES[mode])
        job = Job(Numbers(fn), errors="column", **MODES[mode])
        job.push(*range(8))
        await job.end()
        assert job.error is None
        assert failures(job) == {3: ("Misfit", 1)}
        assert [result for _, result in job.emitted if type(result) is not ErrorInfo] == list("0124567")
        statistics = job.statistics()
        assert (statistics.errors, statistics.errors_by_type) == (1, {"Misfit": 1})

    play(script)


@pytest.mark.contract
@pytest.mark.parametrize("mode", MODES)
def test_retry_calls_again_for_a_result_that_does_not_fit(mode: str) -> None:
    asked: list[int] = []

    def answer(row: int) -> Any:
        asked.append(row)
        return "twelve" if row == 3 and asked.count(3) < 3 else row

    async def script() -> None:
        job = Job(Numbers(in_mode(answer, MODES[mode])), retry=again(3, 1.0), **MODES[mode])
        job.push(*range(8))
        await job.end()
        assert job.error is None
        assert job.results == list("01234567")
        assert [asked.count(row) for row in range(8)] == [1, 1, 1, 3, 1, 1, 1, 1]
        statistics = job.statistics()
        assert (statistics.retries, statistics.retries_by_reason) == (2, {"Misfit": 2})

    play(script)


@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_never_fits_fails_after_its_last_attempt(mode: str) -> None:
    async def script() -> None:
        fn = in_mode(lambda row: None if row % 2 else row, MODES[mode])
        job = Job(Numbers(fn), retry=again(2, 1.0), errors="column", **MODES[mode])
        job.push(*range(4))
        await job.end()
        assert failures(job) == {1: ("Misfit", 2), 3: ("Misfit", 2)}

    play(script)


def test_errors_fail_ends_the_job_with_the_row() -> None:
    async def script() -> None:
        job = Job(Numbers(in_mode(lambda row: "twelve", {})))
        job.push(7)
        await job.end()
        assert isinstance(job.error, CallFailed)
        assert str(job.error) == "call failed after 1 attempt for row 7: Misfit: 'twelve' is not a number"

    play(script)


@pytest.mark.contract
def test_fail_after_counts_results_that_do_not_fit() -> None:
    async def script() -> None:
        job = Job(Numbers(in_mode(lambda row: "twelve", {})), errors=Errors("null", stop_after=2))
        job.push(*range(5))
        await job.end()
        assert isinstance(job.error, TooManyFailures)
        assert job.error.failed == 3

    play(script)


def test_what_a_call_cost_is_paid_though_its_result_does_not_fit() -> None:
    async def script() -> None:
        fn = in_mode(lambda row: "twelve", {})
        job = Job(
            Numbers(fn),
            errors="null",
            retry=again(3, 1.0),
            budget=Budget(usage=lambda row, result: 2.0),
        )
        job.push(0)
        await job.end()
        assert job.statistics().cost == 6.0

    play(script)


def test_predicates_see_the_result_as_the_function_gave_it() -> None:
    seen: list[Any] = []

    def is_bad(result: Any) -> bool:
        seen.append(result)
        return False

    async def script() -> None:
        job = Job(Numbers(in_mode(lambda row: row, {})), retry=Retry(2, result=is_bad))
        job.push(5)
        await job.end()
        assert (seen, job.results) == ([5], ["5"])

    play(script)


def test_equal_rows_share_a_result_that_was_converted_once() -> None:
    async def script() -> None:
        numbers = Numbers(in_mode(lambda row: row, {}))
        job = Job(numbers, dedupe=Dedupe(memo=10))
        job.push(5, 5, 5)
        await job.end()
        assert (job.results, numbers.seen) == (["5"] * 3, [5])

    play(script)


def test_a_batch_that_fits_is_converted_once() -> None:
    async def script() -> None:
        numbers = Numbers(Scripted(lambda number, rows: list(rows)))
        job = Job(numbers, batch=Batch(4))
        job.push(*range(4))
        await job.end()
        assert (job.results, numbers.seen) == (["0", "1", "2", "3"], [0, 1, 2, 3])

    play(script)


@pytest.mark.contract
def test_a_ledger_keeps_a_result_that_does_not_fit_as_a_failure(tmp_path: Path) -> None:
    calls: list[int] = []

    async def call(row: int) -> Any:
        calls.append(row)
        return "twelve" if row == 1 else row

    def run(retry_errors: bool) -> list[Any]:
        ledger = Ledger(str(tmp_path / "ledger"), uid="uid", run="run", retry_errors=retry_errors)
        outcomes = async_map(range(3), Numbers(call), ledger=ledger, errors="column")
        return [error.type if error else result for result, error in outcomes]

    assert run(False) == ["0", "Misfit", "2"]
    assert run(False) == ["0", "Misfit", "2"]
    assert sorted(calls) == [0, 1, 2]
    assert run(True) == ["0", "Misfit", "2"]
    assert sorted(calls) == [0, 1, 1, 2]
