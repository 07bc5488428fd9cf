"""Refusals of an analysis by Spark, as in query functions of Declarative Pipelines.

tests/spark/test_pipelines.py has the real pipeline, which takes a minute.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the package pyspark is not installed")

from pyspark.sql import types as T

from pillarbox.spark import schema
from pillarbox.spark.schema import check_frame, frame_of, parse_type

SAYS = "[ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION] Operations that trigger analysis are not allowed."


class Frame:
    """A DataFrame of Spark Connect, of which Spark says nothing but this."""

    __module__ = "pyspark.sql.connect.dataframe"
    mapInArrow = print

    def __init__(self, says: str) -> None:
        self._says = says

    @property
    def schema(self) -> Any:
        raise RuntimeError(self._says)


@pytest.mark.contract(
    "Where Spark may not be asked for a type, its DDL is read without it.",
    convicts=["pipeline_types_are_asked_for"],
)
def test_types_are_read_without_spark_where_it_may_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refusing(text: str) -> T.DataType:
        asked.append(text)
        raise RuntimeError(SAYS)

    monkeypatch.setattr(schema, "parse_ddl", refusing)
    assert parse_type("returnType", "array<float>") == T.ArrayType(T.FloatType())
    assert asked == ["array<float>"]
    with pytest.raises(ValueError, match="returnType='array<flaot>': is not a type in DDL form"):
        parse_type("returnType", "array<flaot>")


def test_other_errors_of_sparks_parser_are_told_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(text: str) -> T.DataType:
        raise RuntimeError("the server is gone")

    monkeypatch.setattr(schema, "parse_ddl", failing)
    with pytest.raises(ValueError, match="the server is gone"):
        parse_type("returnType", "long")


@pytest.mark.contract(
    "A DataFrame that Spark does not describe is refused on the driver, with what to do instead.",
    convicts=["pipeline_frames_are_not_told", "pipeline_frames_need_connect"],
)
@pytest.mark.parametrize("check", [check_frame, frame_of])
def test_a_frame_that_is_not_described_is_refused_with_what_to_do_instead(check: Any) -> None:
    with pytest.raises(
        ValueError, match="outside of the function, which returns it; or use a column"
    ) as found:
        check(Frame(SAYS))
    assert "ATTEMPT_ANALYSIS" in str(found.value.__cause__)
    with pytest.raises(RuntimeError, match="no such column"):
        check(Frame("no such column"))
