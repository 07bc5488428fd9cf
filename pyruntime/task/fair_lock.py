"""A lock that is given to those who wait for it in the order in which they came. Thread-safe.

For a task and its legacy source, which share it: with an ordinary lock a loop that gives it back and takes
it again at once usually gets it again, and the task may wait for ever.
"""

# Why not `threading.RLock` with a queue of events before it. The lock must pass from one thread to the next
# without being free in between, or the thread that has just given it back takes it again before the one
# that was woken has run. So the owner is a number that whoever gives back writes, and each waiter sleeps on
# a lock of its own, which is released when it has become the owner already.

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from types import TracebackType

from pillarbox.validate import check_duration


class _Waiter:
    """A thread that waits to hold the lock `depth` times; `granted` is released when its turn has come."""

    __slots__ = ("depth", "granted", "ident")

    def __init__(self, ident: int, depth: int) -> None:
        self.ident = ident
        self.depth = depth
        self.granted = threading.Lock()
        self.granted.acquire()


class FairLock:
    """A reentrant lock, first come, first served. A context manager. Thread-safe.

    1. Who gives it back while others wait hands it to the one that has waited longest: nobody gets it in
       between. So whoever waits waits for one turn of each that came before, and no more.
    2. The thread that holds it takes it again at once, and gives it back as often as it took it.
    3. A wait that ends early, by its timeout or by an exception such as Ctrl-C, leaves the lock to the next.
    """

    __slots__ = ("_depth", "_guard", "_owner", "_turns", "_waiters")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._turns = 0
        self._waiters: deque[_Waiter] = deque()

    # -- taking and giving back ---------------------------------------------------------------

    def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock, waiting for it, for `timeout` seconds at most; whether it was taken. Any thread.

        Raises TypeError or ValueError for a `timeout` that is not a finite number of at least 0.
        """
        if timeout is not None:
            timeout = check_duration("timeout", timeout)
        return self._take(1, timeout)

    def release(self) -> None:
        """Give back one taking. Raises RuntimeError if this thread does not hold the lock."""
        with self._guard:
            self._check_held("release()")
            self._depth -= 1
            if not self._depth:
                self._pass_on()

    def __enter__(self) -> FairLock:
        self._take(1, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # -- giving way ---------------------------------------------------------------------------

    def give_way(self) -> bool:
        """Let everyone who waits now have a turn first, then have the lock as before; whether anyone waited.

        However often this thread took the lock, the others find it free. Raises RuntimeError if this thread
        does not hold it.
        """
        with self._guard:
            self._check_held("give_way()")
        if not self._waiters:
            return False
        with self.given_up():
            return True

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """For the time of a `with` block do not hold the lock, however often it was taken. Any thread.

        No effect if this thread does not hold it.
        """
        depth = 0
        with self._guard:
            if self._owner == get_ident():
                depth = self._depth
                self._pass_on()
        try:
            yield
        finally:
            if depth:
                self._take(depth, None)

    def revoke(self, ident: int) -> bool:
        """Take the lock from the thread `ident`, which does not know; whether that held it. Any thread.

        For a thread that was given up and may hold the lock for ever. Whatever it protects is protected
        from that thread no longer: so the thread must be kept from it in another way.
        """
        with self._guard:
            if self._owner != ident:
                return False
            self._pass_on()
            return True

    # -- looking; any thread ------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """True if this thread holds the lock."""
        return self._owner == get_ident()

    @property
    def waiting(self) -> int:
        """Threads that wait for it; an estimate."""
        return len(self._waiters)

    @property
    def turns(self) -> int:
        """The takings by a thread that did not hold it: to a holder, the number of its turn."""
        return self._turns

    def __repr__(self) -> str:
        held = "free" if self._owner is None else f"held {self._depth} times by thread {self._owner}"
        return f"<FairLock {held}, {self.waiting} waiting>"

    # -- inside -------------------------------------------------------------------------------

    def _check_held(self, what: str) -> None:
        """Under the guard."""
        if self._owner != get_ident():
            raise RuntimeError(f"{what} by thread {get_ident()}, which does not hold the lock: {self!r}")

    def _take(self, depth: int, timeout: float | None) -> bool:
        me = get_ident()
        with self._guard:
            if self._owner == me:
                self._depth += depth
                return True
            # There is never a waiter while the lock is free: it is handed over.
            if self._owner is None:
                self._own(me, depth)
                return True
            waiter = _Waiter(me, depth)
            self._waiters.append(waiter)
        granted = False
        try:
            seconds = -1.0 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            granted = waiter.granted.acquire(timeout=seconds)
        finally:
            if not granted:
                self._stop_waiting(waiter)
        return granted

    def _stop_waiting(self, waiter: _Waiter) -> None:
        """Leave the queue, or hand on what came at the last moment."""
        with self._guard:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif self._owner == waiter.ident:
                self._pass_on()

    def _own(self, ident: int, depth: int) -> None:
        """Under the guard."""
        self._owner = ident
        self._depth = depth
        self._turns += 1

    def _pass_on(self) -> None:
        """Under the guard, by the thread that holds the lock, or in its place."""
        if self._waiters:
            waiter = self._waiters.popleft()
            self._own(waiter.ident, waiter.depth)
            waiter.granted.release()
        else:
            self._owner = None
            self._depth = 0
