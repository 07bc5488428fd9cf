"""How often an action of Spark calls: what it does not need, it does not pay for."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox.spark import async_map


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """A file that functions write a byte into at each call, in whatever process."""
    path = tmp_path / "calls"
    path.touch()
    return path


def counting(calls: Path, seconds: float = 0.0) -> Any:
    async def call(row: Any) -> str:
        with open(calls, "a") as file:
            file.write("x")
        await asyncio.sleep(seconds)
        return str(os.getpid())

    return call


def wait_for_the_end_of(process: int) -> None:
    deadline = time.monotonic() + 100
    while Path(f"/proc/{process}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)


@pytest.mark.contract
def test_showing_a_few_rows_calls_for_a_few_and_stops_when_it_has_them(
    spark: SparkSession, calls: Path
) -> None:
    # Slow calls: how many are made while Spark takes the first results must not depend on this machine.
    df = async_map(
        spark.range(0, 30_000, 1, 2),
        counting(calls, 0.5),
        schema="process string",
        capacity=100,
        ordered=False,
    )
    rows = df.take(5)
    at_return = calls.stat().st_size
    wait_for_the_end_of(int(rows[0].process))
    at_end = calls.stat().st_size
    assert at_return <= 1300, "of 15,000 in the first partition"
    assert at_end - at_return <= 200
