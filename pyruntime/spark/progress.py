"""What the driver shows while a job runs: rows, calls in flight, rate, retries and errors of all tasks.

`Progress` is for the driver's thread that runs the job; a thread of its own reads the tasks' counts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

INTERVAL = 0.25
"""Seconds between two looks at the tasks' counts."""

STALE = 5.0
"""Seconds after which a task that has written no counts is taken for dead."""

LINE_INTERVAL = 5.0
"""Seconds between two lines where the output is no terminal."""


class ProgressTotals(NamedTuple):
    """The counts of all tasks of a job at one moment."""

    rows_in: int = 0
    """Rows read by the operator, in the latest attempt of each task."""
    results: int = 0
    """Rows whose results were emitted, in the latest attempt of each task."""
    in_flight: int = 0
    """Calls in flight."""
    calls: int = 0
    """Attempts at calls, of all task attempts: what the service saw."""
    retries: int = 0
    """Attempts at calls that failed and were followed by another."""
    errors: int = 0
    """Rows that failed for good."""
    timeouts: int = 0
    """Attempts and rows that met a limit of time."""
    mean_in_flight: float = 0.0
    """Calls in flight, averaged over the looks at which a task ran."""
    seconds: float = 0.0
    """Seconds since the progress began."""


class Progress:
    """Shows the progress of the jobs that it is given to, while its `with` block runs.

        with Progress(total=1000) as progress:
            async_map(df, fn, schema=..., progress=progress).write.parquet(path)
        print(progress.totals.calls)

    total: rows expected, for the bar; None where that is not known.
    label: what the bar is called.
    directory: a folder that the driver and all workers see; needed on a cluster, where it must be on a
        shared file system. Default is a temporary one, which is right for local mode.
    bar: True for a live bar (needs `rich`), False for lines of text; None for a bar where the
        output is a terminal and `rich` is installed.
    file: where it is shown; default is standard error.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        label: str = "calls",
        directory: str | os.PathLike[str] | None = None,
        bar: bool | None = None,
        file: TextIO | None = None,
    ) -> None:
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 0):
            raise ValueError(f"total={total!r}: must be a number of rows or None")
        self._total = total
        self._label = label
        self._directory = None if directory is None else Path(directory)
        self._bar = bar
        self._file = sys.stderr if file is None else file
        self._folder: Path | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._ended: float | None = None
        self._in_flight_sum = 0
        self._looks = 0
        self._totals = ProgressTotals()

    def new_operator(self) -> str:
        """A folder where the tasks of one operator write their counts.

        Each operator has its own, as several may run in the tasks of one stage. Raises RuntimeError
        outside the `with` block.
        """
        if self._folder is None:
            raise RuntimeError("this Progress is not running: use it in `with Progress(...) as progress:`")
        return tempfile.mkdtemp(dir=self._folder)

    @property
    def totals(self) -> ProgressTotals:
        """The counts of all tasks, as last seen. Any thread."""
        return self._totals

    def __enter__(self) -> Progress:
        if self._thread is not None:
            raise RuntimeError("this Progress has been used already: make another one")
        display = self._display()
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="pillarbox-progress-", dir=self._directory))
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
        assert self._thread is not None and self._folder is not None
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _display(self) -> Any:
        wanted = self._file.isatty() if self._bar is None else self._bar
        if wanted:
            try:
                from pillarbox.spark.progress_bar import Bar
            except ImportError:
                if self._bar:
                    raise ImportError(
                        "bar=True: needs the package rich (pip install 'pillarbox[progress]')"
                    ) from None
            else:
                return Bar(self._label, self._total, self._file)
        return _Lines(self._label, self._total, self._file)

    def _run(self, display: Any) -> None:
        showing = True
        while True:
            last = self._stop.wait(INTERVAL)
            self._look()
            if showing:
                try:
                    display.show(self._totals)
                    if last:
                        display.close(self._totals)
                except (OSError, ValueError):
                    # Nobody looks any more (a closed pipe, a closed file); the totals still count.
                    showing = False
            if last:
                return

    def _look(self) -> None:
        latest: dict[tuple[str, int, int], dict[str, Any]] = {}
        sums = dict.fromkeys(("calls", "retries", "errors", "timeouts"), 0)
        for counts in self._counts():
            key = counts["operator"], counts["stage"], counts["partition"]
            if key not in latest or counts["written"] >= latest[key]["written"]:
                latest[key] = counts
            for name in sums:
                sums[name] += counts[name]
        # The file of a task that was killed says for ever that it runs.
        oldest = time.time() - STALE
        running = [counts for counts in latest.values() if counts["running"] and counts["written"] > oldest]
        in_flight = sum(counts["in_flight"] for counts in running)
        if running:
            self._looks += 1
            self._in_flight_sum += in_flight
        self._totals = ProgressTotals(
            rows_in=sum(counts["rows_in"] for counts in latest.values()),
            results=sum(counts["results"] for counts in latest.values()),
            in_flight=in_flight,
            mean_in_flight=self._in_flight_sum / self._looks if self._looks else 0.0,
            seconds=time.monotonic() - self._began,
            **sums,
        )

    def _counts(self) -> list[dict[str, Any]]:
        assert self._folder is not None
        found = []
        for path in self._folder.glob("*/*.json"):
            try:
                counts = json.loads(path.read_text(encoding="utf-8"))
                found.append({**counts, "operator": path.parent.name, "written": path.stat().st_mtime})
            except (OSError, ValueError):
                continue
        return found


class _Lines:
    """Progress as lines of text, for logs."""

    def __init__(self, label: str, total: int | None, file: TextIO) -> None:
        self._label = label
        self._of = "" if total is None else f"/{total:,}"
        self._file = file
        self._next = time.monotonic() + LINE_INTERVAL

    def show(self, totals: ProgressTotals) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_INTERVAL
            self._line(totals)

    def close(self, totals: ProgressTotals) -> None:
        self._line(totals)

    def _line(self, totals: ProgressTotals) -> None:
        rate = totals.results / totals.seconds if totals.seconds else 0.0
        print(
            f"{self._label}: {totals.results:,}{self._of} rows, {totals.in_flight} in flight, "
            f"{rate:,.0f} rows/s, {totals.retries:,} retries, {totals.errors:,} errors",
            file=self._file,
            flush=True,
        )
