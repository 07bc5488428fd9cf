"""A user's script, as type checkers see it: `test_typed_script.py` has mypy and pyright check it. Not run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from typing_extensions import assert_type

from pillarbox import Batch, Errors, Options, Outcome, Rate, Retry, async_map
from pillarbox.spark import async_map as map_rows
from pillarbox.spark import async_udf, call_failed
from pillarbox.spark.async_udf import AsyncUdf


async def lookup(n: int) -> str:
    await asyncio.sleep(0)
    return str(n)


def blocking(n: int) -> str:
    return str(n)


async def several(n: int) -> AsyncIterator[str]:
    yield str(n)


async def in_batches(numbers: list[int]) -> list[str]:
    return [str(n) for n in numbers]


def in_blocking_batches(numbers: list[int]) -> list[str]:
    return [str(n) for n in numbers]


class Client:
    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def __call__(self, n: int) -> str:
        return str(n)


numbers = [1, 2, 3]
retry = Retry(attempts=3)

assert_type(list(async_map(numbers, lookup, capacity="auto", retry=retry, timeout=5.0)), list[str])
assert_type(list(async_map(numbers, blocking, rate=Rate(per_second=5))), list[str])
assert_type(list(async_map(numbers, several)), list[list[str]])
assert_type(list(async_map(numbers, Client())), list[str])
assert_type(list(async_map(numbers, in_batches, batch=Batch(8))), list[str])
assert_type(list(async_map(numbers, in_blocking_batches, batch=Batch(8))), list[str])

assert_type(list(async_map(numbers, lookup, errors="null")), list[Any | None])
assert_type(list(async_map(numbers, in_batches, errors="null", batch=Batch(8))), list[Any | None])
assert_type(list(async_map(numbers, several, errors="null")), list[Any | None])
assert_type(list(async_map(numbers, lookup, errors="drop")), list[str])
assert_type(list(async_map(numbers, lookup, errors=Errors(dead_letter="letters"))), list[Any])
assert_type(list(async_map(numbers, lookup, errors="column")), list[Outcome])
assert_type(list(async_map(numbers, in_batches, errors="column", batch=Batch(8))), list[Outcome])

for outcome in async_map(numbers, lookup, errors="column"):
    if outcome.error is not None:
        assert_type(outcome.error.attempts, int)

with async_map(numbers, lookup, options=Options(errors="null", capacity=8)) as results:
    statistics = results.statistics()


async def in_a_loop() -> list[str]:
    return [text async for text in async_map(numbers, lookup)]


def over_spark(spark: SparkSession) -> DataFrame:
    df = spark.createDataFrame([(1, "a")], "id long, text string")
    embed = async_udf("array<float>", capacity=64, errors="null", options=Options(latency="normal"))(lookup)
    assert_type(embed, AsyncUdf)
    assert_type(embed("id"), Column)
    spark.udf.register("embed", embed)
    try:
        map_rows(df, Client(), schema="text string", keep="*", errors="column", ordered=False).show()
    except Exception as error:
        failed = call_failed(error)
        if failed is not None:
            assert_type(failed.attempts, int)
    return map_rows(df, lookup, schema="text string", errors="drop", batch=Batch(4))
