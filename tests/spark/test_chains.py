"""Several functions in one Spark task: `async_map(df, [lookup, embed])`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Buffer, Errors, Options

pytest.importorskip("pyspark.sql")

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch, Retry, Step
from pillarbox.ledger import Ledger
from pillarbox.spark import Progress, async_map, async_udf, call_failed, failed_rows
from tests.spark.counting import Counting


async def lookup(row: Any) -> list[dict[str, Any]]:
    return [{"n": row.id, "text": f"{row['id']} {place}"} for place in range(row.id % 3)]


def shout(record: Any) -> Row:
    return Row(n=record.n, text=record["text"].upper() + "!")


async def lengths(records: list[Any]) -> list[tuple[int, int]]:
    return [(record.n, len(record.text)) for record in records]


SCHEMA = "n long, size int"


def rows_of(spark: SparkSession, rows: int = 400) -> DataFrame:
    return spark.range(0, rows, 1, 2).withColumn("kept", F.concat(F.lit("row "), "id"))


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_a_chain_gives_what_its_functions_give_in_async_maps_one_after_the_other(
    spark: SparkSession, ordered: bool
) -> None:
    df = rows_of(spark)
    steps = [
        lookup,
        Step(shout, uid="shout", options=Options(ordered=ordered, capacity=3, buffer=Buffer(3))),
        Step(lengths, uid="lengths", batch=Batch(7)),
    ]
    chain = async_map(df, steps, schema=SCHEMA, keep=["kept", "id"], ordered=ordered)
    found = async_map(df, lookup, schema="n long, text string", keep=["kept", "id"])
    shouted = async_map(found, shout, schema="n long, text string", keep=["kept", "id"])
    one_by_one = async_map(
        shouted.select("kept", "id", "n", "text"), _sized, schema=SCHEMA, keep=["kept", "id"]
    )
    assert chain.schema == one_by_one.schema
    expected = [tuple(row) for row in one_by_one.collect()]
    rows = [tuple(row) for row in chain.collect()]
    assert rows == expected if ordered else Counter(rows) == Counter(expected)
    assert len(rows) == sum(row % 3 for row in range(400))


async def _sized(record: Any) -> tuple[int, int]:
    return record.n, len(record.text)


async def third_fails(row: Any) -> int:
    if row.id % 3 == 2:
        raise ValueError(f"no {row.id}")
    return int(row.id)


async def fifth_fails(n: int) -> int:
    if n % 5 == 4:
        raise KeyError(n)
    return n


def fails_in(row: int) -> str | None:
    return "third" if row % 3 == 2 else "fifth" if row % 5 == 4 else None


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_the_column_of_errors_names_the_function_in_which_a_row_failed(
    spark: SparkSession, ordered: bool
) -> None:
    steps = [Step(third_fails, uid="third", retry=Retry(2, initial=0.001)), Step(fifth_fails, uid="fifth")]
    out = async_map(rows_of(spark), steps, schema="n long", keep=["id"], errors="column", ordered=ordered)
    rows = out.collect()
    assert [row.id for row in rows] == list(range(400)) if ordered else len(rows) == 400
    for row in rows:
        where = fails_in(row.id)
        assert (row.n, row._error and row._error.uid) == (None if where else row.id, where)
        assert where is None or (row._error.type, row._error.attempts) == (
            ("ValueError", 2) if where == "third" else ("KeyError", 1)
        )
    assert failed_rows(out).count() == sum(fails_in(row) is not None for row in range(400))


@pytest.mark.contract
def test_failed_rows_of_a_chain_are_put_aside_by_each_function(spark: SparkSession, tmp_path: Path) -> None:
    steps = [
        Step(third_fails, uid="third", errors=Errors(dead_letter=str(tmp_path / "third"))),
        Step(fifth_fails, uid="fifth", errors=Errors(dead_letter=str(tmp_path / "fifth"))),
    ]
    out = async_map(rows_of(spark), steps, schema="n long", keep=["kept"])
    assert [row.kept for row in out.collect()] == [
        f"row {row}" for row in range(400) if fails_in(row) is None
    ]
    for uid in ("third", "fifth"):
        letters = spark.read.parquet(str(tmp_path / uid)).orderBy("id").collect()
        assert [(row.id, row.kept, row._error.uid) for row in letters] == [
            (row, f"row {row}", uid) for row in range(400) if fails_in(row) == uid
        ]


def test_a_chain_drops_or_nulls_what_failed_in_any_of_its_functions(spark: SparkSession) -> None:
    steps = [Step(third_fails, uid="third"), Step(fifth_fails, uid="fifth")]
    good = [row if fails_in(row) is None else None for row in range(60)]
    nulls = async_map(rows_of(spark, 60), steps, schema="n long", errors="null").collect()
    assert [row.n for row in nulls] == good
    dropped = async_map(rows_of(spark, 60), steps, schema="n long", errors="drop").collect()
    assert [row.n for row in dropped] == [row for row in good if row is not None]
    with pytest.raises(PythonException) as caught:
        async_map(spark.range(2, 3), steps, schema="n long").collect()
    error = call_failed(caught.value)
    assert error is not None and "no 2 (in 'third' of the chain)" in str(error)


@pytest.mark.contract
@pytest.mark.parametrize("keeps_first", [True, False])
def test_a_second_run_of_a_chain_calls_only_what_has_no_result_in_the_ledger(
    spark: SparkSession, tmp_path: Path, keeps_first: bool
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    first_calls, second_calls = Counting(tmp_path / "first"), Counting(tmp_path / "second")

    async def first(row: Any) -> list[dict[str, Any]]:
        first_calls.note(row.id)
        return [{"id": row.id, "place": place} for place in range(2)]

    async def second(record: Any) -> tuple[int, int]:
        second_calls.note((record.id, record.place))
        return record.id, record.place

    def run(rows: int, partitions: int, ordered: bool) -> list[tuple[Any, ...]]:
        own: dict[str, Any] = {} if keeps_first else {"ledger": None}
        steps = [Step(first, uid="first", **own), Step(second, uid="second")]
        df = spark.range(0, rows, 1, partitions)
        out = async_map(
            df,
            steps,
            schema="id long, place int",
            ledger=dataclasses.replace(ledger, run="run", key=["id"]),
            ordered=ordered,
        )
        return sorted(map(tuple, out.collect()))

    assert run(50, 2, False) == [(row, place) for row in range(50) for place in range(2)]
    assert run(60, 3, True) == [(row, place) for row in range(60) for place in range(2)]
    assert second_calls.calls() == {str((row, place)): 1 for row in range(60) for place in range(2)}
    times = [1 if keeps_first or row >= 50 else 2 for row in range(60)]
    assert first_calls.calls() == {str(row): count for row, count in enumerate(times)}


def test_the_counts_of_a_chain_are_seen_for_each_function(spark: SparkSession) -> None:
    with Progress(bar=False) as progress:
        async_map(
            rows_of(spark, 40), [lookup, shout], schema="n long, text string", progress=progress
        ).collect()
        progress.wait() if hasattr(progress, "wait") else None
    found = {task.operator: 0 for task in progress.tasks}
    assert len(found) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"options": Options(where="id > 3")}, "where: is for one function"),
        ({"errors": "column", "keep": ["_error"]}, "_error"),
        ({"ledger": Ledger("/tmp/nowhere", run="r")}, r"Step\(lookup, uid='embed-v1'\)"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_on_the_driver(
    spark: SparkSession, options: Any, error: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        async_map(rows_of(spark, 3), [lookup, shout], schema="n long, text string", **options)


def test_what_calls_one_function_refuses_a_list(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match="only `async_map` takes a list"):
        async_udf("long")([lookup, shout])  # type: ignore[arg-type]
