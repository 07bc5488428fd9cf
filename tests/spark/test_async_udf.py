"""`async_udf`: an async function as a column."""

from __future__ import annotations

import asyncio
import datetime
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch, Budget, Collector, Dedupe, Ledger, Options, Retry
from pillarbox.spark import async_udf


@pytest.mark.contract
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


def test_functions_of_a_row_get_its_arguments_and_a_batch_a_list_for_each(spark: SparkSession) -> None:
    batch = Batch(10, weight=lambda name, number: number, max_weight=5)
    options = Options(batch=batch, dedupe=Dedupe(lambda name, number: name))

    @async_udf("string", options=options)
    async def call(names: list[str], numbers: list[int]) -> list[str]:
        of = ",".join(names)
        return [f"{name * number} of {of}" for name, number in zip(names, numbers, strict=True)]

    rows = [("a", 3), ("b", 2), ("c", 1), ("a", 1)]
    df = spark.createDataFrame(rows, "name string, number long").coalesce(1)
    results = [row.result for row in df.select(call("name", "number").alias("result")).collect()]
    assert results == ["aaa of a,b", "bb of a,b", "c of c", "aaa of a,b"]


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


@pytest.mark.contract
def test_a_column_function_takes_a_collector_behind_its_columns(spark: SparkSession) -> None:
    @async_udf("long", capacity=4)
    def add(one: int, other: int = 100, *, result: Collector[int]) -> None:
        import threading

        threading.Thread(target=lambda: result.complete(one + other)).start()

    df = spark.range(0, 50, 1, 2)
    rows = df.select(add("id", "id").alias("twice"), add("id").alias("more")).collect()
    assert [tuple(row) for row in rows] == [(2 * i, i + 100) for i in range(50)]


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


@pytest.mark.contract
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
    @async_udf("timestamp", budget=Budget(max_calls=5), errors="null")
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


@pytest.mark.contract
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
        (("lonk",), ValueError, "returnType='lonk': is not a type"),
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
        """Do the documented thing."""
        return n

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "Do the documented thing."
    assert asyncio.run(documented.func(3)) == 3


@pytest.mark.contract
def test_a_column_is_named_after_the_function_and_its_arguments(spark: SparkSession) -> None:
    @async_udf("long")
    async def embed(n: int, more: int = 0) -> int:
        return n

    class Client:
        async def __call__(self, n: int) -> int:
            return n

    df = spark.range(1)
    chosen = df.select(embed("id"), embed("id", F.col("id")), async_udf("long")(Client())("id"))
    assert chosen.columns == ["embed(id)", "embed(id, id)", "Client(id)"]


@pytest.mark.contract
def test_a_registered_function_is_called_by_sql(spark: SparkSession) -> None:
    @async_udf("struct<n:long,text:string>", capacity=8)
    async def embed(n: int, text: str = "x") -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"n": n, "text": text}

    spark.udf.register("embed", embed)
    rows = spark.sql(
        "select embed(id) as one, embed(id, concat('t', id)) as two from range(0, 50, 1, 2)"
    ).collect()
    assert [tuple(row) for row in rows] == [(Row(n=i, text="x"), Row(n=i, text=f"t{i}")) for i in range(50)]
    assert spark.sql("select embed(id) from range(1)").columns == ["embed(id)"]
    assert asyncio.run(embed.func(3)) == {"n": 3, "text": "x"}


def test_a_registered_function_keeps_its_errors(spark: SparkSession) -> None:
    @async_udf("long", errors="column")
    def odd(n: int, collector: Collector[int]) -> None:
        if n % 2 == 0:
            collector.fail(ValueError(n))
        collector.complete(n)

    spark.udf.register("odd", odd)
    rows = spark.sql("select odd(id) as odd from range(0, 4, 1, 1)").collect()
    assert [row.odd.result for row in rows] == [None, 1, None, 3]
    assert [row.odd["_error"] and row.odd["_error"].type for row in rows] == ["ValueError", None] * 2


def test_a_function_that_sql_cannot_call_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    async def call(*values: int) -> int:
        return sum(values)

    ledger = async_udf("long", ledger=Ledger(tmp_path, uid="sum", run="1"))(call)
    with pytest.raises(ValueError, match=r"call: spark\.udf\.register cannot tell the ledger which columns"):
        spark.udf.register("call", ledger)


WITHOUT_SESSION = """
from pillarbox.spark import async_udf

@async_udf("int")
async def double(n: int) -> int:
    return 2 * n
"""


@pytest.mark.contract
def test_a_column_function_can_stand_in_a_module_without_a_session_and_in_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without_session.py").write_text(WITHOUT_SESSION)
    # Where there is no session yet.
    script = "import without_session; print(without_session.double.__name__)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("double\n", 0), done.stderr
    # In a worker, which has none either: by its name, and by its value.
    folder = str(tmp_path)

    def in_worker(batches: Iterator[Any]) -> Iterator[Any]:
        sys.path.insert(0, folder)
        try:
            import without_session  # type: ignore[import-not-found]
        finally:
            sys.path.remove(folder)
        for batch in batches:
            yield pa.RecordBatch.from_arrays(batch.columns, [without_session.double.__name__])

    assert spark.range(1).mapInArrow(in_worker, "double long").collect() == [Row(double=0)]
    monkeypatch.syspath_prepend(folder)
    import without_session  # type: ignore[import-not-found]

    rows = spark.range(3).select(without_session.double("id").alias("n")).collect()
    assert [row.n for row in rows] == [0, 2, 4]
    assert pickle.loads(cloudpickle.dumps(without_session.double)).__name__ == "double"


def test_a_bad_type_given_without_a_session_is_named_where_it_is_used(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(n: int) -> int:
        return n

    def no_session() -> SparkSession:
        raise PySparkException("no session")

    with monkeypatch.context() as without:
        without.setattr(SparkSession, "active", no_session)
        with pytest.raises(TypeError, match="returnType=7: must be a DDL string or a DataType"):
            async_udf(7)(call)  # type: ignore[arg-type]
        late = async_udf("lonk")(call)
    with pytest.raises(ValueError, match="returnType='lonk': is not a type"):
        late("id")


@pytest.mark.contract(
    "A column function gets Spark's values as they are, with every version of Spark: no integer or time "
    "beside a null becomes another."
)
def test_values_reach_a_column_function_and_come_back_as_they_are(spark: SparkSession) -> None:
    @async_udf(
        "struct<n:bigint,f:double,at:timestamp,here:timestamp_ntz,many:array<bigint>,named:map<string,bigint>>"
    )
    async def same(n: Any, f: Any, at: Any, here: Any, many: Any, named: Any) -> Any:
        return n, f, at, here, many, named

    df = spark.sql(
        """
        select * from values
            (9007199254740993, double('NaN'), timestamp'0001-01-03 00:00:00',
             timestamp_ntz'9999-12-31 23:59:59.999999',
             array(9007199254740993, null), map('a', 9007199254740993, 'b', null)),
            (null, cast(null as double), cast(null as timestamp), cast(null as timestamp_ntz), null, null),
            (-9223372036854775808, -0.0D, timestamp'9999-12-30 23:59:59.999999',
             timestamp_ntz'0001-01-01 00:00:00', array(), map())
        as t(n, f, at, here, many, named)
        """
    )
    columns = df.columns
    back = df.coalesce(1).select(*columns, same(*columns).alias("same"))
    wrong = " or ".join(f"not ({name} <=> same.{name})" for name in columns if name not in ("f", "named"))
    assert back.where(wrong).count() == 0
    assert back.where("not (map_entries(named) <=> map_entries(same.named))").count() == 0
    # Compared as text: equal to Spark are a NaN and a NaN, and 0.0 and -0.0.
    assert back.where("not (string(f) <=> string(same.f))").count() == 0
    assert back.count() == 3


def test_a_column_of_structs_comes_back_as_it_is(spark: SparkSession) -> None:
    @async_udf("struct<n:bigint,inner:struct<text:string,n:bigint>>")
    async def same(whole: Any) -> Any:
        return whole

    df = spark.sql(
        "select named_struct('n', id + 9007199254740993, 'inner', "
        "if(id = 1, null, named_struct('text', 'a', 'n', cast(null as bigint)))) as whole from range(3)"
    )
    back = df.coalesce(1).select("whole", same("whole").alias("same"))
    assert back.where("not (whole <=> same)").count() == 0
    assert back.where("same.inner is null").count() == 1
