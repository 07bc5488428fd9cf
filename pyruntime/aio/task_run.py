"""Runs of a task whose operator calls a function: on an event loop, for a thread, or for a coroutine.

`TaskRun` is confined to its loop's thread. `ThreadRun` has three threads: one reads the input ahead, the
loop's thread runs the task and makes the calls, and the caller's takes the results. All its methods are for
the caller's thread.

`LoopRun` runs on the caller's own event loop, for what a consumer in a coroutine passes in belongs to that
loop: sessions, locks, queues. Only an input that may block is read in a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol

from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import ResultConverter
from pillarbox.aio.chained import Chain, ChainPlace, Stage
from pillarbox.aio.errors import CallTimeout, shorten
from pillarbox.aio.function import enter_function
from pillarbox.aio.journal import Journal
from pillarbox.aio.meter import OperatorStatistics
from pillarbox.aio.options import Options
from pillarbox.aio.scheduler import Call
from pillarbox.aio.task_io import (
    CHUNK_BYTES,
    AsyncIterableInput,
    Chunk,
    CollectionInput,
    HandoverOutput,
    IterableInput,
    LoopOutput,
)
from pillarbox.kernel import Handover
from pillarbox.redaction import Redact
from pillarbox.rpc.loop_thread import LoopThread
from pillarbox.task import (
    CheckpointDeclined,
    CheckpointOptions,
    SnapshotStorage,
    StreamTask,
    TaskCancelled,
    TaskInput,
    TaskOutput,
    TaskSnapshot,
    TaskState,
)

log = logging.getLogger("pillarbox")

STALL = 5.0
"""Seconds by which a deadline may be missed before the event loop counts as blocked."""

CLOSE = 5.0
"""Seconds that ending a job early may take before its threads are left to themselves."""

IN_MEMORY = (list, tuple, range, set, frozenset, dict)
"""Collections whose iteration never waits; others may read a file or a database."""

UNALIGNED = CheckpointOptions(aligned=False)
"""A checkpoint that waits for no mail before it. In a task without operators that yield that is all."""


class _Reading:
    """The input of a task, and the thread or coroutine that reads ahead for it.

    Used as `ThreadRun` says of its `rows`. awaits: what can be iterated either way is iterated with
    `async for`. Any thread, but for `ended`.
    """

    def __init__(
        self,
        rows: Iterable[Any] | AsyncIterable[Any] | IterableInput,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        items: int,
        *,
        awaits: bool = False,
    ) -> None:
        self.input: TaskInput
        if isinstance(rows, IN_MEMORY):
            self.input = CollectionInput(rows)
        elif isinstance(rows, AsyncIterable) and (awaits or not isinstance(rows, Iterable)):
            self.input = AsyncIterableInput(rows, loop, context.copy(), items)
        else:
            self.input = rows if isinstance(rows, IterableInput) else IterableInput(rows, items)
            self.input.start(context.copy())

    async def ended(self) -> None:
        """Wait for the coroutine that reads, for a time. On the loop's thread."""
        if isinstance(self.input, AsyncIterableInput):
            await self.input.closed()

    def close(self) -> None:
        """Stop the thread that reads, at its next item."""
        if isinstance(self.input, IterableInput):
            self.input.stop()

    def join(self) -> None:
        """Wait for the thread that reads, for `CLOSE` seconds at most. Blocks."""
        if isinstance(self.input, IterableInput):
            self.input.join(CLOSE)


class ResultOutput(TaskOutput, Protocol):
    """An output that hears how its task ended, once, after everything is closed. Mailbox thread."""

    has_ended: bool
    """The last watermark has come, so that all rows have."""

    def finish(self) -> None:
        """No more results come."""

    def fail(self, error: BaseException) -> None:
        """No more results come, because of `error`."""


class TaskRun:
    """A task of one `AsyncWaitOperator` or a chain of them, and its end. Confined to the thread of `loop`.

    input, output: those of the task; the output hears of its end. snapshot: what the task goes on from.
    storage: where its checkpoints are written. chain: the functions behind `fn`, each of which gets what the
    one in front gives; None where there is one function. The others are as `AsyncWaitOperator` says.
    `ended` is a future of the loop that is done when the task has ended, whatever the reason. `operator` is
    the first of `operators`.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        input: TaskInput,
        output: ResultOutput,
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        spread: bool = False,
        journal: Journal | None = None,
        watched: bool = False,
        convert: ResultConverter | None = None,
        snapshot: TaskSnapshot | None = None,
        storage: SnapshotStorage | None = None,
        chain: Chain | None = None,
    ) -> None:
        self._loop = loop
        self._output = output
        self._snapshot = snapshot
        first = Stage(fn, "", options, journal=journal, convert=convert)
        stages = [first, *(() if chain is None else chain.then)]
        places: Sequence[ChainPlace | None] = [None] if chain is None else chain.places
        self.operators = [
            AsyncWaitOperator(
                stage.fn,
                stage.options,
                loop=loop,
                context=context,
                spread=spread,
                journal=stage.journal,
                # One thread looks at the loop, for all of them.
                watched=watched and not position,
                convert=stage.convert,
                uid=None if place is None else place.uid,
                place=place,
            )
            for position, (stage, place) in enumerate(zip(stages, places, strict=True))
        ]
        self.operator = self.operators[0]
        # The operator takes samples itself, by a timer of the loop, and has no timers of the task.
        self.task = StreamTask(
            input, self.operators, output, clock=time.monotonic, latency_interval=None, storage=storage
        )
        self.ended: asyncio.Future[None] = loop.create_future()

    def start(self) -> None:
        """Run beside the coroutines of the loop."""
        self._loop.create_task(self.run())

    async def run(self) -> None:
        """Run to the end; whatever that is, the output hears of it. Raises nothing but interrupts."""
        failure: BaseException | None = None
        try:
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                self.task.restore(snapshot)
            await self.task.run_async()
            if not self._output.has_ended:
                failure = RuntimeError("the task ended before its input: MAX_WATERMARK has not come")
        except TaskCancelled:
            pass
        except BaseException as error:
            # Who cancels a task that is through, and closes, has all results.
            failure = None if self.task.state is TaskState.FINISHED else error
        if failure is None:
            self._output.finish()
        else:
            self._output.fail(failure)
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        """Stop without a result: cancel the calls and drop what is not emitted. Idempotent."""
        self.task.fail(TaskCancelled(self.task.name))

    def fail(self, error: BaseException) -> None:
        """Stop because of `error`, which goes to the output. The first one counts."""
        self.task.fail(error)

    def overdue(self) -> tuple[Call, str, float, float, Redact] | None:
        """The call whose deadline comes first: call, limit, seconds, deadline, and how its row is shown.

        Any thread, as an estimate.
        """
        found = [
            (*overdue, operator.redaction)
            for operator in self.operators
            if (overdue := operator.overdue()) is not None
        ]
        return min(found, key=lambda late: late[3], default=None)

    def statistics(self) -> dict[str, OperatorStatistics | None]:
        """Counts of the operators of a chain by their names, in its order. Any thread."""
        return {each.uid: each.statistics() for each in self.operators if each.uid is not None}


class ThreadRun:
    """Runs `fn` over `rows` in a task on a loop thread.

    rows: an `IN_MEMORY` collection or an async iterable, which are read on the loop's thread, or any
        iterable, which is read ahead in a thread of its own, by at most `read_ahead_items`; or an input that
        does so by itself.
    loop_thread: the thread to run on; it outlives the task.
    chunk_rows, linger: see `HandoverOutput`. spread, journal, convert: see `AsyncWaitOperator`.
    chain: see `TaskRun`.
    idle: called by `take` after each second without a result; what it raises, `take` raises.
    snapshot, storage: see `TaskRun`.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        rows: Iterable[Any] | AsyncIterable[Any] | IterableInput,
        *,
        loop_thread: LoopThread,
        read_ahead_items: int = 1,
        chunk_rows: int = 1,
        linger: float = 0.0,
        spread: bool = False,
        idle: Callable[[], None] | None = None,
        journal: Journal | None = None,
        convert: ResultConverter | None = None,
        snapshot: TaskSnapshot | None = None,
        storage: SnapshotStorage | None = None,
        chain: Chain | None = None,
    ) -> None:
        self._loop_thread = loop_thread
        self._idle = idle
        # A chunk waits while another is built: what is not taken stays in the operator's window.
        self._outbox = Handover(1)
        self._run: TaskRun | None = None
        self._ended = threading.Event()
        self._stopped = False
        context = contextvars.copy_context()
        self._reading = _Reading(rows, loop_thread.loop, context, read_ahead_items)
        self.output = HandoverOutput(
            self._outbox,
            loop_thread.loop,
            rows=chunk_rows,
            linger=linger,
            chunk_bytes=_chunk_bytes(options if chain is None else chain.last_options(options)),
        )
        self._make_run = partial(
            TaskRun,
            fn,
            options,
            self._reading.input,
            self.output,
            loop=loop_thread.loop,
            context=context,
            spread=spread,
            journal=journal,
            watched=True,
            convert=convert,
            snapshot=snapshot,
            storage=storage,
            chain=chain,
        )
        loop_thread.submit(self._run_to_end())

    def take(self) -> Chunk | None:
        """The next results, as (call, result) pairs, waiting for them; None at the end.

        Raises what the task failed with, and `CallTimeout` when the event loop is blocked by a call
        that does not give it back.
        """
        return self.output.take(self.look)

    def look(self) -> None:
        """Raise what there is to raise when no result has come for a second, for who takes from `output`."""
        self._check_stall()
        if self._idle is not None:
            self._idle()

    def checkpoint(self, checkpoint_id: int) -> Future[TaskSnapshot]:
        """Take a snapshot of the task as it is; ids grow, in all lives of a task. Any thread.

        The future gets `CheckpointDeclined` where none is taken; the task goes on.
        """
        return self._loop_thread.submit(self._checkpoint(checkpoint_id))

    def close(self) -> bool:
        """Stop what still runs, drop what was not taken, and wait for its threads.

        Returns False if the event loop is blocked, so that calls have not ended after `CLOSE` seconds. A
        reading thread that hangs in its input is left behind, with a warning. Idempotent.
        """
        self._outbox.close()
        self._reading.close()
        self._loop_thread.call(self._stop)
        ended = self._ended.wait(CLOSE)
        self._reading.join()
        watcher = None if self._run is None else self._run.operator.watcher
        if ended and watcher is not None:
            watcher.join(CLOSE)
        return ended

    def abort(self, error: BaseException) -> None:
        """Stop the calls, and have `take` raise `error`. On the thread of the loop."""
        if self._run is not None:
            self._run.fail(error)
        else:
            self._stopped = True
            self._outbox.fail(error)

    def statistics(self) -> OperatorStatistics | None:
        """Counts of the operator so far, in a chain of the last one; None before it has begun."""
        return None if self._run is None else self._run.operators[-1].statistics()

    def statistics_by_uid(self) -> dict[str, OperatorStatistics | None]:
        """Counts of the operators of a chain so far, by their names; none before they have begun."""
        return {} if self._run is None else self._run.statistics()

    async def _run_to_end(self) -> None:
        try:
            self._run = run = self._make_run()
            if self._stopped:
                run.stop()
            await run.run()
            await self._reading.ended()
        except BaseException as error:
            self._outbox.fail(error)
            raise
        finally:
            self._ended.set()

    async def _checkpoint(self, checkpoint_id: int) -> TaskSnapshot:
        if self._run is None:
            raise CheckpointDeclined(checkpoint_id, "the task has not begun")
        return await asyncio.wrap_future(self._run.task.trigger_checkpoint_async(checkpoint_id, UNALIGNED))

    def _stop(self) -> None:
        self._stopped = True
        if self._run is not None:
            self._run.stop()

    def _check_stall(self) -> None:
        overdue = None if self._run is None else self._run.overdue()
        if overdue is None:
            return
        call, limit, seconds, deadline, redaction = overdue
        if self._loop_thread.loop.time() - deadline < STALL:
            return
        # In the text and not in a cause, which Spark drops.
        detail = (
            f"The event loop has not had its turn for {STALL:g} s since: an async function blocks it, here:\n"
            f"{self._loop_thread.stack()}"
        )
        redact = redaction.about(call.row)
        row = None if redact.rows else shorten(call.row, redact=redact)
        raise CallTimeout(limit, seconds, call.attempt, row, redact.text(detail))


def _chunk_bytes(options: Options) -> int:
    # One is built, one is on its way and one is taken, beside what the window holds.
    most = options.buffer.max_bytes
    return CHUNK_BYTES if most is None else min(CHUNK_BYTES, max(1, most // 4))


class LoopRun:
    """Runs `fn` over `rows` in a task on the running event loop; confined to it. chain: see `TaskRun`.

    One coroutine opens `fn` where it is a resource, runs the task, and closes `fn` again: what may not be
    left in another coroutine than the one that entered it is content. The rest is as `ThreadRun` says.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        rows: Iterable[Any] | AsyncIterable[Any],
        *,
        read_ahead_items: int,
        journal: Journal | None = None,
        chain: Chain | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fn = fn
        self._options = options
        self._journal = journal
        self._chain = chain
        self._context = contextvars.copy_context()
        self._reading = _Reading(rows, self._loop, self._context, read_ahead_items, awaits=True)
        self._output = LoopOutput(
            self._loop, _chunk_bytes(options if chain is None else chain.last_options(options))
        )
        self._run: TaskRun | None = None
        self._stopped = False
        self._task = self._loop.create_task(self._run_to_end())

    async def take(self) -> Chunk | None:
        """The next results, as (call, result) pairs; None at the end. Raises what the task failed with."""
        return await self._output.take()

    def stop(self) -> None:
        """Begin to stop what still runs; results that were not taken are dropped."""
        self._stopped = True
        self._reading.close()
        if self._run is not None:
            self._run.stop()
        else:
            self._task.cancel()

    def stop_from_any_thread(self) -> None:
        """Have `stop` called on the loop, unless that is closed."""
        try:
            self._loop.call_soon_threadsafe(self.stop)
        except RuntimeError:
            return

    async def close(self) -> None:
        """Stop what still runs, and wait for its end. Raises what closing `fn` raises. Idempotent.

        Raises TimeoutError if that takes longer than `CLOSE` seconds.
        """
        self.stop()
        await asyncio.wait([self._task], timeout=CLOSE)
        if not self._task.done():
            raise TimeoutError(f"fn={self._fn!r}: could not be closed within {CLOSE:g} s")
        if not self._task.cancelled():
            self._task.result()

    def statistics(self) -> OperatorStatistics | None:
        """Counts of the operator so far, in a chain of the last one; None before it has begun."""
        return None if self._run is None else self._run.operators[-1].statistics()

    def statistics_by_uid(self) -> dict[str, OperatorStatistics | None]:
        """Counts of the operators of a chain so far, by their names; none before they have begun."""
        return {} if self._run is None else self._run.statistics()

    async def _run_to_end(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                entered = await enter_function(self._fn, stack)
                chain = self._chain
                if chain is not None:
                    then = [stage._replace(fn=await enter_function(stage.fn, stack)) for stage in chain.then]
                    chain = chain._replace(then=then)
                self._run = run = TaskRun(
                    entered,
                    self._options,
                    self._reading.input,
                    self._output,
                    loop=self._loop,
                    context=self._context,
                    journal=self._journal,
                    watched=True,
                    chain=chain,
                )
                if self._stopped:
                    run.stop()
                await run.run()
                await self._reading.ended()
        except BaseException as error:
            if self._run is None:
                self._output.fail(error)
                return
            raise
