"""Runs of a task whose operators call functions, from their opening to their end.

`TaskRun` is the task on its event loop. `ResultStream` is the whole of it, for the consumer of the results:
the input that is read ahead, functions that are resources, the task, the results. With a consumer in a thread
it has three threads: one reads the input ahead, the loop's thread runs the task and makes the calls, and the
caller's takes the results. A consumer in a coroutine has the task on its own loop, since what it passes in
belongs to that: sessions, locks, queues; only an input that may block is read in a thread.
"""

# One coroutine opens the functions, runs the task and closes them again, whoever takes the results. To enter
# a context manager in one coroutine and leave it in another, as an exit stack of the consumer would do, fails
# with cancel scopes of anyio and with task groups, which must be left by the coroutine that has entered them.
# And a run has one place where it ends, however it does: by its last row, by an error, by `close` from
# another thread while a function is being opened, by the end of the loop.

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack
from typing import Any, Protocol

from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import Call
from pillarbox.aio.chained import Identify, Stage, places_of
from pillarbox.aio.errors import CallTimeout, shorten
from pillarbox.aio.function import enter_function
from pillarbox.aio.observe.totals import Totals
from pillarbox.aio.task_io import CHUNK_BYTES, Chunk, ChunkOutput, RowInput, row_input
from pillarbox.redaction import Redact
from pillarbox.rpc.loop_thread import LoopThread, post
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import CheckpointDeclined, CheckpointOptions, TaskSnapshot
from pillarbox.task.protocols import TaskCancelled, TaskInput, TaskOutput, TaskState

STALL_TIMEOUT_S = 5.0
"""Seconds by which a deadline may be missed before the event loop counts as blocked."""

CLOSE_TIMEOUT_S = 5.0
"""Seconds that ending a run early may take before its threads are left to themselves."""

UNALIGNED = CheckpointOptions(aligned=False)
"""A checkpoint that waits for no mail before it. In a task without operators that yield that is all."""


class ResultOutput(TaskOutput, Protocol):
    """The output of a run, which hears of its end."""

    has_ended: bool
    """The last watermark has come."""

    def finish(self) -> None:
        """No more results come."""

    def fail(self, error: BaseException) -> None:
        """No more results come, because of `error`."""


class TaskRun:
    """A task whose operators call functions. Confined to the thread of `loop`.

    stages: the functions, each of which gets what the one in front gives. input, output: those of the task;
    the output hears of its end. identify: see `places_of`. snapshot: what the task goes on from.
    spread, watched: as `AsyncWaitOperator` says. `ended` is a future of the loop that is done when the task
    has ended, whatever the reason.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        input: TaskInput,
        output: ResultOutput,
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        identify: Identify | None = None,
        spread: bool = False,
        watched: bool = False,
        snapshot: TaskSnapshot | None = None,
    ) -> None:
        self._loop = loop
        self._output = output
        self._snapshot = snapshot
        self.operators = [
            AsyncWaitOperator(
                stage.fn,
                stage.options,
                loop=loop,
                context=context,
                spread=spread,
                ledger_session=stage.ledger_session,
                # One thread looks at the loop, for all of them.
                watched=watched and place.is_first,
                convert=stage.convert,
                uid=stage.uid,
                place=place,
            )
            for stage, place in zip(stages, places_of(stages, identify), strict=True)
        ]
        # The operator takes samples itself, by a timer of the loop, and has no timers of the task.
        self.task = StreamTask(input, self.operators, output, clock=time.monotonic, latency_interval=None)
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


class ResultStream:
    """The results of functions over rows: a task on an event loop, and its consumer's end.

    stages: the functions, each of which gets what the one in front gives.
    rows: an `IN_MEMORY` collection or an async iterable, which are read on the loop, or any iterable, which
        is read ahead in a thread of its own, by at most `read_ahead_items`; or an input.
    loop_thread: the thread to run on, which outlives the task; its consumer calls `take` and `close`. None
        for the running loop, whose consumer awaits `take_async` and `aclose`.
    opens: functions that are resources are opened before the first row is read, and closed at the end.
    chunk_rows, linger: see `ChunkOutput`. idle: called by `take` after each second without a result; what it
        raises, `take` raises. The others: see `TaskRun`.

    Methods are for the consumer, where nothing else is said.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        rows: Iterable[Any] | AsyncIterable[Any] | RowInput,
        *,
        loop_thread: LoopThread | None,
        read_ahead_items: int = 1,
        opens: bool = False,
        chunk_rows: int = 1,
        linger: float = 0.0,
        idle: Callable[[], None] | None = None,
        identify: Identify | None = None,
        spread: bool = False,
        snapshot: TaskSnapshot | None = None,
    ) -> None:
        self._stages = stages
        self._loop_thread = loop_thread
        self._loop = loop = asyncio.get_running_loop() if loop_thread is None else loop_thread.loop
        self._opens = opens
        self._idle = idle
        self._run: TaskRun | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ended = threading.Event()
        self._stopped = False
        self._input = row_input(rows, loop, read_ahead_items, awaits=loop_thread is None)
        max_bytes = stages[-1].options.buffer.max_bytes
        self.output = ChunkOutput(
            loop,
            rows=chunk_rows,
            linger=linger,
            # One is built, one is on its way and one is taken, beside what the window holds.
            chunk_bytes=CHUNK_BYTES if max_bytes is None else min(CHUNK_BYTES, max(1, max_bytes // 4)),
        )
        context = contextvars.copy_context()

        def make_run(opened: Sequence[Stage]) -> TaskRun:
            self._input.start(context.copy())
            return TaskRun(
                opened,
                self._input,
                self.output,
                loop=loop,
                context=context,
                identify=identify,
                spread=spread,
                watched=True,
                snapshot=snapshot,
            )

        whole = self._run_to_end(make_run)
        # Closing the functions included, which may raise.
        self._closed: Future[None] | asyncio.Task[None] = (
            loop.create_task(whole) if loop_thread is None else loop_thread.submit(whole)
        )

    async def _run_to_end(self, make_run: Callable[[Sequence[Stage]], TaskRun]) -> None:
        try:
            async with AsyncExitStack() as stack:
                # Closed before it has begun: nothing is opened, and no row is read.
                stages = self._stages
                if self._opens and not self._stopped:
                    stages = await self._open(stack)
                if self._stopped:
                    self.output.finish()
                    return
                self._run = make_run(stages)
                await self._run.run()
                await self._input.closed()
                self._ended.set()
        except BaseException as error:
            if self._run is not None:
                # Of closing a function; whoever closes the stream gets it. Results have their own end.
                raise
            self._input.close()
            self.output.fail(error)
        finally:
            self._ended.set()

    async def _open(self, stack: AsyncExitStack) -> list[Stage]:
        self._opening = asyncio.current_task()
        try:
            return [stage._replace(fn=await enter_function(stage.fn, stack)) for stage in self._stages]
        finally:
            # What was opened is closed without being disturbed.
            self._opening = None

    # -- results ------------------------------------------------------------------------------

    def take(self) -> Chunk | None:
        """The next results, as (call, result) pairs, waiting for them; None at the end.

        Raises what the task failed with, and `CallTimeout` when the event loop is blocked by a call
        that does not give it back.
        """
        return self.output.take(self.look)

    async def take_async(self) -> Chunk | None:
        """As `take`, on the loop of the task."""
        return await self.output.take_async()

    def look(self) -> None:
        """Raise what there is to raise when no result has come for a second, for who takes from `output`."""
        self._check_stall()
        if self._idle is not None:
            self._idle()

    def statistics(self) -> Totals | None:
        """Counts of the last function so far; None before it has begun. Any thread."""
        return None if self._run is None else self._run.operators[-1].statistics()

    def statistics_by_uid(self) -> dict[str, Totals | None]:
        """Counts so far of the functions that have names; none before they have begun. Any thread."""
        operators = () if self._run is None else self._run.operators
        return {each.uid: each.statistics() for each in operators if each.uid is not None}

    def checkpoint(self, checkpoint_id: int) -> Future[TaskSnapshot]:
        """Take a snapshot of the task as it is; ids grow, in all lives of a task. Any thread.

        The future gets `CheckpointDeclined` where none is taken; the task goes on.
        """
        return asyncio.run_coroutine_threadsafe(self._checkpoint(checkpoint_id), self._loop)

    async def _checkpoint(self, checkpoint_id: int) -> TaskSnapshot:
        if self._run is None:
            raise CheckpointDeclined(checkpoint_id, "the task has not begun")
        return await asyncio.wrap_future(self._run.task.trigger_checkpoint_async(checkpoint_id, UNALIGNED))

    # -- the end ------------------------------------------------------------------------------

    def abort(self, error: BaseException) -> None:
        """Stop the calls, and have `take` raise `error`. On the thread of the loop."""
        if self._run is not None:
            self._run.fail(error)
        else:
            self.output.fail(error)
            self._stop()

    def stop_soon(self) -> None:
        """Begin to stop what still runs; results that were not taken are dropped. Any thread."""
        self._stopped = True
        self.output.close()
        self._input.stop()
        post(self._loop, self._stop)

    def close(self) -> bool:
        """Stop what still runs, drop what was not taken, and wait for its threads. Idempotent.

        Returns False if the event loop is blocked, so that calls have not ended after `CLOSE_TIMEOUT_S`. A
        reading thread that hangs in its input is left behind, with a warning. Raises what closing the
        functions raises, and TimeoutError if that takes too long.
        """
        self.stop_soon()
        # Not by the future of the whole: a loop that is blocked is told apart from a function that does not
        # close.
        ended = self._ended.wait(CLOSE_TIMEOUT_S)
        self._input.join(CLOSE_TIMEOUT_S)
        if not ended:
            return False
        watcher = None if self._run is None else self._run.operators[0].watcher
        if watcher is not None:
            watcher.join(CLOSE_TIMEOUT_S)
        assert isinstance(self._closed, Future)
        if not wait([self._closed], CLOSE_TIMEOUT_S).done:
            raise self._not_closed()
        self._closed.result()
        return True

    async def aclose(self) -> None:
        """As `close`, on the loop of the task, without waiting for a thread that reads."""
        self.output.close()
        self._input.stop()
        # At once, as this is the loop's own thread.
        self._stop()
        assert isinstance(self._closed, asyncio.Task)
        await asyncio.wait([self._closed], timeout=CLOSE_TIMEOUT_S)
        if not self._closed.done():
            raise self._not_closed()
        if not self._closed.cancelled():
            self._closed.result()

    def _not_closed(self) -> TimeoutError:
        fns = [stage.fn for stage in self._stages]
        name = shorten(fns if len(fns) > 1 else fns[0])
        return TimeoutError(f"fn={name}: could not be closed within {CLOSE_TIMEOUT_S:g} s")

    def _stop(self) -> None:
        self._stopped = True
        if self._run is not None:
            self._run.stop()
        elif self._opening is not None:
            self._opening.cancel()

    def _check_stall(self) -> None:
        overdue = None if self._run is None else self._run.overdue()
        if overdue is None or self._loop_thread is None:
            return
        call, limit, seconds, deadline, redaction = overdue
        if self._loop.time() - deadline < STALL_TIMEOUT_S:
            return
        # In the text and not in a cause, which Spark drops.
        detail = (
            f"The event loop has not had its turn for {STALL_TIMEOUT_S:g} s since: an async function blocks "
            f"it, here:\n{self._loop_thread.stack()}"
        )
        row = None if redaction.rows else shorten(call.row, redact=redaction)
        raise CallTimeout(limit, seconds, call.attempt, row, redaction.text(detail))
