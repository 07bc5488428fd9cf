"""Micro-batches while rows of `async_stream` are pending: a source that moves then, and the reports to it.

Spark makes a micro-batch when a source has moved. `ClockReader` lives on the driver, in the process that
Spark has for it, and moves while something is pending: each movement has all buckets opened. A listener sees
in Spark's progress whether something is (`ClockListener`), and puts that into a file for the reader: a report
is about an offset of the reader, and may come after the next micro-batch was planned.
"""

# The alternatives, and why they are worse. Time mode `ProcessingTime` makes 76 empty micro-batches a minute
# for ever, which is 92 % of a core and 607 files; `EventTime` makes none for what is pending. Rows of the
# rate source never end a query with `availableNow`. A reader that asks the state store itself finds a version
# that is not committed. A report through a socket would need a port, and may come before the reader asks.

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from pillarbox.spark.compat import (
    DataSource,
    SimpleDataSourceStreamReader,
    SupportsTriggerAvailableNow,
    report_no_profile,
)
from pillarbox.spark.ledger_plan import is_connect
from pillarbox.spark.shipment import use_driver_python
from pillarbox.spark.stream.call_client import private_folder

log = logging.getLogger("pillarbox")

FORMAT = "pillarbox_clock"

TICK_INTERVAL_S = 0.5
"""Seconds between two movements, at least. While nothing is pending Spark is made to ask no more often."""
UNTOLD_INTERVAL_S = 10.0
"""Seconds after which a report that has not come counts as one of pending rows."""
REPORT_DELAY_S = 0.25
"""Seconds by which the report of a micro-batch comes after it, about."""
POLL_INTERVAL_S = 0.02
IDLE_POLL_INTERVAL_S = 0.1
PLANNING_S = 0.1
"""Seconds within which Spark asks again where no micro-batch was run."""

OPERATOR = "transformWithStateInPandasExec"

NOT_CONNECTED = "SparkException: Python worker failed to connect back."
"""Spark's error of a query whose process of Python, such as that of a clock, was not there after 10 s."""
ADVICE = (
    "query %s has failed as a process of Python did not connect within the 10 s that Spark gives it, which "
    "no setting changes: the machine is too busy. Start the query again, it goes on from its checkpoint; and "
    "start several one after the other, each when the one before has made a micro-batch"
)

Offset = dict[str, Any]


class Clock(DataSource):
    """Spark's name for the source. Pickled to the processes that it is used in."""

    @classmethod
    def name(cls) -> str:
        """Spark's."""
        return FORMAT

    def schema(self) -> str:
        """Spark's: one row for each movement."""
        report_no_profile()
        return "tick bigint"

    def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
        """Spark's: for one run of a query, and in tasks of a replay."""
        report_no_profile()
        return ClockReader(self.options.get("folder"))


class ClockReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """The clock of one run of a query. Spark asks it on one thread.

    folder: has the reports; None for a clock that nobody tells anything. tick_interval, untold_interval,
    report_delay: seconds, see the constants.
    """

    def __init__(
        self,
        folder: str | None,
        *,
        tick_interval: float = TICK_INTERVAL_S,
        untold_interval: float = UNTOLD_INTERVAL_S,
        report_delay: float = REPORT_DELAY_S,
    ) -> None:
        self._tick_interval = tick_interval
        self._untold_interval = untold_interval
        self._report_delay = report_delay
        self._id = uuid.uuid4().hex
        self._report = None if folder is None else report_path(folder, self._id)
        self._ends = False
        self._ticked_at = self._answered_at = float("-inf")

    def prepareForTriggerAvailableNow(self) -> None:
        """Spark's: stay for ever when nothing is pending and no input is left."""
        self._ends = True

    def initialOffset(self) -> Offset:
        """Spark's: of a new query."""
        return {"clock": "", "tick": 0}

    def read(self, start: Offset) -> tuple[Iterator[tuple[int]], Offset]:
        """Spark's: the offset after the next movement, or `start`."""
        end = start
        if self._moves(start):
            end = {"clock": self._id, "tick": start["tick"] + 1}
            self._ticked_at = time.monotonic()
        self._answered_at = time.monotonic()
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[tuple[int]]:
        """Spark's: again, for a replay."""
        return iter([] if start == end else [(end["tick"],)])

    def _moves(self, start: Offset) -> bool:
        """Wait for a report and for the time between two movements; returns whether to move."""
        if start["clock"] != self._id:
            # Of a run before, of which nothing is known.
            return True
        asked = time.monotonic()
        # A micro-batch that has just been run may have left something pending.
        was_polled = asked - self._answered_at < PLANNING_S
        min_wait = self._tick_interval if was_polled else self._report_delay
        first = self._told(start)
        while True:
            told, now = self._told(start), time.monotonic()
            since, waited = now - self._ticked_at, now - asked
            # spec: StreamState!BeginByClock
            if told is None:
                untold = self._untold_interval
                if since >= untold and waited >= (untold if self._ends else min_wait):
                    return True
                if not self._ends and waited >= self._tick_interval:
                    return False
            elif told[1]:
                if since >= self._tick_interval:
                    return True
            # spec: StreamState!End
            elif self._ends or told != first or waited >= min_wait:
                return False
            time.sleep(IDLE_POLL_INTERVAL_S if was_polled else POLL_INTERVAL_S)

    def _told(self, start: Offset) -> tuple[int, bool] | None:
        """The newest report, if about this offset: its micro-batch, and whether something is pending."""
        if self._report is None:
            return None
        try:
            with open(self._report) as file:
                told = json.load(file)
            return (told["batch"], told["busy"]) if told["tick"] == start["tick"] else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def stop(self) -> None:
        """Spark's: the run has ended."""
        if self._report is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._report)


class ClockListener(StreamingQueryListener):
    """Tells the clocks in a query after each micro-batch. Called by Spark in a thread of its own.

    By Java itself where it can be: a report that PySpark makes objects of asks Java about each of their
    fields, an eighth of Java's time in a micro-batch, and the clock waits for it. Java's events have methods.
    """

    class Java:
        """The interface that Java calls, for py4j."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._clocks: dict[str, set[str]] = {}

    def attach(self, session: SparkSession) -> None:
        """Have Spark call it for the queries of a session."""
        if not is_connect(session):
            jvm: Any = session._jvm
            streaming = jvm.org.apache.spark.sql.streaming
            self._jlistenerobj = streaming.PythonStreamingQueryListenerWrapper(self)
        session.streams.addListener(self)

    def onQueryStarted(self, event: object) -> None:
        """Do nothing."""

    def onQueryIdle(self, event: object) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Report to the clocks among the sources."""
        self.report(event.progress().json() if callable(event.progress) else event.progress.json)

    def onQueryTerminated(self, event: Any) -> None:
        """Remove the reports to the clocks of a run, and say what to do if one had too little time."""
        run = event.runId().toString() if callable(event.runId) else str(event.runId)
        for clock in self._clocks.pop(run, ()):
            with contextlib.suppress(OSError):
                os.unlink(report_path(self._folder, clock))
        error = event.exception
        if callable(error):
            error = error().get() if error().isDefined() else None
        if error is not None and NOT_CONNECTED in error:
            log.warning(ADVICE, event.id().toString() if callable(event.id) else event.id)

    def report(self, said: str) -> None:
        """Report to the clocks of a query what its progress says, as JSON."""
        try:
            self._report(json.loads(said))
        except Exception:
            # What is raised here would be printed by the bridge to Java, and by nobody else.
            log.exception("the clock of async_stream could not be told of a micro-batch")

    def _report(self, progress: Mapping[str, Any]) -> None:
        sources = [(offset_of(each["endOffset"]), each) for each in progress["sources"]]
        clocks = [offset for offset, _ in sources if offset is not None]
        if not clocks:
            return
        moved = any(each["startOffset"] != each["endOffset"] for offset, each in sources if offset is None)
        # The sum of all executions, so never less than what was committed.
        states = progress["stateOperators"]
        rows = sum(each["numRowsTotal"] for each in states if each["operatorName"] == OPERATOR)
        for clock in clocks:
            self._clocks.setdefault(progress["runId"], set()).add(clock["clock"])
            report = {"tick": clock["tick"], "busy": moved or rows > 0, "batch": progress["batchId"]}
            write_report(self._folder, clock["clock"], report)


def report_path(folder: str, clock: str) -> str:
    """The file with the newest report for a clock."""
    return os.path.join(folder, f"clock-{clock}")


def write_report(folder: str, clock: str, report: Mapping[str, Any]) -> None:
    """Put a report in place of the one before it."""
    path = report_path(folder, clock)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(report, file)
    os.replace(path + ".new", path)


def offset_of(said: object) -> Offset | None:
    """The offset of a clock, in what Spark says of a source; None for that of another source."""
    if isinstance(said, dict) and set(said) == {"clock", "tick"} and str(said["clock"]).isalnum():
        return said
    return None


_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that have a listener."""


def read_clock(session: SparkSession) -> DataFrame:
    """The stream of the clock's movements, of a session that is set up for it. On the driver."""
    use_driver_python(session)
    session.dataSource.register(Clock)
    folder = private_folder()
    reader = session.readStream.format(FORMAT)
    if folder is not None:
        if session not in _sessions:
            _sessions.add(session)
            ClockListener(folder).attach(session)
        reader = reader.option("folder", folder)
    clock: DataFrame = reader.load()
    return clock
