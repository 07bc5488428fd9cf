"""The tests' own order: a test that looks at internals stands in the folder `unit` of its package."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def exported() -> dict[str, set[str]]:
    """The names that the `__all__` of each package lists, and names of modules that a page tells of."""
    found = {
        "pillarbox.clients.answers": {"AnswerMismatch"},
        "pillarbox.clients.chat": {
            *("AnswerInvalid", "NoReply", "ReplyCut", "ReplyFailed", "ReplyOfOtherKind", "ReplyRefused")
        },
        "pillarbox.clients.openai_api": {"AnswerError"},
        "pillarbox.clients.secret": {"SecretUnavailable"},
        "pillarbox.clients.tokenizer_loading": {"TokenizerUnavailable"},
        "pillarbox.clients.transport": {"HttpStatusError"},
        "pillarbox.pack": {"Pack", "pack"},
        "pillarbox.policies": {
            *("FINAL", "Again", "CallPolicy", "CallSuperseded", "Found", "PolicyServices"),
        },
        "pillarbox.sources.connectors.files": {"FileSource"},
        "pillarbox.sources.connectors.generator": {"GeneratorSource"},
        "pillarbox.sources.connectors.kafka": {"KafkaSource"},
        "pillarbox.sources.connectors.redis_streams": {"RedisStreamSource"},
        "pillarbox.spark.async_udf": {"AsyncUdf"},
        "pillarbox.spark.data_source": {"PillarboxSource"},
        "pillarbox.testing.identity": {"identity"},
        "pillarbox.testing.unclean": {"unclean_rows", "unclean_tables"},
        "pillarbox.wire_table": {"TABLE", "TRAITS", "Kind"},
    }
    for folder, prefix in ((ROOT / "pyruntime", "pillarbox"), (ROOT / "kernel", "pillarbox.kernel")):
        for path in (
            *folder.rglob("__init__.py"),
            *folder.glob("wire.py"),
            *folder.glob("frames.py"),
            *folder.glob("tasks.py"),
        ):
            names: set[str] = set()
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    names = set(ast.literal_eval(node.value))
            module = path.parent if path.stem == "__init__" else path.with_suffix("")
            found[".".join([prefix, *module.relative_to(folder).parts])] = names
    return found


def internals(source: str, public: dict[str, set[str]]) -> Iterator[str]:
    """The imports of a test that no package of Pillarbox exports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pillarbox":
            for alias in node.names:
                is_package = f"{node.module}.{alias.name}" in public
                if alias.name not in public.get(str(node.module), ()) and not is_package:
                    yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "pillarbox" and alias.name not in public:
                    yield alias.name


def test_internals_are_looked_at_in_folders_called_unit_only() -> None:
    public = exported()
    found = {
        path.relative_to(ROOT).as_posix(): list(internals(path.read_text(), public))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        # Fixtures of a folder serve its unit tests too.
        if path.parent.name != "unit" and path.name != "conftest.py"
    }
    assert len(found) > 50
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from pillarbox.aio.scheduler import Call",
        "import pillarbox.aio.scheduler",
        "from pillarbox.aio import meter",
    ],
)
def test_an_internal_is_found(source: str) -> None:
    assert len(list(internals(source, exported()))) == 1


def test_a_public_name_is_not_an_internal() -> None:
    source = "from pillarbox import async_map\nimport pillarbox.kernel\nfrom pillarbox.sources import Source"
    assert list(internals(source, exported())) == []


OURS = ("tests", "fuzz", "bench", "spec", "examples", "docs", ".ci")
"""Folders of Python files that the type checks do not read in full."""


def missing(source: str) -> Iterator[str]:
    """The names that a file imports of Pillarbox, or of the folders beside it, and that are not there."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        module = str(node.module)
        if module.split(".")[0] not in ("pillarbox", "fuzz", "bench", "spec"):
            continue
        for alias in node.names:
            try:
                if not hasattr(importlib.import_module(module), alias.name):
                    importlib.import_module(f"{module}.{alias.name}")
            except ModuleNotFoundError as error:
                yield f"{module}.{alias.name}: {error}"


def test_each_name_of_pillarbox_that_a_file_imports_is_there() -> None:
    assert list(missing("from pillarbox.kernel import Mailbx")) != []
    paths = [path for folder in OURS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): list(missing(path.read_text())) for path in paths}
    assert len(found) > 500
    assert {name: names for name, names in found.items() if names} == {}
