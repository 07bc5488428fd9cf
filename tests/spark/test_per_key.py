"""Rows of one key on Spark: in the order of their partition, by `async_map` and by `async_udf`.

Functions that are sent to workers are defined inside of the tests, so that they travel by value.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import Limit, Options, async_udf
from pillarbox.spark import async_map


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_of_a_partition_are_called_in_the_order_of_their_key(spark: SparkSession, ordered: bool) -> None:
    running: set[int] = set()
    numbers: dict[int, int] = {}

    async def call(row: Any) -> tuple[int, int, int]:
        key = row.id % 7
        at_once = key in running
        running.add(key)
        number = numbers[key] = numbers.get(key, -1) + 1
        await asyncio.sleep((row.id * 31 % 5) / 2000)
        running.discard(key)
        return row.id, number, int(at_once)

    options = Options(per_key=Limit(key=lambda row: row.id % 7), ordered=ordered, capacity=32)
    df = async_map(
        spark.range(0, 700, 1, 1), call, schema="id long, number long, at_once long", options=options
    )
    rows = df.collect()
    assert sorted(row.id for row in rows) == [*range(700)]
    assert all(row.number == row.id // 7 and not row.at_once for row in rows)


def test_a_key_of_a_column_function_is_of_its_arguments(spark: SparkSession) -> None:
    running: set[int] = set()

    async def call(key: int, number: int) -> int:
        if key in running:
            return -1
        running.add(key)
        await asyncio.sleep(0.001)
        running.discard(key)
        return number

    add = async_udf(call, "long", options=Options(per_key=Limit(key=lambda key, number: key)))
    df = spark.range(0, 60, 1, 1).select(add(F.col("id") % 3, "id").alias("number"))
    assert [row.number for row in df.collect()] == [*range(60)]
