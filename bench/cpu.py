"""CPU time of this process, of those that it started (JVM, Python workers), and of the rest of the machine.

What a process has used stays counted after its end: whoever reaped it has it among its children's time.
For the thread that measures.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import psutil

NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")
"""Kinds of the machine's time in which it does nothing, or that are counted as another kind already."""


@dataclass(frozen=True)
class CpuTime:
    """Seconds of CPU time, user and system, since the processes began."""

    own: float
    """This process, with all its threads."""
    jvm: float
    """The Java processes that it started."""
    workers: float
    """All else below it: Spark's Python workers."""
    others: float
    """The rest of the machine."""

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(
            self.own - earlier.own,
            self.jvm - earlier.jvm,
            self.workers - earlier.workers,
            self.others - earlier.others,
        )


def cpu_time() -> CpuTime:
    """The CPU time used so far. Processes that end while this reads are counted by the next reading."""
    own, jvm, workers = time.process_time(), 0.0, 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
            is_java = process.name() == "java"
        except psutil.NoSuchProcess:
            continue
        reaped = times.children_user + times.children_system
        if is_java:
            jvm += times.user + times.system
            workers += reaped
        else:
            workers += times.user + times.system + reaped
    machine = psutil.cpu_times()._asdict()
    busy = sum(seconds for kind, seconds in machine.items() if kind not in NOT_BUSY)
    return CpuTime(own, jvm, workers, busy - own - jvm - workers)


@dataclass(frozen=True)
class TreeTime:
    """Seconds of CPU time of a process and all below it, by kind of process."""

    python: float
    java: float
    other: float

    def __sub__(self, earlier: TreeTime) -> TreeTime:
        return TreeTime(self.python - earlier.python, self.java - earlier.java, self.other - earlier.other)

    @property
    def total(self) -> float:
        """All kinds."""
        return self.python + self.java + self.other


def tree_time(root: psutil.Process) -> TreeTime:
    """The CPU time used so far by `root` and the processes below it, those that have ended included."""
    kinds = {"python": 0.0, "java": 0.0, "other": 0.0}
    for process in [root, *root.children(recursive=True)]:
        try:
            times, name = process.cpu_times(), process.name()
        except psutil.NoSuchProcess:
            continue
        own = _seconds(process.pid, times.user + times.system)
        kind = "java" if name == "java" else "python" if name.startswith(("python", "ray::")) else "other"
        kinds[kind] += own
        # Those that have ended were workers: Python's, whoever their parent is.
        kinds["python"] += times.children_user + times.children_system
    return TreeTime(**kinds)


def _seconds(pid: int, otherwise: float) -> float:
    """CPU time of a process with the threads that have ended, finer than in ticks where that can be had."""
    if sys.platform != "linux":
        return otherwise
    try:
        # The clock of another process, as clock_getcpuclockid(3) gives it.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return otherwise
