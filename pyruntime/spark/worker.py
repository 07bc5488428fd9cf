"""The event loop and the resources of a Python worker of Spark, kept between its tasks, and the run of a job.

A worker is a process that runs one task after the other. It keeps one event loop, in a thread, and
the functions that are resources (an HTTP session, a pool of connections), opened once. Nothing tells
a worker that it will be ended, so a resource is closed when no task has used it for a while; where
workers are not used again, it is closed after the task.
"""

# A task gets no process and no loop of its own. `asyncio.run` in each task would open its resources anew,
# which for an HTTPS session is more than many a task has to do; a pool of threads for each task costs as
# much. What tasks share here keeps them apart by other means: each has its operator, its input thread and its
# output, and one that blocks the loop loses it to the others, which get another `Worker`.

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from pyspark import TaskContext

from pillarbox.aio.calls import Chunk
from pillarbox.aio.errors import CallFailed, CallTimeout, TooManyFailures
from pillarbox.aio.function import ResultConverter, enter_function, is_resource, with_parse
from pillarbox.aio.intervals import CLOSE_TIMEOUT_S
from pillarbox.aio.kept_lengths import expect_kept
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.row_inputs import IterableInput
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import ResultStream
from pillarbox.aio.totals import Totals
from pillarbox.lacks import in_words
from pillarbox.ledger.keys import RowIdentity
from pillarbox.loop_thread import LoopThread
from pillarbox.redaction import LOG_FILTER
from pillarbox.spark.observation import TotalsReporter
from pillarbox.spark.operator_plan import OperatorPlan
from pillarbox.spark.outcomes import report_outcomes, with_trace
from pillarbox.spark.records import arrow_function
from pillarbox.spark.task_connection import DisconnectWatcher
from pillarbox.spark.worker_garbage import collect_rarely
from pillarbox.thread_start import check_memory

log = logging.getLogger("pillarbox")

RESOURCE_IDLE_S = 10.0
"""Seconds without a task after which a worker closes its resources; Spark ends idle workers after 60."""

TASK_BYTES = 32 << 20
"""Bytes that a task needs for its threads and first rows: with less, what fails first cannot be told."""
MAX_CHUNK_ROWS = 2048
"""Rows in an Arrow batch of results, unless more finish at once."""

CHUNK_LINGER_S = 0.1
"""Seconds that a finished row may wait for others before its batch is written."""


class _Resource:
    """An entered function, the stack that closes it, and the jobs that use it now."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.fn: Callable[..., Any] | None = None
        self.users = 0
        self.timer: asyncio.TimerHandle | None = None


class Worker:
    """The event loop and the resources of one worker process. Its methods are for the task's thread."""

    def __init__(self) -> None:
        if TaskContext.get() is not None:
            collect_rarely()
        self.pid = os.getpid()
        # What nobody has asked for, asyncio logs, with its text: the process is Spark's, and its log a file.
        logging.getLogger("asyncio").addFilter(LOG_FILTER)
        self.loop_thread = LoopThread("pillarbox-loop")
        self._resources: dict[str, _Resource] = {}
        # Spark sets this for workers that will be given other tasks.
        self._reused = bool(os.environ.get("SPARK_REUSE_WORKER"))

    def acquire(self, token: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what is called for `fn`; a resource is entered at its first use under this token."""
        if not is_resource(fn):
            return fn
        return self.loop_thread.submit(self._acquire(token, fn)).result()

    def release(self, token: str, failed: bool) -> None:
        """A job of the function under `token` has ended.

        Spark ends the worker of a task that failed or was ended early, so this is the chance to close.
        """
        if token in self._resources:
            released = self.loop_thread.submit(self._release(token, failed or not self._reused))
            try:
                released.result(CLOSE_TIMEOUT_S)
            except Exception:
                # The results are complete by now, or another error is on its way.
                log.warning("a resource could not be closed", exc_info=True)

    async def _acquire(self, token: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        resource = self._resources.get(token)
        if resource is None:
            resource = _Resource()
            resource.fn = await enter_function(fn, resource.stack)
            self._resources[token] = resource
        if resource.timer is not None:
            resource.timer.cancel()
            resource.timer = None
        resource.users += 1
        assert resource.fn is not None
        return resource.fn

    async def _release(self, token: str, now: bool) -> None:
        resource = self._resources[token]
        resource.users -= 1
        if resource.users:
            return
        if now:
            await self._close(token)
        else:
            loop = self.loop_thread.loop
            resource.timer = loop.call_later(RESOURCE_IDLE_S, lambda: loop.create_task(self._close(token)))

    async def _close(self, token: str) -> None:
        resource = self._resources.get(token)
        if resource is not None and not resource.users:
            del self._resources[token]
            await resource.stack.aclose()


_worker: Worker | None = None


def worker() -> Worker:
    """The worker of this process."""
    global _worker
    if _worker is None or _worker.pid != os.getpid():
        # A fork has none of its parent's threads.
        _worker = Worker()
    return _worker


def run_job(
    plan: OperatorPlan,
    rows: Iterable[Any] | IterableInput,
    *,
    convert: ResultConverter | None,
    ended: Callable[[Totals], None] | None = None,
    then: Sequence[OperatorPlan] = (),
) -> Generator[Chunk, None, None]:
    """Call the function of `plan` for rows, or those of an input; yields (call, result) chunks.

    then: those of the functions behind it, each of which gets what the one in front gives; the results are
    then those of the last one.

    convert: makes of results the form in which they are written; None for results that nobody writes.
    ended: gets the last counts, once all is through.
    The thread that reads has ended when this generator has.
    """
    failure: BaseException
    try:
        yield from _run_job((plan, *then), rows, convert, ended)
        return
    except (CallFailed, CallTimeout, TooManyFailures):
        raise
    except Exception as error:
        # Spark prints it, with all that it was raised from and with lines of code.
        failure = error
        for each in (plan, *then):
            failure = each.options.errors.redaction.sealed(failure)
        if failure is error:
            raise
    # Out here it has no context.
    raise failure


def _run_job(
    plans: Sequence[OperatorPlan],
    rows: Iterable[Any] | IterableInput,
    convert: ResultConverter | None,
    ended: Callable[[Totals], None] | None,
) -> Generator[Chunk, None, None]:
    global _worker
    with in_words("a task of this Python worker cannot begin"):
        check_memory(TASK_BYTES)
    here = worker()
    if here.loop_thread.is_current:
        raise RuntimeError(
            "a job in an async function of another job would wait for the event loop that it holds up: "
            "make the function a plain one, which runs in a thread, or call the client itself"
        )
    plan = plans[0]
    ledger_sessions = _open_sessions(plans)
    job: ResultStream | None = None
    reporters: list[TotalsReporter] = []
    acquired: list[OperatorPlan] = []
    ok = False
    spark = DisconnectWatcher()
    chunk_rows = 1 if plan.prompt else min(MAX_CHUNK_ROWS, plans[-1].options.window)
    try:
        stages = []
        for each, ledger_session in zip(plans, ledger_sessions, strict=True):
            entered: Any = here.acquire(each.token, each.fn)
            acquired.append(each)
            if each.agreement is not None:
                entered.agree_on_length(each.agreement.name, each.agreement.agree)
            expect_kept(entered, ledger_session)
            if each.options.batch is not None and each.options.batch.arrow:
                entered = arrow_function(entered, spread=each.spread)
            form = with_parse(
                each.fn, convert if each is plans[-1] else None, keeps=ledger_session is not None
            )
            stages.append(Stage(entered, each.options, each.uid, ledger_session, form))
        job = ResultStream(
            stages,
            rows,
            loop_thread=here.loop_thread,
            chunk_rows=chunk_rows,
            linger=0.0 if plan.prompt else CHUNK_LINGER_S,
            spread=plan.spread,
            idle=spark.check,
            identify=_identity_behind(plans),
        )
        reporters += [
            each.progress.reporter(partial(_totals_of, job, each.uid))
            for each in plans
            if each.progress is not None
        ]
        left = chunk_rows
        try:
            while (chunk := job.take()) is not None:
                yield chunk
                # It is written when the next one is asked for, into a buffer of 64 KB. Who shows five rows
                # would wait for that to be full, and the rows in it would be called in vain.
                spark.flush()
                if left > 0 and not job.has_all_rows:
                    # While chunks grow, the next one is for a reader that has come back for more, or a JVM
                    # that takes a second for its first rows would have that second's calls made.
                    left -= len(chunk)
                    spark.await_reader()
        except (CallFailed, CallTimeout, TooManyFailures) as error:
            # Spark drops the cause of an error that it shortens, and keeps its text.
            raise with_trace(error) from None
        finally:
            spark.close()
            for reporter in reporters:
                reporter.close()
        ok = True
        counts = job.statistics()
        for each, first in zip(plans, job.first_failures(), strict=False):
            if (of_each := counts[each.uid]) is not None:
                report_outcomes(each.token, each.options.errors.floor, each.outcomes, of_each, first)
        if ended is not None and (statistics := job.statistics()[plans[-1].uid]) is not None:
            ended(statistics)
    finally:
        if job is not None and not job.close():
            log.warning("a call blocks the event loop; other tasks of this worker get a loop of their own")
            _worker = None
        else:
            for each in acquired:
                here.release(each.token, failed=not ok)
        if job is None:
            _release(ledger_sessions)


def _totals_of(job: ResultStream, uid: str | None) -> Totals | None:
    """Gives the counts of one function so far; None before it has begun."""
    return job.statistics().get(uid)


def _open_sessions(plans: Sequence[OperatorPlan]) -> list[LedgerSession | None]:
    ledger_sessions: list[LedgerSession | None] = []
    try:
        for plan in plans:
            kept = plan.ledger_plan
            ledger_sessions.append(None if kept is None else kept.open(plan.options))
    except BaseException:
        _release(ledger_sessions)
        raise
    for ledger_session in ledger_sessions[1:]:
        if ledger_session is not None and ledger_sessions[0] is not None:
            ledger_session.follow(ledger_sessions[0])
    return ledger_sessions


def _release(ledger_sessions: Sequence[LedgerSession | None]) -> None:
    """Let go of the ledgers of a task that makes no calls after all."""
    for ledger_session in ledger_sessions:
        if ledger_session is not None:
            ledger_session.release()


def _identity_behind(plans: Sequence[OperatorPlan]) -> RowIdentity | None:
    """The identity of rows of the input, for the ledger of a function behind the first one."""
    return next((each.ledger_plan.row_identity() for each in plans[1:] if each.ledger_plan is not None), None)
