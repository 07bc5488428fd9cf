"""A result that does not fit what is asked for is a failed attempt of its call, like an error."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, Budget, CallFailed, Dedupe, Errors, Options, Retry, Timeout, TooManyFailures
from pillarbox.aio.chained import Stage
from pillarbox.aio.errors import Failed
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.task_run import ResultStream
from pillarbox.ledger import Ledger
from pillarbox.ledger.keys import execution_id
from pillarbox.rpc.loop_thread import LoopThread
from tests.aio.unit.virtual import HOUR, Rig, Scripted, again, play


class Misfit(TypeError):
    """A result that is not a number."""


class Numbers:
    """Makes texts of numbers; keeps in `seen` what it was asked about."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def convert(self, result: Any) -> Any:
        self.seen.append(result)
        if isinstance(result, int):
            return str(result)
        if not isinstance(result, str) or not result.isdigit():
            raise Misfit(f"{result!r} is not a number")
        return result

    def convert_all(self, results: list[Any]) -> list[Any]:
        return [self.convert(result) for result in results]

    def rows_of(self, results: Any) -> list[Any] | None:
        return None

    def elements_of(self, results: Any) -> list[Any] | None:
        return None


def failures(rig: Rig) -> dict[Any, tuple[str, int]]:
    return {row: (r.info.type, r.info.attempts) for row, r in rig.emitted if type(r) is Failed}


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
        rig = Rig(fn, convert=Numbers(), errors="null", **MODES[mode])
        rig.push(*range(8))
        await rig.end()
        assert rig.error is None
        assert failures(rig) == {3: ("Misfit", 1)}
        assert [result for _, result in rig.emitted if type(result) is not Failed] == list("0124567")
        statistics = rig.operator.statistics()
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
        rig = Rig(in_mode(answer, MODES[mode]), convert=Numbers(), retry=again(3, 1.0), **MODES[mode])
        rig.push(*range(8))
        await rig.end()
        assert rig.error is None
        assert rig.results == list("01234567")
        assert [asked.count(row) for row in range(8)] == [1, 1, 1, 3, 1, 1, 1, 1]
        statistics = rig.operator.statistics()
        assert (statistics.retries, statistics.retries_by_reason) == (2, {"Misfit": 2})

    play(script)


@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_never_fits_fails_after_its_last_attempt(mode: str) -> None:
    async def script() -> None:
        fn = in_mode(lambda row: None if row % 2 else row, MODES[mode])
        rig = Rig(fn, convert=Numbers(), retry=again(2, 1.0), errors="drop", **MODES[mode])
        rig.push(*range(4))
        await rig.end()
        assert failures(rig) == {1: ("Misfit", 2), 3: ("Misfit", 2)}

    play(script)


def test_errors_fail_ends_the_job_with_the_row() -> None:
    async def script() -> None:
        rig = Rig(in_mode(lambda row: "twelve", {}), convert=Numbers())
        rig.push(7)
        await rig.end()
        assert isinstance(rig.error, CallFailed)
        assert str(rig.error) == "call failed after 1 attempt for row 7: Misfit: 'twelve' is not a number"

    play(script)


@pytest.mark.contract
def test_fail_after_counts_results_that_do_not_fit() -> None:
    async def script() -> None:
        rig = Rig(in_mode(lambda row: "twelve", {}), convert=Numbers(), errors=Errors("null", stop_after=2))
        rig.push(*range(5))
        await rig.end()
        assert isinstance(rig.error, TooManyFailures)
        assert rig.error.failed == 3

    play(script)


def test_what_a_call_cost_is_paid_though_its_result_does_not_fit() -> None:
    async def script() -> None:
        fn = in_mode(lambda row: "twelve", {})
        rig = Rig(
            fn,
            convert=Numbers(),
            errors="null",
            retry=again(3, 1.0),
            budget=Budget(usage=lambda row, result: 2.0),
        )
        rig.push(0)
        await rig.end()
        assert rig.operator.statistics().cost == 6.0

    play(script)


def test_predicates_see_the_result_as_the_function_gave_it() -> None:
    seen: list[Any] = []

    def is_bad(result: Any) -> bool:
        seen.append(result)
        return False

    async def script() -> None:
        rig = Rig(in_mode(lambda row: row, {}), convert=Numbers(), retry=Retry(2, result=is_bad))
        rig.push(5)
        await rig.end()
        assert (seen, rig.results) == ([5], ["5"])

    play(script)


@pytest.mark.parametrize(("value", "expected"), [(7, "7"), ("seven", ("Misfit", 1))])
def test_what_stands_for_a_timeout_must_fit_too(value: Any, expected: Any) -> None:
    async def never(row: int) -> None:
        await asyncio.sleep(HOUR)

    async def script() -> None:
        rig = Rig(never, convert=Numbers(), errors="null", timeout=Timeout(1.0, fallback=value))
        rig.push(0)
        await rig.end()
        assert (failures(rig).get(0) or rig.results[0]) == expected

    play(script)


def test_equal_rows_share_a_result_that_was_converted_once() -> None:
    async def script() -> None:
        numbers = Numbers()
        rig = Rig(in_mode(lambda row: row, {}), convert=numbers, dedupe=Dedupe(memo=10))
        rig.push(5, 5, 5)
        await rig.end()
        assert (rig.results, numbers.seen) == (["5"] * 3, [5])

    play(script)


def test_a_batch_that_fits_is_converted_once() -> None:
    async def script() -> None:
        numbers = Numbers()
        rig = Rig(Scripted(lambda number, rows: list(rows)), convert=numbers, batch=Batch(4))
        rig.push(*range(4))
        await rig.end()
        assert (rig.results, numbers.seen) == (["0", "1", "2", "3"], [0, 1, 2, 3])

    play(script)


@pytest.mark.contract
def test_a_ledger_keeps_a_result_that_does_not_fit_as_a_failure(tmp_path: Path) -> None:
    calls: list[int] = []

    async def call(row: int) -> Any:
        calls.append(row)
        return "twelve" if row == 1 else row

    def run(retry_errors: bool) -> list[Any]:
        ledger = Ledger(str(tmp_path / "ledger"), retry_errors=retry_errors)
        options: dict[str, Any] = {
            "ledger": dataclasses.replace(ledger, uid="uid", run="run"),
            "errors": "null",
        }

        thread = LoopThread("test-loop")
        ledger_session = LedgerSession(Options(**options), "run", execution=execution_id())
        job = ResultStream(
            [Stage(call, Options(**options), ledger_session=ledger_session, convert=Numbers())],
            range(3),
            loop_thread=thread,
        )
        found: list[Any] = []
        while (chunk := job.take()) is not None:
            found += [result for _, result in chunk]
        assert job.close()
        thread.close(5.0)
        return [result.info.type if type(result) is Failed else result for result in found]

    assert run(False) == ["0", "Misfit", "2"]
    assert run(False) == ["0", "Misfit", "2"]
    assert sorted(calls) == [0, 1, 2]
    assert run(True) == ["0", "Misfit", "2"]
    assert sorted(calls) == [0, 1, 1, 2]
