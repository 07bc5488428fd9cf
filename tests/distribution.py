"""Distribution of test files that outlives the death of a process, and the watch over tests that hang.

pytest-timeout interrupts a test that runs out of time and prints the stacks of all threads; the test fails,
and its file goes on. A test that no signal interrupts (it waits in C, or catches everything) is ended with
its process. The scheduler of pytest-xdist then runs the test again and again and may end with an internal
error, so this one marks the test as run, and gives the rest of the file to the process that follows.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

KILL_GRACE_S = 60.0
"""Time that a test has to end after pytest-timeout has interrupted it."""


class FileScheduling(LoadFileScheduling):
    """Whole files to each process, in the order of collection; a test that kills its process runs once."""

    def remove_node(self, node: WorkerController) -> str | None:
        files = self.assigned_work.pop(node)
        left = [(scope, [name for name, done in tests.items() if not done]) for scope, tests in files.items()]
        left = [(scope, names) for scope, names in left if names]
        if not left:
            return None
        crashed = left[0][1].pop(0)
        # The file that was begun goes on before others.
        for scope, names in reversed(left):
            if names:
                self.workqueue[scope] = dict.fromkeys(names, False)
                self.workqueue.move_to_end(scope, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        # A process that replaces another has not collected its tests yet; it is given some when it has.
        if node in self.registered_collections:
            super()._reschedule(node)


def scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    """Make the scheduler of `--dist loadfile`."""
    return FileScheduling(config, log)


def time_limit_s(item: pytest.Item) -> float:
    """The seconds that pytest-timeout gives a test; 0.0 for no limit."""
    marker = item.get_closest_marker("timeout")
    words: list[Any] = [item.config.getoption("timeout", None), item.config.getini("timeout")]
    if marker is not None:
        words.insert(0, marker.args[0] if marker.args else marker.kwargs.get("timeout"))
    return next((float(word) for word in words if word), 0.0)


@contextmanager
def ended_if_deaf(item: pytest.Item, stderr: int) -> Iterator[None]:
    """End this process, with all stacks on `stderr`, if the test outlives its interruption."""
    limit = time_limit_s(item)
    if not limit:
        yield
        return
    faulthandler.dump_traceback_later(limit + KILL_GRACE_S, exit=True, file=stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def copy_of_stderr() -> int:
    """A descriptor of the standard error that pytest does not capture."""
    try:
        return os.dup(sys.__stderr__.fileno())  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return os.dup(2)
