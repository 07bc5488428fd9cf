"""Batches over Spark: rows for `async_map`, a list for each argument for `async_udf`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pillarbox import Batch
from pillarbox.spark import async_map, async_udf


def test_async_map_gives_the_function_lists_of_rows(spark: SparkSession) -> None:
    async def call(rows: list[Any]) -> list[dict[str, int]]:
        return [{"square": row.id**2, "batch": len(rows)} for row in rows]

    df = spark.range(0, 1000, 1, 2)
    found = async_map(df, call, schema="square long, batch int", keep=["id"], batch=Batch(10)).collect()
    assert sorted((row.id, row.square) for row in found) == [(n, n * n) for n in range(1000)]
    assert max(row.batch for row in found) == 10


def test_async_udf_gives_the_function_a_list_for_each_argument(spark: SparkSession) -> None:
    @async_udf("string", batch=Batch(50, weight=lambda name, number: len(name), max_weight=20))
    async def repeated(names: list[str], numbers: list[int]) -> list[str]:
        assert len(names) == 1 or sum(map(len, names)) <= 20
        return [name * number for name, number in zip(names, numbers, strict=True)]

    rows = [("x" * (n % 7), n % 4) for n in range(200)]
    df = spark.createDataFrame(rows, "name string, number int")
    found = df.select("name", "number", repeated("name", "number").alias("got")).collect()
    assert len(found) == 200
    assert all(row.got == row.name * row.number for row in found)


@pytest.mark.contract
def test_a_poison_row_of_a_batch_is_the_only_one_with_an_error(spark: SparkSession) -> None:
    @async_udf("long", batch=Batch(10), errors="column")
    async def picky(numbers: list[int]) -> list[int]:
        if 7 in numbers:
            raise ValueError("seven")
        return numbers

    found = spark.range(0, 20, 1, 1).select("id", picky("id").alias("got")).collect()
    failed = [row for row in found if row.got._error is not None]
    assert [(row.id, row.got._error.type) for row in failed] == [(7, "ValueError")]


def test_an_async_generator_is_refused_on_the_driver(spark: SparkSession) -> None:
    async def call(rows: list[Any]) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="an async generator cannot be called with batches"):
        async_map(spark.range(3), call, schema="n long", batch=Batch())
    with pytest.raises(TypeError, match="an async generator cannot be called with batches"):
        async_udf("long", batch=Batch())(call)
