"""One run of the operator, seen from what consumes its results: a thread, or a task.

`Job` has three threads: one reads the input ahead, the loop's thread owns the operator and makes the
calls, and the caller's takes the results. All its methods are for the caller's thread.

`LoopJob` runs on the caller's own event loop, for what a consumer in a coroutine passes in belongs to that
loop: sessions, locks, queues. Only an input that may block is read in a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from pillarbox.aio.calls import ResultConverter
from pillarbox.aio.counts import OperatorStatistics
from pillarbox.aio.errors import CallTimeout, shorten
from pillarbox.aio.journal import Journal
from pillarbox.aio.operator import AsyncOperator
from pillarbox.aio.options import Options
from pillarbox.aio.resource import enter_function
from pillarbox.aio.sinks import CHUNK_BYTES, Chunk, HandoverSink, LoopSink
from pillarbox.aio.sources import (
    AsyncIterableSource,
    CollectionSource,
    HandoverSource,
    Lot,
    Source,
    one_lot,
    read_ahead,
)
from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.wire.loop_thread import LoopThread

log = logging.getLogger("pillarbox")

STALL = 5.0
"""Seconds by which a deadline may be missed before the event loop counts as blocked."""

CLOSE = 5.0
"""Seconds that ending a job early may take before its threads are left to themselves."""

IN_MEMORY = (list, tuple, range, set, frozenset, dict)
"""Collections whose iteration never waits; others may read a file or a database."""

_numbers = itertools.count(1)


class _Input:
    """The source of a job, and the thread or task that reads ahead for it.

    Used as `Job` says of its `rows`, `unpack`, `weigh` and bounds. awaits: what can be iterated either way is
    iterated with `async for`. Any thread, but for `ended`.
    """

    def __init__(
        self,
        rows: Iterable[Any] | AsyncIterable[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        items: int,
        bytes_: int | None = None,
        unpack: Callable[[Iterable[Any]], Iterator[Lot]] = one_lot,
        weigh: Callable[[Any], int] | None = None,
        *,
        awaits: bool = False,
    ) -> None:
        self._handover: Handover | None = None
        self._reader: threading.Thread | None = None
        self.source: Source
        if isinstance(rows, IN_MEMORY):
            self.source = CollectionSource(rows)
        elif isinstance(rows, AsyncIterable) and (awaits or not isinstance(rows, Iterable)):
            self.source = AsyncIterableSource(rows, loop, context.copy(), items)
        else:
            self._handover = Handover(items, bytes_)
            self.source = HandoverSource(self._handover, unpack)
            self._reader = threading.Thread(
                target=context.copy().run,
                args=(read_ahead, rows, self._handover, weigh),
                name=f"pillarbox-read-{next(_numbers)}",
                daemon=True,
            )
            self._reader.start()

    async def ended(self) -> None:
        """Wait for the task that reads, for a time. On the loop's thread."""
        if isinstance(self.source, AsyncIterableSource):
            await self.source.closed()

    def close(self) -> None:
        """Stop the thread that reads, at its next item."""
        if self._handover is not None:
            self._handover.close()

    def join(self) -> None:
        """Wait for the thread that reads, for `CLOSE` seconds at most. Blocks."""
        if self._reader is not None:
            self._reader.join(CLOSE)
            if self._reader.is_alive():
                log.warning("thread %s still waits for input; it is left behind", self._reader.name)


class Job:
    """Runs `fn` over `rows` on a loop thread.

    rows: an `IN_MEMORY` collection or an async iterable, which are read on the loop's thread, or any
        iterable, which is read ahead in a thread of its own, by at most `read_ahead_items` items or
        `read_ahead_bytes` as `weigh` gives them.
    unpack: turns items of a read-ahead iterable into lots of rows.
    loop_thread: the thread to run on; it outlives the job.
    chunk_rows, linger: see `HandoverSink`. spread, journal, convert: see `AsyncOperator`.
    idle: called by `take` after each second without a result; what it raises, `take` raises.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        rows: Iterable[Any] | AsyncIterable[Any],
        *,
        loop_thread: LoopThread,
        unpack: Callable[[Iterable[Any]], Iterator[Lot]] = one_lot,
        read_ahead_items: int,
        read_ahead_bytes: int | None = None,
        weigh: Callable[[Any], int] | None = None,
        chunk_rows: int = 1,
        linger: float = 0.0,
        spread: bool = False,
        idle: Callable[[], None] | None = None,
        journal: Journal | None = None,
        convert: ResultConverter | None = None,
    ) -> None:
        self._loop_thread = loop_thread
        self._idle = idle
        # A chunk waits while another is built: what is not taken stays in the operator's window.
        self._outbox = Handover(1)
        self._operator: AsyncOperator | None = None
        self._ended = threading.Event()
        self._stopped = False
        context = contextvars.copy_context()
        self._input = _Input(
            rows, loop_thread.loop, context, read_ahead_items, read_ahead_bytes, unpack, weigh
        )
        self._make_sink = partial(
            HandoverSink,
            self._outbox,
            loop_thread.loop,
            rows=chunk_rows,
            linger=linger,
            chunk_bytes=_chunk_bytes(options),
        )
        self._make_operator = partial(
            AsyncOperator,
            fn,
            options,
            self._input.source,
            loop=loop_thread.loop,
            context=context,
            spread=spread,
            journal=journal,
            watched=True,
            convert=convert,
        )
        loop_thread.submit(self._run())

    def take(self) -> Chunk | None:
        """The next results, as (call, result) pairs, waiting for them; None at the end.

        Raises what the job failed with, and `CallTimeout` when the event loop is blocked by a call
        that does not give it back.
        """
        while True:
            try:
                chunk = self._outbox.take(1.0)
            except HandoverClosedError:
                return None
            if chunk is not None:
                return chunk  # type: ignore[no-any-return]
            self._check_stall()
            if self._idle is not None:
                self._idle()

    def close(self) -> bool:
        """Stop what still runs, drop what was not taken, and wait for the job's threads.

        Returns False if the event loop is blocked, so that calls have not ended after `CLOSE` seconds. A
        reading thread that hangs in its input is left behind, with a warning. Idempotent.
        """
        self._outbox.close()
        self._input.close()
        self._loop_thread.call(self._stop)
        ended = self._ended.wait(CLOSE)
        self._input.join()
        if ended and self._operator is not None and self._operator.watcher is not None:
            self._operator.watcher.join(CLOSE)
        return ended

    def abort(self, error: BaseException) -> None:
        """Stop the calls, and have `take` raise `error`. On the thread of the loop."""
        if self._operator is not None:
            self._operator.fail(error)
        else:
            self._stopped = True
            self._outbox.fail(error)

    def statistics(self) -> OperatorStatistics | None:
        """Counts of the operator so far; None before it has begun."""
        return None if self._operator is None else self._operator.statistics()

    async def _run(self) -> None:
        try:
            self._operator = operator = self._make_operator(self._make_sink())
            operator.start()
            if self._stopped:
                operator.stop()
            await operator.ended
            await self._input.ended()
        except BaseException as error:
            self._outbox.fail(error)
            raise
        finally:
            self._ended.set()

    def _stop(self) -> None:
        self._stopped = True
        if self._operator is not None:
            self._operator.stop()

    def _check_stall(self) -> None:
        operator = self._operator
        overdue = None if operator is None else operator.overdue()
        if overdue is None:
            return
        call, limit, seconds, deadline = overdue
        if self._loop_thread.loop.time() - deadline < STALL:
            return
        # In the text and not in a cause, which Spark drops.
        detail = (
            f"The event loop has not had its turn for {STALL:g} s since: an async function blocks it, here:\n"
            f"{self._loop_thread.stack()}"
        )
        raise CallTimeout(limit, seconds, call.attempt, shorten(call.row), detail)


def _chunk_bytes(options: Options) -> int:
    # One is built, one is on its way and one is taken, beside what the window holds.
    return CHUNK_BYTES if options.max_bytes is None else min(CHUNK_BYTES, max(1, options.max_bytes // 4))


class LoopJob:
    """Runs `fn` over `rows` on the running event loop; confined to it.

    One task opens `fn` where it is a resource, waits for the operator, and closes `fn` again: what may not
    be left in another task than the one that entered it is content. The rest is as `Job` says.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        options: Options,
        rows: Iterable[Any] | AsyncIterable[Any],
        *,
        read_ahead_items: int,
        journal: Journal | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fn = fn
        self._options = options
        self._journal = journal
        self._context = contextvars.copy_context()
        self._input = _Input(rows, self._loop, self._context, read_ahead_items, awaits=True)
        self._sink = LoopSink(self._loop, _chunk_bytes(options))
        self._operator: AsyncOperator | None = None
        self._stopped = False
        self._task = self._loop.create_task(self._run())

    async def take(self) -> Chunk | None:
        """The next results, as (call, result) pairs; None at the end. Raises what the job failed with."""
        return await self._sink.take()

    def stop(self) -> None:
        """Begin to stop what still runs; results that were not taken are dropped."""
        self._stopped = True
        self._input.close()
        if self._operator is not None:
            self._operator.stop()
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
        """Counts of the operator so far; None before it has begun."""
        return None if self._operator is None else self._operator.statistics()

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                entered = await enter_function(self._fn, stack)
                self._operator = operator = AsyncOperator(
                    entered,
                    self._options,
                    self._input.source,
                    self._sink,
                    loop=self._loop,
                    context=self._context,
                    journal=self._journal,
                    watched=True,
                )
                operator.start()
                if self._stopped:
                    operator.stop()
                await self._end_of(operator)
                await self._input.ended()
        except BaseException as error:
            if self._operator is None:
                self._sink.fail(error)
                return
            raise

    async def _end_of(self, operator: AsyncOperator) -> None:
        while not operator.ended.done():
            try:
                await asyncio.wait([operator.ended])
            except asyncio.CancelledError as error:
                # By whoever ends the loop, such as asyncio.run; the results would seem to be complete.
                operator.fail(error)
