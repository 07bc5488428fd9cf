"""Looks at threads from outside: whether they sleep, as the system says of them. No clock decides.

A thread that was woken is not asleep any more when the call that woke it returns, however long it then waits
for a processor: it may run, or it has run in between and counts one more switch.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until

TASKS = Path("/proc/self/task")

needs_looks = pytest.mark.skipif(not TASKS.exists(), reason="this system does not say what a thread does")

LOOKS_ASLEEP = 50
"""Looks in a row that must find a thread asleep: it is seen so just before it gives up the processor."""
LOOKS_AWAKE = 10_000
"""Looks at a thread that has run since the last one, after which it counts as one that never sleeps."""


def look(thread: threading.Thread) -> tuple[str, str]:
    """The state of a thread, "S" if it sleeps, and how often it has given up the processor to wait.

    The state of one that has come to its end is "". Gives up the GIL, so a thread that waits for that has run
    before the next look.
    """
    try:
        status = (TASKS / str(thread.native_id) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "", ""
    words = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return words["State"].split()[0], words["voluntary_ctxt_switches"].strip()


def asleep(*threads: threading.Thread) -> bool:
    """True if none of the threads runs: not before the first of these looks, and not until the last one."""
    seen = [look(thread) for thread in threads]
    if any(state != "S" for state, _ in seen):
        return False
    return all([look(thread) for thread in threads] == seen for _ in range(LOOKS_ASLEEP))


def wait_until_asleep(thread: threading.Thread) -> None:
    """Wait until a thread sleeps."""
    wait_until(lambda: asleep(thread))


def falls_asleep(thread: threading.Thread) -> bool:
    """Wait until a thread sleeps; False if it goes on running."""
    assert thread.ident is not None
    clock, ran, last = time.pthread_getcpuclockid(thread.ident), 0, -1
    while not asleep(thread):
        now = time.clock_gettime_ns(clock)
        ran, last = ran + (now != last), now
        if ran > LOOKS_AWAKE:
            return False
    return True


def stuck(*threads: threading.Thread) -> bool:
    """True if some of the threads live on and all of these sleep, so that none of them wakes another."""
    left = [thread for thread in threads if thread.is_alive()]
    return bool(left) and asleep(*left)
