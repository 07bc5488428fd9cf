"""The retry budget: what it allows in any stretch of time, and what it counts."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import ErrorInfo, Retry, RetryBudget
from tests.aio.virtual import Job, now, play
from tests.search import examples

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 4000)), max_size=60)
"""Rows that come: whether the first call fails, and the milliseconds before."""
NEAR = 1e-4


def at_once(budget: RetryBudget, attempts: int = 1000) -> Retry:
    """Tries again without a pause."""
    return Retry(attempts, initial=0.0, maximum=0.0, jitter=False, budget=budget)


class Rows:
    """An async function whose row is how often it fails; keeps the times of first calls and of retries."""

    def __init__(self) -> None:
        self.rows: list[float] = []
        self.retries: list[float] = []
        self.attempts: dict[Any, int] = {}

    async def __call__(self, row: tuple[int, int]) -> int:
        attempt = self.attempts[row] = self.attempts.get(row, 0) + 1
        (self.rows if attempt == 1 else self.retries).append(now())
        if attempt <= row[1]:
            raise OSError(row)
        return attempt


async def come(steps: list[tuple[bool, int]], budget: RetryBudget) -> tuple[Rows, list[tuple[float, bool]]]:
    """The calls of the rows, and for each retry that was wanted the time, and whether it was granted."""
    rows = Rows()
    job = Job(rows, retry=at_once(budget, 2), errors="column", capacity=1)
    wanted = []
    for number, (fails, pause) in enumerate(steps):
        await asyncio.sleep(pause / 1000)
        job.push((number, int(fails)))
        await asyncio.sleep(0.0001)
        if fails:
            wanted.append((rows.rows[-1], type(job.results[-1]) is not ErrorInfo))
    await job.end()
    assert len(job.results) == len(steps)
    return rows, wanted


@pytest.mark.contract
@settings(deadline=None, max_examples=examples(100))
@given(steps=STEPS, share=st.floats(0, 2), least=st.integers(0, 5), seconds=st.floats(0.5, 5))
def test_no_stretch_of_time_has_more_retries_than_its_budget(
    steps: list[tuple[bool, int]], share: float, least: int, seconds: float
) -> None:
    rows, _ = play(lambda: come(steps, RetryBudget(share, least, seconds=seconds)))
    for last in rows.retries:
        # Times are kept to a tenth of the stretch.
        near = sum(last - 0.9 * seconds + NEAR < each <= last for each in rows.retries)
        begun = sum(last - seconds - NEAR <= each <= last for each in rows.rows)
        assert near <= least + share * begun + 1e-6


@settings(deadline=None, max_examples=examples(100))
@given(steps=STEPS, share=st.floats(0, 2), least=st.integers(0, 5), seconds=st.floats(0.5, 5))
def test_a_retry_is_refused_only_when_the_budget_is_used_up(
    steps: list[tuple[bool, int]], share: float, least: int, seconds: float
) -> None:
    rows, wanted = play(lambda: come(steps, RetryBudget(share, least, seconds=seconds)))
    for at, granted in wanted:
        if not granted:
            used = sum(at - seconds - NEAR <= each <= at for each in rows.retries)
            begun = sum(at - 0.9 * seconds + NEAR < each <= at for each in rows.rows)
            assert used + 1 > least + share * begun - 1e-6


def test_a_task_with_few_rows_has_its_least_and_no_more() -> None:
    async def script() -> None:
        rows = Rows()
        job = Job(rows, retry=at_once(RetryBudget(0.2, 3)), errors="column")
        job.push((0, 10))
        await job.end()
        assert rows.attempts == {(0, 10): 4}

    play(script)


def test_each_row_begun_adds_its_share_and_a_further_attempt_does_not() -> None:
    rows = Rows()

    async def call(row: tuple[int, int]) -> int:
        await asyncio.sleep(0.01)
        return await rows(row)

    async def script() -> None:
        job = Job(call, retry=at_once(RetryBudget(0.2, 0)), errors="column", capacity=50)
        job.push(*[(number, 1000) for number in range(50)])
        await job.end()
        assert (len(rows.rows), len(rows.retries)) == (50, 10)

    play(script)


def test_what_is_used_comes_back_with_time_and_what_is_saved_goes() -> None:
    async def script() -> None:
        rows = Rows()
        job = Job(rows, retry=at_once(RetryBudget(0.5, 2, seconds=10.0)), errors="column")
        job.push(*[(number, 0) for number in range(100)])
        # A half for each row of the last ten seconds, itself among them.
        for at, number, retries in ((9.0, 100, 52), (10.5, 101, 0), (19.5, 102, 3), (60.0, 103, 2)):
            await asyncio.sleep(at - now())
            job.push((number, 60))
            await asyncio.sleep(0.01)
            assert rows.attempts[number, 60] == 1 + retries
        await job.end()

    play(script)


def test_only_what_would_be_tried_again_uses_the_budget() -> None:
    async def script() -> None:
        errors = {"other": ValueError(), "one": OSError(), "two": OSError(), "three": OSError()}
        calls: list[str] = []

        async def call(row: str) -> None:
            calls.append(row)
            raise errors[row]

        budget = RetryBudget(0.0, 2)
        retry = Retry(2, on=(OSError,), initial=0.0, maximum=0.0, jitter=False, budget=budget)
        job = Job(call, retry=retry, errors="column", capacity=1)
        for row in errors:
            job.push(row)
            await asyncio.sleep(0.1)
        await job.end()
        # The second failure of a row is its last, whatever the budget.
        assert calls == ["other", "one", "one", "two", "two", "three"]

    play(script)


@pytest.mark.contract
def test_each_operator_has_an_account_of_its_own() -> None:
    async def script() -> None:
        retry = at_once(RetryBudget(0.0, 1))
        for _ in range(2):
            rows = Rows()
            job = Job(rows, retry=retry, errors="column")
            job.push((0, 3))
            await job.end()
            assert rows.attempts == {(0, 3): 2}

    play(script)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"share": -0.1}, ValueError, "share=-0.1: must be a finite number, at least 0"),
        ({"share": math.nan}, ValueError, "share=nan: must be a finite number"),
        ({"share": True}, TypeError, "share=True: must be a number"),
        ({"least": -1}, ValueError, "least=-1: must be at least 0"),
        ({"least": 1.5}, TypeError, "least=1.5: must be an int"),
        ({"seconds": 0}, ValueError, "seconds=0: must be a finite number above 0"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RetryBudget(**arguments)
