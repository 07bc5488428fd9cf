"""`Batch(arrow=True)`: rows go to the function as Arrow, and come back as Arrow or as a NumPy array."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from pillarbox import Batch, Budget, Dedupe, Ledger, Options, Step, Timeout
from pillarbox.spark import async_map, async_udf

VECTOR = "vector array<float>"


@pytest.fixture
def texts(spark: SparkSession) -> DataFrame:
    return spark.range(0, 500, 1, 2).selectExpr("id", "concat('t', id) as text")


def vectors(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """A block: the id of each row, four times."""
    return np.repeat(np.asarray(batch.column("id"), np.float32)[:, None], 4, axis=1)


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_of_a_numpy_block_go_to_their_rows(texts: DataFrame, ordered: bool) -> None:
    async def embed(batch: pa.RecordBatch) -> Any:
        assert batch.schema.names == ["id", "text"]
        assert batch.column("text").to_pylist() == [f"t{n}" for n in batch.column("id").to_pylist()]
        return vectors(batch)

    df = async_map(texts, embed, schema=VECTOR, keep=["id"], batch=Batch(64, arrow=True), ordered=ordered)
    found = {row.id: row.vector for row in df.collect()}
    assert found == {n: [float(n)] * 4 for n in range(500)}


@pytest.mark.contract
def test_a_record_batch_that_a_function_gives_has_its_columns_by_name(texts: DataFrame) -> None:
    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        upper = pc.utf8_upper(batch.column("text"))
        return pa.RecordBatch.from_arrays([upper, batch.column("id")], ["upper", "n"])

    found = async_map(
        texts, call, schema="n long, upper string", keep=["id"], batch=Batch(50, arrow=True)
    ).collect()
    assert [(row.n, row.upper) for row in found] == [(row.id, f"T{row.id}") for row in found]
    assert len(found) == 500


@pytest.mark.parametrize(
    ("schema", "result"),
    [
        ("n long, at timestamp", "at"),
        ("n long, some struct<a: int>", "some"),
        ("n long, missing string", None),
    ],
)
def test_columns_that_arrow_does_not_cast_are_taken_row_by_row(
    spark: SparkSession, schema: str, result: str | None
) -> None:
    async def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        count = len(batch)
        more = {
            "at": pa.array([10**15] * count, pa.timestamp("us", "UTC")),
            "some": pa.array([{"a": 3}] * count, pa.struct([("a", pa.int64())])),
        }
        names = [] if result is None else [result]
        return pa.RecordBatch.from_arrays(
            [batch.column("id"), *(more[name] for name in names)], ["n", *names]
        )

    found = async_map(spark.range(5), call, schema=schema, batch=Batch(2, arrow=True)).collect()
    assert sorted(row.n for row in found) == [0, 1, 2, 3, 4]
    assert {str(row[1]) for row in found} <= {"2001-09-09 01:46:40", "Row(a=3)", "None"}


@pytest.mark.contract
def test_async_udf_gives_the_function_an_array_for_each_argument(texts: DataFrame) -> None:
    @async_udf("array<float>", batch=Batch(64, weight=lambda n, text: 1, max_weight=9, arrow=True))
    async def embed(ids: pa.Array, texts: pa.Array) -> Any:
        assert isinstance(ids, pa.Array) and len(ids) == len(texts) <= 9
        return np.repeat(np.asarray(ids, np.float32)[:, None], 2, axis=1)

    found = texts.select("id", embed("id", "text").alias("vector")).collect()
    assert {row.id: row.vector for row in found} == {n: [float(n)] * 2 for n in range(500)}


def test_rows_with_a_null_are_left_out_of_the_arrays(texts: DataFrame) -> None:
    @async_udf("string", batch=Batch(64, arrow=True), skip_null=True)
    async def upper(texts: pa.Array) -> pa.Array:
        assert not texts.null_count
        return pc.utf8_upper(texts)

    df = texts.selectExpr("id", "if(id % 3 = 0, null, text) as text")
    found = df.select("id", upper("text").alias("upper")).collect()
    assert {row.id: row.upper for row in found} == {n: f"T{n}" if n % 3 else None for n in range(500)}


@pytest.mark.contract
def test_a_poison_row_of_an_arrow_batch_is_the_only_one_with_an_error(texts: DataFrame) -> None:
    async def picky(batch: pa.RecordBatch) -> Any:
        if 7 in batch.column("id").to_pylist():
            raise ValueError("seven")
        return vectors(batch)

    found = async_map(
        texts, picky, schema=VECTOR, keep=["id"], batch=Batch(64, arrow=True), errors="column"
    ).collect()
    assert [(row.id, row._error.type) for row in found if row._error is not None] == [(7, "ValueError")]
    assert all(row.vector == [float(row.id)] * 4 for row in found if row.id != 7)


def test_a_block_of_another_length_fails_with_both_numbers(spark: SparkSession) -> None:
    async def forgetful(batch: pa.RecordBatch) -> Any:
        return vectors(batch)[1:]

    df = async_map(
        spark.range(0, 4, 1, 1), forgetful, schema=VECTOR, batch=Batch(4, arrow=True), errors="column"
    )
    found = {row._error.message for row in df.collect()}
    assert len(found) == 1 and "a batch of 4 rows and gave 3 results" in found.pop()


def test_a_table_with_other_columns_fails_each_row_by_their_names(spark: SparkSession) -> None:
    async def other(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch.column("id")], ["m"])

    df = async_map(
        spark.range(0, 4, 1, 1), other, schema="n long", batch=Batch(4, arrow=True), errors="column"
    )
    assert all(row._error.type == "ResultError" and "m" in row._error.message for row in df.collect())


@pytest.mark.contract
def test_a_ledger_gives_vectors_back_without_a_call(texts: DataFrame, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()

    async def embed(batch: pa.RecordBatch) -> Any:
        first = batch.column("id")[0].as_py()
        (calls / f"{first} {len(batch)}").touch()
        return vectors(batch) / 7

    def run() -> dict[int, list[float]]:
        ledger = Ledger(str(tmp_path / "ledger"), uid="embed", run="once", key=["id"])
        df = async_map(texts, embed, schema=VECTOR, keep=["id"], batch=Batch(64, arrow=True), ledger=ledger)
        return {row.id: row.vector for row in df.collect()}

    first = run()
    assert sum(int(each.name.split()[1]) for each in calls.iterdir()) == 500
    for each in calls.iterdir():
        each.unlink()
    assert run() == first == {n: [float(np.float32(n) / np.float32(7))] * 4 for n in range(500)}
    assert not list(calls.iterdir())


def test_equal_rows_share_a_place_in_a_batch(spark: SparkSession) -> None:
    async def embed(batch: pa.RecordBatch) -> Any:
        ids = batch.column("id").to_pylist()
        assert len(set(ids)) == len(ids)
        return vectors(batch)

    df = spark.range(0, 200, 1, 1).selectExpr("id % 5 as id")
    found = async_map(
        df, embed, schema=VECTOR, keep=["id"], batch=Batch(64, arrow=True), options=Options(dedupe=Dedupe())
    ).collect()
    assert [row.vector for row in found] == [[float(n % 5)] * 4 for n in range(200)]


def test_functions_of_a_row_get_the_row_and_its_result(spark: SparkSession) -> None:
    def usage(row: Any, result: Any) -> float:
        assert result[0] == row.id
        return 1.0

    async def embed(batch: pa.RecordBatch) -> Any:
        return vectors(batch)

    df = spark.range(0, 100, 1, 1)
    found = async_map(
        df, embed, schema=VECTOR, keep=["id"], batch=Batch(10, arrow=True), budget=Budget(usage=usage)
    ).collect()
    assert [row.vector[0] for row in found] == list(range(100))


def test_a_fallback_for_a_timeout_is_a_value_of_the_row(spark: SparkSession) -> None:
    async def slow(batch: pa.RecordBatch) -> Any:
        await asyncio.sleep(60)

    timeout = Timeout(0.05, fallback=lambda row: {"vector": [row.id, 0.5]})
    df = async_map(spark.range(0, 3, 1, 1), slow, schema=VECTOR, batch=Batch(2, arrow=True), timeout=timeout)
    assert [row.vector for row in df.collect()] == [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]


def test_sql_calls_a_registered_function_with_arrays(texts: DataFrame, spark: SparkSession) -> None:
    async def upper(texts: pa.Array) -> pa.Array:
        return pc.utf8_upper(texts)

    spark.udf.register("arrow_upper", async_udf(upper, "string", batch=Batch(64, arrow=True)))
    texts.createOrReplaceTempView("arrow_texts")
    found = spark.sql("select id, arrow_upper(text) as upper from arrow_texts").collect()
    assert {row.id: row.upper for row in found} == {n: f"T{n}" for n in range(500)}


@pytest.mark.contract
@pytest.mark.parametrize("form", ["table", "array", "block"])
def test_the_first_function_of_a_list_gets_arrow_and_the_next_one_its_rows(
    texts: DataFrame, form: str
) -> None:
    async def first(batch: pa.RecordBatch) -> Any:
        if form == "table":
            return batch.select(["id"])
        return batch.column("id") if form == "array" else vectors(batch)

    async def second(result: Any) -> tuple[int]:
        return (result["id"] if form == "table" else result if form == "array" else int(result[0]),)

    steps = [Step(first, batch=Batch(64, arrow=True)), second]
    found = async_map(texts, steps, schema="n long", keep=["id"]).collect()
    assert [row.n for row in found] == [row.id for row in found] == [*range(500)]


@pytest.mark.contract
def test_arrow_is_refused_at_the_call_where_rows_do_not_come_as_arrow(spark: SparkSession) -> None:
    async def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    batch = Batch(arrow=True)
    with pytest.raises(ValueError, match=r"arrow=True is for a Spark DataFrame.*rows is a list"):
        async_map([1, 2], call, batch=batch)
    with pytest.raises(ValueError, match="arrow=True is for the first function of a list.*; call gets"):
        async_map(spark.range(3), [json.dumps, Step(call, batch=batch)], schema="n long")
    with pytest.raises(TypeError, match="arrow='yes': must be True or False"):
        Batch(arrow="yes")  # type: ignore[arg-type]
