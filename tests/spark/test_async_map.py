"""`async_map` over DataFrames: rows, order, shapes of results, errors, limits.

Functions that are sent to workers are defined inside of the tests, so that they travel by value.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pillarbox import Collector, Options, Retry
from pillarbox.spark import async_map


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_rows_in_are_rows_out_exactly_once(spark: SparkSession, partitions: int, ordered: bool) -> None:
    async def call(row: Any) -> dict[str, Any]:
        await asyncio.sleep((row.id * 7919 % 10) / 2000)
        return {"copy": row.id, "text": row.name.upper()}

    df = spark.range(0, 3000, 1, partitions).withColumn("name", F.concat(F.lit("n"), "id"))
    rows = async_map(df, call, schema="copy long, text string", ordered=ordered, capacity=64).collect()
    expected = [Row(copy=i, text=f"N{i}") for i in range(3000)]
    assert sorted(rows) == expected
    if ordered:
        assert rows == expected


@pytest.mark.slow
def test_one_million_rows_of_identity(spark: SparkSession) -> None:
    async def identity(row: Any) -> int:
        value: int = row.id
        return value

    df = async_map(spark.range(0, 1_000_000, 1, 2), identity, schema="id long", ordered=False, capacity=256)
    counted = df.agg(F.count("*"), F.sum("id"), F.countDistinct("id")).first()
    assert counted is not None and tuple(counted) == (1_000_000, 499_999_500_000, 1_000_000)


def test_empty_input_and_empty_partitions(spark: SparkSession) -> None:
    async def call(row: Any) -> int:
        value: int = row.id
        return value

    assert async_map(spark.range(0), call, schema="id long").collect() == []
    sparse = spark.range(0, 8, 1, 8).where("id in (2, 5)")
    assert async_map(sparse, call, schema="id long").collect() == [Row(id=2), Row(id=5)]


@pytest.mark.contract
def test_kept_columns_stand_before_the_results_of_their_rows(spark: SparkSession) -> None:
    async def call(row: Any) -> list[tuple[int]]:
        await asyncio.sleep((row.id * 31 % 7) / 1000)
        return [(row.id * 10 + i,) for i in range(row.id % 3)]

    df = spark.range(0, 2000, 1, 2).select(
        "id", F.col("id").cast("string").alias("text"), F.lit(b"raw").alias("raw")
    )
    for ordered in (True, False):
        kept = async_map(df, call, schema="n long", keep=["text", "id"], ordered=ordered, capacity=32)
        assert kept.columns == ["text", "id", "n"]
        rows = kept.collect()
        expected = [Row(text=str(i), id=i, n=i * 10 + k) for i in range(2000) for k in range(i % 3)]
        assert (rows if ordered else sorted(rows, key=lambda row: row.n)) == expected
    assert async_map(df, call, schema="n long", keep="*").columns == ["id", "text", "raw", "n"]


@pytest.mark.contract
def test_a_result_may_take_any_form_of_a_row(spark: SparkSession) -> None:
    def call(row: Any) -> Any:
        from collections import namedtuple
        from dataclasses import make_dataclass

        from pyspark.sql import Row

        forms = [
            {"a": 1, "b": "x"},
            {"b": "x", "a": 1},
            (1, "x"),
            Row(b="x", a=1),
            namedtuple("Pair", "b a")("x", 1),
            make_dataclass("Pair", ["b", "a"])("x", 1),
            [(1, "x")],
            {"a": 1},
        ]
        return forms[row.id]

    rows = async_map(spark.range(0, 8, 1, 1), call, schema="a int, b string").collect()
    assert rows == [Row(a=1, b="x")] * 7 + [Row(a=1, b=None)]


def test_a_schema_of_one_column_takes_bare_values(spark: SparkSession) -> None:
    async def call(row: Any) -> Any:
        return [row.id, None, (row.id,), {"n": row.id}, [row.id, row.id], []][row.id]

    rows = async_map(spark.range(0, 6, 1, 1), call, schema="n long").collect()
    assert [row.n for row in rows] == [0, None, 2, 3, 4, 4]


@pytest.mark.contract
def test_zero_to_n_rows_from_an_async_iterator(spark: SparkSession) -> None:
    async def call(row: Any) -> AsyncIterator[tuple[int, int]]:
        for i in range(row.id):
            await asyncio.sleep(0)
            yield row.id, i

    rows = async_map(spark.range(0, 4, 1, 1), call, schema="id long, i long").collect()
    assert [tuple(row) for row in rows] == [(i, k) for i in range(4) for k in range(i)]


def test_a_plain_function_runs_in_threads(spark: SparkSession) -> None:
    def call(row: Any) -> tuple[int, str]:
        import threading

        return row.id, threading.current_thread().name

    rows = async_map(spark.range(0, 50, 1, 2), call, schema="id long, thread string", capacity=4).collect()
    assert [row.id for row in rows] == list(range(50))
    assert all(row.thread.startswith("pillarbox-call-") for row in rows)


@pytest.mark.contract
def test_a_function_with_a_collector_brings_its_rows_by_it_on_spark(spark: SparkSession) -> None:
    def call(row: Any, collector: Collector[Any]) -> None:
        import threading

        def answer() -> None:
            if row.id == 3:
                collector.fail(ValueError("three"))
            else:
                collector.complete([(row.id, i) for i in range(row.id % 3)])

        threading.Thread(target=answer).start()

    df = spark.range(0, 40, 1, 2)
    rows = async_map(df, call, schema="id long, i long", capacity=4, errors="drop").collect()
    assert [tuple(row) for row in rows] == [(i, k) for i in range(40) if i != 3 for k in range(i % 3)]


def test_a_function_that_returns_a_future_gives_what_that_gives_on_spark(spark: SparkSession) -> None:
    def call(row: Any) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: row.id * 2)

    rows = async_map(spark.range(0, 20, 1, 2), call, schema="n long").collect()
    assert [row.n for row in rows] == [*range(0, 40, 2)]


def test_a_record_is_read_by_attribute_by_name_and_by_position(spark: SparkSession) -> None:
    async def call(record: Any) -> tuple[Any, ...]:
        assert list(record) == [record.id, record["text"]] == [record[0], record[1]]
        assert record.asDict() == {"id": record.id, "text": record.text}
        assert len(record) == 2 and "text" in record and "other" not in record
        return record.id, record["text"], repr(record)

    df = spark.createDataFrame([(1, "a"), (2, None)], "id long, text string").coalesce(1)
    rows = async_map(df, call, schema="id long, text string, shown string").collect()
    assert rows[0] == Row(id=1, text="a", shown="Record(id=1, text='a')")
    assert rows[1].text is None


def fails(df: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        df.collect()
    return str(caught.value)


@pytest.mark.contract
def test_an_error_fails_the_task_with_the_row_the_attempts_and_the_traceback(spark: SparkSession) -> None:
    async def lookup_price(row: Any) -> int:
        if row.id == 7:
            raise ValueError("no such product")
        value: int = row.id
        return value

    df = spark.range(0, 10, 1, 1).withColumn("text", F.lit("x" * 10_000))
    text = fails(async_map(df, lookup_price, schema="id long", retry=Retry(attempts=2, initial=0.001)))
    assert "call failed after 2 attempts for row Record(id=7, text='xxxx" in text
    assert "ValueError: no such product" in text
    assert "in lookup_price" in text
    assert "x" * 200 not in text


def test_a_timeout_fails_the_task_and_says_which_limit(spark: SparkSession) -> None:
    async def never(row: Any) -> int:
        await asyncio.Event().wait()
        return 0

    text = fails(async_map(spark.range(0, 10, 1, 1), never, schema="id long", timeout=0.2))
    assert "CallTimeout: no result within timeout=0.2 s, in attempt 1 for row Record(id=" in text


@pytest.mark.contract
def test_errors_null_keeps_the_row_with_nulls(spark: SparkSession) -> None:
    async def call(row: Any) -> tuple[int, str]:
        if row.id % 2:
            raise ValueError(row.id)
        return row.id, "ok"

    df = async_map(spark.range(0, 4, 1, 1), call, schema="n long, s string", keep="*", errors="null")
    assert [tuple(row) for row in df.collect()] == [
        (0, 0, "ok"),
        (1, None, None),
        (2, 2, "ok"),
        (3, None, None),
    ]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "None is not a row of the columns a, b: return [] for no row"),
        ((1,), "1 values for the 2 columns a, b"),
        ({"a": 1, "c": 2}, "unknown columns c; the schema has a, b"),
        (5, "must be a dict, a tuple, a Row, a dataclass or an object of attrs or Pydantic, not int"),
        (
            ("x", "y"),
            "call failed after 1 attempt for row Record(id=0): ResultError: result ('x', 'y') does not fit "
            "the schema (a int32, b string): column a (int32): Could not convert 'x'",
        ),
    ],
)
def test_a_result_that_does_not_fit_fails_with_the_row_and_the_schema(
    spark: SparkSession, result: Any, message: str
) -> None:
    async def call(row: Any) -> Any:
        return result

    assert message in fails(async_map(spark.range(0, 1, 1, 1), call, schema="a int, b string"))


def test_null_in_a_column_that_is_not_null_is_an_error(spark: SparkSession) -> None:
    async def call(row: Any) -> Any:
        return None

    assert "a is null, but the schema says NOT NULL" in fails(
        async_map(spark.range(1), call, schema="a int not null")
    )


@pytest.mark.contract
def test_limit_ends_a_job_early(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        value: int = row.id
        if value % 1000 == 0:
            (tmp_path / str(value)).touch()
        return value

    rows = async_map(spark.range(0, 5_000_000, 1, 1), call, schema="id long").limit(3).collect()
    assert [row.id for row in rows] == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) < 5000


@pytest.mark.contract
def test_a_resource_is_opened_once_in_a_worker_that_runs_several_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Session:
        async def __aenter__(self) -> Session:
            import os
            import uuid

            self.token = uuid.uuid4().hex
            (tmp_path / f"{os.getpid()}-{self.token}").touch()
            return self

        async def __aexit__(self, *error: object) -> None:
            return None

        async def __call__(self, row: Any) -> tuple[int, str]:
            import os

            return os.getpid(), self.token

    rows = (
        async_map(spark.range(0, 400, 1, 8), Session(), schema="pid long, token string").distinct().collect()
    )
    by_worker = {row.pid for row in rows}
    assert len(rows) == len(by_worker) == len(list(tmp_path.iterdir()))
    assert len(by_worker) < 8
    assert os.getpid() not in by_worker


def test_a_resource_is_closed_when_its_task_fails(spark: SparkSession, tmp_path: Path) -> None:
    class Session:
        async def __aenter__(self) -> Session:
            return self

        async def __aexit__(self, *error: object) -> None:
            (tmp_path / "closed").touch()

        async def __call__(self, row: Any) -> int:
            raise ValueError

    assert "ValueError" in fails(async_map(spark.range(1), Session(), schema="id long"))
    assert (tmp_path / "closed").exists()


@pytest.mark.contract
def test_untouched_columns_are_never_turned_into_python_objects(spark: SparkSession) -> None:
    async def call(row: Any) -> tuple[int, list[str]]:
        value: int = row.id
        return value, sorted(row.__columns__)

    df = spark.range(0, 10, 1, 1).select(
        "id", F.lit("x" * 100).alias("wide"), F.array(F.lit(1)).alias("nested")
    )
    rows = async_map(df, call, schema="n long, touched array<string>", keep="*").collect()
    assert all(row.touched == ["id"] for row in rows)
    assert rows[3].wide == "x" * 100 and rows[3].nested == [1]


@pytest.mark.contract
def test_nothing_is_called_before_an_action(spark: SparkSession, tmp_path: Path) -> None:
    async def call(row: Any) -> int:
        (tmp_path / "called").touch()
        return 0

    df = async_map(spark.range(1), call, schema="id long")
    assert not (tmp_path / "called").exists()
    df.collect()
    assert (tmp_path / "called").exists()


async def nothing(row: Any) -> None:
    return None


@pytest.mark.contract
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"schema": 5}, TypeError, "schema=5: must be a DDL string or a DataType, not int"),
        ({"schema": "id lonk"}, ValueError, "schema='id lonk': is not a type in DDL form"),
        ({"schema": "long"}, TypeError, "schema='long': must name columns"),
        ({"schema": "a int, a int"}, ValueError, "schema: the column names 'a' stand more than once"),
        ({"schema": "v interval year"}, TypeError, "results of this type are not supported"),
        ({"keep": ["ix"]}, ValueError, "is not a column of the DataFrame"),
        ({"keep": 7}, TypeError, "keep=7: must be '*' or a list of column names"),
        ({"keep": [7]}, TypeError, "keep=[7]: must be '*' or a list of column names"),
        ({"keep": "id"}, TypeError, "keep='id': must be '*' or a list of column names"),
        ({"keep": "*", "schema": "id long"}, ValueError, "keep and schema: the column names 'id'"),
        ({"capacity": -1}, ValueError, "capacity=-1: must be at least 1"),
        ({"progress": 1}, TypeError, "progress=1: must be a pillarbox.spark.Progress"),
    ],
)
def test_a_bad_argument_is_named_on_the_driver(
    spark: SparkSession, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        async_map(spark.range(1), nothing, **{"schema": "n long", **arguments})
    assert message in str(caught.value)


@pytest.mark.contract
def test_a_function_that_cannot_be_sent_is_refused_on_the_driver(spark: SparkSession) -> None:
    import threading

    lock = threading.Lock()

    async def call(row: Any) -> int:
        with lock:
            return 0

    with pytest.raises(
        TypeError, match=r"cannot be sent to Spark's workers .*open clients and connections in"
    ):
        async_map(spark.range(1), call, schema="id long")


def test_what_is_no_dataframe_is_refused() -> None:
    with pytest.raises(TypeError, match="schema='id long': is for a Spark DataFrame, and rows is a list"):
        async_map([1], nothing, schema="id long")  # type: ignore[arg-type]


def test_broadcast_variables_reach_the_function(spark: SparkSession) -> None:
    prices = spark.sparkContext.broadcast({0: 1.5, 1: 2.5})

    async def call(row: Any) -> float:
        return prices.value[row.id]

    rows = async_map(spark.range(0, 2, 1, 1), call, schema="price double").collect()
    assert [row.price for row in rows] == [1.5, 2.5]


@pytest.mark.parametrize(
    ("schema", "result", "message"),
    [
        ("v array<string>", ["ab", "c"], "'ab': an array must be a list, not str"),
        ("v array<string>", "abc", "'abc': an array must be a list, not str"),
        ("v array<int>", {"v": {1: 2}}, "{1: 2}: an array must be a list, not dict"),
        ("v map<string,int>", {}, "{}: wrap the value of the column, as in {'v': ...}"),
        ("v string", b"x", "b'x' is not a string but bytes"),
        ("v binary", "x", "'x' is not a binary but str"),
    ],
)
def test_a_value_of_another_type_is_refused_rather_than_taken_for_something_else(
    spark: SparkSession, schema: str, result: Any, message: str
) -> None:
    async def call(row: Any) -> Any:
        return result

    assert message in fails(async_map(spark.range(0, 1, 1, 1), call, schema=schema))


def test_a_result_that_does_not_fit_ends_the_calls_and_closes_the_resource(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Client:
        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *error: object) -> None:
            (tmp_path / "closed").touch()

        async def __call__(self, row: Any) -> Any:
            await asyncio.sleep(0.001)
            return "no number" if row.id == 500 else row.id

    assert "does not fit the schema" in fails(
        async_map(spark.range(0, 1_000_000, 1, 1), Client(), schema="n long", capacity=10)
    )
    assert (tmp_path / "closed").exists()


def test_columns_are_kept_by_name_only(spark: SparkSession) -> None:
    for keep in (F.col("id"), [F.col("id")]):
        with pytest.raises(TypeError, match="must be '\\*' or a list of column names"):
            async_map(spark.range(1), nothing, schema="n long", keep=keep)


def test_a_column_may_have_any_name(spark: SparkSession) -> None:
    async def call(row: Any) -> tuple[Any, ...]:
        return row["asDict"], row["a b"], row["_index"], row["class"], getattr(row, "a b"), row[2]

    df = spark.sql("select 1 as `asDict`, 2 as `a b`, 3 as `_index`, 4 as `class`").coalesce(1)
    rows = async_map(df, call, schema="a int, b int, c int, d int, e int, f int").collect()
    assert [tuple(row) for row in rows] == [(1, 2, 3, 4, 2, 3)]


@pytest.mark.contract
def test_a_column_whose_name_has_a_dot_is_called_and_kept_as_any_other(spark: SparkSession) -> None:
    df = spark.sql("select 1 as `a.b`, struct(2 as b) as a, 3 as `x``y` where true").coalesce(1)

    def call(row: Any) -> tuple[Any, ...]:
        return row["a.b"], row["a"].b, row["x`y"]

    called = Options(where="`a.b` = 1")
    found = async_map(df, call, schema="`r.s` int, t int, u int", keep=["x`y", "a.b"], options=called)
    assert found.columns == ["x`y", "a.b", "r.s", "t", "u"]
    assert [tuple(row) for row in found.collect()] == [(3, 1, 1, 2, 3)]


@pytest.mark.contract
def test_rows_without_columns_are_refused_and_not_lost(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="df: has no columns, and Spark hands no rows on without any"):
        async_map(spark.range(3).select(), nothing, schema="n long")
