"""Runs of a task whose operators call functions, from their opening to their end, with input and results.

`TaskRun` is the task on its event loop. `ResultStream` is the whole of it, for the consumer of the results:
the input that is read ahead, functions that are resources, the task, the results. With a consumer in a thread
it has three threads: one reads the input ahead, the loop's thread runs the task and makes the calls, and the
caller's takes the results. A consumer in a coroutine has the task on its own loop, since what it passes in
belongs to that: sessions, locks, queues; only an input that may block is read in a thread.

Results leave in chunks, to another thread or to a coroutine of the same loop. The output has in the task's
snapshot the rows that were not taken, and how many were: those belong to the consumer, who has taken a chunk
when it asks for the next one.
"""

# One coroutine opens the functions, runs the task and closes them again, whoever takes the results. To enter
# a context manager in one coroutine and leave it in another, as an exit stack of the consumer would do, fails
# with cancel scopes of anyio and with task groups, which must be left by the coroutine that has entered them.
# And a run has one place where it ends, however it does: by its last row, by an error, by `close` from
# another thread while a function is being opened, by the end of the loop.
#
# Alternatives of outputs, and why they are worse.
#
# To hand results over one by one: a lock, a wake-up and a change of threads a row, which is more than a call
# that returns at once costs. To hand over full chunks only: whoever asks for five rows waits for two thousand
# calls. So the first chunk is one result, and each that is taken doubles the next.
#
# To count a chunk as taken when it is handed over: a consumer that fails while it writes it would have lost
# it in the snapshot. It is taken when the consumer comes back for the next one.

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from typing import Any, Protocol

from pillarbox.aio import intervals
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import Call, Chunk
from pillarbox.aio.errors import CallTimeout, shorten
from pillarbox.aio.function import enter_function
from pillarbox.aio.policies.errors import FirstFailure
from pillarbox.aio.row_inputs import CollectionInput, input_of, set_done
from pillarbox.aio.stages import Identify, Stage, places_of
from pillarbox.aio.states import OutputState
from pillarbox.aio.totals import Totals
from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.loop_thread import LoopThread, post
from pillarbox.providers import LOOP_WATCHER, provided_if_there
from pillarbox.redaction import Redact
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import (
    CheckpointBarrier,
    CheckpointDeclined,
    CheckpointOptions,
    TaskSnapshot,
)
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, TaskCancelled, TaskOutput, TaskState

TAKE_S = 1.0
"""Seconds that a consumer waits for results before it looks whether there is a reason to wait on."""

WATCH_AFTER_S = 0.1
"""Seconds of a task without a thread that looks for code that blocks its loop: short tasks get none."""

CHUNK_BYTES = 32 * 1024 * 1024
"""Bytes of rows and results in a chunk, at most, unless one row has more: an Arrow column holds 2 GiB."""

UNALIGNED = CheckpointOptions(aligned=False)
"""A checkpoint that waits for no mail before it. In a task without operators that yield that is all."""


# -- results -------------------------------------------------------------------------------------------


def cut_chunk(chunk: Chunk, max_bytes: int) -> tuple[Chunk, int]:
    """The first results whose rows and results hold at most so many bytes, and their bytes; one at least."""
    held = 0
    for place, (call, _) in enumerate(chunk):
        if place and held + call.held > max_bytes:
            return chunk[:place], held
        held += call.held
    return chunk, held


class ChunkOutput:
    """Hands results over in chunks: when `rows` of them are there, or `linger` seconds after the first.

    The first result is handed over at once, and each chunk that is taken doubles the next one, up to `rows`:
    who wants a few rows has them after a few calls, and then stops, or never asks for more.
    With `linger` 0 each emission is handed over as it is. A chunk is cut where its rows and results hold more
    than `chunk_bytes`.

    Confined to the mailbox thread, but for the consumer's end: `take` for a thread, `take_async` for a
    coroutine of the task's own loop, one of them at a time, and `close`.

    Event time ends here: a watermark is not for whoever takes results, but a task that ends without the last
    one has lost some of its input.
    """

    # Both kinds of consumer are behind one handover, though one on the task's own loop needs no lock. An
    # output of its own for that one has the same state, snapshot and cutting, and its own mistakes; the lock
    # costs less than a microsecond a chunk.

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        rows: int = 1,
        linger: float = 0.0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.has_ended = False
        """The last watermark has come, so that all rows before it have."""
        # Of the results that are here, and of each chunk that is offered. A list, of three at most: its copy
        # is one step for another thread, also without a GIL; that of a deque is not.
        self._own_bytes = 0
        self._offered_bytes: list[int] = []
        # A chunk waits while another is built: what is not taken stays in the operator's window. The handover
        # counts rows as its bytes.
        self._handover = Handover(1)
        self._chunk: Chunk = []
        self._chunk_bytes = chunk_bytes
        # Chunks that the consumer has, or may have, and has not come back from; it takes them away itself.
        self._offered: list[Chunk] = []
        self._given = 0
        self._is_worked_on = False
        self._loop = loop
        self._call_soon: Callable[[Callable[[], None]], object] = loop.call_soon_threadsafe
        self._rows = 1
        self._max_rows = rows
        self._linger = linger
        self._timer: asyncio.TimerHandle | None = None
        self._armed = False
        self._wake: Callable[[], object] | None = None
        self._ending: Callable[[], object] | None = None

    # -- the consumer's end -------------------------------------------------------------------

    def take(self, idle: Callable[[], object], first_wait: float = TAKE_S) -> Chunk | None:
        """The next results, as (call, result) pairs, waiting for them; None at the end. Consumer's thread.

        idle: called after `first_wait` seconds and then each second without a result; what it raises, this
        raises. The results of before are the consumer's from now on. Raises what the task failed with.
        """
        self._come_back()
        wait = first_wait
        while True:
            try:
                chunk: Chunk | None = self._handover.take(wait)
            except HandoverClosedError:
                return None
            if chunk is not None:
                self._is_worked_on = True
                return chunk
            idle()
            wait = TAKE_S

    async def take_async(self) -> Chunk | None:
        """As `take`, for a coroutine of the task's own loop."""
        self._come_back()
        # Room that is made on the loop's own thread need not wake the loop.
        self._call_soon = self._loop.call_soon
        while True:
            try:
                chunk: Chunk | None = self._handover.try_take()
            except HandoverClosedError:
                return None
            if chunk is not None:
                self._is_worked_on = True
                return chunk
            ready = self._loop.create_future()
            # Nothing is armed where a chunk has come since.
            if self._handover.arm_wakeup_consumer(partial(set_done, ready)):
                await ready

    def close(self) -> None:
        """Take no more: results that were not taken, and those to come, are dropped. Any thread."""
        # A coroutine that waits is not woken by the close itself.
        self._handover.wake_up()
        self._handover.close()

    def _come_back(self) -> None:
        if self._is_worked_on:
            self._is_worked_on = False
            del self._offered[0], self._offered_bytes[0]

    # -- the task's end -----------------------------------------------------------------------

    def emit_watermark(self, timestamp: float) -> None:
        """Note the last watermark."""
        self.has_ended = self.has_ended or timestamp == MAX_WATERMARK

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Do nothing: results that were not taken yet are part of what the checkpoint restores."""

    def snapshot_state(self) -> OutputState:
        """The results that were not taken, and the number of those that were."""
        # One look at what the consumer changes, so that each row is in one of the two.
        offered = self._offered.copy()
        taken = self._given - sum(map(len, offered))
        return OutputState(taken, (*chain.from_iterable(offered), *self._chunk), self.has_ended)

    def restore_state(self, state: OutputState) -> None:
        """Have the results that were not taken be the first ones. The consumer still has those that were."""
        self.has_ended = state.has_ended
        self._given = state.taken
        self._chunk = [*state.rows]
        self._own_bytes = sum(call.held for call, _ in state.rows)
        self._push()

    def collect(self, batch: RowBatch) -> None:
        """Take results; they reach the other side at once or after the linger time."""
        self._own_bytes += batch.held_bytes
        if not self._chunk:
            self._chunk = batch.rows
        else:
            self._chunk.extend(batch.rows)
        if not self._linger or self._is_full:
            self._push()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._push)

    @property
    def held_bytes(self) -> int:
        """Bytes of the results that are here, and of those from which the consumer has not come back."""
        return self._own_bytes + sum(self._offered_bytes.copy())

    @property
    def is_available(self) -> bool:
        """True if a chunk that is full has found its place."""
        return not self._chunk or not self._is_full or self._push()

    @property
    def room(self) -> int | None:
        """While the output grows, what a chunk lacks: all that waits would be one chunk, and calls follow."""
        return None if self._rows >= self._max_rows else self._rows - len(self._chunk)

    @property
    def _is_full(self) -> bool:
        return len(self._chunk) >= self._rows or self._own_bytes >= self._chunk_bytes

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once, on the mailbox thread, when a full chunk has its place: at once if so."""
        if self.is_available:
            wake()
        else:
            self._wake = wake

    def finish(self) -> None:
        """Hand over what is left, then the end, waiting for room without blocking."""
        self._ending = self._handover.finish
        self._push()

    def fail(self, error: BaseException) -> None:
        """Hand over what is left, then `error`, waiting for room without blocking."""
        self._ending = partial(self._handover.fail, error)
        self._push()

    def _push(self) -> bool:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._chunk:
            if self._try_put():
                continue
            if self._armed or self._handover.arm_wakeup_producer(self._room, len(self._next()[0])):
                self._armed = True
                return False
        if self._ending is not None:
            ending, self._ending = self._ending, None
            ending()
        elif self._wake is not None:
            wake, self._wake = self._wake, None
            wake()
        return True

    def _next(self) -> tuple[Chunk, int]:
        """The results to hand over next, and their bytes."""
        if self._own_bytes <= self._chunk_bytes:
            return self._chunk, self._own_bytes
        return cut_chunk(self._chunk, self._chunk_bytes)

    def _try_put(self) -> bool:
        chunk, held = self._next()
        # Before the consumer may have it.
        self._offered.append(chunk)
        self._offered_bytes.append(held)
        # This end of the handover has not ended it yet, so if it has ended, the consumer has left.
        if self._handover.try_put(chunk, len(chunk)):
            self._given += len(chunk)
            self._chunk = [] if chunk is self._chunk else self._chunk[len(chunk) :]
            self._own_bytes -= held
            if self._rows < self._max_rows:
                self._rows = min(self._max_rows, 2 * self._rows)
            return True
        self._offered.pop()
        self._offered_bytes.pop()
        if self._handover.ended:
            self._chunk = []
            self._own_bytes = 0
            return True
        return False

    def _room(self) -> None:
        # Called by the consumer, once per arming.
        try:
            self._call_soon(self._room_now)
        except RuntimeError:
            # The loop has been closed, so nobody waits for the results any more.
            return

    def _room_now(self) -> None:
        self._armed = False
        self._push()


# -- the run -----------------------------------------------------------------------------------------


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
    spread: as `AsyncWaitOperator` says. `ended` is a future of the loop that is done when the task has ended,
    whatever the reason.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        input: Any,
        output: ResultOutput,
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        identify: Identify | None = None,
        spread: bool = False,
        snapshot: TaskSnapshot | None = None,
    ) -> None:
        self._loop = loop
        self._output = output
        self._snapshot = snapshot
        fn = stages[0].fn
        watch = provided_if_there(LOOP_WATCHER)
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._watcher: Any = None if watch is None else watch(name)
        self.operators = [
            AsyncWaitOperator(
                stage.fn,
                stage.options,
                loop=loop,
                context=context,
                spread=spread,
                ledger_session=stage.ledger_session,
                watcher=self._watcher if place.is_first else None,
                convert=stage.convert,
                uid=stage.uid,
                place=place,
                input_failure=partial(getattr, input, "failure", None),
            )
            for stage, place in zip(stages, places_of(stages, identify), strict=True)
        ]
        # The operator takes samples itself, by a timer of the loop, and has no timers of the task.
        self.task = StreamTask(input, self.operators, output, clock=time.monotonic, latency_interval=None)
        self.ended: asyncio.Future[None] = loop.create_future()

    def watch(self) -> None:
        """Look for code that blocks the loop, where that is installed, until the task ends. Any thread."""
        if self._watcher is not None:
            self._watcher.start()

    def join_watch(self, timeout: float) -> None:
        """Wait until nothing looks any more, for `timeout` seconds at most. Not on the loop's thread."""
        if self._watcher is not None:
            self._watcher.join(timeout)

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
        # Of a task that has not got as far as its operators.
        if self._watcher is not None:
            self._watcher.close()
        if failure is None:
            self._output.finish()
        else:
            self._output.fail(failure)
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        """Stop without a result: cancel the calls and drop what is not emitted. Idempotent."""
        self.task.fail(TaskCancelled(self.task.name))

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
        rows: Iterable[Any] | AsyncIterable[Any] | CollectionInput,
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
        self._intervals = intervals.INTERVALS
        self._loop_thread = loop_thread
        self._loop = loop = asyncio.get_running_loop() if loop_thread is None else loop_thread.loop
        self._opens = opens
        self._idle = idle
        self._run: TaskRun | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ended = threading.Event()
        self._stopped = False
        self._watch_at: float | None = time.monotonic() + WATCH_AFTER_S
        self._input = input_of(rows, loop, read_ahead_items, awaits=loop_thread is None)
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
                if self._loop_thread is None:
                    # No other thread comes by that would begin it.
                    self._run.watch()
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
        if self._watch_at is None:
            return self.output.take(self.look)
        if time.monotonic() >= self._watch_at:
            self._watch()
        return self.output.take(self.look, WATCH_AFTER_S)

    async def take_async(self) -> Chunk | None:
        """As `take`, on the loop of the task."""
        return await self.output.take_async()

    def look(self) -> None:
        """Raise what there is to raise when no result has come for a second, for who takes from `output`."""
        if self._loop_thread is not None and not self._loop_thread.is_alive:
            raise RuntimeError(
                "the thread of the calls has ended before them, most often for too little memory: the log of "
                "this process has the error"
            )
        self._watch()
        self._check_stall()
        if self._idle is not None:
            self._idle()

    def _watch(self) -> None:
        if self._watch_at is not None and self._run is not None:
            self._watch_at = None
            self._run.watch()

    @property
    def has_all_rows(self) -> bool:
        """True if no more rows come to the last function: its calls are made, or begin when there is room.

        Any thread, as an estimate.
        """
        return self._run is not None and self._run.operators[-1].has_all_rows

    def statistics(self) -> dict[str | None, Totals | None]:
        """Counts so far of the functions in order, by `uid`; none before they have begun. Any thread."""
        return {} if self._run is None else {each.uid: each.statistics() for each in self._run.operators}

    def first_failures(self) -> list[FirstFailure | None]:
        """The errors of the first rows that failed in the functions in order. Any thread."""
        return [] if self._run is None else [each.first_failure for each in self._run.operators]

    def checkpoint(self, checkpoint_id: int) -> Future[TaskSnapshot]:
        """Take a snapshot of the task as it is; ids grow, in all lives of a task. Any thread.

        The future raises `CheckpointDeclined` for a task that has not begun, or has ended.
        """
        return asyncio.run_coroutine_threadsafe(self._checkpoint(checkpoint_id), self._loop)

    async def _checkpoint(self, checkpoint_id: int) -> TaskSnapshot:
        if self._run is None:
            raise CheckpointDeclined(checkpoint_id, "the task has not begun")
        return await asyncio.wrap_future(self._run.task.trigger_checkpoint_async(checkpoint_id, UNALIGNED))

    # -- the end ------------------------------------------------------------------------------

    def stop_soon(self) -> None:
        """Begin to stop what still runs; results that were not taken are dropped. Any thread."""
        self._stopped = True
        self.output.close()
        self._input.stop()
        post(self._loop, self._stop)

    def close(self) -> bool:
        """Stop what still runs, drop what was not taken, and wait for its threads. Idempotent.

        Returns False if the event loop is blocked, so that calls have not ended after
        `Intervals.close_timeout`. A reading thread that hangs in its input is left behind, with a warning.
        Raises what closing the functions raises, and TimeoutError if that takes too long.
        """
        self.stop_soon()
        # Not by the future of the whole: a loop that is blocked is told apart from a function that does not
        # close.
        ended = self._ended.wait(self._intervals.close_timeout)
        self._input.join(self._intervals.close_timeout)
        if not ended:
            return False
        if self._run is not None:
            self._run.join_watch(self._intervals.close_timeout)
        assert isinstance(self._closed, Future)
        if not wait([self._closed], self._intervals.close_timeout).done:
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
        await asyncio.wait([self._closed], timeout=self._intervals.close_timeout)
        if not self._closed.done():
            raise self._not_closed()
        if not self._closed.cancelled():
            self._closed.result()

    def _not_closed(self) -> TimeoutError:
        fns = [stage.fn for stage in self._stages]
        name = shorten(fns if len(fns) > 1 else fns[0])
        return TimeoutError(f"fn={name}: could not be closed within {self._intervals.close_timeout:g} s")

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
        if self._loop.time() - deadline < self._intervals.stall_timeout:
            return
        # In the text and not in a cause, which Spark drops.
        detail = (
            f"The event loop has not had its turn for {self._intervals.stall_timeout:g} s since: an async "
            f"function blocks it, here:\n{self._loop_thread.stack()}"
        )
        row = None if redaction.rows else shorten(call.row, redact=redaction)
        raise CallTimeout(limit, seconds, call.attempt, row, redaction.text(detail))
