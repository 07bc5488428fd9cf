"""The size of objects: the attributes of the classes of the core's upper layers. Read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "pyruntime"
PACKAGES = ("aio", "ledger", "spark")
MAX_ATTRIBUTES = 20
"""Attributes of one object, those of its base classes included."""
RECORDS = {"Call", "HedgingCall", "RestoredCall"}
"""Classes of records: one object for all that is known of a row, most of which is set where it is needed."""


def attributes(found: ast.ClassDef) -> set[str]:
    """The attributes of its own that a class sets in its methods, or has as slots."""
    names = set()
    for node in ast.walk(found):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
    for statement in found.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
            words = [each.value for each in ast.walk(statement.value) if isinstance(each, ast.Constant)]
            names |= {word for word in words if isinstance(word, str)}
    return names


def classes(sources: list[str]) -> Iterator[tuple[str, set[str]]]:
    """Each class with its attributes, those of its base classes in these sources included."""
    found = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    by_name = {each.name: each for each in found}

    def of(one: ast.ClassDef) -> set[str]:
        bases = [by_name[base.id] for base in one.bases if isinstance(base, ast.Name) and base.id in by_name]
        return attributes(one).union(*[of(base) for base in bases if base is not one])

    for each in found:
        yield each.name, of(each)


@pytest.mark.contract("No object of the operator, the ledger or Spark's side has more than 20 attributes.")
def test_no_object_has_more_than_twenty_attributes() -> None:
    sources = [path.read_text() for package in PACKAGES for path in sorted((SOURCES / package).rglob("*.py"))]
    large = {name: len(names) for name, names in classes(sources) if len(names) > MAX_ATTRIBUTES}
    assert {name: count for name, count in large.items() if name not in RECORDS} == {}
    assert {*large} == RECORDS, "a class that is small now leaves the table"


def test_attributes_of_base_classes_and_slots_count() -> None:
    base = (
        "class Base:\n    __slots__ = ('a', *('b',))\n"
        "    def __init__(self):\n        self.a = self.c = other.d = 1"
    )
    derived = "class Derived(Base):\n    def go(self):\n        self.e += 1\n        self.a.f = 2"
    assert dict(classes([base, derived])) == {"Base": {"a", "b", "c"}, "Derived": {"a", "b", "c", "e"}}
