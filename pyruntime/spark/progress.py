"""Progress of a job while it runs: rows, calls in flight, rate, retries and errors of all its tasks.

`Progress` is for the driver. Tasks send it their totals, a thread of its own shows them, any thread may read
them.
"""

# Who looks is a thread of the driver, not the thread that takes the totals: a terminal or a notebook may
# block, and heartbeats of all connections of the process would wait for it. It looks four times a second,
# and less often where adding up hundreds of tasks would take more than a tenth of a processor.

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from pillarbox.aio.observe.series import Watch
from pillarbox.aio.observe.totals import TaskTotals, Totals, merged_fields
from pillarbox.rpc.connection import RpcHandle
from pillarbox.rpc.server import RpcServer
from pillarbox.spark.progress_channel import SERVICE, ProgressHandle, ProgressService
from pillarbox.spark.progress_display import Display, open_display

log = logging.getLogger("pillarbox")


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


class Progress(Watch):
    """Shows the progress of the jobs that it is given to, while its `with` block runs.

        with Progress(total=1000) as progress:
            async_map(df, fn, schema=..., progress=progress).write.parquet(path)
        print(progress.totals.calls)
        progress.report("report.html")

    total: rows expected, for the bar; None where that is not known.
    label: what the bar is called.
    bar: True for a live bar (needs `rich` outside of a notebook), False for lines of text; None for a bar in
        a notebook, and where the output is a terminal and `rich` is installed.
    file: where it is shown; default is the notebook, or standard error.
    host: where tasks bring their totals. The default is this machine alone; "0.0.0.0" is for tasks on others.
        Whoever connects must prove that he knows the secret, which travels with the job.
    port: 0 for any that is free.
    advertise: the name or address by which tasks reach this machine. None for `host`, or, where that is
        every address, for this machine's name.
    certificate: a file in PEM with a private key and its certificate, for TLS; None: nothing is encrypted.

    A task that does not reach the driver says so in its log, and goes on.
    """

    _totals: ProgressTotals

    def __init__(
        self,
        total: int | None = None,
        *,
        label: str = "calls",
        bar: bool | None = None,
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
        """The totals of all tasks, as last seen. Any thread."""
        return self._totals

    @property
    def tasks(self) -> list[TaskTotals]:
        """The totals of each task that runs and of the last thousand that have ended. Any thread."""
        return self._service.tasks()

    def batch(self, query: str, number: int) -> Totals:
        """The totals of one micro-batch of a streaming query, of those not long gone. Any thread.

        query: the query's id, as `query.id` gives it. number: the batch's, as in `lastProgress["batchId"]`.
        """
        return self._service.batch(query, number)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._handle = None
        self._host.close()

    def _begin(self) -> None:
        self._display = open_display(self._label, self._total, self._bar, self._file)
        self._handle = self._host.start().handle()

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
