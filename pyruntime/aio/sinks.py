"""Outputs of the operator, in chunks: to another thread, or to a task of the same loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pillarbox.aio.call import Call
from pillarbox.kernel import Handover

Chunk = list[tuple[Call, Any]]

CHUNK_BYTES = 32 * 1024 * 1024
"""Bytes of rows and results in a chunk, at most, unless one row has more: an Arrow column holds 2 GiB."""


class Sink(Protocol):
    """Where results go."""

    def emit(self, results: Chunk, held: int) -> None:
        """Take results, in the order of emission, whose rows and results hold so many bytes."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the results that wait here to be taken."""

    @property
    def has_room(self) -> bool:
        """Whether more results may be emitted now."""

    @property
    def room(self) -> int | None:
        """Results to emit at a time where there is room; None for all that are there."""

    def call_when_room(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once, on the mailbox thread, when there is room again."""

    def finish(self) -> None:
        """No more results come."""

    def fail(self, error: BaseException) -> None:
        """No more results come, because of `error`."""


def cut_chunk(chunk: Chunk, most: int) -> tuple[Chunk, int]:
    """The first results whose rows and results hold at most so many bytes, and their bytes; one at least."""
    held = 0
    for place, (call, _) in enumerate(chunk):
        if place and held + call.held > most:
            return chunk[:place], held
        held += call.held
    return chunk, held


class HandoverSink:
    """Hands results over in chunks: when `rows` of them are there, or `linger` seconds after the first.

    The first result is handed over at once, and each chunk that is taken doubles the next one, up to `rows`:
    who wants a few rows has them after a few calls, and then stops, or never asks for more.
    With `linger` 0 each emission is handed over as it is. A chunk is cut where its rows and results hold more
    than `chunk_bytes`. The handover counts rows as its bytes. Confined to the mailbox thread.
    """

    __slots__ = (
        "_armed",
        "_chunk",
        "_chunk_bytes",
        "_ending",
        "_handover",
        "_linger",
        "_loop",
        "_max_rows",
        "_rows",
        "_timer",
        "_wake",
        "held_bytes",
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
        self._handover = handover
        self._loop = loop
        self._rows = 1
        self._max_rows = rows
        self._linger = linger
        self._chunk: Chunk = []
        self._chunk_bytes = chunk_bytes
        self.held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed = False
        self._wake: Callable[[], None] | None = None
        self._ending: Callable[[], object] | None = None

    def emit(self, results: Chunk, held: int) -> None:
        """Take results; they reach the other side at once or after the linger time."""
        self.held_bytes += held
        if not self._chunk:
            self._chunk = results
        else:
            self._chunk.extend(results)
        if not self._linger or self._is_full:
            self._push()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._push)

    @property
    def has_room(self) -> bool:
        """Whether a chunk that is full has found its place."""
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
        # This end of the handover has not ended it yet, so if it has ended, the consumer has left.
        if self._handover.try_put(chunk, len(chunk)):
            self._chunk = [] if chunk is self._chunk else self._chunk[len(chunk) :]
            self.held_bytes -= held
            if self._rows < self._max_rows:
                self._rows = min(self._max_rows, 2 * self._rows)
            return True
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


class LoopSink:
    """Keeps results until a task of the operator's own loop takes them. Confined to the mailbox thread."""

    __slots__ = ("_chunk", "_chunk_bytes", "_ended", "_error", "_loop", "_waiter", "_wake", "held_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._loop = loop
        self._chunk_bytes = chunk_bytes
        self.held_bytes = 0
        self._chunk: Chunk = []
        self._ended = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wake: Callable[[], None] | None = None

    async def take(self) -> Chunk | None:
        """The next results, waiting for them; None at the end. For one task at a time.

        Raises what the operator failed with.
        """
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
        if not self._chunk:
            wake, self._wake = self._wake, None
            if wake is not None:
                wake()
        return chunk

    def emit(self, results: Chunk, held: int) -> None:
        """Take results, for the next `take`."""
        self.held_bytes += held
        self._chunk = [*self._chunk, *results] if self._chunk else results
        self._notify()

    @property
    def has_room(self) -> bool:
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
