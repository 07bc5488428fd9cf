"""The differences between PySpark's versions are in one module, and what a version lacks is said in words."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from pillarbox.spark import async_stream, compat, register_source
from tests.spark.unit.source_logs import RangeSource
from tests.versions import pyspark_version

PACKAGE = Path(compat.__file__).parent
VERSION = re.escape(pyspark.__version__)


def asks_for_a_version(tree: ast.AST) -> bool:
    """True for an import of PySpark that may fail, or a look at its version."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            caught = " ".join(ast.unparse(each.type) for each in node.handlers if each.type is not None)
            tried = [each for line in node.body for each in ast.walk(line)]
            modules = [each.module or "" for each in tried if isinstance(each, ast.ImportFrom)]
            if "ImportError" in caught and any(name.startswith("pyspark") for name in modules):
                return True
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
    newer = f"{major}.{minor + 1}"
    with pytest.raises(ValueError, match=f"^that needs PySpark {newer} or later, and this is {VERSION}$"):
        compat.require((major, minor + 1), "that")


# With a newer one there is nothing to refuse, and so nothing to skip.
if () < pyspark_version() < (4, 2):

    def test_an_old_pyspark_refuses_what_it_lacks(spark: SparkSession) -> None:
        async def call(row: Any) -> Any:
            return row

        stream = spark.readStream.format("rate").load()
        with pytest.raises(ValueError, match=r"async_stream needs PySpark 4\.2 or later, and this is"):
            async_stream(stream, call, schema="value long")
        if pyspark_version() < (4, 0):
            with pytest.raises(ValueError, match=r"register_source needs PySpark 4\.0 or later, and this"):
                register_source(spark, RangeSource(1, 1))
