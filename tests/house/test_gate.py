"""`.ci/run`: the same tests for the same commit, one verdict, and one test ended by one hang."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TODAY = date(2026, 11, 28)


def load(name: str) -> ModuleType:
    """A file of `.ci`, which is in no package."""
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


steps, verdict = load("steps"), load("verdict")


FAILING = {"verdict": "the tests of make test", "old_verdict": "the tests of make test-spark-part"}


class Machine:
    """Steps that take as many minutes and end as they are told, on a clock of their own."""

    def __init__(self, *, minutes: Mapping[str, float] | None = None, **codes: int) -> None:
        self.minutes = minutes or {}
        self.codes = codes
        self.clock = 1000.0
        self.ran: list[list[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self.said: list[str] = []
        self.forgotten: list[str] = []

    def start(self, command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> int | None:
        self.ran.append(list(command))
        self.environments.append(environment)
        name = command[1]
        if ".ci/verdict.py" in command:
            name = "verdict" if steps.REPORT in command else "old_verdict"
        took = self.minutes.get(name, 0.0) * 60
        self.clock += min(took, max(0.0, seconds))
        return self.codes.get(name.replace("-", "_"), 0) if took < seconds else None

    def run(self, seed: int = 7) -> int:
        found: Any = steps.run(
            self.start,
            seed=seed,
            say=self.said.append,
            now=lambda: self.clock,
            home=dict,
            which=lambda name: None,
            forget=lambda: self.forgotten.append(self.names[-1]),
        )
        return int(found)

    @property
    def names(self) -> list[str]:
        return [command[1] for command in self.ran]


@pytest.mark.contract(
    "CI runs the same steps with the same seed for the same commit, and no share of anything."
)
def test_the_steps_and_their_seeds_are_the_same_each_time() -> None:
    first, second = Machine(), Machine(minutes={"test": 40.0})
    assert first.run() == second.run() == 0
    assert first.ran == second.ran
    # The report of a run before is none of this one's.
    assert first.forgotten == ["lint"]
    assert [command[-1] for command in first.ran if ".ci/verdict.py" in command] == ["0", "0"]
    assert first.names == [
        "env",
        ".ci/programs",
        "kafka-server",
        "model-servers",
        "lint",
        "test-spark-part",
        ".ci/verdict.py",
        "test",
        "docs",
        ".ci/verdict.py",
    ]
    assert {environment["PILLARBOX_SEED"] for environment in first.environments} == {"7"}
    assert {environment["PYTHONHASHSEED"] for environment in first.environments} == {"7"}


@pytest.mark.contract("CI ends what hangs before its hard end, and fails.")
def test_what_hangs_is_stopped_at_the_hard_end_and_fails() -> None:
    machine = Machine(minutes={"test": 1000.0})
    assert machine.run() == 1
    assert (machine.clock - 1000.0) == steps.HARD_END_S < 90 * 60
    assert "== make test was stopped at the hard end" in machine.said


@pytest.mark.parametrize("failing", ["lint", "docs", "verdict", "old_verdict"])
def test_whatever_fails_the_other_steps_run_and_the_end_names_it(failing: str) -> None:
    usual, machine = Machine(), Machine(**{failing: 2})
    assert (usual.run(), machine.run()) == (0, 1)
    assert machine.names == usual.names
    assert "FAILED" in machine.said[-1] and FAILING.get(failing, failing) in machine.said[-1]


def test_without_an_environment_nothing_is_judged() -> None:
    machine = Machine(env=2)
    assert machine.run() == 1
    assert machine.said[-1] == "0 passed, 1 failed"


def test_failed_tests_alone_do_not_fail_ci_before_the_verdict() -> None:
    machine = Machine(test=2, test_spark_part=2)
    assert machine.run() == 0
    assert [command[-1] for command in machine.ran if ".ci/verdict.py" in command] == ["1", "1"]
    assert machine.ran[-1][-2:] == [steps.REPORT, "1"]


def test_a_run_of_the_tests_that_was_stopped_is_judged_as_one_without_an_end() -> None:
    machine = Machine(test=-9)
    machine.run()
    assert machine.ran[-1][-1] == "-1"


def test_an_s3_server_is_built_where_there_is_go() -> None:
    assert ["make", "s3-server"] in steps.preparations(lambda name: "/bin/go")
    assert ["make", "s3-server"] not in steps.preparations(lambda name: None)


def test_a_step_is_run_with_its_environment() -> None:
    command = [sys.executable, "-c", "import os; raise SystemExit(int(os.environ['PILLARBOX_SEED']))"]
    assert steps.execute(command, 600.0, {"PILLARBOX_SEED": "3"}) == 3


def test_a_step_whose_time_is_over_is_stopped() -> None:
    assert steps.execute([sys.executable, "-c", "import signal; signal.pause()"], 0.0, {}) is None


# ---- the verdict


def entry(name: str, outcome: str = "passed", when: str = "call", **more: Any) -> str:
    """A line of a report log."""
    properties = [["load", 3.5]] if outcome == "failed" else []
    content = {
        "nodeid": name,
        "outcome": outcome,
        "when": when,
        "user_properties": properties,
        "longrepr": None,
    }
    return json.dumps({**content, "$report_type": "TestReport", **more})


def skip(name: str, reason: str) -> str:
    return entry(name, "skipped", "setup", longrepr=["tests/x.py", 3, f"Skipped: {reason}"])


END = json.dumps({"$report_type": "SessionFinish", "exitstatus": 0})


class Court:
    """A verdict on lines of a report, with tests that pass alone or do not."""

    def __init__(
        self, lines: Iterable[str], *, alone: Sequence[bool] = (), skips: Sequence[Any] = (), flaky: Any = ()
    ) -> None:
        self.said: list[str] = []
        self.alone = list(alone)
        self.tried: list[str] = []
        self.results = verdict.read_report(lines)
        self.fits = verdict.judge(
            self.results,
            skips=skips,
            flaky=flaky,
            today=TODAY,
            seed="42",
            passes_alone=self.passes,
            say=self.said.append,
        )

    def passes(self, name: str) -> bool:
        self.tried.append(name)
        return self.alone.pop(0)


def test_a_run_in_which_all_passed_is_accepted_and_its_list_is_named() -> None:
    court = Court([entry("t.py::b"), entry("t.py::a"), END])
    assert court.fits
    assert court.said[0].startswith("== 2 tests, list ") and court.said[-1] == "2 passed, 0 failed, 0 skipped"
    other = Court([entry("t.py::a"), entry("t.py::b"), END])
    assert other.said == court.said
    assert Court([entry("t.py::a"), END]).said[0] != court.said[0]


@pytest.mark.contract(
    "In CI a test that failed and passes twice alone is printed as FLAKED and does not reject."
)
def test_a_failed_test_that_passes_twice_alone_is_flaked() -> None:
    court = Court(
        [entry("t.py::a[x y]", "failed"), entry("t.py::a[x y]", when="teardown"), END], alone=[True, True]
    )
    assert court.fits
    assert court.tried == ["t.py::a[x y]"] * 2
    assert "FLAKED t.py::a[x y] seed 42 load 3.5" in court.said
    assert court.said[-1] == "1 passed, 0 failed, 0 skipped"


@pytest.mark.contract("In CI a test that fails again when it runs alone rejects.")
@pytest.mark.parametrize("alone", [[False], [True, False]])
def test_a_failed_test_that_fails_again_rejects(alone: list[bool]) -> None:
    court = Court([entry("t.py::a", "failed"), entry("t.py::b"), END], alone=alone)
    assert not court.fits
    assert "REJECTED t.py::a failed, and failed again alone" in court.said
    assert court.said[-1] == "1 passed, 1 failed, 0 skipped"


def test_a_test_whose_process_died_is_one_that_failed() -> None:
    died = json.dumps(
        {
            "$report_type": "TestReport",
            "nodeid": "t.py::a",
            "outcome": "failed",
            "when": "???",
            "user_properties": [],
        }
    )
    court = Court([died, END], alone=[True, True])
    assert court.fits and "FLAKED t.py::a seed 42 load unknown" in court.said


def test_many_failures_are_not_tried_again() -> None:
    court = Court([*(entry(f"t.py::{number}", "failed") for number in range(21)), END])
    assert not court.fits and court.tried == []


@pytest.mark.contract("In CI a skip that tests/skips.toml does not name rejects.")
def test_a_skip_that_is_not_named_rejects() -> None:
    named = verdict.AcceptedSkip("t.py::a[[]*", "no * here", "why")
    accepted = verdict.AcceptedSkip("t.py::a[*", "no * here", "why")
    lines = [skip("t.py::a[1]", "no server here"), END]
    assert not Court(lines).fits
    assert not Court(lines, skips=[named]).fits
    assert not Court([skip("t.py::a[1]", "another reason"), END], skips=[accepted]).fits
    court = Court(lines, skips=[accepted])
    assert court.fits
    assert "SKIPPED 1: no server here" in court.said
    assert court.said[-1] == "0 passed, 0 failed, 1 skipped"


def test_a_skip_is_no_longer_accepted_where_the_program_is_there() -> None:
    lacking = verdict.AcceptedSkip("*", "*", "why", unless="no-such-program-anywhere")
    there = verdict.AcceptedSkip("*", "*", "why", unless=sys.executable)
    assert Court([skip("t.py::a", "x"), END], skips=[lacking]).fits
    assert not Court([skip("t.py::a", "x"), END], skips=[there]).fits


def test_a_file_that_skips_itself_is_a_skip() -> None:
    line = {
        "$report_type": "CollectReport",
        "nodeid": "t.py",
        "outcome": "skipped",
        "longrepr": ["t.py", 1, "Skipped: x"],
    }
    assert not Court([json.dumps(line), END]).fits


def test_a_file_that_cannot_be_collected_rejects() -> None:
    line = {"$report_type": "CollectReport", "nodeid": "t.py", "outcome": "failed", "longrepr": "SyntaxError"}
    court = Court([json.dumps(line), END])
    assert not court.fits and "REJECTED t.py could not be collected" in court.said


def test_a_run_without_an_end_rejects() -> None:
    assert not Court([entry("t.py::a")]).fits
    internal = json.dumps({"$report_type": "SessionFinish", "exitstatus": 3})
    assert not Court([entry("t.py::a"), internal]).fits


@pytest.mark.contract("An entry of tests/flaky.toml that is older than a week rejects.")
@pytest.mark.parametrize(("day", "fits"), [(21, True), (20, False)])
def test_an_old_entry_of_flaky_tests_rejects(day: int, fits: bool) -> None:
    entry_of = verdict.FlakyTest("t.py::a", date(2026, 11, day), "not known")
    assert Court([entry("t.py::a"), END], flaky=[entry_of]).fits is fits


def test_the_files_of_skips_and_of_flaky_tests_can_be_read() -> None:
    assert all(entry.reason for entry in verdict.accepted_skips())
    assert all(entry.cause for entry in verdict.flaky_tests())
    files = [entry.test.partition("::")[0] for entry in (*verdict.accepted_skips(), *verdict.flaky_tests())]
    assert [name for name in files if "*" not in name and not (ROOT / name).exists()] == []


# ---- one hang ends one test

HANGING = """
import ctypes, os, signal, threading

def test_first(): pass

def test_waits_for_a_lock():
    threading.Thread(target=threading.Event().wait, name="another thread", daemon=True).start()
    lock = threading.Lock(); lock.acquire(); lock.acquire()

def test_heeds_no_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    lock = threading.Lock(); lock.acquire(); lock.acquire()

def test_kills_its_process(): os._exit(3)

def test_last(): pass
"""
SETTINGS = (
    "[pytest]\ntimeout = 1\ntimeout_method = signal\npythonpath = .\naddopts = --import-mode=importlib\n"
)


@pytest.mark.thorough
@pytest.mark.contract(
    "A test that hangs, or kills its process, fails alone; the tests behind it run once each."
)
def test_one_hang_ends_one_test_and_shows_all_stacks(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "distribution.py", "threads.py", "versions.py"):
        text = (ROOT / "tests" / name).read_text()
        assert name != "distribution.py" or "KILL_GRACE_S = 60.0" in text
        (tmp_path / "tests" / name).write_text(text.replace("KILL_GRACE_S = 60.0", "KILL_GRACE_S = 1.0"))
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "tests" / "test_hanging.py").write_text(HANGING)
    (tmp_path / "tests" / "test_other.py").write_text("def test_other(): pass\n")
    words = [
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "--report-log",
        "report.jsonl",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    results = verdict.read_report((tmp_path / "report.jsonl").read_text().splitlines())
    assert results.ended
    names = {name.partition("::")[2] for name in results.failed}
    assert names == {"test_waits_for_a_lock", "test_heeds_no_signal", "test_kills_its_process"}
    assert len(results.tests) == 6
    assert "3 failed, 3 passed" in shown
    assert "another thread" in shown
    assert "in test_heeds_no_signal" in shown
