"""The page of errors shows what this version raises."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("error_page", ROOT / "docs" / "error_page.py")
assert SPEC is not None and SPEC.loader is not None
error_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(error_page)


# A row that fails where `errors` is not "fail" is said in the log, once.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_of_errors_shows_what_is_raised(spark: SparkSession) -> None:
    cases = [*error_page.BEFORE, *error_page.DURING]
    assert len({case.code for case in cases}) == 20
    assert error_page.PAGE.read_text() == error_page.page(
        spark.createDataFrame([(1, "one")], "id long, text string")
    )


def test_no_error_of_the_page_shows_a_password() -> None:
    text = error_page.PAGE.read_text()
    assert "RedisStreamSource" in text
    shown = "".join(text.split("```text")[1:])
    assert "secret" not in "".join(part.split("```")[0] for part in shown.split("```text"))
