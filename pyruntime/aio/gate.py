"""The gate before the calls of an operator, and the slots behind it. Confined to the mailbox thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pillarbox.aio.calls import Call
from pillarbox.aio.deadlines import time_left
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policy import HookFailed
from pillarbox.aio.totals import clock_time
from pillarbox.aio.worker_room import WorkerRoom

MAX_WAIT_S = 3600.0
"""Seconds after which a policy that does not know how long to wait is asked again, wake-up or not."""
MOMENT_S = 1.0
"""Seconds of waiting for a rate that are not worth saying."""


class Gate:
    """Asks policies whether calls may begin, and has calls asked for again after the time that one named.

    asks: the moments `may_begin`, in order. load: has the limits that are used up for good. wake: called when
    it is worth asking again.
    """

    __slots__ = ("_asks", "_load", "_loop", "_timer", "_wake", "weighs")

    def __init__(
        self,
        asks: Sequence[Callable[[Sequence[Call]], float]],
        load: LoadPolicy,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        self._asks = asks
        self._load = load
        self._loop = loop
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self.weighs = load.weighs
        """True if rows have weights."""

    @property
    def holds(self) -> bool:
        """True while calls are held back."""
        return self._timer is not None

    @property
    def exhausted(self) -> str | None:
        """The limit that lets no call through any more; None while some may."""
        return self._load.exhausted

    def admit(self, calls: Sequence[Call]) -> bool:
        """Return True if one call of the rows of `calls` may begin now, which is counted.

        Otherwise `wake` is called when one may, but where a limit is exhausted. Raises HookFailed with what
        a policy of the user raises, and what a limiter raises.
        """
        if self._timer is not None:
            return False
        for ask in self._asks:
            try:
                wait = ask(calls)
            except BaseException as raised:
                if ask == self._load.may_begin:
                    # A limiter that fails ends the job, not a row.
                    raise
                raise HookFailed(raised) from raised
            if wait > 0.0:
                break
        else:
            return True
        if self.exhausted is None and self._timer is None:
            # Where nobody knows how long, the policy wakes; the timer then only marks that calls are held.
            self._timer = self._loop.call_later(min(wait, MAX_WAIT_S), self._over)
        return False

    def ask_again(self) -> None:
        """Ask now, whatever time was named."""
        if self._timer is not None:
            self._timer.cancel()
            self._over()

    def explain_now(self) -> str | None:
        """Say what holds calls back for more than a moment, and until when; None for nothing."""
        timer = self._timer
        if timer is None:
            return None
        said = self._load.explain_limiter()
        left = time_left(timer, self._loop)
        if said is not None or left < MOMENT_S:
            return said
        if left > MAX_WAIT_S / 2:
            return "the rate and budget that tasks share: nothing is granted"
        return f"the rate, until {clock_time(left)}"

    def stop(self) -> None:
        """Cancel the timer: `wake` is called no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        # spec: Feeding!GateOpens
        self._timer = None
        self._wake()


class Slots:
    """The number of calls that may be in flight: as given or found, as process and results have room.

    changed: takes the limit that holds from now on.
    """

    __slots__ = ("_allowed", "_changed", "_found", "_held", "_most", "is_closed", "room")

    def __init__(
        self,
        most: int,
        found: Callable[[], int | None],
        room: Callable[[Callable[[], None]], WorkerRoom],
        changed: Callable[[int], None],
    ) -> None:
        self._most = most
        self._found = found
        # Whether no call may begin; how many may be in flight as results find room.
        self._held = False
        self._allowed: int | None = None
        self._changed = changed
        self.is_closed = False
        self.room = room(self.set_limit)

    @property
    def limit(self) -> int:
        """Calls in flight, at most, as given or as found so far, unless they are held back."""
        found = self._found()
        return min(self._most if found is None else found, self.room.limit)

    def hold(self, held: bool) -> None:
        """Let no call begin for now, or again; those in flight go on."""
        # spec: Feeding!Hold, Feeding!Release
        self._held = held
        self.set_limit()

    def allow(self, calls: int | None) -> None:
        """Let so many calls be in flight as find room for their results; None where that is not a limit."""
        if calls != self._allowed:
            self._allowed = calls
            self.set_limit()

    def limit_threads(self, threads: int | None) -> None:
        """Have no more calls in flight than there are threads for them; None if more may be tried."""
        self.room.limit_threads(threads)
        self.set_limit()

    def set_limit(self) -> None:
        """Have the limits of calls in flight hold from now on."""
        # spec: Feeding!Found
        if self.is_closed:
            return
        allowed = self.limit if self._allowed is None else min(self.limit, self._allowed)
        self._changed(0 if self._held or self.room.holds is not None else allowed)

    def close(self) -> None:
        """Let no call begin any more."""
        self.room.close()
        self.is_closed = True
