"""Runs the long suites, whole or for a share of time, and writes docs/long-runs.md: the last whole runs.

    python -m spec.long_runs                               writes the page
    python -m spec.long_runs whole SUITE                   runs a suite whole and records how it ended
    python -m spec.long_runs share --seconds N [--seed N]  runs a part of the one that has waited longest

Called by `make long SUITE=...` and by `.ci/run`. The record is `spec/long_runs.json`; whoever runs a suite
whole commits it with the page. A share goes through its suite in an order that the seed decides, so that
shares of several days try different parts. It fails for a wrong result, and says the seed; it does not fail
for want of time, or because what the suite needs cannot be made here. A share that gets through its suite is
a whole run. `.ci/run` gives test-slow a share of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from . import sanitize
from .run import print_now

ROOT = Path(__file__).resolve().parents[1]
RECORD = "spec/long_runs.json"
PAGE = "docs/long-runs.md"
STOP_GRACE_S = 30.0
"""Time that an interrupted suite has to clean up, and again after SIGTERM."""
RESULT = re.compile(
    r"\d+ (passed|failed|error)|\d+ runs in \d+ s|^seed \d+: (no|some)thing is wrong|\d+ defects, \d+ surviv"
)
"""Lines with which suites say how they ended."""

HEAD = """\
# Long suites

Written by `python -m spec.long_runs`. `make long SUITE=spec` runs one whole and records it here; `.ci/run`
gives at most a quarter of an hour to the one whose last whole run is oldest.

| suite | what it does | last whole run | commit | minutes | ended |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Suite:
    """A long suite: a target of the Makefile, and how a share of it is run.

    `commands` are given a source of random order. `prepare` makes what it needs, `wrong` finds a line of its
    output that tells of a wrong result before the end.
    """

    name: str
    about: str
    commands: Callable[[random.Random], Sequence[Sequence[str]]]
    prepare: Sequence[str] = ()
    wrong: str = r"^FAILED |^ERROR "


@dataclass(frozen=True)
class LastRun:
    """A whole run: commit, end in UTC, seconds, `passed` or `failed`, and the suite's own last words."""

    commit: str
    ended: str
    seconds: int
    result: str
    said: str


@dataclass(frozen=True)
class Ended:
    """The end of a command; `code` is None if its time was over, `wrong` are lines that told of a mistake."""

    code: int | None
    wrong: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def files(random_order: random.Random, *folders: str) -> list[str]:
    """The files of tests below these folders, in random order."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("test_*.py")]
    found += [ROOT / folder for folder in folders if folder.endswith(".py")]
    names = sorted({path.relative_to(ROOT).as_posix() for path in found})
    random_order.shuffle(names)
    return names


def by_seed(*command: str) -> Callable[[random.Random], list[list[str]]]:
    """A module of this project that takes a seed."""
    return lambda order: [[sys.executable, "-m", *command, "--seed", str(order.randrange(10**6))]]


def sanitized(order: random.Random) -> list[list[str]]:
    """Both sanitizers, either of them first."""
    kinds = [
        [sys.executable, "-m", "spec.sanitize", kind, "-x", *files(order, *sanitize.TESTS)]
        for kind in sanitize.LIBRARIES
    ]
    order.shuffle(kinds)
    return kinds


def slow(order: random.Random) -> list[list[str]]:
    """The files with slow tests. The first failure ends them: what follows a stop counts for nothing."""
    chosen = [name for name in files(order, "tests") if "mark.slow" in (ROOT / name).read_text()]
    return [["make", "test-slow", f"PYTEST=-x {' '.join(chosen)}"]]


def with_oldest(order: random.Random) -> list[list[str]]:
    """The tests that `make test-oldest` does not leave out."""
    left_out = ("tests/house/", "tests/spec/", "tests/native/")
    chosen = [name for name in files(order, "tests") if not name.startswith(left_out)]
    return [["make", "test-oldest", f"PYTEST=-x {' '.join(chosen)}"]]


def without_gil(order: random.Random) -> list[list[str]]:
    """All of it: it is short beside the others."""
    return [["make", "test-freethreaded", "PYTEST=-x"]]


SUITES = (
    Suite("test-slow", "the tests that `make test` leaves out", slow),
    Suite("spec", "every run of the manifests, and the graphs", by_seed("spec.run"), wrong=r"^DIFFERS "),
    Suite("sanitize", "the tests without Spark under the sanitizers of the compiler", sanitized),
    Suite(
        "mutation",
        "each planted defect against each layer of checks",
        by_seed("spec.mutation"),
        wrong=r"SURVIVES|^with no defect planted",
    ),
    Suite(
        "test-oldest",
        "the tests with the oldest PySpark, pyarrow and pandas",
        with_oldest,
        prepare=("make", ".venv-oldest/.made"),
    ),
    Suite(
        "test-freethreaded",
        "the tests below Spark on a CPython without a GIL",
        without_gil,
        prepare=("make", "build/freethreaded-venv/.made"),
    ),
    Suite(
        "chaos",
        "jobs on real Sparks under kills, full disks and bad services",
        by_seed("fuzz.chaos", "--faults", "200"),
        wrong=r"^\s*WRONG: ",
    ),
)


def last_runs(root: Path = ROOT) -> dict[str, LastRun]:
    """The record: by suite, its last whole run."""
    path = root / RECORD
    content = json.loads(path.read_text()) if path.exists() else {}
    return {name: LastRun(**run) for name, run in content.items()}


def oldest(suites: Sequence[Suite], runs: Mapping[str, LastRun]) -> Suite:
    """The suite whose last whole run is oldest: those without one first, in their order."""
    return min(suites, key=lambda suite: runs[suite.name].ended if suite.name in runs else "")


def page(suites: Sequence[Suite], runs: Mapping[str, LastRun]) -> str:
    """The page, from the record."""
    lines = []
    for suite in suites:
        run = runs.get(suite.name)
        cells = ["not recorded", "", "", ""]
        if run is not None:
            said = f": {run.said}" if run.said else ""
            cells = [run.ended, f"`{run.commit}`", f"{run.seconds / 60:.0f}", f"{run.result}{said}"]
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

    # What a run before this one has written down is not a change of what is run.
    but = [f":(exclude){path}" for path in (RECORD, PAGE, "spec/README.md")]
    unchanged = not ask("status", "--porcelain", "--untracked-files=no", "--", ".", *but)
    return ask("rev-parse", "--short=10", "HEAD") if unchanged else None


def stop(running: subprocess.Popen[str]) -> None:
    """Interrupts a command and what it has started; more firmly if it does not heed that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(running.pid, number)
        with suppress(subprocess.TimeoutExpired):
            running.wait(STOP_GRACE_S)
            break


def start_timer(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """Calls it after so many seconds, in a thread; returns what cancels that."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer.cancel


def watch(
    command: Sequence[str],
    seconds: float | None,
    wrong: str = "(?!)",
    *,
    say: Callable[[str], None] = print_now,
    after: Callable[[float, Callable[[], None]], Callable[[], None]] = start_timer,
) -> Ended:
    """Runs a command in a session of its own, passes its lines on, and stops it when its time is over.

    `seconds` is None for no limit. Lines that come after the stop tell of the stop, and count for nothing.
    """
    found: list[str] = []
    said: list[str] = []
    over = threading.Event()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as running:
        assert running.stdout is not None

        def end() -> None:
            over.set()
            stop(running)

        cancel = after(seconds, end) if seconds is not None else None
        try:
            for line in running.stdout:
                if not over.is_set():
                    found += [line.strip()] if re.search(wrong, line) else []
                    said += [line.strip(" =\n")] if RESULT.search(line) else []
                say(line.rstrip("\n"))
            running.wait()
        finally:
            if cancel is not None:
                cancel()
            if running.poll() is None:
                stop(running)
    return Ended(None if over.is_set() else running.returncode, tuple(found), tuple(said))


def utc() -> str:
    """The present minute, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")


def whole(suite: Suite, run: Callable[[Sequence[str]], Ended], of: str) -> LastRun:
    """Runs a suite by its target of the Makefile."""
    began = time.monotonic()
    ended = run(["make", suite.name])
    seconds = round(time.monotonic() - began)
    result = "passed" if ended.code == 0 else "failed"
    return LastRun(of, utc(), seconds, result, "; ".join(ended.said[-2:]).replace("|", "/"))


def share(
    suite: Suite,
    seconds: float,
    seed: int,
    *,
    run: Callable[[Sequence[str], float, str], Ended],
    say: Callable[[str], None] = print_now,
    now: Callable[[], float] = time.monotonic,
) -> tuple[int, bool]:
    """Runs a suite until its time is over. Returns the exit status, and whether the suite came to its end."""
    began = now()
    say(f"== share of {suite.name}: seed {seed}, at most {seconds / 60:.1f} min")
    if suite.prepare:
        made = run(suite.prepare, seconds, "(?!)")
        if made.code != 0:
            why = "in time" if made.code is None else "here"
            say(f"== share of {suite.name}: what it needs could not be made {why}; nothing was run")
            return 0, False
    for command in suite.commands(random.Random(seed)):
        ended = run(command, max(0.0, began + seconds - now()), suite.wrong)
        if ended.wrong or ended.code not in (0, None):
            again = (
                f"python -m spec.long_runs share --suite {suite.name} --seconds {seconds:.0f} --seed {seed}"
            )
            say(f"== share of {suite.name}: WRONG, seed {seed}; again: {again}")
            for line in ended.wrong:
                say(f"   {line}")
            return 1, False
        if ended.code is None:
            minutes = (now() - began) / 60
            say(f"== share of {suite.name}: time is over after {minutes:.1f} min, nothing wrong so far")
            return 0, False
    say(f"== share of {suite.name}: all of it passed in {(now() - began) / 60:.1f} min")
    return 0, True


def main(words: Sequence[str]) -> int:
    """The command; returns its exit status."""
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m spec.long_runs", description=__doc__)
    actions = parser.add_subparsers(dest="action")
    one = actions.add_parser("whole", help="run a suite whole and record it")
    one.add_argument("suite", choices=names)
    part = actions.add_parser("share", help="run the suite whose last whole run is oldest")
    part.add_argument("--seconds", type=float, required=True)
    part.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    part.add_argument("--suite", choices=names, help="this one instead")
    options = parser.parse_args(words)
    runs = last_runs()
    of = commit()
    if options.action is None:
        (ROOT / PAGE).write_text(page(SUITES, runs))
        return 0
    if options.action == "whole":
        if of is None:
            parser.error("files differ from the commit: a whole run is recorded with its commit")
        suite = SUITES[names.index(options.suite)]
        run = whole(suite, lambda command: watch(command, None), of)
        remember(suite.name, run)
        return 0 if run.result == "passed" else 1
    suite = SUITES[names.index(options.suite)] if options.suite else oldest(SUITES[1:], runs)
    began = time.monotonic()
    code, complete = share(suite, options.seconds, options.seed, run=watch)
    if complete and of is not None:
        said = f"all of it in a share, seed {options.seed}"
        remember(suite.name, LastRun(of, utc(), round(time.monotonic() - began), "passed", said))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
