"""Inputs and outputs of a task whose other end is not on its thread: collections, iterables, other threads.

Rows come in batches, whose rows weigh the same, so that nothing has to be weighed row by row. Results leave
in chunks, to another thread or to a coroutine of the same loop. Everything is confined to the mailbox thread,
but for what says otherwise.

An input has its position in the task's snapshot: the rows that it has emitted. What a restored one reads
begins where the first one did, and that many rows are passed over. An output has there the rows that were not
taken, and how many were: those belong to the consumer, who has taken a chunk when it asks for the next one.
"""

# Alternatives, and why they are worse.
#
# To read an iterable on the loop's thread, item by item: one that waits for a file or a database holds up
# every call. To read each in a thread of its own: a list would cost a hand-over for nothing. So collections
# in memory are read in place, and of the rest only what is known to be asynchronous is read on the loop.
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
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from pillarbox.aio.calls import Call
from pillarbox.kernel import Handover, HandoverClosedError
from pillarbox.task import InputStatus
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.protocols import MAX_WATERMARK, RowBatch, TaskOutput

log = logging.getLogger("pillarbox")

CANCEL_TIMEOUT_S = 1.0
"""Seconds that an async iterable has to end after its reading was cancelled."""

BATCH_ROWS = 1024
"""Rows of a collection that become one batch."""

_numbers = itertools.count(1)


class RowInput(ABC):
    """The base of inputs of rows: their position. Mailbox thread, unless a method says otherwise."""

    __slots__ = ("_passed", "_position")

    def __init__(self) -> None:
        self._position = 0
        # Rows still to be passed over, which were emitted before the snapshot.
        self._passed = 0

    @abstractmethod
    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the rows that are there."""

    @abstractmethod
    def available(self) -> Future[None] | None:
        """A future that is done when there are rows, or none come any more; None if that is so now."""

    @abstractmethod
    def close(self) -> None:
        """Read no more."""

    def start(self, context: contextvars.Context) -> None:  # noqa: B027
        """Begin to read ahead in `context`, where something is read ahead."""

    def stop(self) -> None:  # noqa: B027
        """Have a thread that reads end at its next item. Any thread."""

    def join(self, timeout: float) -> None:  # noqa: B027
        """Wait for the end of a thread that reads, for `timeout` seconds at most. Blocks. Any thread."""

    async def closed(self) -> None:  # noqa: B027
        """Wait for the end of a coroutine that reads, for a time."""

    def _emit(self, rows: list[Any], output: TaskOutput, row_bytes: int | None = None) -> None:
        if self._passed:
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


class CollectionInput(RowInput):
    """Rows that are all in memory: read where they are used, with no thread between."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Collection[Any]) -> None:
        super().__init__()
        # In slices: a thread between would cost more than the reading.
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


class IterableInput(RowInput):
    """Rows of an iterable, which a thread of its own reads ahead.

    Subclasses read items that are more than a row, by at most `ahead` items and `ahead_bytes`, as `weigh`
    gives them; None for any.
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
        """Have the reading thread end at its next item. Any thread."""
        self._handover.close()

    def join(self, timeout: float) -> None:
        """Wait for the end of the reading thread, for `timeout` seconds at most. Blocks. Any thread."""
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


class AsyncIterableInput(RowInput):
    """Rows of an async iterable, read by a coroutine of the task's loop, at most `items` ahead.

    An async generator is closed when it is not read to its end.
    """

    __slots__ = (
        "_awaited",
        "_closed",
        "_is_ending",
        "_items",
        "_iterable",
        "_loop",
        "_read",
        "_room",
        "_rows",
    )

    def __init__(self, iterable: AsyncIterable[Any], loop: asyncio.AbstractEventLoop, items: int) -> None:
        super().__init__()
        self._iterable = iterable
        self._loop = loop
        self._items = items
        self._rows: list[Any] = []
        self._read: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._awaited: Future[None] | None = None
        self._closed = self._is_ending = False

    def start(self, context: contextvars.Context) -> None:
        """Begin to read, in a coroutine that runs in `context`."""
        self._read = context.run(asyncio.Task, self._read_ahead(), loop=self._loop)
        self._read.add_done_callback(self._has_ended)

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the rows that have been read; raises what the iterable failed with."""
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


IN_MEMORY = (list, tuple, range, set, frozenset, dict)
"""Collections whose iteration never waits; others may read a file or a database."""


def row_input(
    rows: Iterable[Any] | AsyncIterable[Any] | RowInput,
    loop: asyncio.AbstractEventLoop,
    items: int,
    *,
    awaits: bool,
) -> RowInput:
    """The input of a task on `loop` over `rows`, of which at most `items` are read ahead.

    awaits: rows that can be iterated either way are iterated with `async for`.
    """
    if isinstance(rows, RowInput):
        return rows
    if isinstance(rows, IN_MEMORY):
        return CollectionInput(rows)
    if isinstance(rows, AsyncIterable) and (awaits or not isinstance(rows, Iterable)):
        return AsyncIterableInput(rows, loop, items)
    return IterableInput(rows, items)


# -- results -------------------------------------------------------------------------------------------

Chunk = list[tuple[Call, Any]]

CHUNK_BYTES = 32 * 1024 * 1024
"""Bytes of rows and results in a chunk, at most, unless one row has more: an Arrow column holds 2 GiB."""

TAKE_S = 1.0
"""Seconds that a consumer waits for results before it looks whether there is a reason to wait on."""


def cut_chunk(chunk: Chunk, max_bytes: int) -> tuple[Chunk, int]:
    """The first results whose rows and results hold at most so many bytes, and their bytes; one at least."""
    held = 0
    for place, (call, _) in enumerate(chunk):
        if place and held + call.held > max_bytes:
            return chunk[:place], held
        held += call.held
    return chunk, held


class OutputState(NamedTuple):
    """The state of an output of results in a snapshot: references. Any thread, if the rows allow it."""

    taken: int
    """Results that the consumer had taken, which are not among `rows`."""
    rows: tuple[tuple[Call, Any], ...]
    """Results that were collected and not taken, in order."""
    has_ended: bool
    """`MAX_WATERMARK` has come, and does not come again."""


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

    __slots__ = (
        "_armed",
        "_call_soon",
        "_chunk",
        "_chunk_bytes",
        "_ending",
        "_given",
        "_handover",
        "_is_worked_on",
        "_linger",
        "_loop",
        "_max_rows",
        "_offered",
        "_rows",
        "_timer",
        "_wake",
        "has_ended",
        "held_bytes",
    )

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
        self.held_bytes = 0
        # A chunk waits while another is built: what is not taken stays in the operator's window. The handover
        # counts rows as its bytes.
        self._handover = Handover(1)
        self._chunk: Chunk = []
        self._chunk_bytes = chunk_bytes
        # Chunks that the consumer has, or may have, and has not come back from; it takes them away itself.
        self._offered: deque[Chunk] = deque()
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

    def take(self, idle: Callable[[], object]) -> Chunk | None:
        """The next results, as (call, result) pairs, waiting for them; None at the end. Consumer's thread.

        idle: called after each second without a result; what it raises, this raises.
        Those of before are the consumer's from now on. Raises what the task failed with.
        """
        self._come_back()
        while True:
            try:
                chunk: Chunk | None = self._handover.take(TAKE_S)
            except HandoverClosedError:
                return None
            if chunk is not None:
                self._is_worked_on = True
                return chunk
            idle()

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
            if self._handover.arm_wakeup_consumer(partial(_set_done, ready)):
                await ready

    def close(self) -> None:
        """Take no more: results that were not taken, and those to come, are dropped. Any thread."""
        # A coroutine that waits is not woken by the close itself.
        self._handover.wake_up()
        self._handover.close()

    def _come_back(self) -> None:
        if self._is_worked_on:
            self._is_worked_on = False
            self._offered.popleft()

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
        self.held_bytes = sum(call.held for call, _ in state.rows)
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

    def call_when_room(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once, on the mailbox thread, when a full chunk has found its place."""
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
        # Called by the consumer, once per arming.
        try:
            self._call_soon(self._room_now)
        except RuntimeError:
            # The loop has been closed, so nobody waits for the results any more.
            return

    def _room_now(self) -> None:
        self._armed = False
        self._push()


def _set_done(ready: asyncio.Future[None]) -> None:
    # Whoever waited may have been cancelled.
    if not ready.done():
        ready.set_result(None)
