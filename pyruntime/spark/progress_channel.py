"""Live totals on their way from tasks to the driver: `ProgressReporter` sends, `ProgressService` adds up.

A reporter belongs to its task's thread, and sends on the thread of connections. A service is thread-safe.
"""

# Totals once travelled as small files that the driver polled. That needed a file system that both see,
# which few clusters have; and a task that was killed left a file that said for ever that it runs, so the
# driver had to guess by age. A connection ends with its process. Spark's accumulators would need nothing of
# ours, but arrive when a task ends. See docs/decisions/progress-by-rpc.md.
#
# Rows are counted in one attempt of each task, as each attempt reads them all; calls in all of them, since
# the service saw them all. Of a stream that runs for months nothing may grow: a task whose attempts have
# all ended is folded into sums. Should Spark run it again after all, its rows are taken back from the sums
# first.

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from pyspark import TaskContext

from pillarbox.aio.observe.totals import (
    ROWS,
    TaskTotals,
    Totals,
    ended,
    from_json,
    merge,
    to_json,
    without_rows,
)
from pillarbox.rpc.client import RpcHandle
from pillarbox.rpc.codec import Codec, Count
from pillarbox.rpc.loop_thread import acquire_loop, release_loop
from pillarbox.rpc.server import Peer

log = logging.getLogger("pillarbox")

SERVICE = "progress"
REPORT_INTERVAL_S = 0.25
MAX_TASKS_KEPT = 1000
"""Ended tasks that are kept apart; micro-batches likewise."""
MAX_UNMERGED_TOTALS = 8
"""Totals that are kept before they are added up: adding histograms costs much more than keeping some."""

Task = tuple[int, int, int]
"""Operator, stage, partition."""
Batch = tuple[str, int]
"""The query's id, the number of its micro-batch."""


class TaskAttempt(NamedTuple):
    """The attempt of a task that a reporter is of; in a stream, its query and micro-batch."""

    operator: Count
    stage: Count
    partition: Count
    attempt: Count
    query: str | None
    batch: Count | None


ATTEMPTS = Codec(TaskAttempt)


# -- in a task ----------------------------------------------------------------------------------


class ProgressHandle(NamedTuple):
    """The way to the driver for the tasks of one operator. Pickles, with the secret of the connection."""

    handle: RpcHandle
    operator: int


class ProgressReporter:
    """Sends what `totals` gives to the driver until it is closed. A task never fails because of it."""

    _unreached: ClassVar[set[Any]] = set()
    """Addresses of drivers that a task of this process has waited for in vain."""

    def __init__(self, way: ProgressHandle, totals: Callable[[], Totals | None]) -> None:
        self._totals = totals
        self._addresses = way.handle.addresses
        self._thread = acquire_loop()
        self._client = way.handle.connect(ATTEMPTS.to_json(_this_attempt(way.operator)))
        self._reporting = self._thread.submit(self._report())

    def close(self) -> None:
        """Send the last totals, and wait until the driver has them, for some seconds at most."""
        self._reporting.cancel()
        try:
            self._send()
            trouble = self._client.trouble
            # A driver that is not reached costs one task some seconds, not each task of a stream.
            if trouble is not None and self._addresses in self._unreached:
                return
            if self._client.close():
                self._unreached.discard(self._addresses)
            else:
                self._unreached.add(self._addresses)
                where = trouble or self._addresses
                log.warning("progress: the driver does not see this task: it is not reached at %s", where)
        finally:
            self._client.abandon()
            release_loop(self._thread)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self._send()

    def _send(self) -> None:
        statistics = self._totals()
        if statistics is not None:
            self._client.push(to_json(statistics))


def _this_attempt(operator: int) -> TaskAttempt:
    context = TaskContext.get()
    if context is None:
        return TaskAttempt(operator, 0, 0, 0, None, None)
    batch = context.getLocalProperty("streaming.sql.batchId")
    return TaskAttempt(
        operator,
        context.stageId(),
        context.partitionId(),
        context.attemptNumber(),
        context.getLocalProperty("sql.streaming.queryId"),
        int(batch) if batch is not None and batch.isdigit() else None,
    )


# -- on the driver ------------------------------------------------------------------------------


@dataclass
class _Attempt:
    """Totals of one attempt of a task, as it said last. number: of the attempts that are known, in order."""

    who: TaskAttempt
    number: int
    totals: Totals
    is_running: bool = True
    is_dead: bool = False

    @property
    def task(self) -> Task:
        return self.who[:3]


class Seen(NamedTuple):
    """Totals at one moment."""

    totals: Totals
    """Of all tasks."""
    running: int
    """Tasks that run."""
    ended: int
    """Tasks that have ended."""


class ProgressService:
    """Takes the totals of tasks, and adds them up. A `Service`; all else is for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: dict[str, _Attempt] = {}
        self._attempts_seen = 0
        self._sum = _Sum()
        self._tasks_ended = 0
        self._tasks: OrderedDict[Task, TaskTotals] = OrderedDict()
        self._batches: OrderedDict[Batch, _Sum] = OrderedDict()
        self._introduced: dict[str, TaskAttempt] = {}

    # -- as a service: on the thread of connections -----------------------------------------------

    def opened(self, peer: Peer, about: Any) -> None:
        """See `Service`."""
        self._introduced[peer.name] = ATTEMPTS.from_json(about)

    def request(self, peer: Peer, body: Any) -> Any:
        """See `Service`."""
        raise ValueError("progress answers no requests")

    def pushed(self, peer: Peer, body: Any) -> None:
        """See `Service`."""
        totals = from_json(body)
        with self._lock:
            attempt = self._attempts.get(peer.name)
            if attempt is None:
                self._attempts_seen += 1
                who = self._introduced[peer.name]
                self._attempts[peer.name] = _Attempt(who, self._attempts_seen, totals)
            else:
                attempt.totals = totals

    # Attempts are folded together, when the last of them ends: until then another one may turn out to be
    # the one whose rows count. Spark runs two at a time where it speculates, and kills the slower one.
    def gone(self, peer: Peer, said_so: bool) -> None:
        """See `Service`. Nothing of an attempt that has ended, or died, is in flight."""
        del self._introduced[peer.name]
        with self._lock:
            attempt = self._attempts.get(peer.name)
            if attempt is None:
                return
            attempt.is_running, attempt.is_dead = False, not said_so
            attempt.totals = ended(attempt.totals)
            task = attempt.task
            of_task = {name: each for name, each in self._attempts.items() if each.task == task}
            if not any(each.is_running for each in of_task.values()):
                self._fold(task, [*of_task.values()])
                for name in of_task:
                    del self._attempts[name]

    # -- any thread -------------------------------------------------------------------------------

    def look(self) -> Seen:
        """Add all up."""
        with self._lock:
            live = self._live()
            # A task that runs again after it was folded counts its rows again.
            folded = [_rows_back(self._tasks[task].totals) for task in live if task in self._tasks]
            totals = merge([self._sum.total(), *folded, *(_joined(each) for each in live.values())])
            return Seen(totals, len(live), self._tasks_ended - len(folded))

    def tasks(self) -> list[TaskTotals]:
        """All tasks that run, and the last `MAX_TASKS_KEPT` that have ended."""
        with self._lock:
            found = dict(self._tasks)
            for task, attempts in self._live().items():
                live = TaskTotals(*task, len(attempts), True, _joined(attempts))
                found[task] = _with_earlier(live, found.get(task))
            return [found[task] for task in sorted(found)]

    def batch(self, query: str, number: int) -> Totals:
        """The totals of one micro-batch; nothing for one that is long gone."""
        with self._lock:
            parts = [self._batches[query, number].total()] if (query, number) in self._batches else []
            for attempts in self._live().values():
                some = [each for each in attempts if each.who[4:] == (query, number)]
                if some:
                    parts.append(_joined(some))
            return merge(parts)

    # -- adding up, with the lock -----------------------------------------------------------------

    def _live(self) -> dict[Task, list[_Attempt]]:
        found: dict[Task, list[_Attempt]] = {}
        for attempt in self._attempts.values():
            found.setdefault(attempt.task, []).append(attempt)
        return found

    def _fold(self, task: Task, attempts: list[_Attempt]) -> None:
        added = _joined(attempts)
        before = self._tasks.pop(task, None)
        changes = [added]
        if before is None:
            self._tasks_ended += 1
        else:
            changes.append(_rows_back(before.totals))
        self._sum.add(changes)
        done = TaskTotals(*task, len(attempts), False, added)
        self._tasks[task] = _with_earlier(done, before)
        while len(self._tasks) > MAX_TASKS_KEPT:
            self._tasks.popitem(last=False)
        query, batch = attempts[0].who[4:]
        if query is not None and batch is not None:
            self._batches.setdefault((query, batch), _Sum()).add(changes)
            while len(self._batches) > MAX_TASKS_KEPT:
                self._batches.popitem(last=False)


class _Sum:
    """Totals that add up; a few at a time."""

    def __init__(self) -> None:
        self._parts: list[Totals] = []

    def add(self, parts: Iterable[Totals]) -> None:
        self._parts += parts
        if len(self._parts) > MAX_UNMERGED_TOTALS:
            self._parts = [merge(self._parts)]

    def total(self) -> Totals:
        if len(self._parts) != 1:
            self._parts = [merge(self._parts)]
        return self._parts[0]


def _joined(attempts: list[_Attempt]) -> Totals:
    """The totals of one task: rows of the latest attempt that is not dead; calls of all."""
    latest = max(attempts, key=lambda each: (not each.is_dead, each.number))
    return merge([each.totals if each is latest else without_rows(each.totals) for each in attempts])


def _with_earlier(task: TaskTotals, before: TaskTotals | None) -> TaskTotals:
    """A task that ran again, with the calls of before."""
    if before is None:
        return task
    totals = merge([without_rows(before.totals), task.totals])
    return task._replace(attempts=before.attempts + task.attempts, totals=totals)


def _rows_back(totals: Totals) -> Totals:
    """Totals that take the rows of these back, when they are added."""
    return Totals(**{name: -getattr(totals, name) for name in ROWS})
