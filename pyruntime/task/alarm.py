"""An alarm: it rings once when a clock has come to a moment, and is silent until it is set again.

Any thread may set it. It rings in a thread of its own, or, with a clock that says itself when it has
moved, in the thread that moves that clock.
"""

# Why not `threading.Timer`: it is a thread for each moment that is set. Why not `loop.call_later`: a task
# may run on a thread without an event loop. Why not the mailbox's own take with a time-out: the loop would
# compute the next moment in every round, with or without alarms.

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from pillarbox.thread_start import start_thread

MAX_WAIT_S = 3600.0
"""Seconds that the thread waits at most without a look at the clock; the system limits a wait as well."""


class Alarm:
    """Calls `ring()` when `clock()` has come to the moment for which the alarm is set. Thread-safe.

    `ring` must not raise. A clock that raises makes the alarm ring: whoever is called reads it for himself.
    A clock with `on_advance(callback)` says when it has moved: the alarm then needs no thread, and rings in
    the thread that moved the clock or set the alarm. Otherwise a daemon thread, called `name`, is started
    when the alarm is first set. No lock is held while it rings.
    """

    def __init__(self, ring: Callable[[], object], clock: Callable[[], float], name: str) -> None:
        self._ring = ring
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self._at: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        on_advance: Any = getattr(clock, "on_advance", None)
        self._take_back: Callable[[], None] | None = on_advance and on_advance(self._clock_moved)

    def reset(self, moment: float | None) -> None:
        """Ring at `moment`; None: not before it is set again. Any thread."""
        with self._changed:
            self._at = moment
            self._changed.notify()
            if self._thread is None and self._take_back is None and moment is not None and not self._closed:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start_thread(thread)
                self._thread = thread
        self._clock_moved()

    def close(self) -> None:
        """Never begin to ring again; wait for a ring that has begun in the alarm's own thread. Any thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._take_back is not None:
            self._take_back()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _clock_moved(self) -> None:
        if self._take_back is not None:
            with self._changed:
                is_due = self._is_due()
            if is_due:
                self._ring()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_due():
                    if self._closed:
                        return
                    left = None if self._at is None else min(max(self._at - self._now(), 0.0), MAX_WAIT_S)
                    self._changed.wait(left)
            self._ring()

    def _is_due(self) -> bool:
        """Return True, once, if it is time to ring. Under the lock."""
        if self._closed or self._at is None or self._now() < self._at:
            return False
        self._at = None
        return True

    def _now(self) -> float:
        try:
            return self._clock()
        except Exception:
            return math.inf
