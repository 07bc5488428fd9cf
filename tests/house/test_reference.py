"""The reference: signatures with the defaults that a call has, and docstrings as Markdown."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pillarbox import Options

griffe = pytest.importorskip("griffe", reason="the package griffelib is not installed")
ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "reference_signatures", ROOT / "docs" / "reference_signatures.py"
)
assert SPEC is not None and SPEC.loader is not None
reference_signatures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference_signatures)

DOCSTRING = """Do it.

count: how many. rest: of these
    the others.
last, first: both.

    >>> 1
    1

    >>> 2
    2

1. One.
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("typing") / "pillarbox"
    folder.mkdir()
    for path in [*(ROOT / "pyruntime").iterdir(), ROOT / "kernel"]:
        (folder / path.name).symlink_to(path)
    extensions = griffe.load_extensions(reference_signatures.ReferenceSignatures)
    return griffe.load("pillarbox", search_paths=[folder.parent], extensions=extensions)


def defaults(function: object) -> dict[str, str]:
    return {each.name: str(each.default) for each in function.parameters if each.default is not None}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["api.async_map", "spark.client_columns.ask"])
def test_a_signature_shows_the_defaults_of_options(package: dict[str, object], name: str) -> None:
    shown = defaults(package[name])
    told = {"ordered": "True", "capacity": "100", "timeout": "None", "retry": "None", "errors": "'fail'"}
    assert {option: shown[option] for option in told} == told
    assert Options().capacity == 100 and "more" not in shown


def test_a_signature_shows_the_value_of_a_constant(package: dict[str, object]) -> None:
    assert defaults(package["spark.stream.async_stream.async_stream"])["max_wait"] == "1.0"
    assert defaults(package["aio.options.Errors.__init__"])["floor"] == "100"


def test_a_class_of_cython_shows_the_arguments_of_its_methods_and_not_those_of_object(
    package: dict[str, object],
) -> None:
    complete = package["kernel.collector.Collector.complete"]
    assert [each.name for each in complete.parameters] == ["self", "result"]  # type: ignore[attr-defined]
    assert complete.docstring.value.startswith("Complete the call")  # type: ignore[attr-defined]
    assert "__init__" not in package["kernel.collector.Collector"].members  # type: ignore[attr-defined]


def test_arguments_become_a_list_and_examples_blocks_of_code() -> None:
    assert reference_signatures.markdown(DOCSTRING).split("\n") == [
        *("Do it.", "", "", "- `count`: how many. rest: of these", "    the others."),
        *("- `last`, `first`: both.", "", "```pycon", ">>> 1", "1", "", ">>> 2", "2", "```", ""),
        *("1. One.", ""),
    ]
