"""CPU time of this process, of those that it started (JVM, Python workers), and of the rest of the machine.

What a process has used stays counted after its end: whoever reaped it has it among its children's time.
For the thread that measures.
"""

from __future__ import annotations

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
