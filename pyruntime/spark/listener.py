"""The progress of each micro-batch of a streaming query: Spark's own beside that of the operators in it.

`ProgressListener` is made and added on the driver; Spark calls it in a thread of its own. `with_observation`
is for the driver.
"""

# Spark knows a micro-batch's rows and times, the operators know its calls; only both together say whether the
# service or Spark was slow. They meet here, and not in the tasks: Spark tells of a micro-batch when it has
# been committed, at which time the totals of its tasks are complete. A metric of Spark's own (an accumulator
# of SQL) would stand in its page for queries, but Python workers cannot make one.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from pillarbox.aio.observe.formatting import number, seconds
from pillarbox.aio.observe.totals import Totals
from pillarbox.spark.progress import Progress
from pillarbox.validate import check_bool, check_function_or_none

log = logging.getLogger("pillarbox")

OBSERVATION_NAME = "pillarbox"
"""The name of the metrics that `with_observation` adds."""


class BatchProgress(NamedTuple):
    """One micro-batch."""

    query: str
    """The query's id, the same after a restart."""
    name: str | None
    """The query's name, if it has one."""
    batch: int
    """The number of the micro-batch."""
    input_rows: int
    """Rows that its sources gave."""
    seconds: float
    """Seconds that it took."""
    durations: Mapping[str, float]
    """Seconds by what Spark did in it: "addBatch", "queryPlanning", "walCommit" and more."""
    totals: Totals
    """The counts of the operators in it, over all attempts of its tasks."""
    observed: Mapping[str, Mapping[str, Any]]
    """Metrics by name that the query observes, those of `with_observation` among them."""


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
            batch = self._batch(event.progress)
            if self._log:
                log.info("%s", _line(batch))
            if self._on_batch is not None:
                self._on_batch(batch)
        except Exception:
            # What is raised here would be printed by the bridge to Java, and by nobody else.
            log.exception("a micro-batch could not be told of")

    def _batch(self, said: Any) -> BatchProgress:
        query, batch = str(said.id), int(said.batchId)
        durations = {str(name): int(millis) / 1000 for name, millis in dict(said.durationMs).items()}
        return BatchProgress(
            query=query,
            name=said.name,
            batch=batch,
            input_rows=int(said.numInputRows),
            seconds=durations.get("triggerExecution", 0.0),
            durations=durations,
            totals=self._progress.batch(query, batch),
            observed={name: row.asDict() for name, row in dict(said.observedMetrics or {}).items()},
        )


def with_observation(
    df: DataFrame, *, errors: str | None = "_error", name: str | Observation = OBSERVATION_NAME
) -> DataFrame:
    """The same rows, counted by Spark while they pass: `rows`, and `errors` where that column is not null.

    The counts stand in `query.lastProgress["observedMetrics"]` of a streaming query. For a batch query give
    an `Observation` as the name, which then has them. Unlike the operators' own they are exact however often
    tasks run again, since they count what Spark keeps.

    errors: the column that says what failed, as `errors="column"` makes it; None where there is none.
    name: what the metrics are called; another for each use in one query.

    Raises ValueError where `df` has no such column, TypeError for a bad argument. For the driver.
    """
    if not isinstance(name, str | Observation) or not name:
        raise TypeError(f"name={name!r}: must be a text that is not empty, or a pyspark.sql.Observation")
    if errors is not None and errors not in df.columns:
        raise ValueError(f"errors={errors!r}: must be a column of df ({', '.join(df.columns)}) or None")
    counts = [F.count(F.lit(1)).alias("rows")]
    if errors is not None:
        counts.append(F.count(F.col(f"`{errors.replace('`', '``')}`")).alias("errors"))
    return df.observe(name, *counts)


def _line(batch: BatchProgress) -> str:
    totals = batch.totals
    said = [
        f"{number(batch.input_rows)} rows in {seconds(batch.seconds)}",
        f"{number(totals.calls)} calls",
        f"{number(totals.retries)} retries",
        f"{number(totals.errors)} errors",
    ]
    if totals.latency.measurements:
        said.append(f"p50 {seconds(totals.latency.p50)}, p99 {seconds(totals.latency.p99)}")
    if totals.cost:
        said.append(f"cost {number(totals.cost)}")
    return f"{batch.name or batch.query}, micro-batch {batch.batch}: {', '.join(said)}"
