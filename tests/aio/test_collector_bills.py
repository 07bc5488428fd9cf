"""The cost of failures that a collector is told too late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import Budget, Collector, Usage
from tests.aio.virtual import Job, play


class Paid(Exception):
    """An attempt that failed, and what it has cost."""

    usage = Usage(2.0)


@pytest.mark.contract(
    "What a collector fails with after its time-out counts against the budget, if it says what it has cost.",
    convicts=["late_failure_of_collector_not_billed"],
)
def test_a_failure_that_a_collector_is_told_too_late_is_billed() -> None:
    async def script() -> None:
        handed: dict[str, Collector[Any]] = {}

        def keep(row: str, collector: Collector[Any]) -> None:
            handed[row] = collector

        job = Job(keep, timeout=5.0, errors="null", budget=Budget(usage=lambda row, result: Usage(result)))
        job.push("slow", "next")
        await asyncio.sleep(1)
        handed["next"].complete(1.0)
        await asyncio.sleep(5)
        assert handed["slow"].fail(Paid()) is False
        await asyncio.sleep(0)
        await job.end()
        assert job.statistics().cost == 3.0

    play(script)
