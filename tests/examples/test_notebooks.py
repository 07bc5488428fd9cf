"""The notebooks of the documentation run in a Jupyter kernel, from the first cell to the last."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.versions import needs_async_stream

pytestmark = pytest.mark.spark

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("ipykernel", reason="the package ipykernel is not installed")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


# A notebook starts Spark, and that of a crash twice.
@pytest.mark.contract("The notebooks of the documentation run from their first cell to the last.")
@pytest.mark.timeout(600)
# The kernel warns on its standard error alone; the client's warnings are not ours.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        "embed-and-search",
        pytest.param("extract-into-a-struct", marks=pytest.mark.slow),
        pytest.param("stream", marks=[pytest.mark.slow, needs_async_stream]),
        pytest.param("resume-after-a-crash", marks=pytest.mark.slow),
    ],
)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="the package pydantic is not installed")
    found = tool().run(NOTEBOOKS / f"{name}.ipynb", tmp_path)
    assert all(cell["execution_count"] for cell in found["cells"] if cell["cell_type"] == "code")


FAILING = [
    """from pyspark.sql import SparkSession

from pillarbox.spark import async_map

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


async def lookup(row):
    return {"price": 1 / row.id}
""",
    """async_map(spark.range(1), lookup, schema="price double").show()""",
]


@pytest.mark.slow
@pytest.mark.contract(
    "The kernel of a notebook shows at most 12 lines of a job that fails, the sentence first."
)
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::UserWarning")
def test_the_kernel_of_a_notebook_shows_few_lines_of_a_job_that_fails(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "source": [source], "metadata": {"tags": ["raises-exception"]}}
        for source in FAILING
    ]
    notebook = tmp_path / "failing.ipynb"
    notebook.write_text(json.dumps({"cells": cells}))
    found = tool().run(notebook, tmp_path)
    outputs = found["cells"][1]["outputs"]
    (error,) = [each for each in outputs if each["output_type"] == "error"]
    shown = "\n".join(error["traceback"]).splitlines()
    assert shown[0].startswith("CallFailed: call failed after 1 attempt")
    assert "ZeroDivisionError: division by zero" in shown[0]
    assert 'return {"price": 1 / row.id}' in shown[2]
    assert "async_map(spark.range(1)" in shown[5]
    assert len(shown) <= 12


def test_each_notebook_shows_what_it_printed_and_no_path_of_a_machine() -> None:
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert len(paths) == 4
    for path in paths:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in cells), path.name
        for cell in cells:
            assert cell["execution_count"] is not None
            shown = json.dumps(cell["outputs"])
            assert "site-packages" not in shown and "127.0.0.1" not in shown, path.name
