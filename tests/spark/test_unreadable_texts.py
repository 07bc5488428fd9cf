"""A text of the input that is not UTF-8 fails its row, if its function asks for it, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pillarbox import Dedupe, Errors, Ledger, Options
from pillarbox.spark import async_map, async_udf

PLACES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "text": ("t", lambda row: row.t),
    "array": ("array('a', t)", lambda row: row.t[1]),
    "struct": ("named_struct('a', 1, 't', t)", lambda row: row.t.t),
    "map": ("map('a', t)", lambda row: row.t["a"]),
    "struct in an array": ("array(named_struct('t', t))", lambda row: row.t[0].t),
}


@pytest.fixture
def texts(spark: SparkSession) -> DataFrame:
    text = "CASE WHEN id IN (7, 8) THEN CAST(X'61FF' AS STRING) ELSE concat('t', id) END"
    return spark.range(0, 20, 1, 1).select("id", F.expr(text).alias("t"))


def _failed(rows: list[Row]) -> dict[int, str]:
    return {row.id: row._error.message for row in rows if row._error is not None}


@pytest.mark.contract(
    "A text of the input that is not UTF-8, at any depth, is the error of its row and of no other.",
    convicts=["unreadable_text_fails_slice"],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_text_that_cannot_be_read_is_the_error_of_its_row(texts: DataFrame, place: str) -> None:
    column, get = PLACES[place]

    async def upper(row: Any) -> str:
        return str(get(row)).upper()

    rows = texts.select("id", F.expr(column).alias("t"))
    options = Options(errors=Errors("column", floor=None))
    found = async_map(rows, upper, schema="result string", keep=["id"], options=options)
    failed = _failed(found.collect())
    assert [*failed] == [7, 8]
    assert "not UTF-8: byte 0xff at 1 of 2; cast the column to BINARY" in failed[7]
    assert [row.result for row in found.where("id < 3").collect()] == ["T0", "T1", "T2"]


@pytest.mark.contract("A function that does not ask for a text that is not UTF-8 gets its other values.")
def test_a_row_whose_function_does_not_ask_for_the_text_has_its_result(texts: DataFrame) -> None:
    async def double(row: Any) -> int:
        assert repr(row)
        return int(row.id) * 2

    found = async_map(texts, double, schema="result long").collect()
    assert [row.result for row in found] == [*range(0, 40, 2)]


@pytest.mark.parametrize("option", ["none", "dedupe", "ledger"])
def test_a_column_function_fails_for_the_rows_whose_text_cannot_be_read(
    texts: DataFrame, option: str, tmp_path: Path
) -> None:
    async def upper(text: str) -> str:
        return text.upper()

    options = Options(
        errors=Errors("null", floor=None),
        dedupe=Dedupe() if option == "dedupe" else None,
        ledger=Ledger(tmp_path, uid="texts", run="1") if option == "ledger" else None,
    )
    call = async_udf(upper, "string", options=options)
    for _ in range(2):
        found = texts.select("id", call("t").alias("result")).collect()
        assert {row.id for row in found if row.result is None} == {7, 8}
        assert found[3].result == "T3"


@pytest.mark.contract("A ledger knows a row with a text that is not UTF-8 by its bytes.")
def test_a_ledger_knows_such_a_row_by_its_bytes(texts: DataFrame, tmp_path: Path) -> None:
    async def double(row: Any) -> int:
        assert not tmp_path.joinpath("done").exists()
        return int(row.id) * 2

    options = Options(ledger=Ledger(tmp_path / "ledger", uid="texts", run="1", key=["t", "id"]))
    for _ in range(2):
        found = async_map(texts, double, schema="result long", options=options).collect()
        assert [row.result for row in found] == [*range(0, 40, 2)]
        # Nothing is called again.
        tmp_path.joinpath("done").touch()
