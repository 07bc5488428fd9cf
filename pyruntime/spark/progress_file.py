"""The live counts of one task attempt, as a small file that the driver reads.

Files need no listening socket and reach the driver wherever both see the folder: in local mode, or
on a shared file system. Written on the event loop's thread, by replacing, so a reader never sees half.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import uuid

from pyspark import TaskContext

from pillarbox.aio.job import Job

INTERVAL = 0.25
"""Seconds between two writes."""


class ProgressFile:
    """Writes the counts of `job` to a file in `folder` until it is closed. For the task's thread."""

    def __init__(self, folder: str, job: Job) -> None:
        context = TaskContext.get()
        stage, partition, attempt = (
            (0, 0, 0)
            if context is None
            else (context.stageId(), context.partitionId(), context.attemptNumber())
        )
        self._job = job
        self._path = os.path.join(folder, f"{stage}-{partition}-{attempt}-{uuid.uuid4().hex}.json")
        self._head = {"stage": stage, "partition": partition, "attempt": attempt}
        self._loop = job.loop
        self._timer: asyncio.TimerHandle | None = None
        self._written = threading.Event()
        self._loop.call_soon_threadsafe(self._tick)

    def close(self) -> None:
        """Write the last counts."""
        self._loop.call_soon_threadsafe(self._last)
        self._written.wait(2 * INTERVAL)

    def _tick(self) -> None:
        self._write(running=True)
        self._timer = self._loop.call_later(INTERVAL, self._tick)

    def _last(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._write(running=False)
        self._written.set()

    def _write(self, running: bool) -> None:
        statistics = self._job.statistics()
        if statistics is None:
            return
        part = f"{self._path}.part"
        try:
            with open(part, "w", encoding="utf-8") as file:
                json.dump({**self._head, "running": running, **statistics._asdict()}, file)
            os.replace(part, self._path)
        except OSError:
            # The folder goes when the driver has seen enough; counts are never worth a task.
            return
