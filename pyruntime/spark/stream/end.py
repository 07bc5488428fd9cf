"""Ends a query with `availableNow` when its input is used up and nothing is pending. For the driver.

With timers in processing time Spark runs micro-batches without input for ever, so that such a query never
ends by itself. What it says of each micro-batch is enough to know when to stop it: no source has moved, so
that there is no input left, and the state has no row, so that every call has been emitted.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pillarbox.aio.check import check_seconds
from pillarbox.spark.stream.pack import KEY

log = logging.getLogger("pillarbox")

OPERATORS = ("transformWithStateInPandasExec",)
LOOK = 0.05
"""Seconds between two looks at a query's progress."""
TICKS = 86_413
"""The start of the clock among the sources, by which it is known: it moves with each micro-batch."""
PATIENCE = 10.0
"""Seconds to wait for the next micro-batch of a query that is to end behind it."""


_CLOCK = f"startTimestamp={TICKS},"


def is_drained(progress: Any) -> bool:
    """Whether a micro-batch found no input and left nothing pending, by what Spark says of it. Any thread.

    progress: a `StreamingQueryProgress`, or the mapping that Connect and older versions give.
    """
    # spec: Stream!End
    if isinstance(progress, Mapping):
        moved = [
            each.get("startOffset") != each.get("endOffset")
            for each in progress["sources"]
            if _CLOCK not in each["description"]
        ]
        states = [(each["operatorName"], each["numRowsTotal"]) for each in progress["stateOperators"]]
    else:
        moved = [
            each.startOffset != each.endOffset for each in progress.sources if _CLOCK not in each.description
        ]
        states = [(each.operatorName, each.numRowsTotal) for each in progress.stateOperators]
    ours = [rows for name, rows in states if name in OPERATORS]
    return bool(ours) and not any(ours) and not any(moved)


def drain(query: Any, timeout: float | None = None) -> bool:
    """Wait until a query with `async_stream` has read all of its input and emitted all of it, and stop it.

    timeout: seconds; None for no limit. Returns False if it was not so far in time; the query then goes on.
    For a query over a source that grows, that is when nothing has come for a micro-batch. With `availableNow`
    on classic Spark this happens by itself; over Connect call it. Any thread of the driver.

    Raises what the query failed with, and TypeError or ValueError for a bad argument.
    """
    if not callable(getattr(query, "processAllAvailable", None)):
        raise TypeError(f"query={query!r}: must be a StreamingQuery, not {type(query).__name__}")
    seconds = check_seconds("timeout", timeout)
    deadline = None if seconds is None else time.monotonic() + seconds
    first = query.lastProgress
    seen = -1 if first is None else first["batchId"]
    while query.isActive:
        progress = query.lastProgress
        # Not the last one before the call: input may have come since.
        if progress is not None and progress["batchId"] > seen and is_drained(progress):
            _end(query)
            query.awaitTermination()
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        query.awaitTermination(LOOK)
    error = query.exception()
    if error is not None:
        raise error
    return True


class _EndListener(StreamingQueryListener):
    """Stops queries with `availableNow` that are drained. Called by Spark in a thread of its own."""

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)
        self._ends: dict[str, bool] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        return

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if not is_drained(progress):
            return
        session, run = self._session(), str(progress.runId)
        if session is None:
            return
        if run not in self._ends:
            self._ends[run] = _ends_by_itself(session, progress.id)
        if self._ends[run]:
            query = session.streams.get(str(progress.id))
            if query is not None:
                # It waits for the query, and the query may wait for its listeners.
                threading.Thread(target=_end, args=[query], name="pillarbox-drained", daemon=True).start()

    def onQueryIdle(self, event: Any) -> None:
        return

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._ends.pop(str(event.runId), None)


_listening: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def end_when_drained(session: Any) -> None:
    """Have queries of this session with `async_stream` and `availableNow` end. No effect over Connect."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return
    with _lock:
        if session in _listening:
            return
        _listening.add(session)
    session.streams.addListener(_EndListener(session))


def _end(query: Any) -> None:
    """Have a query end behind its present micro-batch, as Spark does with `availableNow`, or stop it.

    `stop` interrupts a micro-batch, and with it what a `foreachBatch` is doing.
    """
    try:
        # Between the planning of a micro-batch and its jobs Spark would interrupt it all the same.
        _await_job(query)
        state = query._jsq.streamingQuery().state()
        active = state.get()
        name = active.getClass().getName().replace("ACTIVE$", "TERMINATED$")
        ended = active.getClass().getClassLoader().loadClass(name).getField("MODULE$").get(None)
        state.compareAndSet(active, ended)
    except Exception as error:
        log.info("the query is stopped instead of ended: %s: %s", type(error).__name__, error)
        query.stop()


def _await_job(query: Any) -> None:
    """Wait until a job of the query runs, for `PATIENCE` seconds at most."""
    context = query._jsq.sparkSession().sparkContext()
    run, tracker = str(query.runId), context.statusTracker()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and query.isActive:
        active = set(tracker.getActiveJobIds())
        if active and active.intersection(tracker.getJobIdsForGroup(run)):
            return
        time.sleep(0.005)


def _ends_by_itself(session: Any, query: Any) -> bool:
    """Whether the query has the trigger `availableNow` and runs `async_stream`, as far as can be seen."""
    try:
        java = session._jsparkSession.streams().get(str(query)).streamingQuery()
        return "AvailableNow" in java.trigger().toString() and KEY in java.logicalPlan().toString()
    except Exception as error:
        log.warning(
            "it is not known whether a query is to end; call drain: %s: %s", type(error).__name__, error
        )
        return False
