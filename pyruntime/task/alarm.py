"""An alarm: it rings once when a clock has come to a moment, and is silent until it is set again.

Any thread may set it. It rings in a thread of its own, or, with a clock that says itself when it has
moved, in the thread that moves that clock.
"""

# Why not `threading.Timer`: it is a thread for each moment that is set. Why not `loop.call_later`: a task
# may run on a thread without an event loop. Why not the mailbox's own take with a time-out: the loop would
# compute the next moment in every round, with or without timers.
#
# Why the alarm is silent until it is set again. Whoever it has called will look at everything that is due;
# an alarm that rang for each moment in between would put a mail for each.

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

MAX_WAIT_S = 3600.0
"""Seconds that the thread waits at most without a look at the clock; the system limits a wait as well."""


class Alarm:
    """Calls `ring()` when `clock()` has come to the moment for which the alarm is set. Thread-safe.

    1. It rings once, then waits for `reset`. While it has rung `bring_forward` does nothing: whoever was
       called has not looked yet, and will look at everything.
    2. A `ring()` that returns False closes the alarm; it must not raise.
    3. A clock that raises makes the alarm ring.
    4. A clock with `on_advance(callback)` says when it has moved: the alarm then needs no thread, and rings
       in the thread that moved the clock or that set the alarm. Otherwise a daemon thread, named `name`, is
       started when the alarm is first set; what that raises is raised, and the alarm is as it was.

    No lock is held while it rings.
    """

    __slots__ = ("_at", "_changed", "_clock", "_closed", "_name", "_ring", "_rung", "_take_back", "_thread")

    def __init__(self, ring: Callable[[], bool], clock: Callable[[], float], name: str) -> None:
        self._ring = ring
        self._clock = clock
        self._name = name
        self._changed = threading.Condition(threading.Lock())
        self._at: float | None = None
        self._rung = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._take_back: Callable[[], None] | None = None
        on_advance: Any = getattr(clock, "on_advance", None)
        if on_advance is not None:
            self._take_back = on_advance(self._clock_moved)

    def bring_forward(self, moment: float) -> None:
        """Ring at `moment`, unless that is later than it rings anyway, or it has rung. Any thread."""
        with self._changed:
            if self._rung or (self._at is not None and self._at <= moment):
                return
            self._set(moment)
        self._clock_moved()

    def reset(self, moment: float | None) -> None:
        """Forget that it has rung, and ring at `moment`; None: when it is set again. Any thread."""
        with self._changed:
            self._rung = False
            self._set(moment)
        self._clock_moved()

    def close(self) -> None:
        """Never begin to ring again; wait for a ring that has begun in the alarm's own thread. Any thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._take_back is not None:
            self._take_back()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _set(self, moment: float | None) -> None:
        if self._thread is None and not (self._closed or moment is None or self._take_back is not None):
            # If it does not start, the next moment tries again, whichever that is.
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._at = moment
        self._changed.notify_all()

    def _is_due(self) -> bool:
        """Under the lock. A due alarm has rung by this."""
        if self._closed or self._rung or self._at is None or self._now() < self._at:
            return False
        self._rung = True
        return True

    def _clock_moved(self) -> None:
        if self._take_back is None:
            return
        with self._changed:
            if not self._is_due():
                return
        if not self._ring():
            self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_due():
                    if self._closed:
                        return
                    self._changed.wait(self._seconds_left())
            if not self._ring():
                self.close()

    def _seconds_left(self) -> float | None:
        """Under the lock. How long the thread may wait for a change; None: until there is one."""
        if self._rung or self._at is None:
            return None
        return min(max(self._at - self._now(), 0.0), MAX_WAIT_S)

    def _now(self) -> float:
        try:
            return self._clock()
        except Exception:
            # Nobody hears of it in this thread. Whoever is called reads the clock for himself.
            return math.inf
