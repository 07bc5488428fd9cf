"""Failed rows as data: nulls, a column `_error`, no row at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from pillarbox import Batch, CallFailed, CallTimeout, Errors, Options, Retry, Timeout
from pillarbox.spark import async_map, async_udf, call_failed, failed_rows

ERROR = "struct<type:string,message:string,attempts:int,latency:double,status:int>"


async def picky(row: Any) -> tuple[int, str]:
    import asyncio

    class ServiceError(Exception):
        status = 500

    await asyncio.sleep(row.id * 7 % 5 / 1000)
    if row.id % 3 == 1:
        raise ServiceError(f"no {row.id}")
    return row.id, f"row {row.id}"


async def even(row: Any) -> int:
    return int(row.id) * 2


@pytest.mark.contract("Whole rows that cannot be compared are refused on the driver, with what to do.")
@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("array(id)", "array<bigint>"),
        ("map('a', id)", "map<string,bigint>"),
        ("struct(array(id) as w)", "struct<w:array<bigint>>"),
    ],
)
def test_rows_with_lists_and_dicts_are_not_compared_as_a_whole(
    spark: SparkSession, column: str, kind: str
) -> None:
    df = spark.range(3).selectExpr("id", f"{column} as values")
    words = f"column 'values' is {kind}, .* such as dedupe=lambda row: tuple"
    with pytest.raises(ValueError, match=words):
        async_map(df, picky, schema="n long, s string", options=Options(dedupe=True))
    for one in (df.select("id"), df):
        options = Options(dedupe=True if one is not df else lambda row: row.id)
        assert async_map(one, even, schema="n long", options=options).count() == 3


def test_a_table_for_the_results_of_a_batch_is_refused_with_what_gives_its_rows(spark: SparkSession) -> None:
    import pandas as pd

    async def frame(rows: list[Any]) -> Any:
        return pd.DataFrame({"n": [row.id for row in rows]})

    async def its_rows(rows: list[Any]) -> Any:
        return (await frame(rows)).to_dict("records")

    with pytest.raises(PySparkException, match=r"gave DataFrame, .* `frame.to_dict\('records'\)` of pandas"):
        async_map(spark.range(4), frame, schema="n long", batch=Batch(2)).collect()
    found = async_map(spark.range(4), its_rows, schema="n long", batch=Batch(2)).collect()
    assert sorted(row.n for row in found) == [0, 1, 2, 3]


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_errors_column_says_beside_the_results_what_failed(spark: SparkSession, ordered: bool) -> None:
    df = async_map(
        spark.range(0, 3000, 1, 2),
        picky,
        schema="n long, s string",
        keep="*",
        errors="column",
        ordered=ordered,
        retry=Retry(attempts=2, initial=0.001),
    )
    assert df.schema["_error"].dataType.simpleString() == ERROR
    assert df.columns[-1] == "_error"
    rows = df.collect()
    assert [row.id for row in (rows if ordered else sorted(rows))] == list(range(3000))
    for row in rows:
        if row.id % 3 == 1:
            assert (row.n, row.s) == (None, None)
            error = row["_error"]
            assert (error.type, error.message) == ("ServiceError", f"no {row.id}")
            assert (error.attempts, error.status) == (2, 500)
            assert 0.0 < error.latency < 60.0
        else:
            assert tuple(row) == (row.id, row.id, f"row {row.id}", None)


def test_rows_of_a_list_have_no_error_and_a_failed_row_has_one(spark: SparkSession) -> None:
    async def call(row: Any) -> list[int]:
        if row.id == 2:
            raise ValueError("two")
        return [row.id] * int(row.id)

    rows = async_map(spark.range(0, 4, 1, 1), call, schema="n long", keep="*", errors="column").collect()
    shown = [(row.id, row.n, row["_error"] and row["_error"].type) for row in rows]
    assert shown == [(1, 1, None), (2, None, "ValueError"), (3, 3, None), (3, 3, None), (3, 3, None)]


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_errors_drop_leaves_failed_rows_out(spark: SparkSession, ordered: bool) -> None:
    df = async_map(
        spark.range(0, 100, 1, 2), picky, schema="n long, s string", keep="*", errors="drop", ordered=ordered
    )
    rows = df.collect()
    assert df.columns == ["id", "n", "s"]
    assert sorted(map(tuple, rows)) == [(i, i, f"row {i}") for i in range(100) if i % 3 != 1]


def test_a_partition_whose_rows_all_fail_gives_none_under_drop(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        raise ValueError(row.id)

    assert async_map(spark.range(0, 10, 1, 2), call, schema="n long", errors="drop").collect() == []


def test_a_timeout_in_the_error_column_names_the_limit(spark: SparkSession) -> None:
    async def never(row: Any) -> int:
        await asyncio.Event().wait()
        return 0

    (row,) = async_map(
        spark.range(1), never, schema="n long", errors="column", timeout=Timeout(attempt=0.1)
    ).collect()
    error = row["_error"]
    assert (error.type, error.attempts, error.status) == ("CallTimeout", 1, None)
    assert "timeout.attempt=0.1" in error.message
    # Timers of an event loop may be early by the resolution of its clock.
    assert error.latency > 0.099


def test_a_column_function_gives_a_struct_of_result_and_error(spark: SparkSession) -> None:
    @async_udf("array<double>", errors="column")
    async def call(n: int, text: str) -> list[float]:
        if n % 2:
            raise KeyError(text)
        return [n / 2]

    df = spark.range(0, 2500, 1, 2).selectExpr("id", "concat('t', id) as text")
    df = df.withColumn("called", call("id", "text"))
    kind = df.schema["called"].dataType.simpleString()
    assert kind == f"struct<result:array<double>,_error:{ERROR}>"
    rows = df.collect()
    assert len(rows) == 2500
    for row in rows:
        called = row.called
        if row.id % 2:
            assert called.result is None
            assert (called["_error"].type, called["_error"].message) == ("KeyError", f"'t{row.id}'")
        else:
            assert called == Row(result=[row.id / 2], _error=None)


def test_failed_gives_the_rows_that_failed(spark: SparkSession) -> None:
    df = async_map(
        spark.range(0, 30, 1, 2), picky, schema="n long, s string", keep="*", errors="column"
    ).cache()
    assert sorted(row.id for row in failed_rows(df).collect()) == [i for i in range(30) if i % 3 == 1]
    df.unpersist()
    with pytest.raises(ValueError, match="no column '_error'; it stands in results of errors='column'"):
        failed_rows(spark.range(1))


async def nothing(row: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("schema", "keep", "message"),
    [
        ("_error string", (), "errors='column': keep and schema have a column '_error' already"),
        ("n long", "*", "errors='column': keep and schema have a column '_error' already"),
    ],
)
def test_an_error_column_that_cannot_be_is_refused_on_the_driver(
    spark: SparkSession, schema: str, keep: Any, message: str
) -> None:
    df = spark.range(1).selectExpr("id as _error" if keep else "id")
    with pytest.raises(ValueError, match=message):
        async_map(df, nothing, schema=schema, keep=keep, errors="column")


def test_an_input_column_of_that_name_may_be_read_where_it_is_not_kept(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        value: int = row["_error"]
        return value

    df = spark.range(1).selectExpr("id + 5 as _error")
    assert async_map(df, call, schema="n long", errors="column").first() == Row(n=5, _error=None)


@pytest.mark.contract
def test_more_failures_than_allowed_end_the_job_with_the_last_traceback(spark: SparkSession) -> None:
    async def fails_in_here(row: Any) -> int:
        raise ValueError("broken")

    df = async_map(
        spark.range(0, 1000, 1, 1), fails_in_here, schema="n long", errors=Errors("null", stop_after=20)
    )
    with pytest.raises(PySparkException) as caught:
        df.collect()
    text = str(caught.value)
    assert "more than stop_after=20 allows" in text
    assert "in fails_in_here" in text


@pytest.mark.contract
def test_the_error_of_a_job_gives_back_the_failed_call_with_row_and_attempts(spark: SparkSession) -> None:
    class ServiceError(Exception):
        pass

    async def broken(row: Any) -> int:
        raise ServiceError(f"no {row.id}")

    retry = Retry(attempts=2, initial=0.001)
    with pytest.raises(PySparkException) as caught:
        async_map(spark.range(7, 8), broken, schema="n long", retry=retry).collect()
    error = call_failed(caught.value)
    assert isinstance(error, CallFailed)
    assert (error.attempts, error.row) == (2, "Record(id=7)")
    assert (type(error.cause).__name__, str(error.cause)) == ("ServiceError", "no 7")
    assert error.trace is not None and "in broken" in error.trace

    # Behind `stop_after`, and where an error of the user's stands in front.
    too_many = async_map(spark.range(7, 8), broken, schema="n long", errors=Errors("drop", stop_after=0))
    try:
        try:
            too_many.collect()
        except PySparkException as spark_error:
            raise RuntimeError("the job failed") from spark_error
    except RuntimeError as outer:
        error = call_failed(outer)
    assert isinstance(error, CallFailed) and error.row == "Record(id=7)"


def test_a_job_that_no_call_has_failed_gives_none_and_a_time_out_is_one(spark: SparkSession) -> None:
    async def never(n: int) -> int:
        await asyncio.Event().wait()
        return 0

    with pytest.raises(PySparkException) as caught:
        spark.range(1).select(async_udf("long", timeout=0.1)(never)("id")).collect()
    error = call_failed(caught.value)
    assert isinstance(error, CallTimeout) and (error.limit, error.row) == ("timeout", "(0,)")
    # Before 4.0 Spark has no class of its own for it.
    with pytest.raises(Exception, match="no") as other:
        spark.sql("select raise_error('no')").collect()
    assert call_failed(other.value) is None
