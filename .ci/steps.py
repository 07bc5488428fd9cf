"""Runs what a change must pass, within the time that it has; called by `.ci/run`.

First the programs that tests use, then `make test`, `make lint`, `make docs`: these must come to their end.
Then the tests that are marked slow, in random order, as far as they come in 52 minutes from the start;
then, for at most a quarter of an hour, the long suite whose last whole run is oldest. That share is
shortened so that the whole takes 40 minutes on a fast machine and 60 on a slow one, and is left out where
there is too little time. What has not ended by the hard end is stopped and fails. The output ends with
pytest's closing line, whatever failed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("test", "lint", "docs")
SLOW_TESTS_END_S = 52 * 60
"""The slow tests need half an hour on one machine, over an hour on another, which draws a part of them."""
FAST_END_S = 40 * 60
SLOW_END_S = 60 * 60
HARD_END_S = 85 * 60
"""The service that runs this ends it after 90 minutes, with nothing said."""
SHARE_S = 15 * 60
MIN_SHARE_S = 3 * 60
"""In less than this a suite hardly begins."""
RESERVE_S = 90
"""For the end of a share: what it has started has to end."""
KILL_GRACE_S = 20

CLOSING = re.compile(r"^(?:=+ )?(?:\d+ \w+, )*\d+ \w+ in [0-9.]+s\b(?: \([0-9:, a-z]+\))?(?: =+)?$")
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")


@dataclass(frozen=True)
class Ended:
    """The end of a step: its exit status, None if its time was over, and the closing lines of pytest."""

    code: int | None
    closing: tuple[str, ...] = ()


def share_seconds(elapsed: float) -> float:
    """Seconds for a share of a long suite, that many seconds after the start; 0 for none."""
    # Whoever is through after half an hour is fast.
    end = FAST_END_S if elapsed <= FAST_END_S - SHARE_S / 2 - RESERVE_S else SLOW_END_S
    left = min(SHARE_S, end - RESERVE_S - elapsed)
    return left if left >= MIN_SHARE_S else 0


def slow_test_seconds(elapsed: float) -> float:
    """Seconds for the slow tests, that many seconds after the start; 0 for none."""
    left = SLOW_TESTS_END_S - elapsed
    return left if left >= MIN_SHARE_S else 0


def execute(command: Sequence[str], seconds: float) -> Ended:
    """Runs a step in a session of its own, passes its lines on, and kills it when its time is over."""
    over = threading.Event()
    closing = []
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
            for line in running.stdout:
                print(line, end="", flush=True)
                if CLOSING.match(line.strip()):
                    closing.append(line.strip())
            running.wait()
        finally:
            timer.cancel()
            if running.poll() is None:
                stop()
    return Ended(None if over.is_set() else running.returncode, tuple(closing))


def total(closing: Sequence[str]) -> str:
    """One closing line for all runs of pytest."""
    counts = {"failed": 0, "passed": 0}
    for line in closing:
        for count, what in COUNT.findall(line):
            kind = "error" if what.startswith("error") else what
            counts[kind] = counts.get(kind, 0) + int(count)
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def share_command(*words: str) -> list[str]:
    """The command that runs a share of a long suite."""
    return [".venv/bin/python", "-m", "spec.long_runs", "share", *words]


def run(
    start: Callable[[Sequence[str], float], Ended],
    *,
    say: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Runs the steps by `start(command, seconds)`; returns the exit status."""
    began = now()

    def left() -> float:
        return began + HARD_END_S - now()

    def elapsed() -> str:
        return f"{(now() - began) / 60:.1f} min"

    start(["sh", ".ci/programs"], left())
    say("== make kafka-server")
    if start(["make", "kafka-server"], left()).code != 0:
        say("no Kafka could be fetched: its tests are skipped")
    say("== make model-servers")
    if start(["make", "model-servers", "NAMES=llmock litellm"], left()).code != 0:
        say("no LLMock or no LiteLLM could be fetched: its tests are skipped")
    closing: list[str] = []
    code = 0
    for step in STEPS:
        say(f"== make {step} (after {elapsed()})")
        ended = start(["make", step], left())
        if step == "test":
            closing += ended.closing
        if ended.code != 0:
            why = f"failed with {ended.code}" if ended.code is not None else "was stopped at the hard end"
            say(f"== make {step} {why}, after {elapsed()}")
            code = 1
            break
    else:
        seconds = slow_test_seconds(now() - began)
        if seconds:
            say(f"== slow tests (after {elapsed()})")
            ended = start(share_command("--suite", "test-slow", "--seconds", f"{seconds:.0f}"), left())
            closing += ended.closing
            code = 0 if ended.code == 0 else 1
        else:
            say(f"== no slow tests: {elapsed()} are over")
        seconds = share_seconds(now() - began)
        if code == 0 and seconds:
            code = 0 if start(share_command("--seconds", f"{seconds:.0f}"), left()).code == 0 else 1
        elif code == 0:
            say(f"== no share of a long suite: {elapsed()} are over")
    say(f"== {'all passed' if code == 0 else 'FAILED'}, after {elapsed()}; the tests:")
    if not closing:
        say("the tests have not come to their end")
    elif len(closing) == 1:
        say(closing[0])
    else:
        say(f"===== {total(closing)} in {elapsed()} =====")
    return code


def main() -> int:
    """Runs the steps on this machine."""
    return run(execute, say=lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())
