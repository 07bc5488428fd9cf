"""The differences between the versions of PySpark are in one module, and what a version lacks is said in words."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from pillarbox.spark import async_stream, compat, register_source
from tests.spark.unit.source_logs import RangeSource
from tests.versions import pyspark_version

PACKAGE = Path(compat.__file__).parent


def asks_for_a_version(tree: ast.AST) -> bool:
    """True for an import of PySpark that may fail, or a look at its version."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            names = [name for each in node.handlers if each.type is not None for name in ast.walk(each.type)]
            tries = [
                each for line in node.body for each in ast.walk(line) if isinstance(each, ast.ImportFrom)
            ]
            if any(isinstance(name, ast.Name) and "Import" in name.id for name in names):
                return any((each.module or "").startswith("pyspark") for each in tries)
        if isinstance(node, ast.Attribute) and node.attr == "__version__":
            return True
    return False


def test_one_module_alone_knows_which_pyspark_there_is() -> None:
    asking = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if asks_for_a_version(ast.parse(path.read_text()))
    ]
    assert asking == ["compat.py"]


@pytest.mark.contract
def test_what_needs_a_newer_pyspark_names_both_versions_at_the_call() -> None:
    compat.require(compat.VERSION, "this")
    major, minor = compat.VERSION
    with pytest.raises(ValueError) as refused:
        compat.require((major, minor + 1), "that")
    assert str(refused.value) == (
        f"that needs PySpark {major}.{minor + 1} or later, and this is {pyspark.__version__}"
    )


@pytest.mark.skipif(pyspark_version() >= (4, 2), reason="this PySpark lacks nothing")
def test_an_old_pyspark_refuses_what_it_lacks(spark: SparkSession) -> None:
    async def call(row: Any) -> Any:
        return row

    stream = spark.readStream.format("rate").load()
    with pytest.raises(ValueError, match=r"async_stream needs PySpark 4\.2 or later, and this is"):
        async_stream(stream, call, schema="value long")
    if pyspark_version() < (4, 0):
        with pytest.raises(ValueError, match=r"register_source needs PySpark 4\.0 or later, and this is"):
            register_source(spark, RangeSource(1, 1))
