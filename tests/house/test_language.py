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


@pytest.mark.parametrize(
    "text",
    [
        "## What it does\n",
        "The clock hears what is pending.\n",
        "Nothing is compared by nobody.\n",
        "Whoever runs the work again finds it.\n",
        "Who wants calls gets an equal share.\n",
        "It says who works on the run, and since when.\n",
        "The log reports who did it; the job ends.\n",
        "Spark serves whoever connects first; the task waits.\n",
        "Does it end? It ends with what it has.\n",
        "| the reply | what becomes of it |\n",
        "- a list\n\n    that goes on with what it has\n",
        "!!! note\n\n    What is kept is kept.\n",
        "The table has `what` it has: what fails.\n",
        "[what it costs](page.md)\n",
        "**What it gets.** A row.\n",
        "A client has nobody who would wait.\n",
        "The functions answer who asks.\n",
        "What's kept is on the disk.\n",
    ],
)
def test_a_pronoun_in_place_of_a_noun_is_found_in_a_page(text: str) -> None:
    assert list(language.complaints_of_page(text)) != []


@pytest.mark.parametrize(
    "text",
    [
        "## What does it cost?\n",
        "## What does it cost\n",
        "Who pays for a row that failed? The job does.\n",
        "The user who starts the job owns the folder. So do those who read it.\n",
        "Maintainers, who merge a change, run `make touched`.\n",
        "The row that failed, which is retried, and whose key is null.\n",
        "Run `what` or `whoever()`, somewhat later, whatever the size.\n",
        "```\nwhat = nobody\n```\n",
        "Spark says:\n\n    nobody knows what failed\n\nThen it ends.\n",
        "- an item:\n\n      nobody knows what failed\n",
        "[the costs](decisions/what-it-costs.md), https://example.org/what is a link\n",
        "<!-- what -->\nA page.\n",
        "Does the task know which rows, and what they cost? It does.\n",
    ],
)
def test_questions_relative_clauses_and_code_are_not_found_in_a_page(text: str) -> None:
    assert list(language.complaints_of_page(text)) == []


def test_a_complaint_of_a_page_has_its_line() -> None:
    text = "A page.\n\n```\nx\n```\n\nIt has\nwhat it has.\n"
    assert [line for line, _ in language.complaints_of_page(text)] == [8]


def test_the_checked_files_are_those_of_the_project() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in language.files()}
    assert {"pyruntime/__init__.py", "kernel/mailbox.pyx", "README.md"} <= names
    assert "spec/ended_contracts.md" not in names


def test_the_pages_for_users_are_read_for_pronouns() -> None:
    assert {"README.md", "docs/index.md", "docs/options.md", "docs/glossary.md"} <= language.PAGES
    assert [page for page in sorted(language.PAGES) if not (ROOT / page).is_file()] == []
