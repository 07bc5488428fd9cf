"""Releases: refusals of `make release`, changelog and fragments, description, builds without a compiler."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAGMENT = re.compile(r"(\+[a-z0-9-]+|\d+)\.(job|added|changed|fixed)\.md")


def program(name: str) -> ModuleType:
    """A module of `.ci`, which is not a package."""
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / ".ci"))
    return module


release = program("release")
wheels = program("wheels")


def test_the_first_minute_names_a_python_that_is_not_here() -> None:
    with pytest.raises(SystemExit, match=r"Python 3\.1 is not here"):
        program("first_minute").main(["--python", "3.1"])


def git(root: Path, *words: str) -> None:
    who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    ]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that may be released, with the texts of this one."""
    for name in ("pyproject.toml", "pyruntime/__init__.py", "CHANGELOG.md", "docs/news/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    version = release.version(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (2026-11-29)\n\n- One.\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Begin")
    return tmp_path


def test_a_clean_checkout_with_its_version_in_the_changelog_may_be_released(checkout: Path) -> None:
    assert list(release.faults(checkout)) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("CHANGELOG.md", "# Changelog\n\n## 0.0.1\n", "CHANGELOG.md begins with 0.0.1, not with"),
        ("CHANGELOG.md", "- One.\n" * 201, "CHANGELOG.md has 201 lines, at most 200"),
        ("pyruntime/__init__.py", '__version__ = "9.9.9"\n', "pyruntime/__init__.py 9.9.9"),
        ("docs/news/+new.added.md", "Something new.\n", "docs/news has fragments"),
    ],
    ids=["another section", "a long changelog", "two versions", "a fragment"],
)
def test_a_release_is_refused_with_the_reason(name: str, text: str, said: str, checkout: Path) -> None:
    (checkout / name).write_text(text)
    found = list(release.faults(checkout))
    assert any(said in fault for fault in found)
    assert any(fault.startswith("files differ from the commit") for fault in found)


def test_a_version_with_a_tag_is_not_released_again(checkout: Path) -> None:
    git(checkout, "tag", f"v{release.version(checkout)}")
    (fault,) = release.faults(checkout)
    assert fault.startswith(f"there is a tag v{release.version(checkout)}")


def test_the_changelog_has_sections_by_version_and_fragments_have_names_that_are_collected() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert changes.count("\n") <= release.MAX_CHANGELOG_LINES
    sections = re.findall(r"^## (.*)$", changes, re.MULTILINE)
    assert sections and all(
        re.match(r"\d+\.\d+\.\d+( \(\d{4}-\d\d-\d\d\))?$", section) for section in sections
    )
    assert [name for name in release.fragments() if not FRAGMENT.fullmatch(name)] == []


# In a process of its own: setup.py builds when it is run, and imports what the tests must not load.
DESCRIBE = """
import setuptools
setuptools.setup = lambda **words: None
import runpy, sys
names = runpy.run_path("setup.py")
print(names["description"](sys.stdin.read(), sys.argv[1], "1.2.3"))
"""
PAGE = "[a](docs/a.md#b) ![p](docs/p.svg) [![q](docs/q.svg)](docs/q.md) [c](https://c.example) [d](#d)\n"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("", "a   [c](https://c.example) [d](#d)"),
        (
            "https://h.example/p",
            "[a](https://h.example/p/blob/v1.2.3/docs/a.md#b) "
            "![p](https://h.example/p/raw/v1.2.3/docs/p.svg) "
            "[![q](https://h.example/p/raw/v1.2.3/docs/q.svg)](https://h.example/p/blob/v1.2.3/docs/q.md) "
            "[c](https://c.example) [d](#d)",
        ),
    ],
    ids=["no address", "an address"],
)
def test_links_of_the_description_hold_outside_of_the_repository(address: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE, address],
        cwd=ROOT, input=PAGE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == shown


@pytest.mark.contract("A build without a compiler ends with one line that names the packages to install.")
def test_a_build_without_a_compiler_says_in_its_first_line_what_to_install(tmp_path: Path) -> None:
    left = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    done = subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel", "--dist-dir", str(tmp_path)],
        cwd=ROOT, env={**left, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    first = (done.stdout + done.stderr).splitlines()[0]
    assert "needs a C++17 compiler" in first
    assert "apt-get install g++ python3-dev (Debian, Ubuntu)" in first


@pytest.mark.parametrize(
    "name", ["gcc", "x86_64-linux-gnu-g++-12", "c++", "cc", "clang-14", "java", "javac", "make"]
)
def test_a_wheel_is_tried_where_there_is_neither_a_compiler_nor_java(name: str) -> None:
    assert wheels.COMPILERS_AND_JAVA.fullmatch(name)


@pytest.mark.parametrize("name", ["python3.11", "git", "cat", "ldd", "basename", "openssl", "assert"])
def test_a_wheel_is_tried_with_all_other_programs(name: str) -> None:
    assert not wheels.COMPILERS_AND_JAVA.fullmatch(name)
