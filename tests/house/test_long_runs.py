"""The long suites: how they are run, and what is written down of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from spec import long_runs
from spec.long_runs import Ended, LastRun
from spec.seeds import VARIABLE

ROOT = Path(__file__).resolve().parents[2]


# ---- long suites


def run_of(ended: str) -> LastRun:
    return LastRun("0123456789", ended, 600, "passed", "3 passed in 600s")


def test_the_page_of_long_suites_is_that_of_the_record() -> None:
    runs = long_runs.last_runs()
    assert (ROOT / long_runs.PAGE).read_text() == long_runs.page(long_runs.SUITES, runs)
    assert set(runs) <= {suite.name for suite in long_runs.SUITES}


def test_a_whole_run_is_written_down_and_seen_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    (tmp_path / "docs").mkdir()
    commands: list[tuple[Sequence[str], Mapping[str, str]]] = []
    codes = [0, 2]

    def start(command: Sequence[str], environment: Mapping[str, str]) -> Ended:
        commands.append((command, environment))
        return Ended(codes.pop(0), ("9 runs in 3 s",))

    for result in ("passed", "failed"):
        run = long_runs.whole(long_runs.SUITES[0], start, "abc", 20261128)
        assert run.result == result
        assert commands.pop() == (["make", "test-slow"], {"PILLARBOX_SEED": "20261128"})
        long_runs.remember("spec", run, tmp_path)
        assert long_runs.last_runs(tmp_path) == {"spec": run}
        written = (tmp_path / long_runs.PAGE).read_text()
        assert f"| `abc` | 20261128 | 0 | {result}: 9 runs in 3 s |" in written


def test_a_run_is_of_a_commit_whatever_runs_before_it_have_written_down(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "spec").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "code.py").write_text("")
    (tmp_path / "spec" / "README.md").write_text("| defect |")
    long_runs.remember("spec", run_of("2026-11-20"), tmp_path)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "Begin")
    of = long_runs.commit(tmp_path)
    assert of is not None and len(of) == 10
    long_runs.remember("chaos", run_of("2026-11-21"), tmp_path)
    (tmp_path / "spec" / "README.md").write_text("| defect | caught |")
    assert long_runs.commit(tmp_path) == of
    (tmp_path / "code.py").write_text("changed = True")
    assert long_runs.commit(tmp_path) is None


def test_each_suite_is_a_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for suite in long_runs.SUITES:
        assert f"\n{suite.name}: " in makefile


@pytest.mark.parametrize(
    ("suite", "words"),
    [
        ("test-slow", ["--hypothesis-seed 20261128"]),
        ("test-freethreaded", ["--hypothesis-seed 20261128"]),
        (
            "spec",
            [f"spec.{each}_runs --seed 20261128" for each in ("operator", "source", "job")],
        ),
    ],
)
def test_what_a_suite_draws_it_draws_by_its_seed(suite: str, words: Sequence[str]) -> None:
    def commands(more: Mapping[str, str]) -> str:
        usual = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", VARIABLE)}
        return subprocess.run(
            ["make", "-n", suite], cwd=ROOT, env={**usual, **more}, capture_output=True, text=True, check=True
        ).stdout

    seeded = commands({VARIABLE: "20261128"})
    assert all(each in seeded for each in words)
    assert "seed" not in commands({})


def test_what_a_suite_says_of_its_end_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import os; print('393 runs in 840 s, 0 of them not'); print(os.environ['PILLARBOX_SEED'])"
    ended = long_runs.watch([sys.executable, "-c", program], {"PILLARBOX_SEED": "5"})
    assert ended == Ended(0, ("393 runs in 840 s, 0 of them not",))
    assert capfd.readouterr().out.endswith("\n5\n")
