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
