"""The documentation's site: the menu names pages by their headings, the search finds what readers type."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material")

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
SNIPPET = re.compile(r'\A--8<-- "(.+)"$', re.MULTILINE)
MOST_ENTRIES = 24
"""Pages of one tab: more do not fit on a screen."""
SEARCHES = {
    "concurrency": "limits/",
    "parallel": "spark/",
    "databricks": "clusters/",
    "polars": "from-gather/",
    "gather": "from-gather/",
    "troubleshoot": "my-job-hangs/",
    "hangs": "my-job-hangs/",
    "cost": "costs/",
}
"""A word that a reader types, and the page that is to be among the first results."""


def settings(folder: Path) -> Any:
    """The site's configuration, without the plugin that reads docstrings: menu and pages do not need it."""
    return load_config(str(ROOT / "mkdocs.yml"), plugins=["search"], site_dir=str(folder), strict=False)


def entries(nav: list[Any]) -> Iterator[tuple[str | None, str]]:
    """The pages of a menu, each with the title that the menu gives it; None where it gives none."""
    for item in nav:
        if isinstance(item, str):
            yield None, item
        else:
            for title, below in item.items():
                if isinstance(below, str):
                    yield title, below
                else:
                    yield from entries(below)


def heading(page: str) -> str | None:
    """The first heading of a page, or of the file that it includes."""
    text = (DOCS / page).read_text()
    if included := SNIPPET.match(text):
        text = (ROOT / included[1]).read_text()
    found = HEADING.search(text)
    return found and found[1]


@pytest.fixture(scope="module")
def nav(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    found: list[Any] = settings(tmp_path_factory.mktemp("site")).nav
    return found


def test_each_entry_of_the_menu_is_the_heading_of_its_page(nav: list[Any]) -> None:
    pages = {page: title for title, page in entries(nav)}
    assert {page for page in pages if heading(page) is None} == set()
    assert {page: title for page, title in pages.items() if title not in (None, heading(page))} == {}


def test_each_page_is_in_the_menu_once_and_each_decision_on_its_index(nav: list[Any]) -> None:
    listed = Counter(page for _, page in entries(nav))
    assert {page for page, times in listed.items() if times > 1} == set()
    # Fragments of the changelog have no page.
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "news"}
    decisions = {page for page in pages if page.startswith("decisions/") and not page.endswith("index.md")}
    assert set(listed) == pages - decisions
    linked = re.findall(r"^- \[(.+)\]\((.+)\)$", (DOCS / "decisions" / "index.md").read_text(), re.MULTILINE)
    assert {f"decisions/{page}": title for title, page in linked} == {
        each: heading(each) for each in decisions
    }


def test_a_tab_fits_on_a_screen_and_the_reference_begins_with_spark(nav: list[Any]) -> None:
    tabs = {title: list(entries(below)) for item in nav for title, below in item.items()}
    assert {title: len(pages) for title, pages in tabs.items() if len(pages) > MOST_ENTRIES} == {}
    assert tabs["Start"][0] == (None, "index.md")
    assert tabs["Reference"][0] == (None, "reference/spark.md")


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("site")
    config = settings(folder)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
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


@pytest.mark.parametrize("word", SEARCHES)
def test_the_search_finds_the_page_that_a_reader_looks_for(word: str, indexed: list[dict[str, str]]) -> None:
    assert SEARCHES[word] in results(indexed, word)[:4]


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
