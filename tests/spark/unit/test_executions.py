"""A DataFrame that is executed a second time pays a second time, and the driver says so."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pillarbox import Ledger
from pillarbox.spark import async_map, called_once
from pillarbox.spark.executions import operators_in

SECOND_EXECUTION = "was executed a second time"


async def lookup(row: Any) -> int:
    return int(row.id)


def mapped(spark: SparkSession, **options: Any) -> DataFrame:
    return async_map(spark.range(0, 10, 1, 2), lookup, schema="n long", **options)


def said_after(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about everything executed so far: Spark tells of queries one after the other."""

    async def last(row: Any) -> int:
        return 0

    df = async_map(spark.range(1), last, schema="n long")
    df.collect()
    df.collect()
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        said = [each.getMessage() for each in caplog.records if SECOND_EXECUTION in each.getMessage()]
        if said and "last" in said[-1]:
            return said[:-1]
        time.sleep(0.01)
    raise AssertionError("the warning of a DataFrame that was executed twice did not come")


@pytest.mark.contract
def test_a_second_action_on_a_map_without_a_ledger_is_told_once(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pillarbox"):
        df = mapped(spark)
        df.show(3)
        for _ in range(2):
            df.where("n > 3").count()
        said = said_after(spark, caplog)
    assert len(said) == 1
    assert said[0].startswith("async_map(..., lookup) was executed a second time")


@pytest.mark.contract
def test_what_is_executed_once_or_kept_or_in_a_ledger_is_not_told_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING, "pillarbox"):
        mapped(spark).write.parquet(str(tmp_path / "out"))
        mapped(spark).write.mode("overwrite").saveAsTable("executed_once")
        mapped(spark).toPandas()
        mapped(spark).orderBy("n").collect()
        with called_once(mapped(spark)) as rows:
            rows.collect()
            rows.count()
        kept = mapped(spark, ledger=Ledger(tmp_path / "ledger", uid="lookup", run="1"))
        kept.collect()
        kept.collect()
        said = said_after(spark, caplog)
    spark.sql("drop table executed_once")
    assert said == []


def test_what_a_plan_takes_from_a_cache_it_does_not_run() -> None:
    plan = """\
Join Inner
:- MapInArrow lookup(id#0L, text#1)#16, [n#17L], false
:  +- Range (0, 10)
+- InMemoryRelation [n#20L], StorageLevel(disk, memory)
      +- MapInArrow lookup(id#3L)#19, [n#20L], false
         +- *(1) Range (0, 10)
"""
    assert operators_in(plan) == {"16"}
