"""Inputs of the operator: a collection in memory, an async iterable, or another thread.

Rows come in lots, whose rows weigh the same, so that nothing has to be weighed row by row. Sources are used
on the mailbox thread; `read_ahead` is the body of the thread that reads the input.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, TypeAlias

from pillarbox.kernel import Handover, HandoverClosedError

log = logging.getLogger("pillarbox")

CANCEL_TIMEOUT_S = 1.0
"""Seconds that an async iterable has to end after its reading was cancelled."""

Lot: TypeAlias = tuple[Iterator[Any], int | None]
"""Rows, and the bytes of each of them; None where each is to be weighed by itself."""


class Source(Protocol):
    """Where rows come from."""

    def poll(self) -> Lot | None:
        """The next rows, or None when none are there now; raises what the input failed with."""

    @property
    def ended(self) -> bool:
        """True once no more rows can come."""

    def arm(self, wake: Callable[[], None]) -> bool:
        """Have `wake` called once, from any thread, when `poll` is worth another call; False if it is now."""

    def close(self) -> None:
        """The rows that are left will not be asked for."""


class CollectionSource:
    """Rows that are all in memory: read where they are used, with no thread between."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Collection[Any]) -> None:
        self._rows: Iterator[Any] | None = iter(rows)

    def poll(self) -> Lot | None:
        """All rows at the first call, then None. They weigh nothing more where they are admitted."""
        rows, self._rows = self._rows, None
        return None if rows is None else (rows, 0)

    @property
    def ended(self) -> bool:
        """True after the first `poll`."""
        return self._rows is None

    def arm(self, wake: Callable[[], None]) -> bool:
        """Nothing is ever waited for."""
        return False

    def close(self) -> None:
        """Forget the rows."""
        self._rows = None


def one_lot(items: Iterable[Any]) -> Iterator[Lot]:
    """Items that are rows themselves."""
    yield iter(items), None


class HandoverSource:
    """Rows that another thread puts into a handover, as `read_ahead` does.

    unpack: makes lots of the items taken in one step.
    """

    __slots__ = ("_ended", "_handover", "_lots", "_unpack")

    def __init__(
        self, handover: Handover, unpack: Callable[[Iterable[Any]], Iterator[Lot]] = one_lot
    ) -> None:
        self._handover = handover
        self._unpack = unpack
        self._lots: Iterator[Lot] = iter(())
        self._ended = False

    def poll(self) -> Lot | None:
        """The next lot that has been read, or None; raises what the reading thread failed with."""
        for lot in self._lots:
            return lot
        try:
            items = self._handover.take_all()
        except HandoverClosedError:
            self._ended = True
            return None
        self._lots = self._unpack(chain.from_iterable(items))
        return next(self._lots, None)

    @property
    def ended(self) -> bool:
        """True once `poll` has met the end of the input."""
        return self._ended

    def arm(self, wake: Callable[[], None]) -> bool:
        """Have `wake` called when something is read, or the input ends or fails."""
        return self._handover.arm_wakeup_consumer(wake)

    def close(self) -> None:
        """Stop the reading thread at its next row."""
        self._handover.close()


class AsyncIterableSource:
    """Rows of an async iterable, read by a task of the operator's loop, at most `items` ahead.

    context: where the task runs. The task begins with the first `poll` or `arm`. An async generator is
    closed when it is not read to its end.
    """

    __slots__ = (
        "_closed",
        "_context",
        "_ended",
        "_is_ending",
        "_items",
        "_iterable",
        "_loop",
        "_read",
        "_room",
        "_rows",
        "_wake",
    )

    def __init__(
        self,
        iterable: AsyncIterable[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        items: int,
    ) -> None:
        self._iterable = iterable
        self._loop = loop
        self._context = context
        self._items = items
        self._rows: list[Any] = []
        self._read: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._wake: Callable[[], None] | None = None
        self._ended = self._closed = self._is_ending = False

    def poll(self) -> Lot | None:
        """The rows that have been read, or None; raises what the iterable failed with."""
        self._begin()
        if self._rows:
            rows, self._rows = self._rows, []
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
            return iter(rows), None
        assert self._read is not None
        if self._read.done():
            self._ended = True
            self._read.result()
        return None

    @property
    def ended(self) -> bool:
        """True once `poll` has met the end of the iterable."""
        return self._ended

    def arm(self, wake: Callable[[], None]) -> bool:
        """Have `wake` called when a row is read, or the iterable ends or fails."""
        self._begin()
        assert self._read is not None
        if self._rows or self._read.done():
            return False
        self._wake = wake
        return True

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
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()


def read_ahead(items: Iterable[Any], handover: Handover, weigh: Callable[[Any], int] | None = None) -> None:
    """Put all `items` into `handover`, then its end, or the error that they ended with.

    weigh: the bytes of an item, where the handover is bounded by bytes. Runs in a thread of its own;
    returns early when the other side closes the handover.
    """
    try:
        for item in items:
            # In a tuple, since a handover does not take None, and an iterable may yield it.
            if not handover.put((item,), 0 if weigh is None else weigh(item)):
                return
    except BaseException as error:
        handover.fail(error)
    else:
        handover.finish()
