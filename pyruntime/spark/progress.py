"""Progress of a job while it runs: rows, calls in flight, rate, retries and errors of all its tasks.

`Progress` is for the driver. Tasks send it their totals, a thread of its own shows them, any thread may read
them. Spark calls a `ProgressListener` in a thread of its own.
"""

# Who looks is a thread of the driver, not the thread that takes the totals: a terminal or a notebook may
# block, and heartbeats of all connections of the process would wait for it. It looks four times a second,
# and less often where adding up hundreds of tasks would take more than a tenth of a processor.
#
# Three displays of the same words. rich draws notebooks too, but by way of a console that is rendered to HTML
# anew for each frame, and with widgets that many hosts of notebooks do not show; one output of plain HTML
# that is replaced works in all of them. Lines are for logs, where a bar would leave a line for each of its
# frames. rich and IPython are imported only where they show something.

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from pillarbox.aio.observe.series import Point, Watch
from pillarbox.aio.totals import TaskTotals, Totals, merged_fields, number, seconds
from pillarbox.rpc.connection import RpcHandle
from pillarbox.rpc.server import RpcServer
from pillarbox.spark.progress_channel import SERVICE, ProgressHandle, ProgressService
from pillarbox.validate import check_bool, check_function_or_none, naming_arguments

log = logging.getLogger("pillarbox")

LINE_INTERVAL_S = 5.0
"""Seconds between two lines where the output is not a terminal."""

RATE_WINDOW_S = 10.0
"""Seconds over which the rate of late is taken."""

MAX_ENDPOINTS = 10
"""Endpoints that a display shows, and limits: a terminal has few lines."""

COLOURS = {"errors": "#c0392b", "retries": "#b7791f"}
"""Colours of what went wrong, in terminals and notebooks, light and dark."""


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


@naming_arguments
class Progress(Watch):
    """Show the progress of jobs while its `with` block runs.

    total: rows expected, for the bar; None if the number is not known.
    label: the bar's label.
    bar: True for a live bar (needs `rich` outside of a notebook), False for lines of text; None for a bar in
        a notebook, and if the output is a terminal and `rich` is installed.
    endpoints: show also the state, requests, faults and mean time of each endpoint, where a service has
        several; the ten with most requests. And what is left of the limits that the service, or each
        endpoint, has named.
    file: where it is shown; by default the notebook, or standard error.
    host: the address at which the driver receives the totals of tasks. The default is this machine alone;
        "0.0.0.0" is for tasks on other machines. A client must prove that it knows the secret, which is sent
        with the job.
    port: 0 for any free port.
    advertise: the name or address by which tasks reach this machine. None for `host`, or, if that is
        every address, for this machine's name.
    certificate: a file in PEM with a private key and its certificate, for TLS; None for no encryption.

        >>> import io
        >>> from pillarbox.spark import Progress, async_map
        >>> async def call(row):
        ...     return row.id
        >>> with Progress(total=3, bar=False, file=io.StringIO()) as progress:
        ...     rows = async_map(spark.range(3), call, schema="n long", progress=progress).collect()
        >>> progress.totals.results
        3

    On the driver. A task that does not reach the driver logs that, and continues. Raises TypeError or
    ValueError for a bad argument, OSError if it cannot listen.
    """

    _totals: ProgressTotals

    def __init__(
        self,
        total: int | None = None,
        *,
        label: str = "calls",
        bar: bool | None = None,
        endpoints: bool = False,
        file: TextIO | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        certificate: str | os.PathLike[str] | None = None,
    ) -> None:
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 0):
            raise ValueError(f"total={total!r}: must be a number of rows or None")
        self._total = total
        self._label = label
        self._bar = bar
        self._endpoints = check_bool("endpoints", endpoints)
        self._file = file
        self._service = ProgressService()
        self._host = RpcServer(
            SERVICE, self._service, host, port, advertise=advertise, certificate=certificate
        )
        self._handle: RpcHandle | None = None
        self._numbers = itertools.count()
        self._display: Display | None = None
        self._in_flight_sum = 0
        self._looks = 0
        super().__init__(self._service)

    def new_operator(self) -> ProgressHandle:
        """The way here for the tasks of one operator. Several may run in the tasks of one stage.

        Raises RuntimeError outside the `with` block.
        """
        if self._handle is None:
            raise RuntimeError("this Progress is not running: use it in `with Progress(...) as progress:`")
        return ProgressHandle(self._handle, next(self._numbers))

    @property
    def totals(self) -> ProgressTotals:
        """The totals of all tasks, as last reported. Any thread."""
        return self._totals

    @property
    def tasks(self) -> list[TaskTotals]:
        """The totals of each running task and of the last thousand that have ended. Any thread."""
        return self._service.tasks()

    def batch(self, query: str, number: int) -> Totals:
        """Return the totals of one recent micro-batch of a streaming query. Any thread.

        query: the query's id, `query.id`. number: the batch's, as in `lastProgress["batchId"]`.
        """
        return self._service.batch(query, number)

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        title: str | None = None,
        mode: int | None = None,
    ) -> Path:
        """Write the progress so far as one HTML page: see `pillarbox.aio.observe.report`. Any thread."""
        from pillarbox.aio.observe.html_report import report

        return report(self, path, title=self._label if title is None else title, mode=mode)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._handle = None
        self._host.close()

    def _begin(self) -> None:
        # Before anything is drawn: a bar that never ends would hide the cursor.
        handle = self._host.start().handle()
        try:
            self._display = open_display(self._label, self._total, self._bar, self._file, self._endpoints)
        except BaseException:
            self._host.close()
            raise
        self._handle = handle

    def _look(self, seconds: float) -> ProgressTotals:
        seen = self._service.look()
        if seen.running:
            self._looks += 1
            self._in_flight_sum += seen.totals.in_flight
        return ProgressTotals(
            **merged_fields([seen.totals]),
            mean_in_flight=self._in_flight_sum / self._looks if self._looks else 0.0,
            seconds=seconds,
            tasks_running=seen.running,
            tasks_ended=seen.ended,
        )

    def _show(self, is_last: bool) -> None:
        display = self._display
        if display is None:
            return
        try:
            (display.close if is_last else display.show)(self._totals, self.series)
        except Exception as error:
            # A closed pipe, a closed file, a notebook that breaks; the totals still count.
            self._display = None
            log.debug("progress: is shown no more: %s", error, exc_info=True)
            with contextlib.suppress(Exception):
                display.close(self._totals, self.series)


# -- displays: opened on the thread that begins the job, used by the one that reads the totals -----


def recent_rate(points: Sequence[Point], window: float = RATE_WINDOW_S) -> float:
    """Rows a second over the last `window` seconds of the points; 0 where there are fewer than two."""
    if len(points) < 2:
        return 0.0
    last = points[-1]
    first = next(each for each in points if each.seconds >= last.seconds - window or each is points[-2])
    passed = last.seconds - first.seconds
    # Rows may go back, when a task runs again.
    return max(last.results - first.results, 0) / passed if passed > 0 else 0.0


class Display:
    """The base of displays: shows totals to a person. One thread at a time.

    endpoints: whether each endpoint and limit is shown.
    """

    def __init__(self, label: str, total: int | None, endpoints: bool = False) -> None:
        self.label = label
        self.total = total
        self._endpoints = endpoints

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the totals, the rate of late, and the time that is left."""
        rate = recent_rate(series)
        remaining = None
        if self.total is not None and totals.in_flight and rate > 0 and totals.results <= self.total:
            remaining = max(round((self.total - totals.results) / rate), 1)
        self.draw(totals, self.words(totals, rate, remaining))

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Show the last totals with the mean rate, which counts at the end, and leave them there."""
        elapsed = series[-1].seconds if series else 0.0
        self.draw(totals, self.words(totals, totals.results / elapsed if elapsed else 0.0, None))

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Show these words beside the rows, the rate first."""
        raise NotImplementedError

    def rows(self, totals: Totals) -> str:
        """The rows that are done, and of how many."""
        return f"{totals.results:,}" if self.total is None else f"{totals.results:,}/{self.total:,}"

    def words(self, totals: Totals, rate: float, remaining: float | None) -> list[str]:
        """The words of a display besides the rows. remaining: seconds until all are done, if known."""
        of = f"/{totals.capacity:,}" if totals.capacity else ""
        bad = [
            self.coloured(f"{value:,} {name}", COLOURS[name]) if value else f"0 {name}"
            for name, value in (("retries", totals.retries), ("errors", totals.errors))
        ]
        cost = [f"cost {number(totals.cost)}"] if totals.cost else []
        left = [] if remaining is None else [f"{seconds(remaining)} left"]
        found = [f"{totals.found:,} found"] if totals.found else []
        # One of the waits, the one of most operators: all would not have room.
        waits = (
            [self.plain(f"waits: {max(totals.waits, key=totals.waits.__getitem__)}")] if totals.waits else []
        )
        return [
            *(f"{rate:,.0f} rows/s", f"{totals.in_flight:,}{of} in flight"),
            *(*bad, *found, *cost, *left, *waits),
        ]

    def endpoints(self, totals: Totals) -> list[str]:
        """The words about each endpoint, of those with most requests, and about each limit.

        None unless they are wanted.
        """
        if not self._endpoints:
            return []
        calls, found = totals.endpoint_calls, []
        for name in sorted({**totals.endpoint_resting, **calls}, key=lambda name: -calls.get(name, 0)):
            count, faults = calls.get(name, 0), totals.endpoint_errors.get(name, 0)
            mean = f", {seconds(totals.endpoint_seconds.get(name, 0.0) / count)}" if count else ""
            bad = self.coloured(f"{faults:,} faults", COLOURS["errors"]) if faults else "0 faults"
            state = "rests" if totals.endpoint_resting.get(name) else "takes calls"
            found.append(f"{self.plain(name)} {state}: {count:,} requests, {bad}{mean}")
        limits = []
        for key, limit in sorted(totals.limits_named.items()):
            left = totals.limits_left.get(key)
            of = "unknown" if left is None else number(round(left))
            limits.append(f"{self.plain(key.strip())}: {of} left of {number(limit)}")
        return [*found[:MAX_ENDPOINTS], *limits[:MAX_ENDPOINTS]]

    def coloured(self, text: str, colour: str) -> str:
        """The text in this colour, where there are colours."""
        return text

    def plain(self, text: str) -> str:
        """The text, whatever signs are in it."""
        return text


class Lines(Display):
    """Progress as lines of text, for logs."""

    def __init__(self, label: str, total: int | None, file: TextIO, endpoints: bool = False) -> None:
        super().__init__(label, total, endpoints)
        self._file = file
        self._next = time.monotonic() + LINE_INTERVAL_S
        self._waits = False

    def show(self, totals: Totals, series: Sequence[Point]) -> None:
        """Print a line if it is time for one, or something is waited for that was not."""
        now = time.monotonic()
        waited, self._waits = self._waits, bool(totals.waits)
        if now >= self._next or (self._waits and not waited):
            self._next = now + LINE_INTERVAL_S
            super().show(totals, series)

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Print a line."""
        more = "".join(f"; {each}" for each in self.endpoints(totals))
        text = f"{self.label}: {self.rows(totals)} rows, {', '.join(words)}{more}"
        print(text, file=self._file, flush=True)


class Bar(Display):
    """Two lines: label, bar, rows, rate, time; calls in flight, retries, errors, cost, time that is left."""

    def __init__(self, label: str, total: int | None, file: TextIO, endpoints: bool = False) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__(label, total, endpoints)
        # What may not be cut stands in two lines, so that 80 columns do; the bar takes what is left.
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=Console(file=file, force_terminal=True),
            expand=True,
        )
        self._task = self._progress.add_task(escape(label), total=total, counts="starting")
        self._progress.start()

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Draw the bar anew."""
        rate, *others = words
        lines = [f"{self.rows(totals)} [green]{rate}[/]", " ".join(others), *self.endpoints(totals)]
        text = "\n".join(lines)
        self._progress.update(self._task, completed=totals.results, counts=text, refresh=True)

    def coloured(self, text: str, colour: str) -> str:
        """See `Display`."""
        return f"[{colour}]{text}[/]"

    def plain(self, text: str) -> str:
        """See `Display`."""
        from rich.markup import escape

        return escape(text)

    def close(self, totals: Totals, series: Sequence[Point]) -> None:
        """Draw the last totals, and give the terminal back."""
        super().close(totals, series)
        self._progress.stop()


class NotebookBar(Display):
    """One output of HTML that is replaced, below the cell that opened it. Needs IPython, no widgets."""

    def __init__(self, label: str, total: int | None, endpoints: bool = False) -> None:
        import IPython.display

        super().__init__(label, total, endpoints)
        # IPython is not typed throughout.
        display: Any = IPython.display.display
        self._shown = self._bundle(Totals(), ["starting"])
        self._handle: Any = display(self._shown, raw=True, display_id=True)

    def draw(self, totals: Totals, words: Sequence[str]) -> None:
        """Replace the output."""
        bundle = self._bundle(totals, words)
        # A notebook keeps every message that it is sent: nothing new, no message.
        if bundle != self._shown:
            self._shown = bundle
            self._handle.update(bundle, raw=True)

    def coloured(self, text: str, colour: str) -> str:
        """See `Display`."""
        return f"<span style='color:{colour}'>{text}</span>"

    def plain(self, text: str) -> str:
        """See `Display`."""
        return escape(text)

    def _bundle(self, totals: Totals, words: Sequence[str]) -> dict[str, str]:
        bar = ""
        if self.total is not None:
            share = min(totals.results / self.total, 1.0) if self.total else 1.0
            style = "style='width:24em;max-width:100%'"
            bar = f"<progress max='100' value='{share * 100:.1f}' {style}></progress> "
        html = (
            "<div style='font-family:sans-serif;font-variant-numeric:tabular-nums'><b>"
            f"{escape(self.label)}</b> {bar}{self.rows(totals)} rows<br>"
            f"<small>{'<br>'.join([' · '.join(words), *self.endpoints(totals)])}</small></div>"
        )
        return {"text/html": html, "text/plain": f"{self.label}: {self.rows(totals)} rows"}


def open_display(
    label: str, total: int | None, bar: bool | None, file: TextIO | None, endpoints: bool = False
) -> Display:
    """The display for these options of `Progress`. Raises ImportError for a bar without `rich`."""
    # Where IPython runs it has been imported; importing it here would cost every script half a second.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if file is None and bar is not False and getattr(shell, "kernel", None) is not None:
        return NotebookBar(label, total, endpoints)
    file = sys.stderr if file is None else file
    if bar or (bar is None and file.isatty()):
        try:
            return Bar(label, total, file, endpoints)
        except ImportError:
            if bar:
                raise ImportError(
                    "bar=True: needs the package rich (pip install 'pillarbox[progress]')"
                ) from None
    return Lines(label, total, file, endpoints)


# -- micro-batches of streaming queries -----------------------------------------------------------

# Spark knows a micro-batch's rows and times, the operators know its calls; only both together say whether the
# service or Spark was slow. They meet here, and not in the tasks: Spark tells of a micro-batch when it has
# been committed, at which time the totals of its tasks are complete. A metric of Spark's own (an accumulator
# of SQL) would stand in its page for queries, but Python workers cannot make one.


class BatchProgress(NamedTuple):
    """One micro-batch."""

    spark: StreamingQueryProgress
    """Rows, durations and observed metrics, as Spark tells them."""
    totals: Totals
    """The counts of the operators in it, over all attempts of its tasks."""

    def __str__(self) -> str:
        said, totals = self.spark, self.totals
        took = int(dict(said.durationMs).get("triggerExecution", 0)) / 1000
        words = [
            f"{number(said.numInputRows)} rows in {seconds(took)}",
            f"{number(totals.calls)} calls",
            f"{number(totals.retries)} retries",
            f"{number(totals.errors)} errors",
        ]
        if totals.latency.measurements:
            words.append(f"p50 {seconds(totals.latency.p50)}, p99 {seconds(totals.latency.p99)}")
        if totals.cost:
            words.append(f"cost {number(totals.cost)}")
        return f"{said.name or said.id}, micro-batch {said.batchId}: {', '.join(words)}"


class ProgressListener(StreamingQueryListener):
    """Listener of a streaming query that reports each micro-batch of Spark with the totals of `progress`.

    progress: the `Progress` that the operators were given.
    on_batch: called with a `BatchProgress` after each micro-batch, in Spark's thread for listeners: it should
        not wait. Its errors are logged, and the query continues.
    log: write one line per micro-batch into the log `pillarbox`, at the level INFO.

        >>> from pillarbox.spark import Progress
        >>> from pillarbox.spark.progress import ProgressListener
        >>> batches = []
        >>> with Progress(bar=False) as progress:
        ...     listener = ProgressListener(progress, on_batch=batches.append)
        ...     spark.streams.addListener(listener)  # then start a query with progress=progress
        ...     spark.streams.removeListener(listener)

    Spark reports a micro-batch when it has been committed, after its tasks have written their last totals.
    Classic Spark only: with Connect a listener runs in another process than the `Progress`. On the driver.
    Raises TypeError at once for a bad argument.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        on_batch: Callable[[BatchProgress], object] | None = None,
        log: bool = True,
    ) -> None:
        if not isinstance(progress, Progress):
            raise TypeError(f"progress={progress!r}: must be a pillarbox.spark.Progress")
        check_function_or_none("on_batch", on_batch)
        check_bool("log", log)
        self._progress = progress
        self._on_batch = on_batch
        self._log = log

    def onQueryStarted(self, event: object) -> None:
        """Do nothing: the first micro-batch will tell. Called by Spark."""

    def onQueryIdle(self, event: object) -> None:
        """Do nothing. Called by Spark."""

    def onQueryTerminated(self, event: object) -> None:
        """Do nothing: the query itself has its error. Called by Spark."""

    def onQueryProgress(self, event: Any) -> None:
        """Tell of a micro-batch. Called by Spark."""
        try:
            said = event.progress
            batch = BatchProgress(said, self._progress.batch(str(said.id), int(said.batchId)))
            if self._log:
                log.info("%s", batch)
            if self._on_batch is not None:
                self._on_batch(batch)
        except Exception:
            # What is raised here would be printed by the bridge to Java, and by nobody else.
            log.exception("a micro-batch could not be told of")
