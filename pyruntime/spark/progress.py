"""What the driver shows while a job runs: rows, calls in flight, rate, retries and errors of all tasks.

`Progress` is for the driver. A thread of its own reads the tasks' totals; what it found is for any thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from pillarbox.aio.observe.series import Point, Series
from pillarbox.aio.observe.totals import TaskTotals, Totals, merged_fields
from pillarbox.ledger.private_files import FILE_MODE, check_mode, make_folders, share_folder
from pillarbox.spark.progress_display import Display, open_display
from pillarbox.spark.progress_reader import ProgressReader

log = logging.getLogger("pillarbox")

INTERVAL = 0.25
"""Seconds between two looks at the tasks' totals."""

SHARE, LONGEST = 0.1, 2.0
"""The share of a thread that looks may take, where there are many tasks; seconds between two at most."""


@dataclass(frozen=True)
class ProgressTotals(Totals):
    """The totals of all tasks of a job at one moment.

    Rows (`rows_in`, `results`, `not_called`, `found`) are those of the latest attempt of each task.
    Everything else is of all task attempts, since the service saw them all.
    """

    mean_in_flight: float = 0.0
    """Calls in flight, averaged over the looks at which a task ran."""
    seconds: float = 0.0
    """Seconds since the progress began."""
    tasks_running: int = 0
    """Tasks that run now, one for each operator in them."""
    tasks_ended: int = 0
    """Tasks that have ended, one for each operator in them."""


class Progress:
    """Shows the progress of the jobs that it is given to, while its `with` block runs.

        with Progress(total=1000) as progress:
            async_map(df, fn, schema=..., progress=progress).write.parquet(path)
        print(progress.totals.calls)
        progress.report("report.html")

    total: rows expected, for the bar; None where that is not known.
    label: what the bar is called.
    directory: a folder that the driver and all workers see; needed on a cluster, where it must be on a
        shared file system. Default is a temporary one, which is right for local mode.
    bar: True for a live bar (needs `rich` outside of a notebook), False for lines of text; None for a bar in
        a notebook, and where the output is a terminal and `rich` is installed.
    file: where it is shown; default is the notebook, or standard error.
    mode: of the tasks' files, such as 0o660 where the workers run as other users of the folder's group; None
        for 0600.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        label: str = "calls",
        directory: str | os.PathLike[str] | None = None,
        bar: bool | None = None,
        file: TextIO | None = None,
        mode: int | None = None,
    ) -> None:
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 0):
            raise ValueError(f"total={total!r}: must be a number of rows or None")
        self._total = total
        self._label = label
        self._directory = None if directory is None else Path(directory)
        self._bar = bar
        self._mode = check_mode(mode) or FILE_MODE
        self._file = file
        self._folder: Path | None = None
        self._reader: ProgressReader | None = None
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Held by a look: the thread makes them, and so does who asks for a micro-batch.
        self._lock = threading.Lock()
        self._began = 0.0
        self._in_flight_sum = 0
        self._looks = 0
        self._totals = ProgressTotals()
        self._series = Series()

    def new_operator(self) -> str:
        """A folder where the tasks of one operator write their totals.

        Each operator has its own, as several may run in the tasks of one stage. Raises RuntimeError
        outside the `with` block.
        """
        if self._folder is None:
            raise RuntimeError("this Progress is not running: use it in `with Progress(...) as progress:`")
        return str(self._new_folder(f"{next(self._numbers)}-", self._folder))

    def _new_folder(self, prefix: str, parent: Path | None) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Tasks give their files what the folder has.
        share_folder(str(folder), self._mode)
        return folder

    @property
    def totals(self) -> ProgressTotals:
        """The totals of all tasks, as last seen. Any thread."""
        return self._totals

    @property
    def series(self) -> list[Point]:
        """The totals over time, as the driver saw them: some hundred points, however long. Any thread."""
        return self._series.points()

    @property
    def tasks(self) -> list[TaskTotals]:
        """The totals of each task that runs and of the last thousand that have ended. Any thread."""
        with self._lock:
            return [] if self._reader is None else self._reader.tasks()

    @property
    def partitions(self) -> dict[int, Totals]:
        """The totals of each partition, over all stages; -1 for all from 1,000 on. Any thread."""
        with self._lock:
            return {} if self._reader is None else self._reader.partitions()

    def batch(self, query: str, number: int) -> Totals:
        """The totals of one micro-batch of a streaming query, of those not long gone. Any thread.

        query: the query's id, as `query.id` gives it. number: the batch's, as in `lastProgress["batchId"]`.
        """
        with self._lock:
            if self._reader is None:
                return Totals()
            if self._folder is not None:
                self._reader.look()
            return self._reader.batch(query, number)

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        title: str | None = None,
        mode: int | None = None,
    ) -> Path:
        """Write what has been seen as one HTML page: see `pillarbox.aio.observe.report`. Any thread."""
        from pillarbox.aio.observe.html_report import report

        return report(self, path, title=self._label if title is None else title, mode=mode)

    def __enter__(self) -> Progress:
        if self._thread is not None:
            raise RuntimeError("this Progress has been used already: make another one")
        display = open_display(self._label, self._total, self._bar, self._file)
        if self._directory is not None:
            make_folders(str(self._directory.absolute()), self._mode)
        self._folder = self._new_folder("pillarbox-progress-", self._directory)
        self._reader = ProgressReader(self._folder, time.monotonic)
        self._began = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(display,), name="pillarbox-progress", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        with self._lock:
            folder, self._folder = self._folder, None
            assert folder is not None
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, display: Display) -> None:
        showing = True
        took = 0.0
        self._series.add(0.0, self._totals)
        while True:
            last = self._stop.wait(min(max(INTERVAL, took / SHARE), LONGEST))
            began = time.monotonic()
            self._look()
            took = time.monotonic() - began
            if showing:
                try:
                    (display.close if last else display.show)(self._totals, self._series.points())
                except Exception as error:
                    # A closed pipe, a closed file, a notebook that breaks; the totals still count.
                    showing = False
                    log.debug("progress: is shown no more: %s", error, exc_info=True)
                    if not last:
                        with contextlib.suppress(Exception):
                            display.close(self._totals, self._series.points())
            if last:
                return

    def _look(self) -> None:
        with self._lock:
            assert self._reader is not None
            seen = self._reader.look()
        if seen.running:
            self._looks += 1
            self._in_flight_sum += seen.totals.in_flight
        self._totals = ProgressTotals(
            **merged_fields([seen.totals]),
            mean_in_flight=self._in_flight_sum / self._looks if self._looks else 0.0,
            seconds=time.monotonic() - self._began,
            tasks_running=seen.running,
            tasks_ended=seen.ended,
        )
        self._series.add(self._totals.seconds, self._totals)
