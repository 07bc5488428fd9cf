"""The examples of the documentation run: every ```python block of README.md and of the pages in docs/.

The blocks of a page share their names, from top to bottom, as a reader would type them.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from bench.demo.server_process import ServerProcess
from tests.spark import queries

ROOT = Path(__file__).resolve().parents[2]
# Pages that start many streams, of which tests/spark/test_stream.py and test_source_stream.py know more.
SLOW = {"docs/stream.md", "docs/sources.md"}
# Needs a PostgreSQL, a Kafka and a Debezium, which tests/spark/test_tables.py starts.
WITH_SERVERS = {"docs/tables.md"}
# Services that pages call: each page gets one of its own, at another address.
SERVICES = {"http://localhost:8000/": "bench.demo.embedding_server"}
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def texts() -> dict[str, str]:
    """The pages that have examples, by their paths."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}
    return {page: text for page, text in texts.items() if "```python" in text}


def needs_spark(text: str) -> bool:
    return "pillarbox.spark" in text


def marks(page: str, text: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.spark] * needs_spark(text) + [pytest.mark.slow] * (page in SLOW)


def blocks(text: str) -> list[tuple[int, str]]:
    """The examples of a page, each with the number of its first line."""
    found = []
    for match in BLOCK.finditer(text):
        indent = match[1]
        code = "\n".join(line.removeprefix(indent) for line in match[2].split("\n"))
        found.append((text.count("\n", 0, match.start(2)), code))
    return found


# A page may start Spark, and several streams.
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=[pytest.mark.spark] * needs_spark(text) + [pytest.mark.slow] * (page in SLOW)
        )
        for page, text in texts().items()
        if page not in WITH_SERVERS
    ],
)
def test_the_examples_of_a_page_run(
    page: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = texts()[page]
    # As in a script: functions of `__main__` travel to Spark's workers by value.
    names: dict[str, object] = {"__name__": "__main__"}
    if needs_spark(text):
        names["spark"] = request.getfixturevalue("spark")
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        for address, module in SERVICES.items():
            if address in text:
                service = stack.enter_context(ServerProcess(module))
                text = text.replace(address, f"{service.url}/")
        if needs_spark(text):
            stack.enter_context(queries.started_alone())
        examples = blocks(text)
        assert len(examples) == text.count("```python\n")
        for line, code in examples:
            # Blank lines in front give a traceback the line numbers of the page.
            exec(compile("\n" * line + code, page, "exec", dont_inherit=True), names)


def test_the_readme_has_examples_and_they_are_found() -> None:
    assert "README.md" in texts()
    assert blocks("a\n```python\nx = 1\n```\n\n- b\n\n  ```python\n  y = 2\n  ```\n") == [
        (2, "x = 1\n"),
        (8, "y = 2\n"),
    ]


def test_each_test_that_a_page_names_exists() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "sources.md").read_text()))
    assert named
    files = {path: (ROOT / "tests" / path).read_text() for path in {path for path, _ in named}}
    assert [f"{path}::{test}" for path, test in sorted(named) if f"def {test}(" not in files[path]] == []
