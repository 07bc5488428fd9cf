"""Tasks that share limits, in virtual time: what stands for a coordinator implements its interface inside."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import Rate, Retry
from pillarbox.aio.limits.rate import LimiterStatistics, LocalLimiter, SharedLimits
from tests.aio.overloaded import Limited
from tests.aio.virtual import Job, lost, now, play, run


class Told(LocalLimiter):
    """Stands for limits that are shared: keeps the cool-downs that the others would be told of."""

    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.cool_downs: list[float | None] = []

    def cool_down(self, seconds: float | None) -> None:
        self.cool_downs.append(seconds)


class Shared(SharedLimits):
    """Gives one limiter."""

    def __init__(self, limiter: LocalLimiter) -> None:
        self.limiter = limiter

    def open_for(self, rate: Any, max_calls: Any, max_cost: Any) -> LocalLimiter:
        return self.limiter

    def named(self, name: str | None = None) -> Shared:
        return self


@pytest.mark.contract(
    "Without a rate, tasks that share limits are told of the first overload of each, and no more."
)
@pytest.mark.parametrize("retry_after", [None, 1])
def test_a_task_that_has_found_its_pace_cools_down_alone(retry_after: float | None) -> None:
    random.seed(1)
    told = Told()
    service = Limited(100, 10, retry_after, 0.02)
    options = {"retry": Retry(4), "capacity": 50, "errors": "null", "ordered": False}
    job, _ = run(service, 1500, limits=Shared(told), **options)
    assert lost(job, 1500) == 0
    assert service.refused > 5
    assert told.cool_downs == [retry_after]


@pytest.mark.contract("Eight tasks that share limits without a rate use most of what a service takes.")
@pytest.mark.parametrize("shares", [True, False], ids=["shared", "alone"])
@pytest.mark.parametrize("retry_after", [None, 0.1])
def test_tasks_that_share_limits_use_most_of_what_a_service_takes(
    shares: bool, retry_after: float | None
) -> None:
    random.seed(1)
    service = Limited(100, 10, retry_after, 0.02)

    async def script() -> float:
        limits = Shared(LocalLimiter(None, None, None, now)) if shares else None
        options = {"retry": Retry(4), "capacity": 50, "errors": "null", "ordered": False, "limits": limits}
        jobs = [Job(service, **options) for _ in range(8)]
        for job in jobs:
            job.push(*range(250))
        await asyncio.gather(*[job.end() for job in jobs])
        assert [lost(job, 250) for job in jobs] == [0] * 8
        return now()

    # Of 14 % of it there would be 140 seconds.
    assert play(script) <= 8 * 250 / 100 / 0.7


class Grants(SharedLimits):
    """Stands for limits that tasks share, and that grant nothing before `at`."""

    exhausted = learned = None

    def __init__(self, at: float) -> None:
        self.at = at

    def named(self, name: str | None = None) -> Grants:
        return self

    def open_for(self, rate: Any, max_calls: Any, max_cost: Any) -> Any:
        return self

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        loop.call_later(self.at, wake)

    def admit(self, units: float = 1.0) -> float:
        return 0.0 if now() >= self.at else float("inf")

    def explain_now(self) -> str | None:
        return None

    def statistics(self) -> LimiterStatistics:
        return LimiterStatistics()

    async def close(self) -> None:
        """Do nothing."""


async def at_once(row: int) -> int:
    return row


def test_that_nothing_is_granted_is_said_within_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox")

    async def script() -> None:
        job = Job(at_once, rate=Rate(10), limits=Grants(20.0))
        job.push(*range(50))
        await asyncio.sleep(5.0)
        ((waits_for, operators),) = job.statistics().waits.items()
        assert "nothing is granted" in waits_for and operators == 1
        assert caplog.text.count("nothing is granted") == 1
        await job.end()
        assert job.results == [*range(50)]
        assert job.statistics().waits == {}
        assert "goes on, after" in caplog.text

    play(script)
