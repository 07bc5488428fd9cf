"""Inputs and outputs of a task whose other end is not on its thread: collections, iterables, other threads.

Rows come in batches, whose rows weigh the same, so that nothing has to be weighed row by row. Results leave
in chunks, to another thread or to a coroutine of the same loop. Everything is confined to the mailbox thread,
but for what says otherwise.

An input has its position in the task's snapshot: the rows that it has emitted. What a restored one reads
begins where the first one did, and that many rows are passed over. An output has there the rows that were not
taken, and how many were: those belong to the consumer, who has taken a chunk when it asks for the next one.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from pillarbox.aio.scheduler import Call
from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.task import MAX_WATERMARK, CheckpointBarrier, InputStatus, RowBatch, TaskOutput

log = logging.getLogger("pillarbox")

CANCEL_TIMEOUT_S = 1.0
"""Seconds that an async iterable has to end after its reading was cancelled."""

BATCH_ROWS = 1024
"""Rows of a collection that become one batch."""

_numbers = itertools.count(1)


class _RowInput:
    """The base of inputs of rows: their position. Confined to the mailbox thread."""

    __slots__ = ("_passed", "_position")

    def __init__(self) -> None:
        self._position = 0
        self._passed = 0

    def _emit(self, rows: list[Any], output: TaskOutput, row_bytes: int | None = None) -> None:
        if self._passed:
            # Emitted before the snapshot.
            passed = min(self._passed, len(rows))
            self._passed -= passed
            rows = rows[passed:]
            if not rows:
                return
        self._position += len(rows)
        output.collect(RowBatch(rows, row_bytes))

    def _end(self) -> InputStatus:
        """The end of the input. Raises ValueError if it comes before the position of the snapshot."""
        if self._passed:
            raise ValueError(
                f"the input has ended {self._passed:,} rows before the position that the snapshot has of it: "
                "a restored task must read the rows that it read before, in the same order"
            )
        return InputStatus.END_OF_INPUT

    def snapshot_state(self) -> int:
        """The rows that were emitted."""
        return self._position

    def restore_state(self, state: int) -> None:
        """Pass over as many rows; what is read begins where it did before."""
        self._position = self._passed = state


class CollectionInput(_RowInput):
    """Rows that are all in memory: read where they are used, with no thread between."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Collection[Any]) -> None:
        super().__init__()
        self._rows = iter(rows)

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the next rows. They weigh nothing more where they are admitted."""
        rows = list(islice(self._rows, BATCH_ROWS))
        if not rows:
            return self._end()
        self._emit(rows, output, 0)
        return InputStatus.MORE_AVAILABLE

    def available(self) -> None:
        """Nothing is ever waited for."""

    def close(self) -> None:
        """Forget the rows."""
        self._rows = iter(())


class IterableInput(_RowInput):
    """Rows of an iterable, which a thread of its own reads ahead.

    Subclasses read items that are more than a row, by at most `ahead` items and `ahead_bytes`, as `weigh`
    gives them; None for any. `start`, `stop` and `join` are for any thread.
    """

    __slots__ = ("_handover", "_items", "_reader")

    def __init__(self, items: Iterable[Any], ahead: int, ahead_bytes: int | None = None) -> None:
        super().__init__()
        self._items = items
        self._handover = Handover(ahead, ahead_bytes)
        self._reader: threading.Thread | None = None

    def start(self, context: contextvars.Context) -> None:
        """Begin to read, in a thread that runs in `context`."""
        name = f"pillarbox-read-{next(_numbers)}"
        self._reader = threading.Thread(target=context.run, args=(self._read,), name=name, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Have the reading thread end at its next item."""
        self._handover.close()

    def join(self, timeout: float) -> None:
        """Wait for the end of the reading thread, for `timeout` seconds at most. Blocks."""
        if self._reader is not None:
            self._reader.join(timeout)
            if self._reader.is_alive():
                log.warning("thread %s still waits for input; it is left behind", self._reader.name)

    def weigh(self, item: Any) -> int:
        """The bytes of an item. On the reading thread."""
        return 0

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the rows that have been read; raises what the reading thread failed with."""
        try:
            items = self._handover.take_all()
        except HandoverClosedError:
            return self._end()
        if not items:
            return InputStatus.NOTHING_AVAILABLE
        self._emit([*chain.from_iterable(items)], output)
        return InputStatus.MORE_AVAILABLE

    def available(self) -> Future[None] | None:
        """A future that is done when something is read, or the input ends or fails."""
        future: Future[None] = Future()
        return future if self._handover.arm_wakeup_consumer(partial(future.set_result, None)) else None

    def close(self) -> None:
        """As `stop`."""
        self.stop()

    def _read(self) -> None:
        handover, weigh = self._handover, self.weigh
        weighs = type(self).weigh is not IterableInput.weigh
        try:
            for item in self._items:
                # In a tuple, since a handover does not take None, and an iterable may yield it.
                if not handover.put((item,), weigh(item) if weighs else 0):
                    return
        except BaseException as error:
            handover.fail(error)
        else:
            handover.finish()


class AsyncIterableInput(_RowInput):
    """Rows of an async iterable, read by a coroutine of the task's loop, at most `items` ahead.

    context: where that runs. It begins with the first `emit_next`. An async generator is closed when it is
    not read to its end.
    """

    __slots__ = (
        "_awaited",
        "_closed",
        "_context",
        "_is_ending",
        "_items",
        "_iterable",
        "_loop",
        "_read",
        "_room",
        "_rows",
    )

    def __init__(
        self,
        iterable: AsyncIterable[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        items: int,
    ) -> None:
        super().__init__()
        self._iterable = iterable
        self._loop = loop
        self._context = context
        self._items = items
        self._rows: list[Any] = []
        self._read: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._awaited: Future[None] | None = None
        self._closed = self._is_ending = False

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the rows that have been read; raises what the iterable failed with."""
        self._begin()
        if self._rows:
            rows, self._rows = self._rows, []
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
            self._emit(rows, output)
            return InputStatus.MORE_AVAILABLE
        assert self._read is not None
        if self._read.done():
            self._read.result()
            return self._end()
        return InputStatus.NOTHING_AVAILABLE

    def available(self) -> Future[None] | None:
        """A future that is done when a row is read, or the iterable ends or fails."""
        assert self._read is not None
        if self._rows or self._read.done():
            return None
        self._awaited = Future()
        return self._awaited

    def close(self) -> None:
        """Cancel the task that reads."""
        self._closed = True
        self._rows = []
        # The end of the loop cancels it as well, and a second time would cut the generator's own end short.
        if self._read is not None and not self._is_ending:
            self._read.cancel()

    async def closed(self) -> None:
        """Wait for the end of the task that reads, for `CANCEL_TIMEOUT_S` seconds at most."""
        if self._read is not None and not self._read.done():
            await asyncio.wait([self._read], timeout=CANCEL_TIMEOUT_S)
            if not self._read.done():
                log.warning("%r did not end after it was cancelled; it is left behind", self._iterable)
                self._read._log_destroy_pending = False  # type: ignore[attr-defined]

    def _begin(self) -> None:
        if self._read is None:
            self._read = self._context.run(asyncio.Task, self._read_ahead(), loop=self._loop)
            self._read.add_done_callback(self._has_ended)

    async def _read_ahead(self) -> None:
        iterator = None
        try:
            iterator = self._iterable.__aiter__()
            while not self._closed:
                try:
                    row = await iterator.__anext__()
                except StopAsyncIteration:
                    return
                self._rows.append(row)
                self._notify()
                if len(self._rows) >= self._items:
                    self._room = self._loop.create_future()
                    await self._room
        finally:
            self._is_ending = True
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()

    def _has_ended(self, read: asyncio.Task[None]) -> None:
        if not read.cancelled():
            # Retrieved, so that asyncio does not report an error that nobody asks for after an early end.
            read.exception()
        self._notify()

    def _notify(self) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited.set_result(None)


Chunk = list[tuple[Call, Any]]

CHUNK_BYTES = 32 * 1024 * 1024
"""Bytes of rows and results in a chunk, at most, unless one row has more: an Arrow column holds 2 GiB."""


TAKE_S = 1.0
"""Seconds that a consumer waits for results before it looks whether there is a reason to wait on."""


def cut_chunk(chunk: Chunk, most: int) -> tuple[Chunk, int]:
    """The first results whose rows and results hold at most so many bytes, and their bytes; one at least."""
    held = 0
    for place, (call, _) in enumerate(chunk):
        if place and held + call.held > most:
            return chunk[:place], held
        held += call.held
    return chunk, held


class OutputState(NamedTuple):
    """What an output of results has in a snapshot: references. Any thread, if the rows allow it."""

    taken: int
    """Results that the consumer had taken, which are not among `rows`."""
    rows: tuple[tuple[Call, Any], ...]
    """Results that were collected and not taken, in order."""
    has_ended: bool
    """`MAX_WATERMARK` has come, and does not come again."""


class _ChunkOutput:
    """The base of the outputs of results. Confined to the mailbox thread.

    Event time ends here: a watermark is not for whoever takes results, but a task that ends without the last
    one has lost some of its input.
    """

    __slots__ = ("_chunk", "_chunk_bytes", "_given", "_offered", "has_ended", "held_bytes")

    def __init__(self, chunk_bytes: int) -> None:
        self.has_ended = False
        """The last watermark has come, so that all rows before it have."""
        self.held_bytes = 0
        self._chunk: Chunk = []
        self._chunk_bytes = chunk_bytes
        # Chunks that the consumer has, or may have, and has not come back from; it takes them away itself.
        self._offered: deque[Chunk] = deque()
        self._given = 0

    def emit_watermark(self, timestamp: float) -> None:
        """Note the last watermark."""
        self.has_ended = self.has_ended or timestamp == MAX_WATERMARK

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Results that were not taken yet are part of what the checkpoint restores."""

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
        self.held_bytes = sum(call.held for call, _ in state.rows)


class HandoverOutput(_ChunkOutput):
    """Hands results over in chunks: when `rows` of them are there, or `linger` seconds after the first.

    The first result is handed over at once, and each chunk that is taken doubles the next one, up to `rows`:
    who wants a few rows has them after a few calls, and then stops, or never asks for more.
    With `linger` 0 each emission is handed over as it is. A chunk is cut where its rows and results hold more
    than `chunk_bytes`. The handover counts rows as its bytes. Confined to the mailbox thread, but for `take`.
    """

    __slots__ = (
        "_armed",
        "_ending",
        "_handover",
        "_is_worked_on",
        "_linger",
        "_loop",
        "_max_rows",
        "_rows",
        "_timer",
        "_wake",
    )

    def __init__(
        self,
        handover: Handover,
        loop: asyncio.AbstractEventLoop,
        *,
        rows: int = 1,
        linger: float = 0.0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        super().__init__(chunk_bytes)
        self._handover = handover
        self._is_worked_on = False
        self._loop = loop
        self._rows = 1
        self._max_rows = rows
        self._linger = linger
        self._timer: asyncio.TimerHandle | None = None
        self._armed = False
        self._wake: Callable[[], None] | None = None
        self._ending: Callable[[], object] | None = None

    def take(self, idle: Callable[[], object]) -> Chunk | None:
        """The next results, as (call, result) pairs, waiting for them; None at the end. Consumer's thread.

        idle: called after each second without a result; what it raises, this raises.
        Those of before are the consumer's from now on. Raises what the task failed with.
        """
        if self._is_worked_on:
            self._is_worked_on = False
            self._offered.popleft()
        while True:
            try:
                chunk: Chunk | None = self._handover.take(TAKE_S)
            except HandoverClosedError:
                return None
            if chunk is not None:
                self._is_worked_on = True
                return chunk
            idle()

    def restore_state(self, state: OutputState) -> None:
        """As the base class; what was restored is handed over as it finds room."""
        super().restore_state(state)
        self._push()

    def collect(self, batch: RowBatch) -> None:
        """Take results; they reach the other side at once or after the linger time."""
        self.held_bytes += batch.held_bytes
        if not self._chunk:
            self._chunk = batch.rows
        else:
            self._chunk.extend(batch.rows)
        if not self._linger or self._is_full:
            self._push()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._push)

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
        return len(self._chunk) >= self._rows or self.held_bytes >= self._chunk_bytes

    def call_when_room(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once, on the mailbox thread, when a full chunk has found its place."""
        self._wake = wake

    def finish(self) -> None:
        """Hand over what is left, then the end, waiting for room without blocking."""
        self._ending = self._handover.finish
        self._push()

    def fail(self, error: BaseException) -> None:
        """Hand over what is left, then `error`, waiting for room without blocking."""
        self._ending = lambda: self._handover.fail(error)
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
        if self.held_bytes <= self._chunk_bytes:
            return self._chunk, self.held_bytes
        return cut_chunk(self._chunk, self._chunk_bytes)

    def _try_put(self) -> bool:
        chunk, held = self._next()
        # Before the consumer may have it.
        self._offered.append(chunk)
        # This end of the handover has not ended it yet, so if it has ended, the consumer has left.
        if self._handover.try_put(chunk, len(chunk)):
            self._given += len(chunk)
            self._chunk = [] if chunk is self._chunk else self._chunk[len(chunk) :]
            self.held_bytes -= held
            if self._rows < self._max_rows:
                self._rows = min(self._max_rows, 2 * self._rows)
            return True
        self._offered.pop()
        if self._handover.ended:
            self._chunk = []
            self.held_bytes = 0
            return True
        return False

    def _room(self) -> None:
        # Called by the consuming thread, once per arming.
        try:
            self._loop.call_soon_threadsafe(self._room_now)
        except RuntimeError:
            # The loop has been closed, so nobody waits for the results any more.
            return

    def _room_now(self) -> None:
        self._armed = False
        self._push()


class LoopOutput(_ChunkOutput):
    """Keeps results until a coroutine of the task's own loop takes them. Confined to the mailbox thread."""

    __slots__ = ("_ended", "_error", "_loop", "_waiter", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(chunk_bytes)
        self._loop = loop
        self._ended = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wake: Callable[[], None] | None = None

    def restore_state(self, state: OutputState) -> None:
        """As the base class; who waits for results already has those that were restored."""
        super().restore_state(state)
        self._notify()

    async def take(self) -> Chunk | None:
        """The next results, waiting for them; None at the end. For one coroutine at a time.

        Those of before are the consumer's from now on. Raises what the task failed with.
        """
        self._offered.clear()
        while not self._chunk:
            if self._ended:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        chunk, held = self._chunk, self.held_bytes
        if held > self._chunk_bytes:
            chunk, held = cut_chunk(chunk, self._chunk_bytes)
        self._chunk = self._chunk[len(chunk) :]
        self.held_bytes -= held
        self._offered.append(chunk)
        self._given += len(chunk)
        if not self._chunk:
            wake, self._wake = self._wake, None
            if wake is not None:
                wake()
        return chunk

    def collect(self, batch: RowBatch) -> None:
        """Take results, for the next `take`."""
        self.held_bytes += batch.held_bytes
        self._chunk = [*self._chunk, *batch.rows] if self._chunk else batch.rows
        self._notify()

    @property
    def is_available(self) -> bool:
        """True once the results before have been taken."""
        return not self._chunk

    @property
    def room(self) -> None:
        """All that is there: it is taken at once."""

    def call_when_room(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once, on the mailbox thread, when the results before have been taken."""
        self._wake = wake

    def finish(self) -> None:
        """No more results come."""
        self._ended = True
        self._notify()

    def fail(self, error: BaseException) -> None:
        """No more results come, because of `error`; the first one counts."""
        if not self._ended:
            self._error = error
            self.finish()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
