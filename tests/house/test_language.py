"""The language of the code: `.ci/language.py`, which `make lint` runs, finds what it is to find."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("language", ROOT / ".ci" / "language.py")
assert SPEC is not None and SPEC.loader is not None
language = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(language)


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ('"""What is kept."""\n', ".py"),
        ('class A:\n    x = 1\n    """Whether it is."""\n', ".py"),
        ('cdef class A:\n    """How it goes."""\n', ".pyx"),
        ("PATIENCE = 1.0\n", ".py"),
        ("class A:\n    _MOST: int = 3\n", ".py"),
        ('raise ValueError(f"{a!r} is no column")\n', ".py"),
        ("// A mail of Python's is no such mail.\n", ".h"),
    ],
)
def test_a_line_that_breaks_a_rule_of_the_language_is_found(text: str, suffix: str) -> None:
    assert len(list(language.complaints(text, suffix))) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""Return True if it is."""\nHEARTBEAT_INTERVAL_S = 1.0\nMOST_ROWS = 3\n',
        "# There is no such column, and it is no longer asked for.\n",
    ],
)
def test_a_line_in_the_language_is_not_complained_of(text: str) -> None:
    assert list(language.complaints(text, ".py")) == []


def test_the_checked_files_are_those_of_the_project() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in language.files()}
    assert {"pyruntime/__init__.py", "kernel/mailbox.pyx", "README.md"} <= names
    assert "spec/ended_contracts.md" not in names
