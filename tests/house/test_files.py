"""The project's own files: each says what it is, none is long, none knows the machine it was written on."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 800
"""A file holds one whole concept; beyond this it holds two."""
# In pieces, so that this file does not hold what it looks for.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"/wo" r"rk/",
            r"/ro" r"ot/",
            r"/ho" r"me/\w",
            r"/Us" r"ers/\w",
            r"\.pye" r"nv",
            r"pythonho" r"sted",
            r"pypi\.o" r"rg/simple",
            r"artifa" r"ctory",
            r"index-" r"url",
            r"https?://(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.",
        ]
    )
)


def files() -> list[Path]:
    """The files that belong to the project: tracked ones, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return sorted({ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()})


def text_files() -> dict[str, str]:
    texts = {}
    for path in files():
        content = path.read_bytes()
        if b"\0" not in content:
            texts[path.relative_to(ROOT).as_posix()] = content.decode()
    assert len(texts) > 50
    return texts


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in text_files().items()
        for number, line in enumerate(text.splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted", ["see /wo" + "rk/x", "/ho" + "me/me/x", "--index-" + "url x", "http://10" + ".0.0.1"]
)
def test_a_machine_or_a_registry_would_be_found(planted: str) -> None:
    assert FORBIDDEN.search(planted)


@pytest.mark.thorough
def test_every_python_file_says_in_its_first_lines_what_it_is() -> None:
    silent = [
        name
        for name, text in text_files().items()
        if name.endswith(".py") and text.strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == []


def test_every_cython_file_says_in_its_first_lines_what_it_is() -> None:
    texts = {name: text for name, text in text_files().items() if name.endswith((".pyx", ".pxd"))}
    assert texts
    assert [name for name, text in texts.items() if not text.startswith(('"""', "# "))] == []


def test_no_file_of_code_is_longer_than_one_concept_needs() -> None:
    ends = (".py", ".pyx", ".pxd", ".pyi", ".h")
    counts = {name: len(text.splitlines()) for name, text in text_files().items() if name.endswith(ends)}
    assert counts
    assert {name: count for name, count in counts.items() if count > MAX_FILE_LINES} == {}
