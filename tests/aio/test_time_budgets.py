"""Budgets of time: from a moment on no call begins, those in flight end. Time is virtual."""

from __future__ import annotations

import asyncio
import datetime
import pickle
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, Budget, Ledger, Options, Rate, Retry, async_map
from pillarbox.ledger import Scope
from tests.aio.virtual import Job, infos, now, play

UTC = datetime.timezone.utc


async def takes_a_second(row: Any) -> Any:
    await asyncio.sleep(1.0)
    return row


@pytest.mark.contract(convicts=["brought_policy_does_not_begin"])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("rate", [None, "a gate"])
def test_no_call_begins_when_the_seconds_of_a_budget_are_over_and_those_in_flight_end(
    ordered: bool, rate: str | None
) -> None:
    async def script() -> None:
        # With a budget of calls, too, there is a gate from the begin on.
        budget = Budget(None if rate is None else 10**6, max_seconds=2.5)
        job = Job(takes_a_second, budget=budget, capacity=2, errors="column", ordered=ordered)
        job.push(*range(100))
        await job.end()
        assert job.error is None and now() == 3.0
        good = [result for result in job.results if isinstance(result, int)]
        assert sorted(good) == [0, 1, 2, 3, 4, 5]
        assert not ordered or job.results[:6] == good
        missing = [result for result in job.results if not isinstance(result, int)]
        assert len(missing) == 94 and {each.type for each in missing} == {"NotCalled"}
        assert missing[0].message == "not called, max_seconds=2.5 is used up"
        assert job.statistics().not_called == 94

    play(script)


@pytest.mark.contract
def test_a_row_that_waits_for_its_retry_is_not_called_again_when_the_time_is_over() -> None:
    async def script() -> None:
        async def fails(row: Any) -> Any:
            raise ConnectionError("down")

        retry = Retry(9, initial=2.0, multiplier=1.0, jitter=False, max_outage=0.0)
        job = Job(fails, budget=Budget(max_seconds=3.0), errors="column", retry=retry)
        job.push("a")
        await job.end()
        [info] = infos(job).values()
        assert info.type == "NotCalled" and info.attempts == 2 and "down" in info.message

    play(script)


@pytest.mark.contract(
    "Rows that wait for a rate end with the time of a budget.", convicts=["new_gate_wakes_nothing"]
)
def test_rows_that_wait_for_a_rate_end_with_the_time_of_a_budget() -> None:
    async def script() -> None:
        budget = Budget(max_seconds=2.5)
        job = Job(takes_a_second, budget=budget, rate=Rate(0.01, burst=0.001), errors="column")
        job.push(*range(3))
        await job.end()
        assert (job.results[0], job.came) == (0, [1.0, 2.5, 2.5])
        assert [info.type for info in infos(job).values()] == ["NotCalled"] * 2

    play(script)


@pytest.mark.contract
def test_batches_end_with_the_time_of_a_budget() -> None:
    async def script() -> None:
        async def batch(rows: list[Any]) -> list[Any]:
            await asyncio.sleep(1.0)
            return rows

        job = Job(batch, batch=Batch(5), capacity=1, budget=Budget(max_seconds=1.5), errors="null")
        job.push(*range(20))
        await job.end()
        assert job.results == [*range(10), *[None] * 10]

    play(script)


@pytest.mark.contract
def test_a_moment_that_is_over_lets_no_call_begin_and_one_to_come_ends_nothing() -> None:
    over = datetime.datetime.now(UTC) - datetime.timedelta(seconds=1)
    for until, expected in ((over, [None, None]), (over + datetime.timedelta(days=1), [1, 2])):
        for given in (until, until.isoformat()):
            options = Options(budget=Budget(until=given), errors="null")
            assert list(async_map([1, 2], takes_no_time, options=options)) == expected


async def takes_no_time(row: Any) -> Any:
    return row


def test_the_earlier_of_two_ends_counts() -> None:
    until = datetime.datetime(2030, 1, 1, tzinfo=UTC)
    budget = Budget(max_seconds=60.0, until=until)
    at = until.timestamp()
    assert budget.time_left(at - 100.0) == (60.0, "max_seconds=60")
    assert budget.time_left(at - 10.0) == (10.0, "until=2030-01-01T00:00:00+00:00")
    assert budget.time_left(at + 5.0)[0] == -5.0


def test_tasks_that_begin_later_have_the_end_of_the_job() -> None:
    begun = Budget(max_seconds=60.0).begun(1000.0)
    assert begun.max_seconds is None and begun.time_left(1000.0)[0] == 60.0
    assert pickle.loads(pickle.dumps(begun)) == begun
    assert Budget(3).begun(1000.0) == Budget(3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_seconds": 0}, "max_seconds=0"),
        ({"until": "tomorrow"}, "until='tomorrow': must be a time as in"),
        ({"until": "2026-11-29T06:00:00"}, "must have a time zone"),
        ({"until": datetime.datetime(2026, 11, 29)}, "must have a time zone"),
        ({"until": 5}, "until=5: must be a datetime.datetime"),
    ],
)
def test_an_end_that_cannot_be_is_refused_where_it_is_given(given: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        Budget(**given)
    assert words in str(refused.value)


def test_rows_that_are_not_called_must_be_marked() -> None:
    with pytest.raises(ValueError, match="max_seconds, until: rows that are not called must be marked"):
        async_map([1], takes_no_time, budget=Budget(max_seconds=1.0))


def keep(ledger: Ledger, *hours: float, uid: str = "ask") -> None:
    """Keep executions of the run "night", each of one call that has ended just now, after so many hours."""
    for duration in hours:
        with ledger.writer(Scope("night", uid)) as writer:
            writer.append(uuid.uuid4().bytes, "an answer", latency=3600.0 * duration)


@pytest.mark.contract(convicts=["time_of_run_forgotten"])
@pytest.mark.parametrize(
    ("max_seconds", "run", "called"),
    [(3600.0, "night", False), (3599.0, "night", False), (3660.0, "night", True), (60.0, "another", True)],
)
def test_the_seconds_of_earlier_executions_of_a_run_count_against_its_budget(
    tmp_path: Path, max_seconds: float, run: str, called: bool
) -> None:
    # Side by side, they take an hour together; those of another function do not count.
    ledger = Ledger(str(tmp_path), uid="ask", run=run)
    keep(ledger, 0.5, 1.0, 0.25)
    keep(ledger, 7.0, uid="another")
    assert ledger.seconds_spent("night", "ask") == pytest.approx(3600.0, abs=30.0)
    results = async_map([1], answers, ledger=ledger, errors="null", budget=Budget(max_seconds=max_seconds))
    assert list(results) == [1 if called else None]
    assert results.statistics().not_called == (0 if called else 1)


async def answers(row: int) -> int:
    return row


@pytest.mark.contract
def test_the_time_between_two_executions_of_a_run_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(str(tmp_path), uid="ask", run="night")
    assert ledger.seconds_spent("night", "ask") == 0.0
    yesterday = time.time_ns() - 86_400 * 10**9
    with monkeypatch.context() as patch:
        patch.setattr("time.time_ns", lambda: yesterday)
        keep(ledger, 1.0)
    keep(ledger, 0.5)
    assert ledger.seconds_spent("night", "ask") == pytest.approx(1.5 * 3600.0, abs=30.0)


@pytest.mark.parametrize("until", [None, "2030-01-01T06:00:00+01:00", "2030-01-01T07:00:01+01:00"])
def test_a_budget_that_has_begun_ends_at_the_earlier_of_its_two_limits(until: str | None) -> None:
    begin = datetime.datetime(2030, 1, 1, 5, tzinfo=UTC).timestamp()
    budget = Budget(max_seconds=7200.0, until=until).begun(begin, spent=3600.0)
    assert budget.max_seconds is None
    earlier = until is not None and "T06" in until
    assert budget.time_left(begin)[0] == (0.0 if earlier else 3600.0)
