"""Run the long suites, whole, and write docs/long-runs.md: their last runs.

    python -m spec.long_runs                          writes the page
    python -m spec.long_runs whole SUITE [--seed N]   runs a suite and records how it ended

Called by `make long SUITE=...`. The record is `spec/long_runs.json`; it is committed with the page by those
who ran the suite. What a suite draws, it draws by a seed, which is the date unless one is given: the suite
gets it in the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from .run import print_now
from .seeds import VARIABLE, date_seed

ROOT = Path(__file__).resolve().parents[1]
RECORD = "spec/long_runs.json"
PAGE = "docs/long-runs.md"
WRITTEN = (RECORD, PAGE, "spec/README.md", "spec/noticed.json")
"""Files that long suites write: no change of what is run."""
RESULT = re.compile(
    r"\d+ (passed|failed|error)|\d+ runs in \d+ s|^seed \d+: (no|some)thing is wrong|\d+ defects, \d+ surviv"
)
"""Lines with which suites say how they ended."""

HEAD = """\
# Long suites

Written by `python -m spec.long_runs`. `make long SUITE=spec` runs one, whole, and records it here. `.ci/run`
runs none of them; CONTRIBUTING.md says when each is owed.

| suite | what it does | last whole run | commit | seed | minutes | ended |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Suite:
    """A long suite: a target of the Makefile, and its subject."""

    name: str
    about: str


@dataclass(frozen=True)
class LastRun:
    """A whole run: commit, end in UTC, seconds, `passed` or `failed`, the suite's own last words, its seed.

    seed: None for runs that were recorded before suites had one.
    """

    commit: str
    ended: str
    seconds: int
    result: str
    said: str
    seed: int | None = None


@dataclass(frozen=True)
class Ended:
    """The end of a command: its exit status, and the lines with which the suite says how it ended."""

    code: int
    said: tuple[str, ...] = ()


SUITES = (
    Suite("test-slow", "the tests that `make test` leaves out"),
    Suite("spec", "every run of the manifests, and the graphs"),
    Suite("sanitize", "the tests without Spark under the sanitizers of the compiler"),
    Suite("mutation", "each planted defect against the checks that noticed it"),
    Suite("test-spark-3.5", "the tests with PySpark 3.5 and the oldest pyarrow and pandas"),
    Suite("test-spark-4.0", "the tests with PySpark 4.0 and the oldest pyarrow and pandas"),
    Suite("test-spark-4.1", "the tests with PySpark 4.1 and the oldest pyarrow and pandas"),
    Suite("test-cluster", "the tests on a cluster whose workers have no Pillarbox, with PySpark 4.3 and 3.5"),
    Suite("test-freethreaded", "the tests below Spark on a CPython without a GIL"),
    Suite("chaos", "jobs on real Sparks under kills, full disks and bad services"),
)


def last_runs(root: Path = ROOT) -> dict[str, LastRun]:
    """The record: by suite, its last whole run."""
    path = root / RECORD
    content = json.loads(path.read_text()) if path.exists() else {}
    return {name: LastRun(**run) for name, run in content.items()}


def page(suites: Sequence[Suite], runs: Mapping[str, LastRun]) -> str:
    """The page, from the record."""
    lines = []
    for suite in suites:
        run = runs.get(suite.name)
        cells = ["not recorded", "", "", "", ""]
        if run is not None:
            said = f": {run.said}" if run.said else ""
            seed = "" if run.seed is None else str(run.seed)
            cells = [run.ended, f"`{run.commit}`", seed, f"{run.seconds / 60:.0f}", f"{run.result}{said}"]
        lines.append(f"| `make {suite.name}` | {suite.about} | {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def remember(name: str, run: LastRun, root: Path = ROOT) -> None:
    """Writes a whole run into the record, and the page anew."""
    runs = last_runs(root) | {name: run}
    content = {name: asdict(runs[name]) for name in sorted(runs)}
    (root / RECORD).write_text(json.dumps(content, indent=1) + "\n")
    (root / PAGE).write_text(page(SUITES, runs))


def commit(root: Path = ROOT) -> str | None:
    """The commit that a run would be of: None if files differ from it, or there is no checkout."""

    def ask(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else "?"

    but = [f":(exclude){path}" for path in WRITTEN]
    unchanged = not ask("status", "--porcelain", "--untracked-files=no", "--", ".", *but)
    return ask("rev-parse", "--short=10", "HEAD") if unchanged else None


def watch(
    command: Sequence[str], environment: Mapping[str, str], *, say: Callable[[str], None] = print_now
) -> Ended:
    """Run a command with more of an environment, pass its lines on, and keep those that say how it ended."""
    said: list[str] = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            said += [line.strip(" =\n")] if RESULT.search(line) else []
            say(line.rstrip("\n"))
    return Ended(running.returncode, tuple(said))


def utc() -> str:
    """The present minute, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")


def whole(
    suite: Suite, run: Callable[[Sequence[str], Mapping[str, str]], Ended], of: str, seed: int
) -> LastRun:
    """Run a suite by its target of the Makefile, with a seed."""
    began = time.monotonic()
    ended = run(["make", suite.name], {VARIABLE: str(seed)})
    seconds = round(time.monotonic() - began)
    result = "passed" if ended.code == 0 else "failed"
    return LastRun(of, utc(), seconds, result, "; ".join(ended.said[-2:]).replace("|", "/"), seed)


def main(words: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m spec.long_runs", description=__doc__)
    actions = parser.add_subparsers(dest="action")
    one = actions.add_parser("whole", help="run a suite whole and record it")
    one.add_argument("suite", choices=names)
    one.add_argument("--seed", type=int, default=date_seed(), help="of what the suite draws; the date")
    options = parser.parse_args(words)
    if options.action is None:
        (ROOT / PAGE).write_text(page(SUITES, last_runs()))
        return 0
    of = commit()
    if of is None:
        parser.error("files differ from the commit: a whole run is recorded with its commit")
    suite = SUITES[names.index(options.suite)]
    print_now(f"== {suite.name} of {of}, seed {options.seed}")
    run = whole(suite, watch, of, options.seed)
    remember(suite.name, run)
    return 0 if run.result == "passed" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
