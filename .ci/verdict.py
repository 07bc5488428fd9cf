"""Judge a run of the tests by its report log; called by `.ci/steps.py` after `make test`.

    python .ci/verdict.py REPORT EXIT_STATUS

A test that failed runs twice more, alone: failing again rejects, passing is printed as `FLAKED name seed
load` and does not. A skip rejects unless `tests/skips.toml` names it, and so does an entry of
`tests/flaky.toml` that is older than a week. Prints the number of tests and a digest of their names, by
which two runs are compared, and ends with a line of counts. Exits with 1 if the run is rejected.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SKIPS = ROOT / "tests" / "skips.toml"
FLAKY = ROOT / "tests" / "flaky.toml"
RERUNS = 2
MAX_RERUN_TESTS = 20
"""More failures than this have one cause, outside of the tests: they are not tried again."""
MAX_FLAKY_AGE = timedelta(days=7)
ORDINARY_EXITS = (0, 1)
"""The exit statuses of pytest for runs that came to their end: all passed, some failed."""


@dataclass
class Results:
    """The outcomes of a run: all tests, those that failed with the machine's load, skips with reasons."""

    tests: set[str] = field(default_factory=set)
    failed: dict[str, float | None] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    not_collected: list[str] = field(default_factory=list)
    ended: bool = False

    def digest(self) -> str:
        """Identify the list of tests."""
        return hashlib.sha256("\n".join(sorted(self.tests)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class AcceptedSkip:
    """An entry of `tests/skips.toml`: patterns of names and of pytest's reason, and why the gate accepts it.

    `unless` names a program: on a machine that has it, the skip is an error.
    """

    test: str
    skip: str
    reason: str
    unless: str = ""

    def accepts(self, test: str, skip: str) -> bool:
        """True if the entry names this skip, and this machine lacks what the test needs."""
        named = fnmatch.fnmatchcase(test, bracketed(self.test)) and fnmatch.fnmatchcase(skip, self.skip)
        return named and not (self.unless and shutil.which(self.unless))


@dataclass(frozen=True)
class FlakyTest:
    """An entry of `tests/flaky.toml`: a test that once failed and passed alone, when, and the cause."""

    test: str
    seen: date
    cause: str


def bracketed(pattern: str) -> str:
    """Take the brackets of a parameter as such in a pattern, not as a set of characters."""
    return pattern.replace("[", "[[]")


def skip_reason(longrepr: Any) -> str:
    """Pytest's reason of a skip, without its place."""
    text = longrepr[2] if isinstance(longrepr, list) and len(longrepr) == 3 else str(longrepr)
    return str(text).removeprefix("Skipped: ")


def read_report(lines: Iterable[str]) -> Results:
    """Read a report log of pytest-reportlog."""
    results = Results()
    for line in lines:
        entry = json.loads(line)
        kind, name, outcome = entry["$report_type"], entry.get("nodeid", ""), entry.get("outcome")
        if kind == "SessionFinish":
            results.ended = entry["exitstatus"] in ORDINARY_EXITS
        elif kind == "CollectReport":
            if outcome == "failed":
                results.not_collected.append(name)
            elif outcome == "skipped":
                results.skipped[name] = skip_reason(entry["longrepr"])
        elif kind == "TestReport":
            results.tests.add(name)
            if outcome == "failed":
                results.failed[name] = dict(entry["user_properties"]).get("load")
            elif outcome == "skipped" and "wasxfail" not in entry:
                results.skipped[name] = skip_reason(entry["longrepr"])
    return results


def accepted_skips(path: Path = SKIPS) -> list[AcceptedSkip]:
    """Read the skips that the gate accepts."""
    return [AcceptedSkip(**entry) for entry in tomllib.loads(path.read_text()).get("skip", [])]


def flaky_tests(path: Path = FLAKY) -> list[FlakyTest]:
    """Read the tests that were seen to fail and to pass alone."""
    return [FlakyTest(**entry) for entry in tomllib.loads(path.read_text()).get("flaky", [])]


def commit_date() -> date:
    """The date of the commit, so that the same commit has the same verdict on any day."""
    shown = subprocess.run(
        ["git", "show", "--no-patch", "--format=%cs", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return date.fromisoformat(shown.stdout.strip())


def run_alone(test: str) -> bool:
    """Run one test in a process of its own; True if it passes."""
    command = [sys.executable, "-m", "pytest", "--hypothesis-profile", "quick", test]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode == 0


def judge(
    results: Results,
    *,
    skips: Sequence[AcceptedSkip],
    flaky: Sequence[FlakyTest],
    today: date,
    seed: str,
    passes_alone: Callable[[str], bool],
    say: Callable[[str], None],
) -> bool:
    """Print the verdict of a run; True if it is not rejected."""
    rejected: list[str] = []
    if not results.ended:
        rejected.append("REJECTED pytest did not come to its end")
    rejected += [f"REJECTED {name} could not be collected" for name in results.not_collected]
    refused = {
        name: reason
        for name, reason in results.skipped.items()
        if not any(entry.accepts(name, reason) for entry in skips)
    }
    rejected += [f"REJECTED {name} was skipped: {reason}" for name, reason in sorted(refused.items())]
    rejected += [
        f"REJECTED tests/flaky.toml: {entry.test} is there since {entry.seen}: mend it"
        for entry in flaky
        if today - entry.seen > MAX_FLAKY_AGE
    ]
    flaked: list[str] = []
    failed = sorted(results.failed)
    if len(failed) > MAX_RERUN_TESTS:
        rejected.append(f"REJECTED {len(failed)} tests failed, too many to be tried again")
    else:
        for name in failed:
            if all(passes_alone(name) for _ in range(RERUNS)):
                load = results.failed[name]
                flaked.append(f"FLAKED {name} seed {seed} load {'unknown' if load is None else load}")
            else:
                rejected.append(f"REJECTED {name} failed, and failed again alone")
    accepted: dict[str, int] = {}
    for name, reason in results.skipped.items():
        if name not in refused:
            accepted[reason] = accepted.get(reason, 0) + 1
    say(f"== {len(results.tests)} tests, list {results.digest()}, seed {seed}")
    for reason, count in sorted(accepted.items()):
        say(f"SKIPPED {count}: {reason}")
    for line in (*flaked, *rejected):
        say(line)
    wrong = len(failed) - len(flaked) + len(results.not_collected)
    passed = len(results.tests - results.failed.keys() - results.skipped.keys()) + len(flaked)
    say(f"{passed} passed, {wrong} failed, {len(results.skipped)} skipped")
    return not rejected


def main(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Judge the run that a report log describes; returns the exit status."""
    report, status = Path(words[0]), int(words[1])
    results = read_report(report.read_text().splitlines()) if report.exists() else Results()
    results.ended = results.ended and status in ORDINARY_EXITS
    fits = judge(
        results,
        skips=accepted_skips(),
        flaky=flaky_tests(),
        today=commit_date(),
        seed=environment.get("PILLARBOX_SEED", "unknown"),
        passes_alone=run_alone,
        say=lambda line: print(line, flush=True),
    )
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
