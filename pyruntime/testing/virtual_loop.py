"""An asyncio loop whose time passes only when nothing is left to do, so that a test of hours takes no time.

Confined to the thread that runs it. The idea is that of simulated time in discrete event simulation; trio's
`autojump_clock` is the same for trio.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to its next timer instead of sleeping; `time()` begins at 0 seconds.

        loop = VirtualTimeLoop()
        loop.run_until_complete(asyncio.sleep(3600))  # at once

    It is for code that waits on nothing but timers and other tasks: what another thread or a socket would
    bring does not make it wait. Raises `RuntimeError` where it would sleep for ever.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once; timers that are due run when the loop has its next turn."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds!r}: must be at least 0, time does not go back")
        self._now += seconds

    def run_ready(self, turns: int) -> bool:
        """Run what is ready, in so many turns at most, without letting time pass; True if nothing is left."""
        for _ in range(turns):
            if not self._is_ready():
                return True
            self.call_soon(self.stop)
            self.run_forever()
        return not self._is_ready()

    def _is_ready(self) -> bool:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return bool(self._ready) or bool(timers and timers[0].when() <= self._now)  # type: ignore[attr-defined]

    @property
    def armed_timers(self) -> int:
        """Timers that are scheduled and not cancelled."""
        return sum(not timer.cancelled() for timer in self._scheduled)  # type: ignore[attr-defined]


class _Jumping(selectors.BaseSelector):
    """A selector that passes the time instead of waiting."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._selector = selectors.DefaultSelector()
        self._loop = loop

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._selector.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._selector.get_map()

    def close(self) -> None:
        self._selector.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._selector.select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("the loop would sleep for ever: nothing is ready and no timer is armed")
            self._loop.advance(max(0.0, timeout))
        return ready
