"""Results that do not fit the schema are failures of their rows; results of many forms fit."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import uuid
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Errors

pytest.importorskip("pyspark.sql")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch, Ledger, Retry, Timeout
from pillarbox.spark import async_map, async_udf

MODES: dict[str, dict[str, Any]] = {"rows": {}, "batches": {"batch": Batch(16)}}


def price(answer: Any, mode: str) -> Any:
    """An async function that gives `answer(id)`, a row or a batch at a time."""

    async def one(row: Any) -> Any:
        return answer(row.id)

    async def many(rows: list[Any]) -> list[Any]:
        return [answer(row.id) for row in rows]

    return one if mode == "rows" else many


def twelve(place: int) -> Any:
    return {"amount": "twelve" if place == 12 else place / 2}


@pytest.mark.contract
@pytest.mark.parametrize("mode", MODES)
def test_a_result_that_does_not_fit_is_put_aside_and_the_other_rows_leave(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    df = spark.range(0, 100, 1, 2)
    out = async_map(
        df,
        price(twelve, mode),
        schema="amount double",
        keep=["id"],
        errors=Errors(dead_letter=tmp_path / "letters"),
        retry=Retry(2, initial=0.001),
        **MODES[mode],
    )
    assert sorted(map(tuple, out.collect())) == [(i, i / 2) for i in range(100) if i != 12]
    (letter,) = spark.read.parquet(str(tmp_path / "letters")).collect()
    assert (letter.id, letter["_error"].type, letter["_error"].attempts) == (12, "ResultError", 2)
    assert letter["_error"].message.startswith(
        "result {'amount': 'twelve'} does not fit the schema (amount double): column amount (double): "
        "Could not convert 'twelve'"
    )


@pytest.mark.contract
@pytest.mark.parametrize("errors", ["null", "column", "drop"])
def test_every_mode_of_errors_holds_for_results_that_do_not_fit(spark: SparkSession, errors: str) -> None:
    df = spark.range(0, 20, 1, 1)
    out = async_map(df, price(twelve, "rows"), schema="amount double", keep=["id"], errors=errors)
    rows = out.collect()
    assert [row.id for row in rows] == [i for i in range(20) if errors != "drop" or i != 12]
    assert [row.amount for row in rows if row.id != 12] == [i / 2 for i in range(20) if i != 12]
    if errors != "drop":
        assert rows[12].amount is None
    if errors == "column":
        assert [row.id for row in rows if row["_error"] is not None] == [12]


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_does_not_fit_its_column_is_null_in_a_column_function(
    spark: SparkSession, mode: str
) -> None:
    async def one(place: int) -> Any:
        return "twelve" if place == 12 else place / 2

    async def many(places: list[int]) -> list[Any]:
        return [await one(place) for place in places]

    half = async_udf("double", errors="null", **MODES[mode])(one if mode == "rows" else many)
    rows = spark.range(0, 30, 1, 1).select("id", half("id").alias("half")).collect()
    assert [row.half for row in rows] == [None if i == 12 else i / 2 for i in range(30)]


@pytest.mark.parametrize(("value", "expected"), [(7, 7), ("seven", None)])
def test_what_stands_for_a_timeout_must_fit_too(
    spark: SparkSession, value: Any, expected: int | None
) -> None:
    async def never(row: Any) -> None:
        await asyncio.sleep(3600)

    limit = Timeout(0.01, fallback=value)
    (row,) = async_map(spark.range(1), never, schema="n long", errors="column", timeout=limit).collect()
    assert row.n == expected
    assert (row._error is None) == (expected is not None)


def test_a_ledger_calls_again_for_what_did_not_fit_if_failures_are_called_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def run(right: bool, again: bool) -> list[Any]:
        async def call(row: Any) -> Any:
            if right and row.id != 12:
                raise AssertionError("called again")
            return {"amount": 6.0} if right else twelve(row.id)

        ledger = Ledger(str(tmp_path / "ledger"), retry_errors=again)
        out = async_map(
            spark.range(0, 20, 1, 1),
            call,
            schema="amount double",
            errors="null",
            ledger=dataclasses.replace(ledger, uid="price", run="run", key=["id"]),
        )
        return [row.amount for row in out.collect()]

    first = [None if i == 12 else i / 2 for i in range(20)]
    assert run(False, False) == first
    assert run(True, False) == first
    assert run(True, True) == [i / 2 for i in range(20)]


class Colour(enum.Enum):
    """A member is its value."""

    RED = "red"


@dataclasses.dataclass
class Thing:
    """A row of other things."""

    name: Any
    number: Any


def test_results_of_many_forms_go_through_spark(spark: SparkSession) -> None:
    attrs = pytest.importorskip("attrs")
    identity = uuid.UUID(int=7)
    made = attrs.make_class("Made", ["name", "number"])(Colour.RED, np.int16(3))
    given: list[Any] = [
        made,
        Thing(identity, pd.NA),
        Thing(np.str_("x"), 4.0),
        {"name": pd.NaT, "number": decimal.Decimal(5)},
        {"name": pa.scalar("y"), "number": pa.scalar(6)},
    ]

    async def call(row: Any) -> Any:
        return given[row.id]

    out = async_map(spark.range(0, len(given), 1, 1), call, schema="name string, number long")
    expected = [("red", 3), (str(identity), None), ("x", 4), (None, 5), ("y", 6)]
    assert [tuple(row) for row in out.collect()] == expected


@pytest.mark.contract
def test_a_time_that_python_cannot_hold_is_a_failure_of_its_row(spark: SparkSession) -> None:
    late = datetime.timezone(-datetime.timedelta(hours=5))
    given = [
        pd.Timestamp("2026-07-01T12:00:00.123456789", tz="UTC"),
        datetime.datetime(9999, 12, 31, 23, tzinfo=late),
        np.datetime64("12000-01-01"),
        np.datetime64("2026-07-01T12:00:00.5"),
    ]

    async def call(place: int) -> Any:
        return given[place]

    at = async_udf("timestamp", errors="column")(call)
    rows = spark.range(0, len(given), 1, 1).select(at("id").alias("at")).select("at.*").collect()
    assert [None if row["_error"] is None else row["_error"].type for row in rows] == [
        None,
        "ResultError",
        "ResultError",
        None,
    ]
    assert [row.result.microsecond for row in rows if row.result is not None] == [123456, 500000]


@pytest.mark.contract
def test_a_matrix_is_the_result_of_a_batch(spark: SparkSession) -> None:
    async def embed(places: list[int]) -> Any:
        return np.array(places, np.float64)[:, None] + np.arange(3)

    vector = async_udf("array<float>", batch=Batch(64))(embed)
    df = spark.range(0, 1000, 1, 1).select("id", vector("id").alias("vector"))
    assert (
        df.where(F.col("vector") != F.array(*[F.col("id").cast("float") + i for i in range(3)])).count() == 0
    )
    assert df.where("size(vector) = 3").count() == 1000


@pytest.mark.contract(
    "A null inside of a result where the schema says NOT NULL fails its row, and ends no job."
)
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("struct<a: bigint not null>", {"a": None}),
        ("struct<a: struct<b: string not null>>", {"a": {"b": None}}),
        ("bigint", None),
    ],
)
def test_a_null_that_is_not_allowed_fails_its_row_alone(spark: SparkSession, kind: str, wrong: Any) -> None:
    fine = {"bigint": 1, "struct<a: bigint not null>": {"a": 1}}.get(kind, {"a": {"b": "x"}})

    async def call(row: Any) -> Any:
        return {"v": wrong if row.id == 5 else fine}

    rows = async_map(
        spark.range(0, 10, 1, 1), call, schema=f"v {kind} not null", keep=["id"], errors="column"
    )
    assert rows.schema["v"].nullable
    found = rows.collect()
    assert [row.id for row in found if row["_error"] is not None] == [5]
    assert [row.id for row in found if row.v is not None] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
