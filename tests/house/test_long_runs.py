"""The steps of `.ci/run` and the long suites: what they get of the time, what fails, what is written down."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from spec import long_runs
from spec.long_runs import Ended, LastRun, Suite

ROOT = Path(__file__).resolve().parents[2]


def load_steps() -> ModuleType:
    """`.ci/steps.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("ci_steps", ROOT / ".ci" / "steps.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


steps = load_steps()


class Machine:
    """Steps that take as many minutes as they are told, on a clock of their own."""

    def __init__(self, **minutes: float) -> None:
        self.minutes = {name.replace("_", "-"): each for name, each in minutes.items()}
        self.codes: dict[str, int] = {}
        self.closing = {"test": ("==== 1 failed, 9 passed in 3.00s ====",)}
        self.clock = 1000.0
        self.ran: list[str] = []
        self.said: list[str] = []

    def start(self, command: Sequence[str], seconds: float) -> object:
        name = "test-slow" if "test-slow" in command else "share" if "share" in command else command[1]
        self.ran.append(name)
        took = self.minutes.get(name, 0.0) * 60
        if "share" in command:
            took = min(took, float(command[-1]))
        self.clock += min(took, seconds)
        closing = self.closing.get(name, ()) if took < seconds else ()
        return steps.Ended(self.codes.get(name, 0) if took < seconds else None, closing)

    def run(self) -> int:
        return int(steps.run(self.start, say=self.said.append, now=lambda: self.clock))

    @property
    def took(self) -> float:
        return (self.clock - 1000.0) / 60


@pytest.mark.parametrize(
    ("tests", "slow", "most", "share"),
    [
        (6, 6, 40, True),
        (8, 12, 40, True),
        (12, 16, 40, True),
        (12, 20, 60, True),
        (20, 100, 60, True),
        (48, 100, 60, True),
        (56, 100, 60, False),
        (80, 100, 90, False),
    ],
)
def test_slow_tests_and_a_share_take_what_is_left_of_the_time(
    tests: int, slow: int, most: int, share: bool
) -> None:
    machine = Machine(test=tests, lint=1, docs=1, test_slow=slow, share=100)
    assert machine.run() == 0
    assert machine.took <= most
    assert ("test-slow" in machine.ran) == (tests < 48)
    assert ("share" in machine.ran) == share


def test_a_share_ends_before_the_end_and_is_none_or_worth_its_while() -> None:
    for elapsed in range(0, 90 * 60, 30):
        seconds = steps.share_seconds(elapsed)
        assert seconds == 0 or steps.MIN_SHARE_S <= seconds <= steps.SHARE_S
        assert seconds == 0 or elapsed + seconds <= steps.SLOW_END_S - steps.RESERVE_S


@pytest.mark.contract("CI ends what hangs before its hard end, and fails.")
def test_what_hangs_is_stopped_at_the_hard_end_and_fails() -> None:
    machine = Machine(test=1000)
    assert machine.run() == 1
    assert machine.took * 60 == steps.HARD_END_S < 90 * 60
    assert "hard end" in " ".join(machine.said)
    assert machine.said[-1] == "the tests have not come to their end"


@pytest.mark.parametrize("failing", ["test", "lint", "docs", "test-slow", "share"])
def test_whatever_fails_the_exit_status_says_so_and_the_last_line_is_pytests(failing: str) -> None:
    machine = Machine(test=10)
    machine.codes[failing] = 2
    assert machine.run() == 1
    assert machine.ran[-1] == failing
    assert machine.said[-1] == "==== 1 failed, 9 passed in 3.00s ===="


@pytest.mark.parametrize("servers", ["kafka-server", "model-servers"])
def test_servers_of_tests_may_be_missing(servers: str) -> None:
    machine = Machine()
    machine.codes[servers] = 2
    assert machine.run() == 0
    assert "share" in machine.ran


@pytest.mark.parametrize(
    "line",
    [
        "=========== 1 failed, 2352 passed, 4 skipped in 1234.56s (0:20:34) ===========",
        "= 3 passed in 0.01s =",
        "11 passed in 4.12s",
        "2 failed, 9 passed, 1 warning in 100.00s (0:01:40)",
    ],
)
def test_closing_lines_of_pytest_are_known_and_added_up(line: str) -> None:
    assert steps.CLOSING.match(line)
    assert not steps.CLOSING.match(f"says: {line}")
    both = steps.total([line, "==== 1 failed, 9 passed in 3.00s ===="])
    assert "failed" in both and "passed" in both


def test_the_closing_line_counts_the_slow_tests_too() -> None:
    machine = Machine(test=10, test_slow=5)
    machine.closing["test-slow"] = ("==== 4 passed in 2.00s ====",)
    assert machine.run() == 0
    assert "13 passed" in machine.said[-1]


def test_a_step_is_run_and_its_closing_line_kept(capfd: pytest.CaptureFixture[str]) -> None:
    ended = steps.execute([sys.executable, "-c", "print('3 passed in 0.01s'); raise SystemExit(3)"], 60.0)
    assert ended == steps.Ended(3, ("3 passed in 0.01s",))
    assert "3 passed" in capfd.readouterr().out


def test_a_step_whose_time_is_over_is_stopped() -> None:
    assert steps.execute([sys.executable, "-c", "import signal; signal.pause()"], 0.0).code is None


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
