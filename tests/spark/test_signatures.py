"""The options of `async_map` and `async_udf`: seen in signatures and help, merged, refused."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pillarbox.spark
from pillarbox import Options, Timeout
from pillarbox.spark import async_map, async_stream, async_udf

ROOT = Path(__file__).resolve().parents[2]


RARE = {"buffer", "dedupe", "per_key", "latency", "where", "policies"}
"""Options that are given in `options` only."""


@pytest.mark.contract
@pytest.mark.parametrize(
    ("function", "without"),
    [(async_map, set()), (async_udf, {"ordered"}), (async_stream, {"budget"})],
)
def test_the_signature_lists_every_option_that_is_not_rare(function: Any, without: set[str]) -> None:
    parameters = inspect.signature(function).parameters
    names = {field.name for field in dataclasses.fields(Options)}
    assert names & set(parameters) == names - RARE - without
    keywords = [each for each in parameters.values() if each.kind is each.KEYWORD_ONLY]
    assert len(keywords) <= 16
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values())


@pytest.mark.parametrize("function", [async_map, async_udf])
def test_the_help_describes_every_option(function: Any) -> None:
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    names = {field.name for field in dataclasses.fields(Options)} - {"ordered"} - RARE
    assert {name for name in names if f"\n    {name}: " not in text} == set()


def test_what_is_generated_from_the_options_is_as_they_are() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "options.py"), "check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


async def same(row: Any) -> int:
    return 0


def test_an_option_by_name_stands_above_the_options_object(spark: SparkSession) -> None:
    seen: dict[str, Options] = {}

    def look(task: Any, schema: Any) -> Any:
        # The task is in the shipment that the function holds.
        shipment = inspect.getclosurevars(task).nonlocals["shipment"]
        seen["options"] = shipment._run.__self__._plans[0].options
        return None

    class Frame:
        mapInArrow = staticmethod(look)
        schema = spark.range(1).schema
        columns = ("id",)
        sparkSession = spark
        isStreaming = False

    options = Options(capacity=7, timeout=3.0)
    async_map(Frame(), same, schema="n long", options=options, capacity=9)  # type: ignore[arg-type]
    assert (seen["options"].capacity, seen["options"].timeout) == (9, Timeout(3.0))


@pytest.mark.contract
def test_an_unknown_option_is_refused(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match="no argument 'capacitty'; did you mean 'capacity'"):
        async_map(spark.range(1), same, schema="n long", capacitty=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="options={}: must be a pillarbox.Options or None"):
        async_udf("long", options={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": Options(ordered=False)}, "ordered=False: results of a column stand with their rows"),
        ({"errors": "drop"}, "errors='drop': a column cannot leave out rows"),
        ({"options": Options(where="id > 3")}, "where: say it where the column is made"),
    ],
)
def test_a_column_refuses_what_only_rows_can_do(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        async_udf("long", **arguments)


def test_the_names_of_the_package_are_there() -> None:
    assert all(hasattr(pillarbox.spark, name) for name in pillarbox.spark.__all__)
