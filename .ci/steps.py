"""Run what a change must pass; called by `.ci/run`.

The same steps run the same tests in the same order for the same commit. First comes what tests use besides
the environment: programs of Debian, a Kafka, model servers, an S3 server where there is Go. Then come `make
lint`, `make test-spark-part`, which is a part of the tests with the oldest PySpark, `make test`, `make docs`;
all of them run, whichever fails. Seeds derive from the commit. `verdict.py`
judges the tests: what fails runs again alone, a skip that is not accepted rejects. So what cannot be
fetched is not passed over: its tests are skipped. No step has a time of its own; the hard end only ends
what hangs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spec.seeds import commit_seed  # noqa: E402

PYTHON = ".venv/bin/python"
REPORT = "build/gate/report.jsonl"
OLD_PYTHON = "build/spark-3.5-venv/bin/python"
OLD_REPORT = "build/gate/report-spark-3.5.jsonl"
HARD_END_S = 85 * 60
"""The service that runs this ends it after 90 minutes, with nothing said."""
KILL_GRACE_S = 20
NO_TESTS = "0 passed, 1 failed"
"""The last line where the tests were not judged."""


def execute(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> int | None:
    """Run a step in a session of its own; returns its exit status, None if it was stopped after `seconds`."""
    over = threading.Event()
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, env={**os.environ, **environment}, start_new_session=True
    ) as running:

        def stop() -> None:
            over.set()
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(running.pid, number)
                    running.wait(KILL_GRACE_S)
                except ProcessLookupError:
                    return
                except subprocess.TimeoutExpired:
                    continue

        timer = threading.Timer(max(0.0, seconds), stop)
        timer.daemon = True
        timer.start()
        try:
            running.wait()
        finally:
            timer.cancel()
            if running.poll() is None:
                stop()
    return None if over.is_set() else running.returncode


def java_home() -> dict[str, str]:
    """The variable that the Makefile sets for its commands."""
    found = subprocess.run(
        [PYTHON, "-m", "pillarbox", "java-home"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {"JAVA_HOME": found} if found else {}


def preparations(which: Callable[[str], str | None] = shutil.which) -> list[list[str]]:
    """The commands that make what the tests use besides the environment."""
    commands = [
        ["sh", ".ci/programs"],
        ["make", "kafka-server"],
        ["make", "model-servers", "NAMES=llmock litellm"],
    ]
    return commands + ([["make", "s3-server"]] if which("go") else [])


def forget_report() -> None:
    """Delete the reports of a run before."""
    for report in (REPORT, OLD_REPORT):
        (ROOT / report).unlink(missing_ok=True)


def run(
    start: Callable[[Sequence[str], float, Mapping[str, str]], int | None],
    *,
    seed: int,
    say: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
    home: Callable[[], Mapping[str, str]] = java_home,
    which: Callable[[str], str | None] = shutil.which,
    forget: Callable[[], None] = forget_report,
) -> int:
    """Run the steps by `start(command, seconds, environment)`; returns the exit status."""
    began = now()
    seeded = {"PILLARBOX_SEED": str(seed), "PYTHONHASHSEED": str(seed)}
    failed: list[str] = []
    load = os.getloadavg()[0]
    say(f"== seed {seed} of this commit, load {load:.1f}")

    def step(name: str, command: Sequence[str], environment: Mapping[str, str] = seeded) -> int | None:
        say(f"== {name} (after {(now() - began) / 60:.1f} min)")
        code = start(command, began + HARD_END_S - now(), environment)
        if code != 0:
            say(
                f"== {name} " + (f"failed with {code}" if code is not None else "was stopped at the hard end")
            )
        return code

    if step("make env", ["make", "env"]) != 0:
        say(NO_TESTS)
        return 1
    for command in preparations(which):
        step(" ".join(command), command)
    if step("make lint", ["make", "lint"]) != 0:
        failed.append("make lint")
    forget()

    def judge(name: str, python: str, report: str, tested: int | None) -> None:
        # A test that failed gives make's own exit status, 2.
        status = {0: "0", 2: "1"}.get(tested if tested is not None else -1, "-1")
        verdict = step(f"verdict on {name}", [python, ".ci/verdict.py", report, status], {**seeded, **home()})
        if verdict != 0:
            failed.append(f"the tests of {name}")
        if verdict is None:
            say(NO_TESTS)

    name = "make test-spark-part"
    tested = step(name, ["make", "test-spark-part", f"PYTEST=--report-log={OLD_REPORT}"])
    judge(name, OLD_PYTHON, OLD_REPORT, tested)
    tested = step("make test", ["make", "test", f"PYTEST=--report-log={REPORT}"])
    if step("make docs", ["make", "docs"]) != 0:
        failed.append("make docs")
    judge("make test", PYTHON, REPORT, tested)
    end = f"FAILED: {', '.join(failed)}" if failed else "all passed"
    say(f"== {end}, after {(now() - began) / 60:.1f} min, load {load:.1f} at the start")
    return 1 if failed else 0


def main() -> int:
    """Run the steps on this machine."""
    return run(execute, seed=commit_seed("gate"), say=lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())
