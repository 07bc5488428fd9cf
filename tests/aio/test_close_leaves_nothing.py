"""However a job ends, in a process of its own: no thread, task, file, socket, event loop or timer is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aio.leaving import ENDINGS, MODES

HERE = Path(__file__).resolve()

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks for open files in /proc")


def leaving(loop: str, mode: str, *endings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", HERE.parent / "leaving.py", loop, mode, *endings],
        cwd=HERE.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said_by(process: subprocess.Popen[str], before: list[str]) -> dict[str, dict[str, list[str]]]:
    """The remains after each ending; the process must have ended well and without a complaint."""
    out, err = process.communicate()
    found = {}
    for line in [*before, *out.splitlines()]:
        if line.startswith("{"):
            found.update(json.loads(line))
    assert process.returncode == 0, (found, err)
    assert "Traceback" not in err
    assert "never" not in err
    return found


in_each_mode = pytest.mark.parametrize(
    ("loop", "mode"),
    [
        *(("asyncio", mode) for mode in MODES),
        # What a loop is left with depends on how its calls run, and not on how they are put together.
        *(("uvloop", mode) for mode in ("coroutines", "threads")),
        *(pytest.param("uvloop", mode, marks=pytest.mark.slow) for mode in ("batches", "batches in threads")),
    ],
)


@pytest.mark.contract("However a job ends, no thread, task, file, socket, event loop or timer is left.")
@in_each_mode
def test_no_ending_leaves_anything_in_the_process(loop: str, mode: str) -> None:
    pytest.importorskip(loop)
    process = leaving(loop, mode, *ENDINGS)
    # The last ending is Ctrl-C, for real.
    assert [*ENDINGS][-1] == "ctrl-c"
    assert process.stdout is not None
    before = []
    while (line := process.stdout.readline()) not in ("waiting\n", ""):
        before.append(line)
    process.send_signal(signal.SIGINT)
    found = said_by(process, before)
    nothing: dict[str, list[str]] = {"threads": [], "files": [], "tasks": [], "loops": [], "timers": []}
    assert found == dict.fromkeys(ENDINGS, nothing)


@in_each_mode
def test_a_loop_that_outlives_its_jobs_keeps_no_task_and_no_timer_of_them(loop: str, mode: str) -> None:
    pytest.importorskip(loop)
    found = said_by(leaving(loop, mode, "a loop that stays"), [])
    assert found == {"a loop that stays": {"tasks": [], "timers": [], "threads": []}}
