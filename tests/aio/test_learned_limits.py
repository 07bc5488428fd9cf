"""Limits that a service names, learned by jobs: in virtual time, alone and through a coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.limits.learned import measure
from bench.limits.metered import Refused, Service
from pillarbox import Errors, Outcome, QuotaUsedUp, Rate, Retry, async_map, current_call
from tests.aio.virtual import Failing, infos, now, play, run

SPAN = 60.0, 180.0


@pytest.mark.contract("Without a number a task uses the calls and tokens a minute that its service names.")
@pytest.mark.parametrize("form", ["bucket", "window"])
def test_a_task_uses_the_limits_that_its_service_names(form: Any) -> None:
    service = measure(Service(240.0, 150_000.0, form), learns=True, shares=False, tasks=1, minutes=3)
    assert service.used(*SPAN) >= 0.95
    assert service.refused_share(*SPAN) <= 0.002


@pytest.mark.contract("Through a coordinator all tasks use together the limits that their service names.")
def test_tasks_use_together_the_limits_that_their_service_names() -> None:
    service = measure(Service(240.0, 150_000.0, "bucket"), learns=True, shares=True, tasks=4, minutes=3)
    assert service.used(*SPAN) >= 0.97
    assert service.refused_share(*SPAN) <= 0.001


def limits(remaining: int, reset: str, limit: int = 60) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": reset,
    }


class Naming:
    """An async function whose answers have these headers; keeps when its calls began."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers
        self.began: list[float] = []

    async def __call__(self, row: int) -> int:
        self.began.append(now())
        await asyncio.sleep(0.1)
        current_call().report_limits(self.headers)
        return row


@pytest.mark.contract("Calls wait for the time that an answer names for a used-up limit.")
def test_calls_wait_for_the_time_that_an_answer_names() -> None:
    fn = Naming(limits(0, "20s"))
    job, _ = run(fn, 3, capacity=1)
    assert job.results == [0, 1, 2]
    assert fn.began[0] == 0.0 and 20.0 < fn.began[1] < 22.0


@pytest.mark.contract("`Rate(learn=False)`, and a rate without `learn=True`, learn nothing.")
@pytest.mark.parametrize("rate", [Rate(learn=False), Rate(1000.0)])
def test_nothing_is_learned_where_that_is_not_wanted(rate: Rate) -> None:
    fn = Naming(limits(0, "20s"))
    _, seconds = run(fn, 3, capacity=1, rate=rate)
    assert seconds < 1.0


def test_limits_are_learned_beside_a_rate_that_says_so() -> None:
    fn = Naming(limits(0, "20s"))
    _, seconds = run(fn, 2, capacity=1, rate=Rate(1000.0, learn=True))
    assert seconds > 20.0


def test_a_function_in_a_thread_reports_limits() -> None:
    reported = []

    def call(row: int) -> int:
        current_call().report_limits(limits(59, "1s"))
        reported.append(row)
        return row

    assert list(async_map(range(3), call, capacity=1)) == [0, 1, 2]
    assert reported == [0, 1, 2]


def test_a_rate_without_a_number_must_say_that_it_learns() -> None:
    with pytest.raises(ValueError, match="learn=True"):
        Rate()
    assert not Rate(learn=True).has_limit
    with pytest.raises(TypeError, match="learn="):
        Rate(learn="yes")  # type: ignore[arg-type]


# -- a quota that is gone for long -----------------------------------------------------------------


class NoCredit(Exception):
    """An account without credit, as OpenAI says it."""

    def __init__(self) -> None:
        super().__init__("no credit")
        self.status = 429
        self.code = "insufficient_quota"


@pytest.mark.contract("Once the account has no credit no row is called any more: the others are not called.")
def test_no_row_is_called_once_the_account_has_no_credit() -> None:
    fn = Failing(None, None, NoCredit())
    job, _ = run(fn, 50, capacity=1, errors="column", retry=Retry(3))
    assert len(fn.began) == 3
    assert {info.type for info in infos(job).values()} == {"NotCalled"}
    assert "credit of the account is used up" in infos(job)[49].message
    assert job.statistics().not_called == 48


@pytest.mark.contract("A job that shows no errors ends with one where its service's quota is gone for long.")
@pytest.mark.parametrize("mode", ["null", "drop"])
def test_a_job_that_shows_no_errors_ends_where_the_quota_is_gone(mode: Any) -> None:
    fn = Failing(None, NoCredit())
    job, _ = run(fn, 50, capacity=1, errors=mode, retry=Retry(3))
    assert isinstance(job.error, QuotaUsedUp)
    assert "the credit of the account is used up" in str(job.error)
    assert len(fn.began) == 2


@pytest.mark.contract("A quota of the day that is used up ends the calls at once, and not after an outage.")
def test_a_quota_of_the_day_ends_the_calls_at_once() -> None:
    refused = Refused({**limits(0, "7h0m0s"), "Retry-After": "25200"})
    fn = Failing(None, refused)
    job, seconds = run(fn, 20, capacity=1, errors="column", retry=Retry(3))
    assert len(fn.began) == 2 and seconds < 1.0
    assert "the quota of the service" in infos(job)[19].message
    fn = Failing(None, refused)
    job, _ = run(fn, 20, capacity=1, errors="fail", retry=Retry(3))
    assert isinstance(job.error, QuotaUsedUp)


def test_one_long_retry_after_alone_does_not_end_the_calls() -> None:
    fn = Failing(None, Refused({"Retry-After": "25200"}), None)
    job, _ = run(fn, 5, capacity=1, errors="column", retry=Retry(3))
    assert job.results == [0, 1, 2, 3, 4]


def test_a_short_retry_after_beside_a_long_quota_is_waited_for() -> None:
    fn = Failing(None, Refused({**limits(0, "7h0m0s"), "Retry-After": "3"}), None)
    job, seconds = run(fn, 3, capacity=1, errors="column", retry=Retry(3), rate=Rate(learn=False))
    assert job.results == [0, 1, 2] and seconds < 10.0


def test_one_status_402_is_the_error_of_its_row() -> None:
    class Paywall(Exception):
        status = 402

    async def script() -> list[Any]:
        fn = Failing(None, Paywall(), None)
        return [each async for each in async_map(range(4), fn, capacity=1, errors=Errors("column"))]

    outcomes = play(script)
    assert [type(each) for each in outcomes] == [Outcome] * 4
    assert [each.error and each.error.type for each in outcomes] == [None, "Paywall", None, None]
