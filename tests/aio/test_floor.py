"""Jobs in which nothing succeeds: an error, whatever becomes of rows that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, Errors, NothingSucceeded, Retry, Step, Timeout, async_map

FIRST_LINE = "PermissionError: the key is wrong - so failed all {} rows"


async def refuses(row: int) -> int:
    raise PermissionError("the key is wrong")


async def refuses_all(rows: list[int]) -> list[int]:
    raise PermissionError("the key is wrong")


@pytest.mark.contract(
    "A job whose first 100 rows all fail for one cause ends with it in the error's first line."
)
@pytest.mark.parametrize("errors", ["null", "column", "drop", "dead_letter"])
def test_a_job_whose_first_rows_all_fail_ends_with_the_cause(errors: Any, tmp_path: Path) -> None:
    if errors == "dead_letter":
        errors = Errors(dead_letter=tmp_path / "failed.jsonl")
    for fn, batch in ((refuses, None), (refuses_all, Batch(16))):
        calls = async_map(range(2000), fn, errors=errors, batch=batch, capacity=10)
        with pytest.raises(NothingSucceeded) as raised:
            list(calls)
        assert str(raised.value).partition("\n")[0].startswith(FIRST_LINE.format(100))
        assert isinstance(raised.value.cause.cause, PermissionError)
        assert calls.statistics().calls < 400


@pytest.mark.contract("With `floor=None` a job goes on, whatever its rows fail with.")
def test_without_a_floor_all_rows_may_fail() -> None:
    outcomes = [*async_map(range(500), refuses, errors=Errors("column", floor=None))]
    assert len(outcomes) == 500
    assert all(outcome.error.type == "PermissionError" for outcome in outcomes)


def test_a_floor_is_a_number_of_rows_or_none() -> None:
    with pytest.raises(NothingSucceeded, match="all 7 rows"):
        [*async_map(range(500), refuses, errors=Errors("null", floor=7), capacity=1)]
    for value in (0, -1, 1.5, True, "many"):
        with pytest.raises((TypeError, ValueError), match="floor"):
            Errors("null", floor=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("good", [0, 50, 99])
def test_one_row_that_succeeds_or_another_cause_is_enough_to_go_on(good: int) -> None:
    async def one_good(row: int) -> int:
        if row == good:
            return row
        raise PermissionError("the key is wrong")

    async def one_other(row: int) -> int:
        if row == good:
            raise ValueError("an odd row")
        raise PermissionError("the key is wrong")

    assert len([*async_map(range(300), one_good, errors="null", capacity=1)]) == 300
    # Of which none succeeded, though.
    with pytest.raises(NothingSucceeded, match="all 300 rows"):
        [*async_map(range(300), one_other, errors="null", capacity=1)]


@pytest.mark.contract("A job of ten rows or more in which none succeeded is an error.")
@pytest.mark.parametrize("errors", ["null", "drop", "dead_letter"])
def test_a_job_in_which_nothing_succeeded_is_an_error(errors: Any, tmp_path: Path) -> None:
    if errors == "dead_letter":
        errors = Errors(dead_letter=tmp_path / "failed.jsonl")
    with pytest.raises(NothingSucceeded, match="all 10 rows"):
        [*async_map(range(10), refuses, errors=errors)]
    [*async_map(range(9), refuses, errors=errors)]


@pytest.mark.contract(
    'With errors="column" a job of few rows in which none succeeded says so, and gives all errors.'
)
@pytest.mark.parametrize("rows", [10, 99])
def test_a_job_whose_errors_are_all_given_is_warned_of_where_nothing_succeeded(
    rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = [*async_map(range(rows), refuses, errors="column", capacity=1)]
    assert [outcome.error and outcome.error.type for outcome in outcomes] == ["PermissionError"] * rows
    said = f"nothing succeeded: {rows} of {rows} rows failed, the first with: call failed after 1 attempt "
    assert f"{said}for row 0: PermissionError: the key is wrong" in caplog.text


def test_a_job_whose_errors_are_all_given_may_fail_for_many_causes(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(row: int) -> int:
        raise (PermissionError, ValueError)[row % 2]("no")

    assert len([*async_map(range(300), fails, errors="column", capacity=1)]) == 300
    assert "nothing succeeded: 300 of 300 rows failed, the first with: " in caplog.text


def test_a_result_that_stands_for_a_time_out_is_no_failure() -> None:
    async def hangs(row: int) -> int:
        await asyncio.sleep(60)
        return row

    results = [*async_map(range(200), hangs, timeout=Timeout(0.01, fallback=-1), errors="null", capacity=200)]
    assert results == [-1] * 200


def test_failures_that_come_through_a_chain_are_counted_where_they_arose() -> None:
    async def double(row: int) -> int:
        return 2 * row

    with pytest.raises(NothingSucceeded, match="PermissionError"):
        [*async_map(range(500), [Step(double, uid="double"), Step(refuses, uid="ask")], errors="null")]


@pytest.mark.contract("A job of which more than half failed says so at its end, with the first error.")
def test_most_rows_failing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def mostly(row: int) -> int:
        if row % 3:
            raise PermissionError("the key is wrong")
        return row

    [*async_map(range(30), mostly, errors="null", capacity=1)]
    assert "20 of 30 rows failed, the first with: call failed after 1 attempt for row 1" in caplog.text
    caplog.clear()
    [*async_map(range(30), mostly, errors="null", retry=Retry(1), capacity=1, rate=None)][:1]
    assert caplog.text.count("rows failed") == 1


# -- an input that fails ---------------------------------------------------------------------------


def rows() -> Iterator[int]:
    yield from range(700)
    raise OSError("the disk")


async def rows_async() -> AsyncIterator[int]:
    for row in range(700):
        yield row
    raise OSError("the disk")


async def after_a_while(row: int) -> int:
    await asyncio.sleep(0.002)
    return row


async def all_after_a_while(some: list[int]) -> list[int]:
    await asyncio.sleep(0.002)
    return some


@pytest.mark.contract("An input that fails is an error behind the results of the rows before it.")
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    "fn", [after_a_while, all_after_a_while, [after_a_while, Step(after_a_while, uid="again")]]
)
def test_an_input_that_fails_loses_no_result(
    fn: Any, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    batch = Batch(64, linger=60) if fn is all_after_a_while else None
    got: list[int] = []
    results = async_map(rows(), fn, batch=batch, ordered=ordered)
    with pytest.raises(OSError, match="the disk"):
        got.extend(results)
    assert sorted(got) == [*range(700)]
    said = "the input failed, and ends the job when the rows before have: OSError: the disk"
    assert caplog.messages.count(said) == 1


def test_an_async_input_that_fails_loses_no_result() -> None:
    got: list[int] = []

    async def take() -> None:
        async for result in async_map(rows_async(), after_a_while):
            got.append(result)  # noqa: PERF401 - those before the error

    with pytest.raises(OSError, match="the disk"):
        asyncio.run(take())
    assert got == [*range(700)]


def test_a_row_that_ends_the_job_comes_before_an_input_that_fails() -> None:
    async def fails(row: int) -> int:
        await asyncio.sleep(0.002)
        if row == 690:
            raise ValueError("a bad row")
        return row

    with pytest.raises(Exception, match="a bad row"):
        [*async_map(rows(), fails)]
