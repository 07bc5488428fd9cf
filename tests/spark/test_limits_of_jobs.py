"""A DataFrame whose tasks share limits that their service names: the driver has them once."""

from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox import Coordinator, current_call
from pillarbox.spark import Progress, async_map
from tests.waiting import wait_until


@pytest.mark.contract("The driver has the limits that a coordinator has learned once, and not once a task.")
@pytest.mark.spark
def test_the_driver_has_the_limits_of_a_job_once(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        if row.id == 0:
            current_call().report_limits(
                {
                    "x-ratelimit-limit-requests": "600",
                    "x-ratelimit-remaining-requests": "500",
                    "x-ratelimit-reset-requests": "10s",
                }
            )
        # Both tasks run until the driver has seen them.
        while not (tmp_path / "seen").exists():
            await asyncio.sleep(0.01)
        return int(row.id)

    with Coordinator() as coordinator, Progress(file=io.StringIO()) as progress:
        limits = coordinator.named("service")
        frame = async_map(spark.range(0, 2, 1, 2), call, schema="n long", limits=limits, progress=progress)
        found: list[Any] = []
        job = threading.Thread(target=lambda: found.extend(frame.collect()))
        job.start()
        wait_until(lambda: sum(bool(task.totals.limits_named) for task in progress.tasks) == 2)
        of_tasks = [task.totals.limits_named for task in progress.tasks]
        wait_until(lambda: progress.totals.limits_named)
        of_job = progress.totals
        (tmp_path / "seen").touch()
        job.join()
    assert of_tasks == [{" requests": 600.0}] * 2
    assert of_job.limits_named == {" requests": 600.0}
    assert 0.0 < of_job.limits_left[" requests"] <= 500.0
    assert sorted(row.n for row in found) == [0, 1]
    # Nothing is known of the limits of a job that has ended.
    assert progress.totals.limits_named == {}
