"""Read the imports of the project's sources: for the rule of layers, and for what a change touches.

Pure; any thread.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE_FOLDERS = (("kernel", "pillarbox.kernel"), ("pyruntime", "pillarbox"))
"""The folders of the package, and the names that they are imported by."""
SUFFIXES = frozenset({".py", ".pyi", ".pyx", ".pxd"})
CYTHON_SUFFIXES = frozenset({".pyx", ".pxd"})
CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))", re.MULTILINE
)


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
            # `from pillarbox import spark` names a package, and what else is named may be a module.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def cython_imports(source: str, module: str) -> Iterator[str]:
    """The same for Cython, which `ast` does not read: imports and cimports at any depth."""
    for match in CYTHON_IMPORT.finditer(source):
        names = match[1] or match[2]
        for name in (part.strip() for part in names.split(",")):
            yield module.rpartition(".")[0] + "." + name.lstrip(".") if name.startswith(".") else name


def imports_of(module: str, path: Path) -> Iterator[str]:
    """Every module that a file imports."""
    source = path.read_text()
    if path.suffix in CYTHON_SUFFIXES:
        return cython_imports(source, module)
    return python_imports(source, module, path.stem == "__init__")


def module_of(name: str, modules: Collection[str]) -> str | None:
    """The one of `modules` that an import of `name` loads: the module, or the one in which the name is."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def modules_in(folder: str, prefix: str, root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Every source file of a folder, with its import name below `prefix`."""
    for path in sorted((root / folder).rglob("*")):
        if path.suffix in SUFFIXES:
            parts = path.relative_to(root / folder).with_suffix("").parts
            yield ".".join([prefix, *(part for part in parts if part != "__init__")]), path


def sources(root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Every source file of the package, with its import name."""
    for folder, prefix in PACKAGE_FOLDERS:
        yield from modules_in(folder, prefix, root)
