"""The progress of each micro-batch of a streaming query: Spark's own beside that of the operators in it.

`ProgressListener` is made and added on the driver; Spark calls it in a thread of its own.
"""

# Spark knows a micro-batch's rows and times, the operators know its calls; only both together say whether the
# service or Spark was slow. They meet here, and not in the tasks: Spark tells of a micro-batch when it has
# been committed, at which time the totals of its tasks are complete. A metric of Spark's own (an accumulator
# of SQL) would stand in its page for queries, but Python workers cannot make one.

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from pillarbox.aio.observe.totals import Totals, number, seconds
from pillarbox.spark.progress import Progress
from pillarbox.validate import check_bool, check_function_or_none

log = logging.getLogger("pillarbox")


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
    """Tells for each micro-batch what Spark and the operators of `progress` did in it.

        with Progress() as progress:
            spark.streams.addListener(ProgressListener(progress, on_batch=print))
            async_map(stream, fn, schema=..., progress=progress).writeStream.start()

    progress: the `Progress` that the operators were given.
    on_batch: called with a `BatchProgress` after each micro-batch, in Spark's thread for listeners: it should
        not wait. What it raises is logged, and the query goes on.
    log: one line a micro-batch in the log `pillarbox`, at the level INFO.

    Spark tells of a micro-batch when it has been committed, so its tasks have written their last totals.
    Classic Spark only: with Connect a listener runs apart from the `Progress`. Raises TypeError at once for a
    bad argument. The joining of both is what Spark's own streaming page lacks for Python operators.
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

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the first micro-batch will tell. Called by Spark."""

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing. Called by Spark."""

    def onQueryTerminated(self, event: Any) -> None:
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
