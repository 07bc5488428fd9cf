"""`async_udf`: an async function as a column."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from pillarbox import Retry
from pillarbox.spark import async_udf


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_row_gets_the_result_of_its_own_values(spark: SparkSession, partitions: int) -> None:
    @async_udf("array<float>", capacity=32, timeout=30.0, retry=Retry(attempts=4))
    async def embed(text: str) -> list[float]:
        await asyncio.sleep((len(text) * 13 % 5) / 1000)
        return [float(len(text)), 0.5]

    df = spark.range(0, 2500, 1, partitions).selectExpr("id", "repeat('x', cast(id % 50 as int)) as text")
    rows = df.withColumn("vector", embed("text")).collect()
    assert rows == [Row(id=i, text="x" * (i % 50), vector=[float(i % 50), 0.5]) for i in range(2500)]


def test_several_columns_are_arguments_by_position_or_by_name(spark: SparkSession) -> None:
    @async_udf("string")
    async def join(a: int, b: str, c: float = 0.5) -> str:
        return f"{a}{b}{c}"

    df = spark.createDataFrame([(1, "x", 2.5), (2, None, 3.5)], "a long, b string, c double").coalesce(1)
    rows = df.select(
        join("a", "b").alias("two"),
        join(F.col("a"), c="c", b=F.upper("b")).alias("three"),
        join("a", F.lit("z")),
    ).collect()
    assert [tuple(row) for row in rows] == [("1x0.5", "1X2.5", "1z0.5"), ("2None0.5", "2None3.5", "2z0.5")]


def test_spark_neither_repeats_nor_drops_calls(spark: SparkSession, tmp_path: Path) -> None:
    @async_udf("long")
    async def call(n: int) -> int:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        return n

    df = spark.range(0, 20, 1, 1).withColumn("n", call("id")).where("n >= 5").where("id < 15")
    assert df.count() == 10
    assert (tmp_path / "calls").read_text() == "x" * 20


def test_a_blocking_function_is_taken(spark: SparkSession) -> None:
    @async_udf("long", capacity=4)
    def double(n: int) -> int:
        return 2 * n

    rows = spark.range(0, 50, 1, 2).select(double("id").alias("n")).collect()
    assert [row.n for row in rows] == list(range(0, 100, 2))


def test_an_object_is_opened_around_its_calls(spark: SparkSession) -> None:
    class Client:
        opened = False

        async def __aenter__(self) -> Client:
            self.opened = True
            return self

        async def __aexit__(self, *error: object) -> None:
            return None

        async def __call__(self, n: int) -> bool:
            return self.opened

    rows = spark.range(5).select(async_udf("boolean")(Client())("id").alias("opened")).collect()
    assert all(row.opened for row in rows)


def test_errors_null_gives_null(spark: SparkSession) -> None:
    @async_udf("struct<n:long>", errors="null")
    async def odd(n: int) -> dict[str, int]:
        if n % 2 == 0:
            raise ValueError
        return {"n": n}

    rows = spark.range(0, 4, 1, 1).select(odd("id").alias("s")).collect()
    assert [row.s for row in rows] == [None, Row(n=1), None, Row(n=3)]


def test_none_lists_and_tuples_are_values_and_not_rows(spark: SparkSession) -> None:
    @async_udf("array<long>")
    async def call(n: int) -> Any:
        return [None, [], [1, 2], (3,)][n]

    rows = spark.range(0, 4, 1, 1).select(call("id").alias("v")).collect()
    assert [row.v for row in rows] == [None, [], [1, 2], [3]]


def test_an_error_names_the_arguments(spark: SparkSession) -> None:
    @async_udf("long")
    async def broken(n: int, text: str) -> int:
        raise ConnectionError("refused")

    with pytest.raises(
        Exception, match=r"call failed after 1 attempt for row \(0, 'x'\): ConnectionError: refused"
    ):
        spark.range(1).select(broken("id", F.lit("x"))).collect()


def test_a_column_that_another_thread_makes_has_the_session_too(spark: SparkSession) -> None:
    @async_udf("timestamp", max_calls=5, errors="null")
    async def noon(n: int) -> datetime.datetime:
        return datetime.datetime(2024, 7, 1, 12)

    def run() -> list[str]:
        rows = spark.range(2).select(noon("id").cast("string")).collect()
        return [row[0] for row in rows]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result() == ["2024-07-01 12:00:00"] * 2


def test_empty_input_calls_nothing(spark: SparkSession) -> None:
    @async_udf("long")
    async def call(n: int) -> int:
        raise AssertionError

    assert spark.range(0).select(call("id")).collect() == []


def test_wrong_columns_are_refused_where_the_column_is_made(spark: SparkSession) -> None:
    @async_udf("long")
    async def call(a: int, b: int) -> int:
        return a + b

    with pytest.raises(TypeError, match="call: missing a required argument: 'b'"):
        call("a")
    with pytest.raises(TypeError, match="call: argument 3 must be a Column or the name of one, not int"):
        call("a", 3)  # type: ignore[arg-type]

    @async_udf("long")
    async def none() -> int:
        return 0

    with pytest.raises(TypeError, match="none: needs at least one column"):
        none()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("lonk",), ValueError, "returnType='lonk': is no type"),
        ((7,), TypeError, "returnType=7: must be a DDL string or a DataType"),
        (("calendar_interval",), ValueError, "returnType='calendar_interval'"),
    ],
)
def test_a_bad_return_type_is_named(
    spark: SparkSession, arguments: tuple[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        async_udf(*arguments)
    assert message in str(caught.value)


def test_an_async_generator_is_refused(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match="must return one value"):

        @async_udf("long")
        async def several(n: int) -> AsyncIterator[int]:
            yield n


def test_the_name_and_the_text_of_the_function_are_kept(spark: SparkSession) -> None:
    @async_udf("long")
    async def documented(n: int) -> int:
        """What it does."""
        return n

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "What it does."
    assert asyncio.run(documented.func(3)) == 3
