"""The dependency rule: imports point down only. Read from the sources, so it holds for code no test runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from spec.imports import cython_imports, imports_of, python_imports, sources

ROOT = Path(__file__).resolve().parents[2]

# What each package may import of Pillarbox besides itself. A package that is missing here may not exist.
BELOW: dict[str, set[str]] = {
    "kernel": set(),
    "secret_shapes": set(),
    "user_frames": set(),
    "redaction": {"secret_shapes", "user_frames"},
    "dataclass_fields": set(),
    "validate": set(),
    "thread_start": set(),
    "wire_table": set(),
    "wire": {"wire_table"},
    "lacks": {"wire"},
    "mailbox": {"validate", "kernel"},
    "task": {"validate", "thread_start", "mailbox", "kernel"},
    "rpc": {"validate", "thread_start", "lacks", "redaction"},
    "aio": {
        "user_frames",
        "validate",
        "thread_start",
        "redaction",
        "wire",
        "lacks",
        "ledger",
        "rpc",
        "task",
        "mailbox",
        "kernel",
    },
    "clients": {"dataclass_fields", "validate", "redaction", "wire", "lacks", "aio", "kernel"},
    "ledger": {"validate", "thread_start", "redaction", "task", "mailbox", "kernel"},
    "sources": {
        "dataclass_fields",
        "validate",
        "thread_start",
        "redaction",
        "ledger",
        "rpc",
        "task",
        "mailbox",
        "kernel",
    },
    "": {
        "job",
        "spark",
        "user_frames",
        "validate",
        "thread_start",
        "lacks",
        "redaction",
        "wire",
        "sources",
        "clients",
        "aio",
        "ledger",
        "rpc",
        "task",
        "mailbox",
        "kernel",
    },
    "spark": {
        "user_frames",
        "validate",
        "thread_start",
        "lacks",
        "redaction",
        "wire",
        "sources",
        "clients",
        "aio",
        "ledger",
        "rpc",
        "task",
        "mailbox",
        "kernel",
    },
    "job": {
        "validate",
        "thread_start",
        "redaction",
        "sources",
        "aio",
        "ledger",
        "rpc",
        "task",
        "kernel",
    },
    "testing": {
        "",
        "validate",
        "redaction",
        "wire",
        "sources",
        "aio",
        "ledger",
        "rpc",
        "task",
        "mailbox",
        "kernel",
    },
}
# What a user imports from: `pillarbox.spark` gives names of `pillarbox`, which is above its own modules.
FACE = {"pillarbox", "pillarbox.spark"}
# Other people's packages that only some of ours may import.
RESERVED: dict[str, set[str]] = {
    "pyspark": {"", "spark"},
    # The doctor looks at a ledger's place, as a process of its own.
    "pyarrow": {"", "job", "spark", "sources", "ledger", "clients"},
    "pandas": {"spark", "sources"},
    "asyncio": {
        "",
        "job",
        "wire",
        "mailbox",
        "task",
        "rpc",
        "aio",
        "ledger",
        "sources",
        "clients",
        "spark",
        "testing",
    },
}


def package_of(module: str) -> str:
    """`pillarbox.aio.retry` is of "aio"; `pillarbox` itself, and what it defines or re-exports, is of ""."""
    part = [*module.split("."), ""][1]
    return part if part in BELOW or (ROOT / "pyruntime" / part).is_dir() else ""


def violations(module: str, imported: Iterator[str]) -> list[str]:
    """The arrows of one module that point up, or out of the house where they must not."""
    package = "" if module in FACE else package_of(module)
    found = []
    for name in imported:
        top = name.split(".")[0]
        if top == "pillarbox":
            target = package_of(name)
            if target != package and target not in BELOW[package]:
                found.append(f"{module} imports {name}")
        elif top in RESERVED and package not in RESERVED[top]:
            found.append(f"{module} imports {name}")
    return found


@pytest.mark.contract
def test_imports_point_down_only() -> None:
    files = list(sources())
    assert len(files) > 20
    assert [line for module, path in files for line in violations(module, imports_of(module, path))] == []


def test_every_package_has_its_place_in_the_layers() -> None:
    folders = {path.parent.name for path in (ROOT / "pyruntime").glob("*/__init__.py")}
    assert folders - set(BELOW) == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pillarbox.mailbox.processor", "from pillarbox.aio import Retry"),
        ("pillarbox.mailbox.processor", "from ..aio.retry import Retry"),
        ("pillarbox.aio.async_wait", "def late():\n    import pillarbox.spark"),
        ("pillarbox.aio.async_wait", "from pillarbox import async_map"),
        ("pillarbox.aio.async_wait", "from pillarbox import spark"),
        ("pillarbox.aio.async_wait", "import pyspark.sql.types"),
        ("pillarbox.kernel.errors", "import asyncio"),
        ("pillarbox.kernel.errors", "from pillarbox.mailbox import MailboxExecutor"),
        ("pillarbox.kernel.errors", "import pyarrow as pa"),
    ],
)
def test_an_arrow_that_points_up_is_found(module: str, source: str) -> None:
    assert len(violations(module, python_imports(source, module, False))) >= 1


@pytest.mark.parametrize(
    "source", ["cimport pillarbox.aio", "    from pillarbox.mailbox cimport x", "import os, asyncio"]
)
def test_an_arrow_that_points_up_is_found_in_cython(source: str) -> None:
    module = "pillarbox.kernel.mailbox"
    assert len(violations(module, cython_imports(source, module))) == 1


def test_an_arrow_that_points_down_is_allowed() -> None:
    source = "from pillarbox.kernel import Mail\nfrom pillarbox.aio import Retry\nimport pyspark"
    assert violations("pillarbox.spark.worker", python_imports(source, "pillarbox.spark.worker", False)) == []


def test_the_picture_of_the_layers_is_drawn_from_this_table() -> None:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec is not None and spec.loader is not None
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    drawn = (ROOT / "docs" / "pictures" / "layers.svg").read_text()
    assert drawn == picture.layers()
    assert all(f">{name or 'pillarbox'}</text>" in drawn for name in BELOW)
