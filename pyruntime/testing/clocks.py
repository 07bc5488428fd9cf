"""Time under test: a clock that a test moves, and an event loop whose time passes only when nothing is left.

The idea of both is that of simulated time in discrete event simulation; trio's `autojump_clock` is the same
for trio.
"""

# Why the clock that a test moves calls its callbacks. Timers that slept in a thread of their own would wake
# some time after the clock was moved, and a test would have to wait for what it wants to see now.
#
# Why the loop's selector lets time pass, and not `loop.time` alone. Only the selector knows that nothing is
# ready: a loop whose time ran ahead while callbacks wait would fire a time-out before the answer that had
# come already.
#
# Why the loop refuses to sleep for ever. A test that waits for what never comes hangs until somebody ends
# it, and then shows a stack of the selector; an error where nothing is ready and no timer is armed shows
# the test's own line.

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pillarbox.validate import check_moment

T = TypeVar("T")


class FakeClock:
    """Clock that reads `now`, in seconds, until it is moved; a call returns the reading.

        >>> from pillarbox.testing import FakeClock
        >>> clock = FakeClock()
        >>> clock.advance(1.5)
        >>> clock()
        1.5

    Code that must know that time has passed registers a callback with `on_advance`, as the timers of a task
    do: it then needs no thread that waits. Moves are serialized, each with its callbacks: a thread that moves
    the clock waits for another one that does. A callback may itself move the clock.

    Raises TypeError or ValueError for a `now` that is not a finite number. Thread-safe.
    """

    __slots__ = ("_callbacks", "_moves", "_now")

    def __init__(self, now: float = 0.0) -> None:
        self._now = check_moment("now", now)
        self._moves = threading.RLock()
        self._callbacks: dict[object, Callable[[], object]] = {}

    def __call__(self) -> float:
        """The time, in seconds. Any thread."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`, then call the callbacks in this thread. Any thread.

        Raises ValueError if `seconds` is negative or not finite, TypeError if it is not a number; then the
        clock has not moved. Raises what a callback raises; the later ones are not called then.
        """
        with self._moves:
            self._move("seconds", seconds, self._now + check_moment("seconds", seconds))

    def set(self, seconds: float) -> None:
        """Move the clock to `seconds`, then call the callbacks in this thread. Any thread.

        Raises ValueError if that is before its reading or not finite, TypeError if it is not a number.
        """
        with self._moves:
            self._move("seconds", seconds, check_moment("seconds", seconds))

    def on_advance(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback()` called after each move, in the thread that moves. Any thread.

        Returns a function that takes this back; more than once does no harm. Callbacks are called in the
        order in which they were given, with no lock held but the one that keeps moves apart.
        """
        if not callable(callback):
            raise TypeError(f"callback={callback!r}: must be callable, not {type(callback).__name__}")
        key = object()
        self._callbacks[key] = callback

        def take_back() -> None:
            self._callbacks.pop(key, None)

        return take_back

    def _move(self, name: str, given: float, now: float) -> None:
        if now < self._now:
            raise ValueError(f"{name}={given!r}: the clock reads {self._now!r} and does not go back")
        self._now = check_moment(name, now)
        for key, callback in self._callbacks.copy().items():
            if key in self._callbacks:
                callback()

    def __repr__(self) -> str:
        return f"FakeClock({self._now!r})"


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop that jumps to its next timer instead of sleeping; `time()` begins at 0 seconds.

        >>> import asyncio
        >>> from pillarbox.testing import VirtualTimeLoop
        >>> loop = VirtualTimeLoop()
        >>> loop.run_until_complete(asyncio.sleep(3600))
        >>> loop.time()
        3600.0
        >>> loop.close()

    It is for code that waits for timers and other tasks only: it does not wait for another thread or a
    socket. Raises `RuntimeError` instead of sleeping for ever, or beyond `longest`. `run_virtual` makes one
    for a coroutine.

    clock: one that is moved with the loop's time, such as that of a task's timers. longest: virtual seconds
    after which the code has to be through.
    """

    def __init__(self, clock: FakeClock | None = None, *, longest: float = math.inf) -> None:
        self._now = 0.0
        self._clock = clock
        self._longest = longest
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once; timers that are due run when the loop has its next turn."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds!r}: must be at least 0, time does not go back")
        self._now += seconds
        if self._clock is not None:
            self._clock.advance(seconds)

    def _jump(self) -> None:
        """Let the time pass until the first timer is due."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due = timers[0].when()
        if due > self._longest:
            raise RuntimeError(
                f"nothing happens before {due:g} s, and all has to be through after "
                f"longest={self._longest:g} s"
            )
        self.advance(max(0.0, due - self._now))
        # To the very time of the timer: sums of steps are inexact.
        self._now = max(self._now, due)

    def run_ready(self, turns: int) -> bool:
        """Run the callbacks that are ready, in at most `turns` turns, at one time; True if none is left."""
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


class _Jumping(selectors.DefaultSelector):
    """A selector that passes the time instead of waiting."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("the loop would sleep for ever: nothing is ready and no timer is armed")
            if timeout > 0:
                self._loop._jump()
        return ready


def run_virtual(main: Coroutine[Any, Any, T], *, longest: float = 1e6) -> T:
    """Run `main` to its end in virtual time, as `asyncio.run` does in real time; returns its result.

        >>> import asyncio
        >>> from pillarbox import async_map
        >>> from pillarbox.testing import run_virtual
        >>> async def slow(row):
        ...     await asyncio.sleep(60)
        ...     return row
        >>> async def main():
        ...     results = [result async for result in async_map(range(10), slow, capacity=2)]
        ...     return len(results), round(asyncio.get_running_loop().time())
        >>> run_virtual(main())
        (10, 300)

    Time-outs, retries, rates, breakers and batches of `async_map` go by the loop's time where its results
    are taken with `async for`. Tasks that `main` has left are cancelled, and waited for. Raises what `main`
    raises, and `RuntimeError` where `VirtualTimeLoop` does.

    main: a coroutine that waits for timers and other tasks only; blocking functions, ledgers and clients need
    real time. longest: virtual seconds by which all has to be through.
    """
    loop = VirtualTimeLoop(longest=longest)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
