"""A coordinator in a process of its own, to be killed. One thread; a program.

`python -m tests.limits.unit.coordinating STATE` writes its pickled handle in hexadecimal on a line, and
runs until its input ends.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from pillarbox import Coordinator
from pillarbox.aio.limits.coordinator import CoordinatorHandle, Upkeep
from pillarbox.rpc.connection import Timing

ROOT = Path(__file__).resolve().parents[3]


class Hasty(Coordinator):
    """Waits for nobody for long; nor do its tasks before they look for it again."""

    _own_timing = Timing(max_pause_s=0.1)
    _upkeep = Upkeep(return_timeout_s=0.2, write_retry_interval_s=0.05)


def start(state: Path) -> tuple[subprocess.Popen[str], CoordinatorHandle]:
    """The program, once it listens, and the way to it."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.limits.unit.coordinating", str(state)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    handle = pickle.loads(bytes.fromhex(program.stdout.readline().strip()))
    assert isinstance(handle, CoordinatorHandle)
    return program, handle


def kill(program: subprocess.Popen[str]) -> None:
    """End it as the machine's kernel does: nothing of it runs any more."""
    program.kill()
    program.communicate()


if __name__ == "__main__":
    with Hasty(state=sys.argv[1]) as coordinator:
        print(pickle.dumps(coordinator).hex(), flush=True)
        sys.stdin.read()
