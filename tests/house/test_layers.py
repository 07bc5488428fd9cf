"""The dependency rule: imports point down only. Read from the sources, so it holds for code no test runs."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What each package may import of Pillarbox besides itself. A package that is missing here may not exist.
BELOW: dict[str, set[str]] = {
    "kernel": set(),
    "redaction": set(),
    "validate": set(),
    "wire_table": set(),
    "wire": {"wire_table"},
    "mailbox": {"validate", "kernel"},
    "task": {"validate", "mailbox", "kernel"},
    "rpc": {"validate", "redaction"},
    "aio": {"validate", "redaction", "wire", "ledger", "rpc", "task", "mailbox", "kernel"},
    "clients": {"validate", "redaction", "wire", "aio", "kernel"},
    "ledger": {"validate", "redaction", "task", "mailbox", "kernel"},
    "sources": {"validate", "redaction", "ledger", "rpc", "task", "mailbox", "kernel"},
    "": {
        "spark",
        "validate",
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
        "validate",
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
    "pyarrow": {"spark", "sources", "ledger", "clients"},
    "pandas": {"spark", "sources"},
    "asyncio": {
        "",
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
CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))", re.MULTILINE
)


def package_of(module: str) -> str:
    """`pillarbox.aio.retry` is of "aio"; `pillarbox` itself, and what it defines or re-exports, is of ""."""
    part = [*module.split("."), ""][1]
    return part if part in BELOW or (ROOT / "pyruntime" / part).is_dir() else ""


def python_imports(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Every module that the source names in an import, wherever it stands, relative ones made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base] if base else parts)
            yield base
            # `from pillarbox import spark` names a package too.
            if base == "pillarbox":
                yield from (f"pillarbox.{alias.name}" for alias in node.names)


def cython_imports(source: str, module: str) -> Iterator[str]:
    """The same for Cython, which `ast` does not read: imports and cimports at any depth."""
    for match in CYTHON_IMPORT.finditer(source):
        names = match[1] or match[2]
        for name in (part.strip() for part in names.split(",")):
            yield module.rpartition(".")[0] + "." + name.lstrip(".") if name.startswith(".") else name


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


def sources() -> Iterator[tuple[str, Path]]:
    """Every source file of the package, with its import name."""
    for folder, prefix in (("kernel", "pillarbox.kernel"), ("pyruntime", "pillarbox")):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".pyi", ".pyx", ".pxd"}:
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                yield ".".join([prefix, *(part for part in parts if part != "__init__")]), path


def imports_of(module: str, path: Path) -> Iterator[str]:
    source = path.read_text()
    if path.suffix in {".pyx", ".pxd"}:
        return cython_imports(source, module)
    return python_imports(source, module, path.stem == "__init__")


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
