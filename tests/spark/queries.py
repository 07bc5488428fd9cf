"""The start of streaming queries whose sources are Python, for tests and for the scripts that they run.

Spark has a process of Python for each such source, and for each stateful Python operator as it plans. It
gives each 10 s to connect, which no setting changes, and on a machine that is busy the query fails. So tests
start such queries one at a time on the machine, and start one again that failed for this before its first
micro-batch.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

NOT_CONNECTED = re.compile(r"(?:^|terminated with exception: )Python worker failed to connect back\.")
"""The first words of Spark on a query that ended because a process of Python did not connect in time."""

BOOT_LOCK = Path(tempfile.gettempdir()) / f"pillarbox-boot-{os.getuid()}"
"""Locked by who starts a query. One for the machine: it is the machine that is too busy."""


def start(writer: Any, path: str | None = None, *, lock: Path = BOOT_LOCK) -> Any:
    """Start the query of a `DataStreamWriter`, and return it when its first micro-batch has begun.

    Of a query that has nothing to do, when it waits for data. One that ends sooner is returned as well, with
    its error: only one that fails as Spark gave a Python process no more time is started again.
    """
    with alone(lock):
        while True:
            query = writer.start() if path is None else writer.start(path)
            wait_until(lambda query=query: has_begun(query) or not query.isActive)  # type: ignore[misc]
            if query.isActive or query.lastProgress is not None:
                return query
            if NOT_CONNECTED.search(str(query.exception() or "")) is None:
                return query


def has_begun(query: Any) -> bool:
    """Return True if all is there that Spark starts for a run of the query: it has a job, or it waits."""
    if query.lastProgress is not None or query.status["message"] == "Waiting for data to arrive":
        return True
    java = getattr(query, "_jsq", None)
    if java is None:
        # With Connect nobody tells of jobs.
        return False
    tracker = java.sparkSession().sparkContext().statusTracker()
    return len(tracker.getJobIdsForGroup(str(query.runId))) > 0


@contextmanager
def alone(path: Path = BOOT_LOCK) -> Iterator[None]:
    """Hold the lock, which the system takes from a process that dies."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
