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
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import TimeoutError as WaitTimeout
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from pyspark import TaskContext

from pillarbox.aio.totals import ROWS, TaskTotals, Totals, ended, merge, without_rows
from pillarbox.loop_thread import acquire_loop, end, post, release_loop
from pillarbox.rpc.codec import Codec
from pillarbox.rpc.connection import Connection, ProtocolError, Reconnector, RefusedError, RpcHandle
from pillarbox.rpc.server import Service
from pillarbox.rpc.totals_json import from_json, to_json
from pillarbox.validate import Count

log = logging.getLogger("pillarbox")

SERVICE = "progress"
REPORT_INTERVAL_S = 0.25
LAST_TOTALS_TIMEOUT_S = 5.0
"""Seconds for the last totals of a task to be taken."""
RECONNECT_TIMEOUT_S = 5.0
"""Seconds after its connection has broken in which a task may come back. Then it counts as dead."""
MAX_TASKS_KEPT = 1000
"""Ended tasks that are kept apart; micro-batches likewise."""

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

    def reporter(self, totals: Callable[[], Totals | None]) -> ProgressReporter:
        """See `TotalsChannel`."""
        return ProgressReporter(self, totals)


class ProgressReporter:
    """Sends what `totals` gives to the driver until it is closed. A task never fails because of it."""

    # Totals are counts since the beginning of the task: what is lost with a connection is in the next ones.

    _unreached: ClassVar[set[Any]] = set()
    """Addresses of drivers that a task of this process has waited for in vain."""

    def __init__(self, way: ProgressHandle, totals: Callable[[], Totals | None]) -> None:
        self._totals = totals
        self._addresses = way.handle.addresses
        self._attempt = _this_attempt(way.operator)
        self._id = uuid.uuid4().hex
        self._thread = acquire_loop()
        # The thread of connections.
        self._way = Reconnector(way.handle)
        self._is_known = False
        self._last: Totals | None = None
        self._is_leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._taken = self._thread.submit(self._run())

    def close(self) -> None:
        """Send the last totals, and wait until the driver has them, for some seconds at most."""
        self._last = self._totals()
        post(self._thread.loop, self._is_leaving.set)
        try:
            # A driver that is not reached costs one task some seconds, not each task of a stream.
            if not self._is_lost or self._addresses not in self._unreached:
                self._await_taken()
        finally:
            with suppress(WaitTimeout):
                self._thread.submit(self._stop()).result(LAST_TOTALS_TIMEOUT_S)
            release_loop(self._thread)

    @property
    def _is_lost(self) -> bool:
        return self._way.connection is None and self._way.trouble is not None

    def _await_taken(self) -> None:
        try:
            self._taken.result(LAST_TOTALS_TIMEOUT_S)
            self._unreached.discard(self._addresses)
        except WaitTimeout:
            self._unreached.add(self._addresses)
            log.warning("progress: the driver does not see this task: it is not reached at %s", self._way)

    # -- the thread of connections ------------------------------------------------------------

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        # It is refused where the driver's progress has ended, or counts this task as dead.
        with suppress(RefusedError):
            await self._way.run(self._hello, self._talk)

    async def _stop(self) -> None:
        assert self._task is not None
        await end(self._task)

    def _hello(self) -> list[Any]:
        return [self._id, ATTEMPTS.to_json(self._attempt), self._is_known]

    async def _talk(self, connection: Connection) -> None:
        self._is_known = True
        reporting = asyncio.ensure_future(self._report(connection))
        try:
            # All that comes is that it may go.
            await connection.receive()
        finally:
            await end(reporting)

    async def _report(self, connection: Connection) -> None:
        is_leaving = False
        while not is_leaving:
            is_leaving = self._is_leaving.is_set()
            totals = self._last if is_leaving else self._totals()
            if totals is not None:
                connection.send("totals", to_json(totals))
            if not is_leaving:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._is_leaving.wait(), REPORT_INTERVAL_S)
        connection.send("leave")


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


class ProgressService(Service):
    """Takes the totals of tasks, and adds them up. A `Service` of connections; all else is for any thread.

    grace: seconds after its connection has broken in which a task may come back.
    """

    def __init__(self, grace: float = RECONNECT_TIMEOUT_S) -> None:
        self._grace = grace
        self._lock = threading.Lock()
        self._attempts: dict[str, _Attempt] = {}
        self._attempts_seen = 0
        self._sum = Totals()
        self._tasks_ended = 0
        self._tasks: OrderedDict[Task, TaskTotals] = OrderedDict()
        self._batches: OrderedDict[Batch, Totals] = OrderedDict()
        # The thread of connections: tasks that are there, and those that may come back.
        self._connections: dict[str, Connection] = {}
        self._lost: dict[str, asyncio.TimerHandle] = {}

    # -- as a service: on the thread of connections -----------------------------------------------

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `Service`."""
        try:
            await self._serve(connection, *hello)
        except ValueError as error:
            # It would say the same again.
            connection.send("no", str(error))

    async def _serve(self, connection: Connection, client: str, about: object, is_known: bool) -> None:
        who: TaskAttempt = ATTEMPTS.from_json(about)
        before = self._connections.get(client)
        if before is not None:
            before.abort()
        elif client in self._lost:
            self._lost.pop(client).cancel()
        elif is_known:
            # It was counted out: its calls would count twice.
            connection.send("no", f"this task was not heard of for {self._grace:g} s and counts as dead")
            return
        self._connections[client] = connection
        try:
            connection.send("opened")
            kind, *fields = await connection.receive()
            while kind == "totals":
                self._heard(client, who, from_json(*fields))
                kind, *fields = await connection.receive()
            if kind != "leave":
                raise ProtocolError(f"{kind!r} is not a message")
            self._gone(client, True)
            connection.send("left")
        finally:
            if self._connections.get(client) is connection:
                del self._connections[client]
                loop = asyncio.get_running_loop()
                self._lost[client] = loop.call_later(self._grace, self._gone, client, False)

    async def end(self) -> None:
        """See `Service`. Every task that is there counts as gone, and is told that it may go."""
        for client, connection in [*self._connections.items()]:
            connection.send("no", "the progress has ended")
            self._gone(client, False)
        for client in [*self._lost]:
            self._gone(client, False)

    def _heard(self, client: str, who: TaskAttempt, totals: Totals) -> None:
        with self._lock:
            attempt = self._attempts.get(client)
            if attempt is None:
                self._attempts_seen += 1
                self._attempts[client] = _Attempt(who, self._attempts_seen, totals)
            else:
                attempt.totals = totals

    # Attempts are folded together, when the last of them ends: until then another one may turn out to be
    # the one whose rows count. Spark runs two at a time where it speculates, and kills the slower one.
    def _gone(self, client: str, said_so: bool) -> None:
        """Nothing of an attempt that has ended, or died, is in flight."""
        self._connections.pop(client, None)
        lost = self._lost.pop(client, None)
        if lost is not None:
            lost.cancel()
        with self._lock:
            attempt = self._attempts.get(client)
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
            totals = merge([self._sum, *folded, *(_joined(each) for each in live.values())])
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
            parts = [self._batches.get((query, number), Totals())]
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
        self._sum = merge([self._sum, *changes])
        done = TaskTotals(*task, len(attempts), False, added)
        self._tasks[task] = _with_earlier(done, before)
        while len(self._tasks) > MAX_TASKS_KEPT:
            self._tasks.popitem(last=False)
        query, batch = attempts[0].who[4:]
        if query is not None and batch is not None:
            self._batches[query, batch] = merge([self._batches.get((query, batch), Totals()), *changes])
            while len(self._batches) > MAX_TASKS_KEPT:
                self._batches.popitem(last=False)


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
