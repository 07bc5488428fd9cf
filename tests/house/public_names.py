"""The public names: those of the reference, and those that the public packages export."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PACKAGES = (
    "pillarbox",
    "pillarbox.aio.observe",
    "pillarbox.clients",
    "pillarbox.job",
    "pillarbox.kernel",
    "pillarbox.ledger",
    "pillarbox.models",
    "pillarbox.sources",
    "pillarbox.spark",
    "pillarbox.task",
    "pillarbox.testing",
)
IN_REFERENCE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def exported(package: str) -> list[str]:
    """The full names of the classes and functions that a package exports."""
    module = importlib.import_module(package)
    return [f"{package}.{name}" for name in module.__all__ if _is_described(getattr(module, name))]


def in_reference() -> list[str]:
    """The full names of the classes and functions of the reference, page by page."""
    return [name for name in named_in_reference() if _is_described(found(name))]


def named_in_reference() -> list[str]:
    """All full names of the reference, page by page, those of constants too."""
    return [
        name for page in sorted(REFERENCE.glob("*.md")) for name in IN_REFERENCE.findall(page.read_text())
    ]


def found(name: str) -> Any:
    """The object of a full name."""
    module, _, last = name.rpartition(".")
    # A function may have the name of its module.
    return getattr(importlib.import_module(module), last)


def public_names() -> dict[str, Any]:
    """Each public class and function once, by the first of its names."""
    names = [*in_reference(), *(name for package in PACKAGES for name in exported(package))]
    objects: dict[int, str] = {}
    for name in names:
        objects.setdefault(id(found(name)), name)
    return {name: found(name) for name in objects.values()}


def _is_described(value: object) -> bool:
    return inspect.isclass(value) or callable(value)
