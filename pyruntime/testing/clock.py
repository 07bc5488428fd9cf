"""A clock that stands still until a test moves it. Thread-safe: any thread may read it and move it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pillarbox.validate import check_moment


class FakeClock:
    """A clock that reads `now`, in seconds, until it is moved; calling it gives the reading.

    Whoever must know that time has passed says so with `on_advance`, as the timers of a task do: then
    they need no thread that waits. Moves are one after the other, each with its callbacks: a thread that
    moves the clock waits for another one that does. A callback may itself move the clock.

    Raises TypeError or ValueError for a `now` that is no finite number. Thread-safe.
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

        Raises ValueError if `seconds` is negative or not finite, TypeError if it is no number; then the
        clock has not moved. Raises what a callback raises; the later ones are not called then.
        """
        with self._moves:
            self._move("seconds", seconds, self._now + check_moment("seconds", seconds))

    def set(self, seconds: float) -> None:
        """Move the clock to `seconds`, then call the callbacks in this thread. Any thread.

        Raises ValueError if that is before its reading or not finite, TypeError if it is no number.
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
