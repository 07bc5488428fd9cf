"""The long suites: how they are run, and what is written down of them."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spec import long_runs
from spec.long_runs import Ended, LastRun, Suite

ROOT = Path(__file__).resolve().parents[2]


# ---- long suites


def run_of(ended: str) -> LastRun:
    return LastRun("0123456789", ended, 600, "passed", "3 passed in 600s")


def test_the_page_of_long_suites_is_that_of_the_record() -> None:
    runs = long_runs.last_runs()
    assert (ROOT / long_runs.PAGE).read_text() == long_runs.page(long_runs.SUITES, runs)
    assert set(runs) <= {suite.name for suite in long_runs.SUITES}


def test_the_suite_whose_last_whole_run_is_oldest_is_next() -> None:
    suites = long_runs.SUITES
    runs = {suite.name: run_of(f"2026-11-{20 + at:02}") for at, suite in enumerate(suites)}
    assert long_runs.oldest(suites, runs) is suites[0]
    assert long_runs.oldest(suites, runs | {suites[0].name: run_of("2026-12-01")}) is suites[1]
    del runs[suites[4].name]
    assert long_runs.oldest(suites, runs) is suites[4]


def test_a_whole_run_is_written_down_and_seen_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    (tmp_path / "docs").mkdir()
    for code, result in ((0, "passed"), (2, "failed")):
        run = long_runs.whole(
            long_runs.SUITES[0], lambda command, code=code: Ended(code, said=("9 runs in 3 s",)), "abc"
        )
        assert run.result == result
        long_runs.remember("spec", run, tmp_path)
        assert long_runs.last_runs(tmp_path) == {"spec": run}
        assert f"| `abc` | 0 | {result}: 9 runs in 3 s |" in (tmp_path / long_runs.PAGE).read_text()


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


class Shared:
    """A share of fake suites on a clock of its own: each command takes its seconds and ends as it is told."""

    def __init__(self, *ends: tuple[float, Ended]) -> None:
        self.ends = list(ends)
        self.clock = 0.0
        self.said: list[str] = []

    def run(self, command: Sequence[str], seconds: float, wrong: str) -> Ended:
        took, ended = self.ends.pop(0)
        self.clock += min(took, seconds)
        return ended if took <= seconds else Ended(None, ended.wrong)

    def share(self, prepare: Sequence[str] = ()) -> tuple[int, bool]:
        suite = Suite("fake", "", lambda order: [["one"], ["two"]], prepare)
        return long_runs.share(suite, 600, 7, run=self.run, say=self.said.append, now=lambda: self.clock)


def test_a_share_that_runs_out_of_time_is_told_and_does_not_fail() -> None:
    shared = Shared((400, Ended(0)), (400, Ended(0)))
    assert shared.share() == (0, False)
    assert shared.clock == 600
    assert "time is over after 10.0 min, nothing wrong" in shared.said[-1]


def test_a_share_that_comes_to_its_end_is_a_whole_run() -> None:
    assert Shared((100, Ended(0)), (100, Ended(0))).share() == (0, True)


@pytest.mark.contract("A wrong result in a share of a long suite fails CI and prints its seed.")
@pytest.mark.parametrize("took", [100, 10_000])
def test_a_wrong_result_fails_and_prints_its_seed(took: float) -> None:
    shared = Shared((took, Ended(1, ("DIFFERS mailbox",))))
    assert shared.share() == (1, False)
    assert "WRONG, seed 7" in shared.said[-2]
    assert "--seed 7" in shared.said[-2]
    assert "DIFFERS mailbox" in shared.said[-1]


def test_a_suite_that_cannot_be_made_ready_is_told_and_does_not_fail() -> None:
    shared = Shared((10, Ended(2)))
    assert shared.share(["make", "it"]) == (0, False)
    assert "could not be made here" in shared.said[-1]


def test_the_seed_decides_the_order() -> None:
    for suite in long_runs.SUITES:
        first, same, other = (suite.commands(random.Random(seed)) for seed in (1, 1, 2))
        assert first == same
        assert (first != other) == (suite.name != "test-freethreaded")


def test_the_target_and_the_files_of_each_suite_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for suite in long_runs.SUITES:
        assert f"\n{suite.name}: " in makefile
        for command in suite.commands(random.Random(3)):
            paths = [word for whole in command for word in whole.split() if word.endswith(".py")]
            assert [path for path in paths if not (ROOT / path).exists()] == []


# Runs until it is interrupted, says when it may be, and goes on to print.
ENDLESS = """
import signal, sys
try:
    print("WRONG: early", flush=True)
    print("ready", flush=True)
    while True:
        signal.pause()
except KeyboardInterrupt:
    print("WRONG: late", flush=True)
"""


def test_a_suite_is_interrupted_when_its_time_is_over_and_what_it_says_then_counts_for_nothing() -> None:
    ends: list[Callable[[], None]] = []

    def after(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        assert seconds == 5.0
        ends.append(call)
        return lambda: None

    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line == "ready":
            ends[0]()

    ended = long_runs.watch([sys.executable, "-c", ENDLESS], 5.0, r"^WRONG: ", say=say, after=after)
    assert ended == Ended(None, ("WRONG: early",))
    assert lines == ["WRONG: early", "ready", "WRONG: late"]


def test_what_a_suite_says_of_its_end_is_kept() -> None:
    ended = long_runs.watch([sys.executable, "-c", "print('393 runs in 840 s, 0 of them not')"], None)
    assert ended == Ended(0, said=("393 runs in 840 s, 0 of them not",))
