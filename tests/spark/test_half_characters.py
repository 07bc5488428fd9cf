"""Half a character (a lone surrogate), as of a reply cut in an emoji, in errors and results over Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pillarbox import Errors, Redact, Step
from pillarbox.spark import async_map, async_udf, call_failed

CUT = "not JSON: cut \ud83d"
ESCAPED = "not JSON: cut \\ud83d"


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a",), ("b",)], "k string").coalesce(1)


async def fail(row: Any) -> Any:
    raise ValueError(CUT)


class Failing:
    """A resource that cannot be opened."""

    async def __aenter__(self) -> Any:
        raise OSError(CUT)

    async def __aexit__(self, *error: object) -> None:
        pass

    async def __call__(self, row: Any) -> Any:
        return row


@pytest.mark.contract
@pytest.mark.parametrize(
    "errors",
    [
        Errors(),
        Errors("null", stop_after=1),
        Errors(redact=Redact(lambda text: text + "\udc80")),
    ],
    ids=["first", "too many", "redact"],
)
def test_an_error_whose_text_has_half_a_character_ends_its_job_with_its_words(
    rows: DataFrame, errors: Errors
) -> None:
    with pytest.raises(Exception, match="not JSON: cut") as found:
        async_map(rows, fail, schema="v string", errors=errors).collect()
    failed = call_failed(found.value)
    assert failed is not None
    assert type(failed.cause) is ValueError
    assert ESCAPED in str(failed.cause)


@pytest.mark.contract
def test_what_cannot_be_opened_ends_its_job_with_the_words_of_its_error(rows: DataFrame) -> None:
    with pytest.raises(Exception, match="Failing could not be opened: .* OSError: not JSON: cut"):
        async_map(rows, Failing(), schema="v string").collect()


@pytest.mark.contract
def test_an_error_whose_text_has_half_a_character_stands_beside_its_row_and_in_dead_letters(
    rows: DataFrame, tmp_path: Path
) -> None:
    dead = str(tmp_path / "dead")
    found = async_map(
        rows, fail, schema="v string", keep=["k"], errors=Errors("column", dead_letter=dead)
    ).collect()
    assert [(row.k, row.v, row._error.message) for row in found] == [
        ("a", None, ESCAPED),
        ("b", None, ESCAPED),
    ]
    letters = rows.sparkSession.read.parquet(dead).collect()
    assert {row._error.message for row in letters} == {ESCAPED}
    column = async_udf(fail, "string", errors="column")
    assert [row.e._error.message for row in rows.select(column("k").alias("e")).collect()] == [ESCAPED] * 2
    behind = async_map(rows, [Step(echo, uid="a"), Step(fail, uid="b")], schema="v string", errors="column")
    assert [(row._error.message, row._error.uid) for row in behind.collect()] == [(ESCAPED, "b")] * 2


async def echo(row: Any) -> Any:
    return {"k": row.k}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("v string", "\ud83d"),
        ("v string", {"v": "a \ud83d"}),
        ("v array<string>", {"v": ["a", "\ud83d"]}),
        ("v map<string, int>", {"v": {"\ud83d": 1}}),
        ("v map<string, array<string>>", {"v": {"a": ["\ud83d"]}}),
        ("v struct<a: string, b: int>", {"v": {"a": "\ud83d", "b": 1}}),
        ("v array<struct<a: array<string>>>", {"v": [{"a": ["\ud83d"]}]}),
        ("v string, w int", [{"v": "good", "w": 1}, {"v": "\ud83d", "w": 1}]),
        ("v int", {"v": "\ud83d"}),
        ("v int", {"\ud83d": 1}),
    ],
)
def test_a_result_with_half_a_character_is_the_error_of_its_row_and_no_others(
    rows: DataFrame, schema: str, value: Any
) -> None:
    async def give(row: Any) -> Any:
        return value if row.k == "a" else []

    found = async_map(rows, give, schema=schema, keep=["k"], errors="column").collect()
    # Of the good row there is none, as its list is empty.
    assert [row.k for row in found] == ["a"]
    assert found[0]._error.type == "ResultError"
    assert "\\ud83d" in found[0]._error.message
    if "int" not in schema or "string" in schema:
        assert "surrogates not allowed" in found[0]._error.message
