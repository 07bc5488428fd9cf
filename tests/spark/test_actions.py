"""The number of calls of an action of Spark: it does not pay for what it does not need."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pillarbox import Options
from pillarbox.spark import async_map, async_udf, called_once
from tests.waiting import wait_until


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """A file that functions write a byte into at each call, in whatever process."""
    path = tmp_path / "calls"
    path.touch()
    return path


def counting(calls: Path, seconds: float = 0.0) -> Any:
    async def call(row: Any) -> str:
        with open(calls, "a") as file:
            file.write("x")
        await asyncio.sleep(seconds)
        return str(os.getpid())

    return call


def wait_for_the_end_of(process: int) -> None:
    def has_ended() -> bool:
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(has_ended)


@pytest.mark.contract
def test_showing_a_few_rows_calls_for_a_few_and_stops_when_it_has_them(
    spark: SparkSession, calls: Path
) -> None:
    # Of 15,000 in the first partition the most never end: so whatever is not stopped goes on for ever.
    ending, capacity = 1000, 100

    async def call(row: Any) -> str:
        with open(calls, "a") as file:
            file.write("x")
        if row.id >= ending:
            await asyncio.Event().wait()
        return str(os.getpid())

    df = async_map(
        spark.range(0, 30_000, 1, 2), call, schema="process string", capacity=capacity, ordered=False
    )
    rows = df.take(5)
    wait_for_the_end_of(int(rows[0].process))
    assert 5 <= calls.stat().st_size <= ending + capacity


ROWS = 40


def twice(df: DataFrame) -> None:
    df.collect()
    df.collect()


def twice_from_called_once(df: DataFrame) -> None:
    with called_once(df) as rows:
        twice(rows)


def sorted_by_id(df: DataFrame) -> None:
    df.orderBy("id").collect()


def joined_with_itself(df: DataFrame) -> None:
    df.alias("a").join(df.alias("b"), "id").collect()


Line = tuple[Callable[[DataFrame, Any], Any], float]
"""A use of a DataFrame and a function of columns, or of `async_map`, and its calls for each row."""

COLUMN: dict[str, Line] = {
    "collect": (lambda df, f: df.withColumn("n", f("id")).collect(), 1.0),
    "count": (lambda df, f: df.withColumn("n", f("id")).count(), 0.0),
    "a column that nobody reads": (lambda df, f: df.withColumn("n", f("id")).select("id").collect(), 0.0),
    "where behind it": (lambda df, f: df.withColumn("n", f("id")).where("id < 10").collect(), 1.0),
    "where in front of it": (lambda df, f: df.where("id < 10").withColumn("n", f("id")).collect(), 0.25),
    "when": (lambda df, f: df.select(F.when(F.col("id") < 10, f("id"))).collect(), 1.0),
    "where=": (lambda df, f: df.select(f("id", where="id < 10")).collect(), 0.25),
    "orderBy": (lambda df, f: sorted_by_id(df.withColumn("n", f("id"))), 2.0),
    "self-join": (lambda df, f: joined_with_itself(df.withColumn("n", f("id"))), 2.0),
    "two uses": (lambda df, f: twice(df.withColumn("n", f("id"))), 2.0),
    "two uses, called_once": (lambda df, f: twice_from_called_once(df.withColumn("n", f("id"))), 1.0),
}
MAPPED: dict[str, Line] = {
    "collect": (lambda df, m: m(df).collect(), 1.0),
    "count": (lambda df, m: m(df).count(), 1.0),
    "a column that nobody reads": (lambda df, m: m(df).select("id").collect(), 1.0),
    "where behind it": (lambda df, m: m(df).where("id < 10").collect(), 1.0),
    "where in front of it": (lambda df, m: m(df.where("id < 10")).collect(), 0.25),
    "where=": (lambda df, m: m(df, options=Options(where=F.col("id") < 10)).collect(), 0.25),
    "orderBy": (lambda df, m: sorted_by_id(m(df)), 2.0),
    "self-join": (lambda df, m: joined_with_itself(m(df)), 2.0),
    "two uses": (lambda df, m: twice(m(df)), 2.0),
    "two uses, called_once": (lambda df, m: twice_from_called_once(m(df)), 1.0),
}


def said_in_docs() -> dict[str, list[float | None]]:
    """The table of the page: calls for each row, of a column and of a map, by the first words of a line."""
    found = {}
    for line in (Path(__file__).resolve().parents[2] / "docs" / "actions.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[1][:1].isdigit():
            calls = [float(re.split("[ ,:]", cell)[0]) if cell[:1].isdigit() else None for cell in cells[1:3]]
            found[cells[0].replace("`", "")] = calls
    return found


@pytest.mark.contract(
    "The table of docs/actions.md, of how often an action calls a column, is what Spark does."
)
@pytest.mark.parametrize("line", COLUMN)
def test_each_line_of_the_table_of_actions_holds_for_a_column(
    spark: SparkSession, calls: Path, line: str
) -> None:
    path = str(calls)

    async def call(n: int) -> int:
        with open(path, "a") as file:
            file.write("x")
        return n

    action, expected = COLUMN[line]
    action(spark.range(0, ROWS, 1, 2), async_udf("long")(call))
    assert calls.stat().st_size == ROWS * expected
    assert said_in_docs()[line][0] == expected


@pytest.mark.contract("The table of docs/actions.md, of how often an action calls a map, is what Spark does.")
@pytest.mark.parametrize("line", MAPPED)
def test_each_line_of_the_table_of_actions_holds_for_a_map(
    spark: SparkSession, calls: Path, line: str
) -> None:
    def mapped(df: DataFrame, **options: Any) -> DataFrame:
        return async_map(df, counting(calls), schema="process string", keep="*", **options)

    action, expected = MAPPED[line]
    action(spark.range(0, ROWS, 1, 2), mapped)
    assert calls.stat().st_size == ROWS * expected
    assert said_in_docs()[line][1] == expected


def test_the_table_of_the_page_has_the_lines_that_are_tried() -> None:
    assert set(said_in_docs()) == set(COLUMN) | set(MAPPED)


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_for_which_where_does_not_hold_are_not_called_and_give_nulls(
    spark: SparkSession, ordered: bool
) -> None:
    async def some(row: Any) -> list[dict[str, Any]]:
        await asyncio.sleep(row.id % 3 / 1000)
        assert row.m < 3
        return [{"n": row.id, "s": "x"}] * (row.id % 3)

    df = spark.range(0, 3000, 1, 2).selectExpr("id", "if(id % 5 = 0, null, id % 5) as m")
    out = async_map(
        df,
        some,
        schema="n long, s string",
        keep=["m", "id"],
        ordered=ordered,
        errors="column",
        options=Options(where="m < 3"),
    )
    assert out.columns == ["m", "id", "n", "s", "_error"]
    expected: list[tuple[Any, ...]] = []
    for i in range(3000):
        m = i % 5 or None
        expected += [(m, i, i, "x", None)] * (i % 3) if m in (1, 2) else [(m, i, None, None, None)]
    rows = [tuple(row) for row in out.collect()]
    assert (rows if ordered else sorted(rows, key=lambda row: row[1])) == expected


def test_a_column_is_null_where_its_where_does_not_hold_or_an_argument_is_null(spark: SparkSession) -> None:
    @async_udf("struct<n:long>", skip_null=True, errors="column")
    async def both(a: int, b: int) -> dict[str, int]:
        assert a is not None and b is not None and a < 1000
        return {"n": a + b}

    df = spark.range(0, 2500, 1, 2).selectExpr("id as a", "if(id % 3 = 0, null, 1) as b")
    rows = df.select(both("a", "b", where=F.col("a") < 1000).alias("c")).collect()
    assert [row.c and row.c.result.n for row in rows] == [
        None if i % 3 == 0 or i >= 1000 else i + 1 for i in range(2500)
    ]


def test_a_call_of_sql_is_null_where_an_argument_is_null(spark: SparkSession) -> None:
    @async_udf("long", skip_null=True)
    async def add(a: int, b: int) -> int:
        return a + b

    spark.udf.register("add", add)
    rows = spark.sql("select add(id, if(id = 1, null, 1)) as c from range(0, 3, 1, 1)").collect()
    assert [row.c for row in rows] == [1, None, 3]


def test_a_condition_in_sql_that_makes_the_argument_null_spares_the_call(
    spark: SparkSession, calls: Path
) -> None:
    spark.udf.register("called_below_ten", async_udf("string", skip_null=True)(counting(calls)))
    found = spark.range(40).selectExpr("called_below_ten(if(id < 10, id, null)) as process").collect()
    assert sum(row.process is not None for row in found) == calls.stat().st_size == 10


def test_a_condition_that_cannot_be_is_refused_on_the_driver(spark: SparkSession) -> None:
    async def nothing(row: Any) -> None:
        return None

    with pytest.raises(TypeError, match="where=7: must be a Column or SQL"):
        async_map(spark.range(1), nothing, schema="n long", options=Options(where=7))  # type: ignore[arg-type]
    with pytest.raises(AnalysisException, match=r"id % 3.*BOOLEAN"):
        async_map(spark.range(1), nothing, schema="n long", options=Options(where="id % 3"))
    with pytest.raises(AnalysisException, match=r"id % 3.*BOOLEAN"):
        spark.range(1).select(async_udf("long")(nothing)("id", where="id % 3"))
    with pytest.raises(ValueError, match="where: rows that are not called give nulls; 'n' is NOT NULL"):
        async_map(spark.range(1), nothing, schema="n long not null", options=Options(where="id < 1"))
    with pytest.raises(TypeError, match="skip_null=1"):
        async_udf("long", skip_null=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="df=7: must be a Spark DataFrame"), called_once(7):  # type: ignore[arg-type]
        pass
