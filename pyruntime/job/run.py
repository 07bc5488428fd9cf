"""`run`: start a job, and `Run`, a user's handle of it. For any thread."""

# Why `run` returns a handle and does not wait. A job without an end is looked at, stopped and given
# savepoints while it runs; a function that waits would need a second one for all of that. `with run(...)` and
# `run(...).wait()` wait.

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from pillarbox.aio.options import Options, RowOptionNames
from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.aio.stages import Step, resolve_stages
from pillarbox.job.job import Job, Plan
from pillarbox.job.sink import Sink
from pillarbox.job.source_rows import RecordSource, source_of
from pillarbox.job.statistics import RunStatistics, progress_line
from pillarbox.sources import Source, WatermarkStrategy
from pillarbox.task.checkpoint import CheckpointDeclined
from pillarbox.validate import check_bool, check_duration, check_positive_int, suggesting_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHECKPOINT_INTERVAL_S = 10.0
LOOK_INTERVAL_S = 0.5
"""Seconds between two looks of `wait`, and two lines of the bar."""


@suggesting_options(Options, RowOptionNames)
def run(
    source: Source[Any, Any] | Iterable[Any],
    fn: Callable[..., Any] | Sequence[Callable[..., Any] | Step],
    sink: Sink,
    *,
    checkpoints: str | os.PathLike[str],
    interval: float = CHECKPOINT_INTERVAL_S,
    restore: str | os.PathLike[str] | None = None,
    keep: str | Sequence[str] = (),
    columns: Sequence[str] | None = None,
    readers: int = 1,
    watermarks: WatermarkStrategy | None = None,
    urgent: bool = False,
    allowed: Collection[Any] = (),
    progress: bool | None = None,
    options: Options | None = None,
    # From `Options`:
    **more: Unpack[RowOptionNames],
) -> Run:
    """Start a job in this process: rows of a source through functions into a sink, each row there once.

    source: a `Source` of `pillarbox.sources`, as Spark reads it; or an iterable, which must give the same
        items again after a restart; or an object with `rows_from(position)`, which gives pairs of an item and
        the position behind it.
    fn: a function, or a list of functions and `Step`s, as for `async_map`. A function gets a record of each
        row of a source that has columns (`record.value`, `record["value"]`), and the items of an iterable as
        they are. A list that the last function returns is as many rows.
    sink: a `ParquetSink`, `JsonLinesSink` or `KafkaSink`, or a `Sink` of your own.
    checkpoints: the folder of this job's checkpoints. A job that finds some there goes on from the newest.
    interval: seconds from one checkpoint to the next. Calls whose results have left since the last one are
        made again after a kill, and rows are visible in the sink after the next one.
    restore: a savepoint to begin with; `checkpoints` must have none then.
    keep: columns of the source's rows to put in front of the results' own; "*" for all.
    columns: the columns of the source that are read; None for all.
    readers: the readers of the source, each with a thread of its own or more.
    watermarks: the event time of the rows. No row passes a watermark, in any function.
    urgent: take the checkpoints in front of all other mail of the task, instead of behind it.
    allowed: classes of rows and results, beside Python's own, that a checkpoint may hold.
    progress: show a line on stderr in `wait`; None: if that is a terminal.

        >>> from pillarbox import run
        >>> from pillarbox.job import JsonLinesSink
        >>> async def double(number):
        ...     return {"number": number, "double": number * 2}
        >>> run([1, 2, 3], double, JsonLinesSink("out"), checkpoints="checkpoints", capacity=2).wait()
        True
        >>> [line for file in JsonLinesSink("out").files() for line in file.read_text().splitlines()]
        ['{"number": 1, "double": 2}', '{"number": 2, "double": 4}', '{"number": 3, "double": 6}']

    The job runs in threads of its own, as daemons: wait for it, by `wait` or a `with` block. A job that was
    killed, stopped or has failed goes on where its newest checkpoint stands when it is started again in the
    same way, perhaps with another capacity, order or number of readers. Any thread may call this function.
    Raises TypeError or ValueError for a bad argument.

    options, more: those of `async_map`, as an `Options` or by their names, for each function of a list; those
        by name come first, and a `Step` above them. `errors="null"` emits the columns of `keep` alone for a
        row that failed for good, "column" its error as `_error`, and "drop" nothing.
    """
    stages = resolve_stages(fn, options, more)
    for stage in stages:
        _check_stage(stage.options)
    if not isinstance(sink, Sink):
        raise TypeError(f"sink={sink!r}: must be a pillarbox.job.Sink, not {type(sink).__name__}")
    check_duration("interval", interval, above_zero=True)
    check_positive_int("readers", readers)
    check_bool("urgent", urgent)
    if watermarks is not None and not isinstance(watermarks, WatermarkStrategy):
        raise TypeError(f"watermarks={watermarks!r}: must be a WatermarkStrategy or None")
    plan = Plan(
        RecordSource(source_of(source), columns, watermarks),
        stages,
        sink,
        Path(checkpoints),
        interval,
        None if restore is None else Path(restore),
        (keep,) if isinstance(keep, str) else tuple(keep),
        readers,
        watermarks,
        urgent,
        SnapshotCodec(allowed),
    )
    job = Job(plan)
    job.start()
    return Run(job, progress)


def _check_stage(options: Options) -> None:
    if options.where is not None or options.latency != "normal":
        raise ValueError(
            "where, latency: are for a DataFrame; leave rows out in the source, or by a function"
        )
    if options.batch is not None and options.batch.arrow:
        raise ValueError(
            "batch: arrow=True is for a Spark DataFrame; leave arrow out, and the function gets lists"
        )
    if options.ledger is not None:
        if options.ledger.run_name is None:
            raise ValueError("run=None: with a ledger a run needs a name: Ledger(folder, run='orders')")
        options.ledger.check()


class Run:
    """A job that `run` has started.

        >>> from pillarbox import run
        >>> from pillarbox.job import JsonLinesSink
        >>> async def double(number):
        ...     return {"double": number * 2}
        >>> with run(range(4), double, JsonLinesSink("out"), checkpoints="checkpoints") as job:
        ...     ended = job.wait(60.0)
        >>> job.statistics().state, job.statistics().rows_committed
        ('finished', 4)

    At the end of a `with` block the job is waited for; an error in the block cancels it. Any thread.
    """

    def __init__(self, job: Job, progress: bool | None) -> None:
        self._job = job
        self._progress = progress

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended; returns False if it has not after `timeout` seconds.

        Ctrl-C stops the job at a checkpoint, and a second one without; then KeyboardInterrupt is raised.
        Raises the error with which the job has failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            ended = self._watch(deadline)
        except KeyboardInterrupt:
            self._interrupted()
            raise
        if ended and self._job.failure is not None:
            raise self._job.failure
        return ended

    def stop(self, savepoint: str | os.PathLike[str] | None = None) -> None:
        """Stop at a checkpoint, and wait for the end.

        Calls in flight are cancelled, and made after a restart.
        savepoint: a file to write that checkpoint to as well, which no later checkpoint removes: `restore`
            begins another job with it. No effect once the job has ended. Raises OSError where the checkpoint
            cannot be written; the job then goes on.
        """
        self._job.stop(_new_file(savepoint))
        self._job.ended.wait()

    def cancel(self) -> None:
        """End without a checkpoint, and wait for the end. Idempotent.

        A restart goes on from the newest checkpoint.
        """
        self._job.cancel()
        self._job.ended.wait()

    def savepoint(self, path: str | os.PathLike[str]) -> int:
        """Take an urgent checkpoint now, and write it to the file `path` as well. Returns its number.

        Waits until the rows before it are committed. Raises CheckpointDeclined where the job has ended or
        does not take it, ValueError for a file that exists, OSError where it cannot be written.
        """
        return self._job.request_checkpoint(_new_file(path), True).id

    def checkpoint(self, *, urgent: bool = False) -> int:
        """Take a checkpoint now. Returns its number when the rows before it are committed.

        urgent: in front of all other mail of the task. Raises as `savepoint`.
        """
        return self._job.request_checkpoint(None, urgent).id

    def statistics(self) -> RunStatistics:
        """Counts so far. Any thread; also after the end."""
        return self._job.statistics()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        else:
            self.cancel()

    def __repr__(self) -> str:
        return f"<Run, {self.statistics().state}>"

    def _interrupted(self) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:
            self.cancel()
        except (CheckpointDeclined, OSError):
            self.cancel()

    def _watch(self, deadline: float | None) -> bool:
        shows = sys.stderr.isatty() if self._progress is None else self._progress
        bar = _Bar(sys.stderr) if shows else None
        try:
            ended = False
            while True:
                if bar is not None:
                    bar.show(self.statistics())
                if ended or (deadline is not None and time.monotonic() >= deadline):
                    return ended
                left = LOOK_INTERVAL_S
                if deadline is not None:
                    left = min(left, max(0.0, deadline - time.monotonic()))
                ended = self._job.ended.wait(left)
        finally:
            if bar is not None:
                bar.close()


class _Bar:
    """A line on a terminal, written over again and again. Confined to the thread that waits."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._width = 0
        self._before = time.monotonic(), 0
        self._checkpoint: tuple[int | None, float] = (None, 0.0)

    def show(self, now: RunStatistics) -> None:
        moment = time.monotonic()
        then, rows = self._before
        rate = (now.rows_written - rows) / (moment - then) if moment > then else 0.0
        self._before = moment, now.rows_written
        if now.last_checkpoint != self._checkpoint[0]:
            self._checkpoint = now.last_checkpoint, moment
        line = progress_line(now, rate, moment - self._checkpoint[1])
        self._file.write(f"\r{line:{self._width}}")
        self._file.flush()
        self._width = len(line)

    def close(self) -> None:
        self._file.write("\n")
        self._file.flush()


def _new_file(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    file = Path(path)
    if file.exists():
        raise ValueError(f"savepoint={str(file)!r}: exists already; give the name of a new file")
    if not file.parent.is_dir():
        raise ValueError(f"savepoint={str(file)!r}: there is no folder {str(file.parent)!r}")
    return file
