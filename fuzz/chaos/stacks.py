"""The stacks of all threads, of Python and of Java, when a run hung. One thread."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from fuzz.chaos import processes

WRITTEN = 1.0
"""Seconds that a process gets to write its stacks."""


def dump_stacks(family: Iterable[psutil.Process], folder: Path) -> str:
    """The stacks of the Python processes; those of Java are in the logs of the folder then."""
    path = folder / "stacks.txt"
    path.touch()
    said = []
    family = list(family)
    for process in processes.pythons(family):
        begin = path.stat().st_size
        with contextlib.suppress(*processes.GONE):
            process.send_signal(signal.SIGUSR1)
            end = time.monotonic() + WRITTEN
            # They come in one go, at the process's next instruction; it has none while it is stopped.
            while path.stat().st_size == begin and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.05)
            text = path.read_text(errors="replace")[begin:]
            said.append(f"--- process {process.pid} {process.status()}\n{text}")
    for process in processes.javas(family):
        with contextlib.suppress(*processes.GONE):
            process.send_signal(signal.SIGQUIT)
    return "\n".join(said)
