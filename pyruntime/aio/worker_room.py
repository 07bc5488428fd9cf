"""The number of calls that a process has room for, and the pauses of calls that lacked something of it.

Confined to the mailbox thread.
"""

# A call that ends for want of a descriptor says nothing of its row, nor of the service: any row's call would
# have ended so. To count it as an attempt fails rows in the order in which they met the full process.
# So it counts for nothing: fewer calls are in flight from now on, and the row waits for one of them to end,
# which frees what it has. Where no call is in flight that could free anything, a few more tries are made,
# since others in the process hold descriptors and memory too. Then the task fails: the next one, elsewhere,
# may do better, and the same error of a million rows helps nobody.
#
# Each call that ends so takes one from the number of calls: as all that had no room end, as many are left as
# had. To halve the number, as one does for a service, would be a guess where the number is known.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pillarbox.aio.errors import named
from pillarbox.lacks import MEMORY, Lack

log = logging.getLogger("pillarbox")

GROW_S = 5.0
"""Seconds without another call that lacked something, after which more calls are tried again."""
GROWTH = 1 / 4
"""The share of the calls in flight that is added then; one at least."""
FIRST_PAUSE_S = 0.1
"""Seconds until a call that lacked something with no other in flight is made again; then twice as many."""
MAX_PAUSE_S = 10.0
"""Seconds of such a pause, at most."""


class WorkerRoom:
    """The number of calls that may be in flight as far as the process goes: its threads, and all else.

    most: calls that may be in flight otherwise. name: the function's. changed: called when the limit grows.
    stop: takes the error with which the task ends.
    """

    def __init__(
        self,
        most: int,
        name: str,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[], None],
        stop: Callable[[BaseException], None],
    ) -> None:
        self.limit = self._most = self._threads = self._calls = most
        self.holds: asyncio.TimerHandle | None = None
        """Set while no call may begin: all would lack the same."""
        self.waits_for: str | None = None
        """The name of the resource that all calls lack, while none is in flight; None otherwise."""
        self._name = name
        self._loop = loop
        self._changed = changed
        self._stop = stop
        self._timer: asyncio.TimerHandle | None = None
        self._told: set[str] = set()
        # Calls in a row that lacked something though no other was in flight, and the rows finished by then.
        self._alone, self._finished = 0, -1

    def limit_threads(self, threads: int | None) -> None:
        """No more threads can be had for calls; None if more may be tried."""
        self._threads = self._most if threads is None else threads
        self._set()

    def took_back(self, lack: Lack, error: BaseException, others: int, finished: int) -> float | None:
        """Note a call that ended as it lacked something; returns the seconds until it may be made again.

        others: calls in flight beside it. finished: rows that have finished so far. Returns None where the
        task cannot go on, and ends it.
        """
        # spec: Feeding!ChangeLimit
        self._calls = max(1, min(self.limit, others))
        self._set()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(GROW_S, self._grow)
        self._tell(lack, error, others)
        if finished > self._finished:
            self._alone, self._finished = 0, finished
        if others > 0:
            self.waits_for = None
            return 0.0
        self._alone += 1
        self.waits_for = lack.name
        if self._alone >= lack.tries:
            self._stop(self.error_of(lack, error))
            return None
        pause = min(FIRST_PAUSE_S * 2.0 ** (self._alone - 1), MAX_PAUSE_S)
        # spec: Feeding!Hold
        self.holds = self._loop.call_later(pause, self._release)
        return pause

    def error_of(self, lack: Lack, error: BaseException) -> RuntimeError:
        """The error that ends a task that cannot go on."""
        return RuntimeError(
            f"this process has no {lack.name} left for the calls of {self._name}: {named(error)}. No call "
            f"is in flight that could free any, and trying again did not help. The limit: {lack.limit()}. "
            f"{lack.advice}"
        )

    def close(self) -> None:
        """Change the limit no more."""
        for timer in (self._timer, self.holds):
            if timer is not None:
                timer.cancel()

    def _tell(self, lack: Lack, error: BaseException, others: int) -> None:
        if lack.name in self._told:
            return
        self._told.add(lack.name)
        log.warning(
            "capacity: %d calls of %s may be in flight, and this process has too few %s (%s): beside %d in "
            "flight one more had none. Fewer are made at a time: rows wait, and none fails for it. "
            "The limit: %s. %s",
            self._most,
            self._name,
            lack.name,
            named(error),
            others,
            lack.limit(),
            lack.advice,
        )

    def _release(self) -> None:
        # spec: Feeding!Release
        self.holds = None
        self._changed()

    def _grow(self) -> None:
        self._timer = None
        self._calls = min(self._most, self._calls + max(1, int(self._calls * GROWTH)))
        if self._calls < self._most:
            self._timer = self._loop.call_later(GROW_S, self._grow)
        self._set()
        self._changed()

    def _set(self) -> None:
        self.limit = min(self._calls, self._threads)


def is_of_rows(lack: Lack) -> bool:
    """Return True if a call with fewer rows may need less of the resource."""
    return lack is MEMORY
