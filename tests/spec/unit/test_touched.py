"""The tests that a change must pass, and the long suites that it owes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spec import touched
from spec.long_runs import SUITES

ROOT = Path(__file__).resolve().parents[3]


def project(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


LAYERS = {
    "kernel/mail.pyx": "cimport pillarbox.kernel.monitor",
    "pyruntime/aio/runners.py": "from pillarbox.kernel import Mail",
    "pyruntime/spark/worker.py": "def late():\n    from pillarbox.aio.runners import x",
    "pyruntime/ledger/writer.py": "import json",
    "bench/task.py": "from pillarbox.spark import async_map",
    "tests/aio/test_a.py": "",
    "tests/aio/answering.py": "",
    "tests/kernel/test_k.py": "",
    "tests/spark/test_s.py": "",
    "tests/bench/test_b.py": "",
    "tests/house/test_h.py": "",
    "tests/ledger/test_l.py": "",
}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["kernel/mail.pyx"], ["tests/aio", "tests/bench", "tests/kernel", "tests/spark"]),
        (["pyruntime/aio/runners.py"], ["tests/aio", "tests/bench", "tests/spark"]),
        (["pyruntime/ledger/writer.py"], ["tests/ledger"]),
        (["bench/task.py"], ["tests/bench"]),
        (["tests/aio/test_a.py"], ["tests/aio/test_a.py"]),
        (["tests/aio/answering.py"], ["tests/aio"]),
        (["tests/aio/test_gone.py"], []),
        (["docs/index.md"], ["tests/house"]),
        (["tests/conftest.py", "docs/index.md"], ["tests"]),
        (["LICENSE"], []),
    ],
)
def test_a_change_runs_the_tests_of_what_it_touches_and_of_what_imports_that(
    changed: list[str], tests: list[str], tmp_path: Path
) -> None:
    root = project(tmp_path, LAYERS)
    parts = touched.touched_parts(changed, touched.users(root))
    assert touched.selected_tests(changed, parts, root) == tests


@pytest.fixture(scope="module")
def users() -> dict[str, set[str]]:
    """The parts of this project, each with those that import it."""
    return touched.users()


def test_each_part_of_this_project_has_tests(users: dict[str, set[str]]) -> None:
    for part in users:
        for folder in touched.TESTS.get(part, (f"tests/{part}",)):
            assert (ROOT / folder).is_dir(), part


def test_the_kernel_touches_what_stands_on_it(users: dict[str, set[str]]) -> None:
    parts = touched.touched_parts(["kernel/include/pillarbox_inbox.h"], users)
    assert {"kernel", "mailbox", "task", "aio", "clients", "spark", "sources", "ledger"} <= parts


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        ("kernel/include/pillarbox_queue.h", ["mutation", "sanitize", "test-freethreaded"]),
        ("spec/Operator.tla", ["spec"]),
        ("pyruntime/ledger/writer.py", ["chaos"]),
        ("pyruntime/spark/stream/buckets.py", ["chaos", "test-oldest"]),
        ("pyruntime/clients/chat.py", []),
    ],
)
def test_a_change_owes_the_long_suites_whose_subject_it_touches(path: str, suites: list[str]) -> None:
    assert touched.owed_suites([path]) == suites


def test_each_suite_that_can_be_owed_is_one() -> None:
    assert {suite for suites in touched.OWED.values() for suite in suites} <= {suite.name for suite in SUITES}


def test_changed_files_are_those_of_commits_of_the_tree_and_new_ones(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("")
    git("add", ".")
    git("commit", "-qm", "Begin")
    git("tag", "base")
    (tmp_path / "a.py").write_text("changed = 1")
    git("commit", "-qam", "Change")
    (tmp_path / "b.py").write_text("changed = 2")
    (tmp_path / "new.py").write_text("")
    assert touched.changed_files("base", tmp_path) == ["a.py", "b.py", "new.py"]
    with pytest.raises(ValueError, match="BASE='no such commit': must be a commit of this checkout"):
        touched.changed_files("no such commit", tmp_path)
