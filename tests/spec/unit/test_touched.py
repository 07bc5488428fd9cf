"""The tests that a change must pass, and the long suites that it owes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
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


def committed(root: Path) -> Callable[..., None]:
    """Makes a checkout of a folder, with a commit that is called base; returns what runs git in it."""

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "Begin", "--allow-empty")
    git("tag", "base")
    return git


ABOVE_SPARK = ["tests/bench", "tests/examples", "tests/house"]
LAYERS = {
    "kernel/mail.pyx": "cimport pillarbox.kernel.monitor",
    "pyruntime/aio/runners.py": "from pillarbox.kernel import Mail",
    "pyruntime/spark/worker.py": "def late():\n    from pillarbox.aio.runners import x",
    "pyruntime/ledger/writer.py": "from pillarbox.validate import check",
    "pyruntime/validate.py": "",
    "pyruntime/__init__.py": "def __getattr__(name):\n    from pillarbox.spark import worker",
    "bench/task.py": "from pillarbox.spark import async_map",
    "examples/job.py": "from pillarbox import async_map",
    "fuzz/workload.py": "",
    "fuzz/histories.py": "from fuzz import workload",
    "tests/conftest.py": "from tests import threads",
    "tests/threads.py": "",
    "tests/shared.py": "",
    "tests/skips.toml": "",
    "tests/servers/broker.py": "",
    "tests/servers/broker.yaml": "",
    "tests/native/check.h": "",
    "tests/native/test_n.py": "",
    "tests/aio/test_a.py": "",
    "tests/aio/unit/test_u.py": "from tests.shared import help",
    "tests/aio/unit/conftest.py": "from tests.servers import broker",
    "tests/clients/test_c.py": "from tests.aio.test_a import ROWS",
    "tests/examples/test_e.py": "",
    "tests/aio/answering.py": "",
    "tests/kernel/test_k.py": "import fuzz.histories",
    "tests/spark/test_s.py": "",
    "tests/bench/test_b.py": "",
    "tests/house/test_h.py": "",
    "tests/ledger/test_l.py": "",
}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["kernel/mail.pyx"], ["tests/aio", *ABOVE_SPARK, "tests/kernel", "tests/native", "tests/spark"]),
        (["pyruntime/aio/runners.py"], ["tests/aio", *ABOVE_SPARK, "tests/spark"]),
        (["pyruntime/ledger/writer.py"], ["tests/ledger"]),
        (["pyruntime/validate.py"], ["tests/aio", "tests/ledger"]),
        (["pyruntime/spark/worker.py"], [*ABOVE_SPARK, "tests/spark"]),
        (["pyruntime/__main__.py"], ["tests/examples", "tests/house"]),
        (
            ["pyruntime/__init__.py"],
            ["tests/aio", "tests/clients", "tests/examples", "tests/house", "tests/ledger"],
        ),
        (["bench/task.py"], ["tests/bench"]),
        (["fuzz/workload.py"], ["tests/kernel/test_k.py"]),
        (["tests/aio/test_a.py"], ["tests/aio/test_a.py", "tests/clients/test_c.py"]),
        (["tests/aio/answering.py"], ["tests/aio"]),
        (["tests/native/check.h"], ["tests/native"]),
        (["tests/servers/broker.py"], ["tests/aio/unit"]),
        (["tests/servers/broker.yaml"], ["tests/aio/unit"]),
        (["tests/shared.py"], ["tests/aio/unit/test_u.py"]),
        (["tests/skips.toml"], ["tests/house"]),
        (["tests/threads.py"], ["tests"]),
        (["pyproject.toml"], ["tests"]),
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
            assert any((ROOT / folder).rglob("test_*.py")), part


def test_each_folder_of_tests_is_that_of_a_part(users: dict[str, set[str]]) -> None:
    of_parts = {folder for part in users for folder in touched.TESTS.get(part, (f"tests/{part}",))}
    with_tests = {f"tests/{path.relative_to(ROOT).parts[1]}" for path in ROOT.glob("tests/*/**/test_*.py")}
    # Servers are tools of tests: what has changed of them runs the tests that start them.
    assert with_tests - of_parts == {"tests/servers"}


def test_what_else_a_file_selects_is_there() -> None:
    assert [path for tests in touched.BESIDES.values() for path in tests if not (ROOT / path).exists()] == []


def test_no_package_below_spark_imports_the_names_of_the_whole(users: dict[str, set[str]]) -> None:
    assert users[touched.TOP] <= {"spark", *touched.PARTS_BESIDE}


def test_the_kernel_touches_what_stands_on_it(users: dict[str, set[str]]) -> None:
    parts = touched.touched_parts(["kernel/include/pillarbox_inbox.h"], users)
    assert {"kernel", "mailbox", "task", "aio", "clients", "spark", "sources", "ledger"} <= parts


SPARKS = ["test-spark-3.5", "test-spark-4.0", "test-spark-4.1"]


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        ("kernel/include/pillarbox_queue.h", ["mutation", "sanitize", "test-freethreaded"]),
        ("spec/Operator.tla", ["spec"]),
        ("spec/long_runs.json", []),
        ("pyruntime/ledger/writer.py", ["chaos"]),
        ("pyruntime/spark/stream/buckets.py", ["chaos", *SPARKS]),
        ("pyruntime/clients/chat.py", []),
    ],
)
def test_a_change_owes_the_long_suites_whose_subject_it_touches(path: str, suites: list[str]) -> None:
    assert touched.owed_suites([path]) == suites


@pytest.mark.parametrize("code", [0, 1])
def test_the_tests_run_with_the_words_for_pytest_and_the_owed_suites_are_named(
    code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(tmp_path, LAYERS)
    committed(root)
    for changed in ("pyruntime/ledger/writer.py", "tests/bench/test_b.py"):
        (root / changed).write_text("import os")
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> int:
        commands.append(command)
        return code

    assert touched.main(["base", "--list"], run, root) == 0
    assert commands == []
    listed = capsys.readouterr().out
    assert touched.main(["base", "-k", "one", "-x"], run, root) == code
    (command,) = commands
    words = list(command[command.index("pytest") + 1 :])
    assert words[words.index("quick") + 1 :] == ["-k", "one", "-x", "tests/bench/test_b.py", "tests/ledger"]
    assert "-m" not in words
    said = capsys.readouterr().out
    assert said == listed
    assert said.splitlines() == [
        "== 2 files differ from base; parts: ledger",
        "== tests: tests/bench/test_b.py tests/ledger",
        "== long suites owed: chaos",
        "   make long SUITE=chaos",
    ]


def test_no_tests_run_for_a_base_that_is_no_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    committed(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        touched.main(["main~7"], lambda command: pytest.fail(str(command)), tmp_path)
    assert "BASE='main~7': must be a commit of this checkout" in capsys.readouterr().err


def test_each_suite_that_can_be_owed_is_one() -> None:
    assert {suite for suites in touched.OWED.values() for suite in suites} <= {suite.name for suite in SUITES}


def test_the_page_for_contributors_says_when_each_suite_is_owed() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| suite | owed by a change of |")[2]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    named = [name for cell in first_cells for name in cell.replace("`", "").replace(" ", "").split(",")]
    assert sorted(named) == sorted(suite.name for suite in SUITES)


def test_changed_files_are_those_of_commits_of_the_tree_and_new_ones(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.py", "moved.py"):
        (tmp_path / name).write_text(f"NAME = {name!r}")
    git = committed(tmp_path)
    (tmp_path / "a.py").write_text("changed = 1")
    git("commit", "-qam", "Change")
    (tmp_path / "b.py").write_text("changed = 2")
    git("mv", "moved.py", "there.py")
    (tmp_path / "new.py").write_text("")
    assert touched.changed_files("base", tmp_path) == ["a.py", "b.py", "moved.py", "new.py", "there.py"]
    with pytest.raises(ValueError, match="BASE='no such commit': must be a commit of this checkout"):
        touched.changed_files("no such commit", tmp_path)
