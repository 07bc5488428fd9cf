"""Jobs on Spark in which nothing succeeds, or little: an error, or a warning on the driver."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import Errors
from pillarbox.spark import async_map, async_udf
from tests.waiting import wait_until

SCHEMA = "n long"


async def refuses(row: Any) -> int:
    raise PermissionError("the key is wrong")


async def refuses_too(row: Any) -> int:
    raise PermissionError("the key is wrong")


async def fails_somehow(row: Any) -> int:
    raise (PermissionError, ValueError)[row.id % 2]("the key is wrong")


async def two_of_three_fail(row: Any) -> int:
    if row.id % 3:
        raise PermissionError("the key is wrong")
    return int(row.id)


@async_udf("long", errors="null")
async def refused(n: int) -> int:
    raise PermissionError("the key is wrong")


@pytest.mark.contract("On Spark a task whose first 100 rows all fail for one cause ends the job with it.")
@pytest.mark.parametrize("errors", ["null", "column", "drop"])
def test_a_task_whose_first_rows_all_fail_ends_the_job(spark: SparkSession, errors: Any) -> None:
    rows = async_map(spark.range(0, 2000, 1, 4), refuses, schema=SCHEMA, errors=errors)
    with pytest.raises(Exception, match="PermissionError: the key is wrong - so failed all 100 rows"):
        rows.collect()


def test_a_column_of_which_all_values_fail_ends_the_job(spark: SparkSession) -> None:
    rows = spark.range(0, 2000, 1, 2).select(refused("id"))
    with pytest.raises(Exception, match="PermissionError: the key is wrong - so failed all 100 rows"):
        rows.collect()


def test_tasks_of_few_rows_are_counted_together_in_a_worker(spark: SparkSession) -> None:
    rows = async_map(spark.range(0, 2000, 1, 400), refuses, schema=SCHEMA, errors="null")
    with pytest.raises(Exception, match="PermissionError: the key is wrong - so failed all 1.. rows"):
        rows.collect()


def test_tasks_whose_errors_are_all_given_are_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    # A function of its own: a worker counts on from job to job while all rows of a function fail alike.
    rows = async_map(spark.range(0, 40, 1, 1), refuses_too, schema=SCHEMA, errors="column").collect()
    assert [row._error.type for row in rows] == ["PermissionError"] * 40
    wait_until(lambda: "nothing succeeded: 40 of 40 rows failed" in caplog.text)
    with pytest.raises(Exception, match="PermissionError: the key is wrong - so failed all [0-9]+ rows"):
        async_map(spark.range(0, 40, 1, 1), refuses_too, schema=SCHEMA, errors="null").collect()


def test_tasks_whose_errors_are_all_given_and_of_many_causes_go_on(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    rows = async_map(spark.range(0, 300, 1, 2), fails_somehow, schema=SCHEMA, errors="column").collect()
    assert {row._error.type for row in rows} == {"PermissionError", "ValueError"}
    wait_until(lambda: "nothing succeeded: 300 of 300 rows failed" in caplog.text)


def test_without_a_floor_a_job_goes_on_and_the_driver_is_warned(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    errors = Errors("null", floor=None)
    rows = async_map(spark.range(0, 300, 1, 2), refuses, schema=SCHEMA, errors=errors).collect()
    assert [row.n for row in rows] == [None] * 300
    wait_until(lambda: "nothing succeeded: 300 of 300 rows failed" in caplog.text)


@pytest.mark.contract(
    "A job of which more than half failed is warned of on the driver, with the first error."
)
def test_a_job_of_which_most_fails_is_warned_of_on_the_driver(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pillarbox")
    async_map(spark.range(0, 60, 1, 1), two_of_three_fail, schema=SCHEMA, errors="null").collect()
    said = "two_of_three_fail: 40 of 60 rows failed in the tasks that have ended, the first with: call failed"
    wait_until(lambda: said in caplog.text)
    assert "PermissionError: the key is wrong" in caplog.text
    caplog.clear()
    good = spark.range(0, 60, 1, 1).where(F.col("id") % 3 == 0)
    async_map(good, two_of_three_fail, schema=SCHEMA, errors="null").collect()
    assert "rows failed" not in caplog.text


def test_a_stream_of_which_most_fails_is_warned_of_too(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    spark.range(0, 60, 1, 1).write.json(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    rows = async_map(stream, two_of_three_fail, schema=SCHEMA, errors="null")
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    wait_until(lambda: "40 of 60 rows failed" in caplog.text)
