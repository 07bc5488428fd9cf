"""The progress of a job as the driver shows it."""

from __future__ import annotations

import io
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox import Retry
from pillarbox.spark import Progress, async_map, async_udf


@pytest.mark.contract
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
    assert (totals.rows_in, totals.results, totals.calls) == (500, 500, 501)
    assert (totals.retries, totals.errors) == (1, 1)
    assert dict(totals.retries_by_reason) == {"ConnectionError": 1}
    assert dict(totals.errors_by_type) == {"ValueError": 1}
    assert totals.latency.measurements == 501 and totals.call_latency.measurements == 500
    assert totals.in_flight == 0 and totals.seconds > 0
    assert (totals.tasks_running, totals.tasks_ended) == (0, 3)
    last = shown.getvalue().splitlines()[-1]
    assert last.startswith("rows: 500/500 rows, ")
    assert last.endswith(" rows/s, 0 in flight, 1 retries, 1 errors")
    assert "\x1b" not in shown.getvalue()


def test_tasks_and_the_series_add_up_to_the_totals(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        return 0

    with Progress(file=io.StringIO()) as progress:
        async_map(spark.range(0, 300, 1, 3), call, schema="n long", progress=progress).collect()
    assert [(task.operator, task.partition, task.attempts, task.running) for task in progress.tasks] == [
        (0, 0, 1, False),
        (0, 1, 1, False),
        (0, 2, 1, False),
    ]
    assert [task.totals.results for task in progress.tasks] == [100, 100, 100]
    assert progress.series[0].results == 0
    assert progress.series[-1].results == progress.totals.results == 300
    seconds = [point.seconds for point in progress.series]
    assert seconds == sorted(seconds) and seconds[-1] == progress.totals.seconds


@pytest.mark.slow
@pytest.mark.contract
def test_a_task_that_runs_again_counts_its_rows_once_and_its_calls_twice(run_script: Any) -> None:
    lines = run_script(
        """
import io, pathlib, sys
from pillarbox.spark import Progress, async_map
mark = pathlib.Path("failed").absolute()

async def call(row):
    if row.id == 9 and not mark.exists():
        mark.touch()
        raise ValueError
    return row.id

with Progress(file=io.StringIO()) as progress:
    async_map(spark.range(0, 10, 1, 1), call, schema="n long", capacity=1, progress=progress).collect()
totals, (task,) = progress.totals, progress.tasks
print(totals.results, totals.rows_in, totals.calls, totals.errors, totals.tasks_ended)
print(task.attempts, task.totals.results, task.totals.calls)
""",
        master="local[4,9]",
    )
    assert lines == ["10 10 20 1 1", "2 10 20"]


def test_a_column_reports_too_and_the_bar_draws_it(spark: SparkSession) -> None:
    pytest.importorskip("rich")
    shown = io.StringIO()
    with Progress(total=100, label="embedding [x]", bar=True, file=shown) as progress:

        @async_udf("long", progress=progress)
        async def call(n: int) -> int:
            return n

        assert spark.range(0, 100, 1, 2).select(call("id")).collect()
    assert progress.totals.results == 100
    assert "embedding [x]" in shown.getvalue()
    assert "100/100" in shown.getvalue()


@pytest.mark.contract("Tasks that cannot reach the driver make their calls all the same.")
def test_a_driver_that_cannot_be_reached_costs_a_task_nothing(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        return 0

    # The driver listens at 127.0.0.1 alone.
    with Progress(advertise="127.0.0.2", file=io.StringIO()) as progress:
        rows = async_map(spark.range(0, 10, 1, 2), call, schema="n long", progress=progress)
        assert len(rows.collect()) == 10
    assert progress.totals.results == 0


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


@pytest.mark.contract
def test_a_progress_that_cannot_begin_draws_nothing_and_may_begin_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        progress = Progress(bar=True, file=shown, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            progress.__enter__()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rich.console", None)
        with pytest.raises(ImportError, match="bar=True"):
            progress.__enter__()
    assert shown.getvalue() == ""
    with progress:
        pass
    assert "0 rows/s" in shown.getvalue()


def test_two_operators_in_one_stage_are_both_counted(spark: SparkSession) -> None:
    with Progress(file=io.StringIO()) as progress:

        @async_udf("long", progress=progress)
        async def call(n: int) -> int:
            return n

        spark.range(0, 100, 1, 2).select(call("id").alias("a"), call("id").alias("b")).collect()
    assert (progress.totals.results, progress.totals.calls) == (200, 200)
    assert {task.operator for task in progress.tasks} == {0, 1}


class Broken(io.StringIO):
    """An output that fails as a notebook or a terminal may."""

    def write(self, text: str) -> int:
        raise RuntimeError("broken")


def closed() -> io.StringIO:
    shown = io.StringIO()
    shown.close()
    return shown


@pytest.mark.parametrize("shown", [closed(), Broken()], ids=["closed", "broken"])
def test_an_output_that_fails_does_not_stop_the_counting(spark: SparkSession, shown: io.StringIO) -> None:
    async def call(row: Any) -> int:
        return 0

    with Progress(bar=False, file=shown) as progress:
        async_map(spark.range(10), call, schema="n long", progress=progress).collect()
    assert progress.totals.results == 10
