"""The documentation's site: the menu names pages by their headings, the search finds what readers type."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material", reason="the package mkdocs-material is not installed")
pytest.importorskip("nbconvert", reason="the package nbconvert is not installed")

from tests.house import pages, public_names, site

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MOST_ENTRIES = 24
"""Pages of one tab: more do not fit on a screen."""


@pytest.fixture(scope="module")
def nav(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    found: list[Any] = site.settings(tmp_path_factory.mktemp("site")).nav
    return found


def test_each_entry_of_the_menu_is_the_heading_of_its_page(nav: list[Any]) -> None:
    pages = {page: title for title, page in site.entries(nav)}
    assert {page for page in pages if site.heading(page) is None} == set()
    assert {page: title for page, title in pages.items() if title not in (None, site.heading(page))} == {}


def test_each_page_is_in_the_menu_once_and_each_decision_on_its_index(nav: list[Any]) -> None:
    listed = Counter(page for _, page in site.entries(nav))
    assert {page for page, times in listed.items() if times > 1} == set()
    pages = site.pages()
    decisions = {page for page in pages if page.startswith("decisions/") and not page.endswith("index.md")}
    assert set(listed) == pages - decisions
    linked = re.findall(r"^- \[(.+)\]\((.+)\)$", (DOCS / "decisions" / "index.md").read_text(), re.MULTILINE)
    assert {f"decisions/{page}": title for title, page in linked} == {
        each: site.heading(each) for each in decisions
    }


def test_a_tab_fits_on_a_screen_and_the_reference_begins_with_spark(nav: list[Any]) -> None:
    tabs = {title: list(site.entries(below)) for item in nav for title, below in item.items()}
    assert {title: len(pages) for title, pages in tabs.items() if len(pages) > MOST_ENTRIES} == {}
    assert tabs["Start"][0] == (None, "index.md")
    assert tabs["Reference"][0] == (None, "reference/spark.md")


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    found: list[dict[str, str]] = json.loads((folder / "search" / "search_index.json").read_text())["docs"]
    return found


def results(index: list[dict[str, str]], word: str) -> list[str]:
    """The pages that have a word, best first: one in a heading counts more than any number in the text."""
    scores: Counter[str] = Counter()
    for each in index:
        page = each["location"].partition("#")[0]
        in_title, in_text = (len(re.findall(rf"\b{word}", each[key].lower())) for key in ("title", "text"))
        scores[page] += 1_000 * in_title + in_text
    return [page for page, score in scores.most_common() if score]


@pytest.mark.parametrize("word", site.SEARCHES)
def test_the_search_finds_the_page_that_a_reader_looks_for(word: str, indexed: list[dict[str, str]]) -> None:
    assert site.SEARCHES[word] in results(indexed, word)[: site.FIRST_RESULTS]


def imported(page: str) -> set[str]:
    """The full names that the examples of a page import from Pillarbox."""
    return {
        f"{each.module}.{name.name}"
        for _, code in pages.blocks(site.text(page))
        for each in ast.walk(ast.parse(code))
        if isinstance(each, ast.ImportFrom) and str(each.module).startswith("pillarbox")
        for name in each.names
    }


def test_the_reference_has_each_name_that_a_guide_imports(nav: list[Any]) -> None:
    tabs = {title: [page for _, page in site.entries(below)] for item in nav for title, below in item.items()}
    # The kit for tests has a page of its own, which describes each part of it.
    guides = [page for page in tabs["Start"] + tabs["How to"] if page != "testing.md"]
    described = {id(public_names.found(name)) for name in public_names.named_in_reference()}
    missing = {
        name for page in guides for name in imported(page) if id(public_names.found(name)) not in described
    }
    assert missing == set()


def test_a_word_that_no_page_has_is_not_found(indexed: list[dict[str, str]]) -> None:
    assert results(indexed, "xylophone") == []


def test_the_pages_and_the_picture_show_the_measured_figures() -> None:
    command = [sys.executable, str(DOCS / "figures_page.py"), "check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_the_home_has_four_doors_three_figures_and_six_lines() -> None:
    home = (DOCS / "index.md").read_text()
    assert re.findall(r"\*\*\[(.+)\]\((.+)\.md\)\*\*", home) == [
        ("Embed", "embeddings"),
        ("Ask", "questions"),
        ("Look up", "lookups"),
        ("Stream", "stream"),
    ]
    (example,) = re.findall(r"^```python\n(.*?)^```$", home, re.MULTILINE | re.DOTALL)
    lines = [line for line in example.splitlines() if line and not line.startswith(("from ", "import "))]
    assert len(lines) == 6
    (table,) = re.findall(r"^\| `make figures`.*\n\|.*\n((?:\|.*\n)+)", home, re.MULTILINE)
    assert len(table.splitlines()) == 3
