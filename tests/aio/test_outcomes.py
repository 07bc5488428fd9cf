"""The outcomes of rows that fail (`errors`, `Timeout.fallback`), and the cost of calls (`Budget.usage`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import (
    Budget,
    CallFailed,
    CallTimeout,
    Dedupe,
    ErrorInfo,
    Errors,
    Options,
    Outcome,
    Timeout,
    TooManyFailures,
    Usage,
    async_map,
)
from tests.aio.virtual import HOUR, Job, again, infos, play


class Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"answered {status}")
        self.status = status


async def odd_only(row: int) -> int:
    if row % 2 == 0:
        raise ValueError(f"{row} is even")
    return row


@pytest.mark.contract('With errors="column" a row gives a result, or what is said about its error.')
def test_column_gives_a_result_or_what_is_said_about_the_error() -> None:
    calls: dict[int, int] = {}

    async def call(row: int) -> str:
        calls[row] = calls.get(row, 0) + 1
        await asyncio.sleep(2)
        if row == 1:
            raise Refused(500)
        return "fine"

    async def script() -> None:
        job = Job(call, errors="column", retry=again(3, 5))
        job.push(0, 1)
        await job.end()
        info = infos(job)[1]
        assert (info.type, info.message, info.attempts, info.status) == ("Refused", "answered 500", 3, 500)

    play(script)
    outcomes = list(async_map([1, 2], odd_only, errors="column"))
    assert all(type(outcome) is Outcome for outcome in outcomes)
    assert outcomes[0] == (1, None)
    result, error = outcomes[1]
    assert result is None and type(error) is ErrorInfo
    assert (error.type, error.message, error.attempts, error.status) == ("ValueError", "2 is even", 1, None)


def test_the_latency_of_an_error_is_from_the_first_attempt_to_the_last() -> None:
    async def call(row: int) -> int:
        await asyncio.sleep(5)
        raise ValueError

    async def script() -> None:
        job = Job(call, errors="column", retry=again(2, 10))
        job.push(1)
        await job.end()
        assert infos(job)[1].latency == pytest.approx(20)

    play(script)


def test_none_is_a_result_and_not_an_error() -> None:
    async def call(row: int) -> None:
        return None

    assert list(async_map([1], call, errors="column")) == [(None, None)]


def test_a_time_out_is_named_as_such_with_its_limit() -> None:
    async def call(row: int) -> None:
        await asyncio.sleep(HOUR)

    async def script() -> None:
        job = Job(call, errors="column", timeout=5)
        job.push("row")
        await job.end()
        info = infos(job)["row"]
        assert (info.type, info.attempts, info.status) == ("CallTimeout", 1, None)
        assert info.message == "no result within timeout=5 s, in attempt 1"

    play(script)


def test_a_time_out_in_a_pause_says_what_the_attempt_before_ended_with() -> None:
    async def script() -> None:
        job = Job(odd_only, timeout=5, retry=again(2, HOUR))
        job.push(4)
        await job.end()
        assert isinstance(job.error, CallTimeout)
        assert "The attempt before ended with ValueError: 4 is even" in str(job.error)

    play(script)


def test_a_long_message_is_shortened() -> None:
    async def call(row: int) -> int:
        raise ValueError("x" * 5000)

    [(_, error)] = async_map([1], call, errors="column")
    assert error is not None
    assert error.message == "x" * 999 + "…"


@pytest.mark.contract('A failed row gives None with errors="null", and nothing with errors="drop".')
def test_null_gives_none_and_drop_gives_nothing() -> None:
    assert list(async_map(range(5), odd_only, errors="null")) == [None, 1, None, 3, None]
    results = async_map(range(5), odd_only, errors="drop")
    assert list(results) == [1, 3]
    counts = results.statistics()
    assert counts is not None
    assert (counts.errors, counts.errors_by_type, counts.results) == (3, {"ValueError": 3}, 5)


@pytest.mark.contract
@pytest.mark.parametrize("errors", ["null", "column", "drop"])
def test_the_first_failure_of_each_kind_is_logged_with_its_row(
    errors: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pillarbox"):
        list(async_map(range(6), odd_only, errors=errors, capacity=1))
    assert [record.getMessage() for record in caplog.records] == [
        "a row failed, the first one for ValueError: "
        "call failed after 1 attempt for row 0: ValueError: 0 is even"
    ]


# -- fail_after ----------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_more_failures_than_fail_after_end_the_job_and_as_many_do_not(ordered: bool) -> None:
    async def script() -> None:
        job = Job(odd_only, errors=Errors("null", stop_after=3), capacity=1, ordered=ordered)
        job.push(0, 1, 2, 3, 4)
        await job.end()
        assert job.error is None
        assert job.results.count(None) == 3
        job = Job(odd_only, errors=Errors("null", stop_after=3), capacity=1, ordered=ordered)
        job.push(0, 1, 2, 3, 4, 5, 6, 7)
        await job.end()
        assert isinstance(job.error, TooManyFailures)
        assert (job.error.failed, job.error.finished, job.error.limit) == (4, 7, 3)
        assert isinstance(job.error.cause, CallFailed)
        assert "more than stop_after=3 allows; the last: call failed" in str(job.error)
        assert "row 6: ValueError: 6 is even" in str(job.error)

    play(script)


def test_fail_after_0_ends_the_job_with_the_first_failure() -> None:
    for limit in (0, 0.0):
        with pytest.raises(TooManyFailures) as caught:
            list(async_map([1, 3, 4, 5], odd_only, errors=Errors("drop", stop_after=limit), capacity=1))
        assert caught.value.failed == 1


def test_a_fraction_counts_from_the_hundredth_row_on() -> None:
    seen: list[int] = []

    async def fails_early(row: int) -> int:
        seen.append(row)
        if row < 5 or row >= 200:
            raise ValueError(row)
        return row

    # Five of the first five would be all; of the first hundred they are a twentieth.
    results = list(async_map(range(200), fails_early, errors=Errors("drop", stop_after=0.05), capacity=1))
    assert len(results) == 195
    seen.clear()
    with pytest.raises(TooManyFailures) as caught:
        list(async_map(range(1000), fails_early, errors=Errors("drop", stop_after=0.05), capacity=1))
    # Over a twentieth for the first time: 11 of 206 are 0.0534, 10 of 205 are 0.0488.
    assert (caught.value.failed, caught.value.finished) == (11, 206)
    assert len(seen) < 1000


def test_a_fraction_of_few_rows_is_looked_at_in_the_end() -> None:
    with pytest.raises(TooManyFailures) as caught:
        list(async_map(range(10), odd_only, errors=Errors("drop", stop_after=0.4)))
    assert (caught.value.failed, caught.value.finished) == (5, 10)
    assert len(list(async_map(range(10), odd_only, errors=Errors("drop", stop_after=0.5)))) == 5


@pytest.mark.contract
def test_the_failures_of_all_rows_count_and_not_those_of_their_attempts() -> None:
    calls: dict[int, int] = {}

    async def flaky(row: int) -> int:
        calls[row] = calls.get(row, 0) + 1
        if calls[row] < 3:
            raise ValueError
        return row

    retry = again(3, 0.001)
    results = async_map(range(20), flaky, errors=Errors("null", stop_after=0), retry=retry)
    assert list(results) == [*range(20)]


# -- on_timeout ----------------------------------------------------------------------------------


async def slow_for_2(row: int) -> int:
    await asyncio.sleep(HOUR if row == 2 else 0)
    return row


@pytest.mark.contract
@pytest.mark.parametrize(
    ("given", "gets"),
    [("none came", "none came"), (None, None), (lambda row: -row, -2)],
    ids=["value", "none", "function"],
)
@pytest.mark.parametrize("limit", ["timeout", "timeout.attempt"])
def test_a_row_that_times_out_gets_the_value_or_what_the_function_says(
    given: Any, gets: Any, limit: str
) -> None:
    async def script() -> None:
        seconds = {"total": 5.0} if limit == "timeout" else {"attempt": 5.0}
        job = Job(slow_for_2, timeout=Timeout(**seconds, fallback=given))
        job.push(1, 2, 3)
        await job.end()
        assert (job.error, job.results) == (None, [1, gets, 3])
        counts = job.statistics()
        assert (counts.timeouts, counts.errors) == (1, 0)

    play(script)


def test_on_timeout_is_not_for_attempts_that_are_tried_again() -> None:
    attempts: list[float] = []

    async def slow_once(row: int) -> int:
        attempts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(HOUR if len(attempts) == 1 else 0)
        return row

    async def script() -> None:
        job = Job(slow_once, timeout=Timeout(attempt=5, fallback="none"), retry=again(2, 1))
        job.push(1)
        await job.end()
        assert job.results == [1]

    play(script)


def test_on_timeout_is_not_for_a_time_out_that_the_function_raises() -> None:
    async def call(row: int) -> int:
        raise TimeoutError("its own")

    with pytest.raises(CallFailed, match="TimeoutError: its own"):
        list(async_map([1], call, timeout=Timeout(60, fallback="none")))


def test_an_on_timeout_that_raises_fails_the_row_with_its_error() -> None:
    def fallback(row: int) -> int:
        raise LookupError("no fallback")

    async def script() -> None:
        job = Job(slow_for_2, timeout=Timeout(5, fallback=fallback), errors="column")
        job.push(1, 2)
        await job.end()
        assert (job.results[0], infos(job)[2].type) == (1, "LookupError")

    play(script)


# -- usage ---------------------------------------------------------------------------------------


@pytest.mark.contract
def test_what_calls_cost_is_added_up() -> None:
    def usage(row: int, result: int) -> Any:
        assert result == row * 10
        return (None, 0.5, Usage(2.0, 30), Usage(tokens=7))[row]

    async def call(row: int) -> int:
        return row * 10

    results = async_map(range(4), call, budget=Budget(usage=usage))
    assert list(results) == [0, 10, 20, 30]
    counts = results.statistics()
    assert counts is not None
    assert (counts.cost, counts.tokens) == (2.5, 37)


@pytest.mark.parametrize("said", [-1, float("nan"), "1", True], ids=repr)
def test_a_cost_that_is_none_fails_the_row_and_names_what_was_given(said: Any) -> None:
    async def call(row: int) -> int:
        return row

    outcomes = list(
        async_map([1, 2], call, budget=Budget(usage=lambda row, _: said if row == 1 else 1), errors="column")
    )
    assert outcomes[0].error.type in ("TypeError", "ValueError")
    assert outcomes[0].error.message.startswith(f"usage gave {said!r}: must be")
    assert outcomes[1] == (2, None)


def test_results_that_are_not_accepted_cost_too() -> None:
    calls: list[int] = []

    async def call(row: int) -> int:
        calls.append(row)
        return len(calls)

    retry = again(3, 0.001, result=lambda result: result < 3)
    results = async_map([1], call, budget=Budget(usage=lambda row, result: 1), retry=retry)
    assert list(results) == [3]
    counts = results.statistics()
    assert counts is not None and counts.cost == 3


@pytest.mark.contract
def test_rows_beyond_max_cost_are_marked_and_not_called() -> None:
    calls: list[int] = []

    async def call(row: int) -> int:
        calls.append(row)
        return row

    async def script() -> None:
        job = Job(call, budget=Budget(max_cost=5, usage=lambda row, result: 2), errors="column", capacity=1)
        job.push(*range(6))
        await job.end()
        # The third call makes 6: what a call costs is known only afterwards.
        assert calls == [0, 1, 2]
        assert job.results[:3] == [0, 1, 2]
        assert all(type(result) is ErrorInfo for result in job.results[3:])
        info = infos(job)[3]
        assert (info.type, info.attempts, info.latency) == ("NotCalled", 0, 0.0)
        assert info.message == "not called, max_cost=5 is used up"
        counts = job.statistics()
        assert (counts.not_called, counts.errors, counts.cost) == (3, 0, 6)

    play(script)


@pytest.mark.contract
def test_what_is_not_called_is_no_failure_for_fail_after() -> None:
    async def script() -> None:
        job = Job(odd_only, budget=Budget(max_calls=2), errors=Errors("null", stop_after=1), capacity=1)
        job.push(1, 2, 3, 4)
        await job.end()
        assert job.error is None

    play(script)


def test_a_row_whose_retry_is_not_allowed_any_more_is_marked_and_says_its_error() -> None:
    async def script() -> None:
        job = Job(odd_only, budget=Budget(max_calls=2), errors="column", capacity=1, retry=again(5, 10))
        job.push(2, 3, 5)
        await job.end()
        # Row 2 paused when row 3 took the last call.
        assert (infos(job)[2].type, infos(job)[2].attempts) == ("NotCalled", 1)
        assert "max_calls=2 is used up; the attempt before ended with ValueError" in infos(job)[2].message
        assert (job.results[1], infos(job)[5].type) == (3, "NotCalled")

    play(script)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: {"errors": "ignore"}, "errors='ignore': must be one of 'fail', 'null', 'column', 'drop'"),
        (
            lambda: {"errors": Errors(stop_after=3)},
            "stop_after=3: errors='fail' ends the job with the first failed row",
        ),
        (lambda: {"errors": Errors("null", stop_after=1.5)}, "stop_after=1.5: must be a number of rows"),
        (lambda: {"errors": Errors("null", stop_after=-1)}, "stop_after=-1: must be a number of rows"),
        (lambda: {"budget": Budget(max_calls=5)}, "errors may not be 'fail'"),
        (lambda: {"options": Options(dedupe=Dedupe(memo=-1))}, "memo=-1: must be at least 0"),
    ],
)
def test_a_bad_argument_is_named_at_the_call(given: Callable[[], dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        async_map([], odd_only, **given())
