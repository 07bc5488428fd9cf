"""Where the operator's results go, in chunks: to another thread, or to a task of the same loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pillarbox.aio.call import Call
from pillarbox.kernel import Handover

Chunk = list[tuple[Call, Any]]


class Sink(Protocol):
    """Where results go."""

    def emit(self, results: Chunk) -> None:
        """Take results, in the order of emission."""

    @property
    def has_room(self) -> bool:
        """Whether more results may be emitted now."""

    def call_when_room(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once, on the mailbox thread, when there is room again."""

    def finish(self) -> None:
        """No more results come."""

    def fail(self, error: BaseException) -> None:
        """No more results come, because of `error`."""


class HandoverSink:
    """Hands results over in chunks: when `rows` of them are there, or `linger` seconds after the first.

    With `linger` 0 each emission is handed over as it is. The handover counts rows as its bytes.
    Confined to the mailbox thread.
    """

    __slots__ = ("_armed", "_chunk", "_ending", "_handover", "_linger", "_loop", "_rows", "_timer", "_wake")

    def __init__(
        self, handover: Handover, loop: asyncio.AbstractEventLoop, *, rows: int = 1, linger: float = 0.0
    ) -> None:
        self._handover = handover
        self._loop = loop
        self._rows = rows
        self._linger = linger
        self._chunk: Chunk = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = False
        self._wake: Callable[[], None] | None = None
        self._ending: Callable[[], object] | None = None

    def emit(self, results: Chunk) -> None:
        """Take results; they reach the other side at once or after the linger time."""
        if not self._chunk:
            self._chunk = results
        else:
            self._chunk.extend(results)
        if not self._linger or len(self._chunk) >= self._rows:
            self._push()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._push)

    @property
    def has_room(self) -> bool:
        """Whether a chunk that is full has found its place."""
        return len(self._chunk) < self._rows or self._push()

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
        while not self._try_put():
            if self._armed or self._handover.arm_wakeup_producer(self._room, len(self._chunk)):
                self._armed = True
                return False
        if self._ending is not None:
            ending, self._ending = self._ending, None
            ending()
        elif self._wake is not None:
            wake, self._wake = self._wake, None
            wake()
        return True

    def _try_put(self) -> bool:
        chunk = self._chunk
        # This end of the handover has not ended it yet, so if it has ended, the consumer has left.
        if not chunk or self._handover.try_put(chunk, len(chunk)) or self._handover.ended:
            self._chunk = []
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

    __slots__ = ("_chunk", "_ended", "_error", "_loop", "_waiter", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
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
        chunk, self._chunk = self._chunk, []
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()
        return chunk

    def emit(self, results: Chunk) -> None:
        """Take results, for the next `take`."""
        self._chunk = [*self._chunk, *results] if self._chunk else results
        self._notify()

    @property
    def has_room(self) -> bool:
        """Whether the results before have been taken."""
        return not self._chunk

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
