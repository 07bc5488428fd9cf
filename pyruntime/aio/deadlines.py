"""Deadlines of calls that all have the same time to live: arm, cancel and expire at a constant cost.

Equal times to live expire in the order in which they were armed, so an ordered table is enough and
the event loop carries one timer whatever the number of calls. Confined to the thread of the loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """A deadline per key, `seconds` after the key was armed, on the loop's monotonic clock."""

    __slots__ = ("_expired", "_loop", "_table", "_timer", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expired: Callable[[K], None]) -> None:
        self.seconds = seconds
        self._loop = loop
        self._expired = expired
        self._table: OrderedDict[K, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._table)

    def arm(self, key: K) -> None:
        """Have `expired(key)` called in `seconds`, unless the key, which is not armed now, is cancelled."""
        deadline = self._loop.time() + self.seconds
        self._table[key] = deadline
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._fire)

    def cancel(self, key: K) -> None:
        """Forget the key; no effect when it is not armed."""
        self._table.pop(key, None)

    def oldest(self) -> tuple[K, float] | None:
        """The key that expires first, and when, by the loop's clock. Any thread, as an estimate."""
        try:
            return next(iter(self._table.items()))
        except (StopIteration, RuntimeError):
            return None

    def close(self) -> None:
        """Forget every key; nothing expires any more."""
        self._table.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        table = self._table
        now = self._loop.time()
        while table:
            key, deadline = next(iter(table.items()))
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._fire)
                return
            del table[key]
            self._expired(key)
