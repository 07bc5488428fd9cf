"""The live totals of one task attempt, as a small file that the driver reads.

Files need no listening socket and reach the driver wherever both see the folder: in local mode, or
on a shared file system. Written by a thread of its own, as such a file system may be slow, and by
replacing, so a reader never sees half.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from typing import Any, Protocol

from pyspark import TaskContext

from pillarbox.aio.observe.totals import Totals, to_json
from pillarbox.ledger.private_files import FILE_MODE, locked_out, replacing

log = logging.getLogger("pillarbox")

INTERVAL = 0.25
"""Seconds between two writes."""

CLOSE = 5.0
"""Seconds that the last write may take."""


class Counted(Protocol):
    """Has counts, such as a job, or one function of its chain."""

    def statistics(self) -> Totals | None:
        """The counts so far; None before it has begun. Any thread."""


class ProgressFile:
    """Writes the totals of `job` to a file in `folder` until it is closed. For the task's thread."""

    def __init__(self, folder: str, job: Counted) -> None:
        self._job = job
        self._head = _head()
        stage, partition, attempt = (self._head[name] for name in ("stage", "partition", "attempt"))
        self._path = os.path.join(folder, f"{stage}-{partition}-{attempt}-{uuid.uuid4().hex}.json")
        self._warned = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pillarbox-progress-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the last totals."""
        self._stop.set()
        self._thread.join(CLOSE)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._write(running=True)
        self._write(running=False)

    def _write(self, running: bool) -> None:
        statistics = self._job.statistics()
        if statistics is None:
            return
        written = {**self._head, "running": running, "totals": to_json(statistics)}
        try:
            # Those of the folder: the driver has said who may read them.
            mode = os.stat(os.path.dirname(self._path)).st_mode & 0o666 | FILE_MODE
            with replacing(self._path, mode) as file:
                file.write(json.dumps(written).encode())
        except PermissionError:
            if not self._warned:
                self._warned = True
                log.warning("progress: %s", locked_out(os.path.dirname(self._path), "Progress(mode=0o660)"))
        except OSError:
            # The folder goes when the driver has seen enough; counts are never worth a task.
            return


def _head() -> dict[str, Any]:
    """Which task attempt this is; in a stream, of which query and micro-batch."""
    context = TaskContext.get()
    if context is None:
        return {"stage": 0, "partition": 0, "attempt": 0, "query": None, "batch": None}
    batch = context.getLocalProperty("streaming.sql.batchId")
    return {
        "stage": context.stageId(),
        "partition": context.partitionId(),
        "attempt": context.attemptNumber(),
        "query": context.getLocalProperty("sql.streaming.queryId"),
        "batch": int(batch) if batch is not None and batch.isdigit() else None,
    }
