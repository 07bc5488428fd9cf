"""Every Spark type that Arrow carries goes through a function and comes back as it was, nulls included."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from pillarbox.spark import async_map, async_udf

UTC = datetime.timezone.utc

TYPES: list[tuple[str, Any, Any]] = [
    # DDL, the value in SQL, the value that the function sees
    ("boolean", "true", True),
    ("tinyint", "-128Y", -128),
    ("smallint", "32767S", 32767),
    ("int", "-2147483648", -2147483648),
    ("bigint", "9223372036854775807", 9223372036854775807),
    ("float", "float(1.5)", 1.5),
    ("double", "1e300", 1e300),
    ("decimal(38,18)", "cast('12345678901234567890.123456789012345678' as decimal(38,18))", None),
    ("decimal(5,2)", "cast(-1.25 as decimal(5,2))", decimal.Decimal("-1.25")),
    ("string", "'žluťoučký 🐎'", "žluťoučký 🐎"),
    ("binary", "X'00FF'", b"\x00\xff"),
    ("date", "date'0001-01-01'", datetime.date(1, 1, 1)),
    (
        "timestamp",
        "timestamp'2024-03-31 01:30:00.123456Z'",
        datetime.datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=UTC),
    ),
    (
        "timestamp_ntz",
        "timestamp_ntz'2024-03-31 02:30:00.5'",
        datetime.datetime(2024, 3, 31, 2, 30, 0, 500000),
    ),
    (
        "interval day to second",
        "interval '3 04:05:06.789' day to second",
        datetime.timedelta(days=3, hours=4, minutes=5, seconds=6, milliseconds=789),
    ),
    ("array<int>", "array(1, null, 3)", [1, None, 3]),
    ("array<array<string>>", "array(array('a'), null, array())", [["a"], None, []]),
    ("map<string,int>", "map('a', 1, 'b', null)", {"a": 1, "b": None}),
    ("map<int,array<double>>", "map(1, array(0.5D))", {1: [0.5]}),
    ("struct<a:int,b:string>", "named_struct('a', 1, 'b', cast(null as string))", Row(a=1, b=None)),
    (
        "array<struct<m:map<string,struct<x:int>>>>",
        "array(named_struct('m', map('k', named_struct('x', 7))))",
        [Row(m={"k": Row(x=7)})],
    ),
    (
        "struct<t:timestamp,d:decimal(5,2)>",
        "named_struct('t', timestamp'2024-01-01 00:00:00Z', 'd', cast(1.5 as decimal(5,2)))",
        Row(t=datetime.datetime(2024, 1, 1, tzinfo=UTC), d=decimal.Decimal("1.50")),
    ),
]

IDS = [ddl for ddl, _, _ in TYPES]


@pytest.mark.contract("A value of each type of Spark goes through async_map.")
@pytest.mark.parametrize(("ddl", "sql", "seen"), TYPES, ids=IDS)
def test_a_value_goes_through_async_map(spark: SparkSession, ddl: str, sql: str, seen: Any) -> None:
    async def call(row: Any) -> Any:
        if seen is not None and row.id == 1:
            assert row.v == seen, row.v
            assert type(row.v) is type(seen), type(row.v)
        return {"out": row.v}

    df = spark.sql(
        f"select 1 as id, cast({sql} as {ddl}) as v union all select 2, cast(null as {ddl})"
    ).coalesce(1)
    rows = async_map(df, call, schema=f"out {ddl}", keep=["v"]).collect()
    assert rows[0].out is not None
    assert [row.out for row in rows] == [row.v for row in rows] == [row.v for row in df.collect()]


@pytest.mark.contract("A value of each type of Spark goes through async_udf.")
@pytest.mark.parametrize(("ddl", "sql", "seen"), TYPES, ids=IDS)
def test_a_value_goes_through_async_udf(spark: SparkSession, ddl: str, sql: str, seen: Any) -> None:
    @async_udf(ddl)
    async def same(value: Any) -> Any:
        if seen is not None and value is not None:
            assert value == seen, value
        return value

    df = spark.sql(
        f"select 1 as id, cast({sql} as {ddl}) as v union all select 2, cast(null as {ddl})"
    ).coalesce(1)
    rows = df.withColumn("out", same("v")).collect()
    assert rows[0].out is not None
    assert [row.out for row in rows] == [row.v for row in rows]


def test_a_naive_datetime_is_in_the_time_zone_of_the_session(spark: SparkSession) -> None:
    async def call(row: Any) -> datetime.datetime:
        return datetime.datetime(2024, 7, 1, 12, 0)

    spark.conf.set("spark.sql.session.timeZone", "Europe/Prague")
    try:
        df = async_map(spark.range(1), call, schema="t timestamp").selectExpr("cast(t as string) as s")
        assert df.collect() == [Row(s="2024-07-01 12:00:00")]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_structs_are_taken_as_dict_row_or_tuple(spark: SparkSession) -> None:
    @async_udf("struct<a:int,b:string>")
    async def call(n: int) -> Any:
        from pyspark.sql import Row

        return [{"a": 1, "b": "x"}, Row(b="x", a=1), (1, "x")][n]

    assert [row.s for row in spark.range(0, 3, 1, 1).select(call("id").alias("s")).collect()] == [
        Row(a=1, b="x")
    ] * 3


def test_numpy_values_are_taken(spark: SparkSession) -> None:
    @async_udf("array<float>")
    async def call(n: int) -> Any:
        import numpy

        return numpy.arange(3, dtype=numpy.float32) + n

    assert spark.range(0, 1, 1, 1).select(call("id").alias("v")).collect() == [Row(v=[0.0, 1.0, 2.0])]
