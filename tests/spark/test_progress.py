"""The progress of a job as the driver shows it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox import Retry
from pillarbox.spark import Progress, async_map, async_udf


def test_the_totals_are_those_of_all_tasks(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        value: int = row.id
        if value == 7 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ConnectionError
        if value == 8:
            raise ValueError
        return value

    retry = Retry(attempts=2, initial=0.001, on=(ConnectionError,))
    shown = io.StringIO()
    with Progress(total=500, label="rows", file=shown) as progress:
        df = async_map(
            spark.range(0, 500, 1, 3), call, schema="n long", errors="null", retry=retry, progress=progress
        )
        assert len(df.collect()) == 500
    totals = progress.totals
    assert (totals.rows_in, totals.results, totals.calls, totals.retries, totals.errors) == (
        500,
        500,
        501,
        1,
        1,
    )
    assert totals.in_flight == 0 and totals.seconds > 0
    last = shown.getvalue().splitlines()[-1]
    assert last.startswith("rows: 500/500 rows, 0 in flight, ") and last.endswith(
        " rows/s, 1 retries, 1 errors"
    )
    assert "\x1b" not in shown.getvalue()


def test_a_column_reports_too_and_the_bar_draws_it(spark: SparkSession) -> None:
    pytest.importorskip("rich")
    shown = io.StringIO()
    with Progress(total=100, label="embedding", bar=True, file=shown) as progress:

        @async_udf("long", progress=progress)
        async def call(n: int) -> int:
            return n

        assert spark.range(0, 100, 1, 2).select(call("id")).collect()
    assert progress.totals.results == 100
    assert "embedding" in shown.getvalue()
    assert "100/100" in shown.getvalue()


def test_it_leaves_no_file_behind(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        return 0

    with Progress(directory=tmp_path, file=io.StringIO()) as progress:
        async_map(spark.range(10), call, schema="n long", progress=progress).collect()
        assert len(list(tmp_path.glob("pillarbox-progress-*/*/*.json"))) > 0
    assert list(tmp_path.iterdir()) == []


def test_it_is_used_once_in_a_with_block() -> None:
    progress = Progress(file=io.StringIO())
    with pytest.raises(RuntimeError, match="with Progress"):
        progress.new_operator()
    with progress:
        pass
    with pytest.raises(RuntimeError, match="used already"):
        progress.__enter__()
    with pytest.raises(ValueError, match="total=-1: must be a number of rows or None"):
        Progress(total=-1)


def test_two_operators_in_one_stage_are_both_counted(spark: SparkSession) -> None:
    with Progress(file=io.StringIO()) as progress:

        @async_udf("long", progress=progress)
        async def call(n: int) -> int:
            return n

        spark.range(0, 100, 1, 2).select(call("id").alias("a"), call("id").alias("b")).collect()
    assert (progress.totals.results, progress.totals.calls) == (200, 200)


def test_a_closed_output_does_not_stop_the_counting(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        return 0

    shown = io.StringIO()
    shown.close()
    with Progress(bar=False, file=shown) as progress:
        async_map(spark.range(10), call, schema="n long", progress=progress).collect()
    assert progress.totals.results == 10


def test_a_task_that_was_killed_is_not_in_flight_for_ever(tmp_path: Path) -> None:
    counts = dict.fromkeys(("rows_in", "results", "calls", "retries", "errors", "timeouts"), 5)
    with Progress(bar=False, file=io.StringIO(), directory=tmp_path) as progress:
        file = Path(progress.new_operator()) / "0-0-0-killed.json"
        file.write_text(
            json.dumps({**counts, "in_flight": 64, "stage": 0, "partition": 0, "attempt": 0, "running": True})
        )
        os.utime(file, (0, 0))
    assert progress.totals.calls == 5
    assert (progress.totals.in_flight, progress.totals.mean_in_flight) == (0, 0.0)
