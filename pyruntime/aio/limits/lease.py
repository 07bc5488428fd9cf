"""The limiter of a task that shares its limits: it holds calls ahead, so that a call costs no round trip.

Confined to the mailbox thread.
"""

# A lease is a time: calls that are not used within it are given back (Gray and Cheriton, "Leases", 1989).
# Without it, a task that has got calls and has no rows left would keep them from others until it ends. A
# round trip for each call, the other way, would cost every call a tenth of a millisecond, and the
# coordinator its thread. Where calls have a weight it is paid: how heavy the next one is, nobody knows
# beforehand, and services that count units answer slowly.

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from pillarbox.aio.limits.quota import (
    TO_COORDINATOR,
    TO_TASK,
    CoolDown,
    Did,
    Exhausted,
    Granted,
    Leave,
    Left,
    Open,
    Opened,
    UsageReport,
    Want,
)
from pillarbox.aio.limits.rate import WAIT_MARGIN_S, CoordinatorError, LimiterStatistics, Limits
from pillarbox.rpc.connection import CONNECT_TIMEOUT_S, Connection, Reconnector, RefusedError, RpcHandle
from pillarbox.rpc.loop_thread import end

HELD_AHEAD_S = 0.1
"""Seconds of a rate that one task asks for at a time, at most."""
FIRST_CALLS = 4
"""Calls to ask for before it is known how many are needed; who needs fewer asks when it needs one."""
MAX_CALLS_PER_REQUEST = 4096
"""Calls to ask for at a time, at most."""
REPORT_DELAY_S = 0.02
"""Seconds until what nobody waits for is said."""
LEAVE_TIMEOUT_S = 2.0
"""For the last report to be taken."""


class LeasedLimiter:
    """A `RateLimiter` that admits from what a `Coordinator` has granted. `clock` gives seconds, never back.

    What it says of itself are counts since its beginning, so that it may be said again. It connects again for
    as long as it takes. While it is cut off, calls begin from what is held. When a call waits and the
    coordinator has not been there for `patience` seconds, the job fails.
    """

    def __init__(
        self,
        handle: RpcHandle,
        name: str,
        limits: Limits,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.exhausted: str | None = None
        self.limits = limits
        self.connected = False
        self._name = name
        self._patience = patience
        self._clock = clock
        self._id = uuid.uuid4().hex
        self._way = Reconnector(handle)
        self._channel: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._wake: Callable[[], None] = lambda: None
        self._failure: CoordinatorError | None = None
        self._before: tuple[str, int, float] | None = None
        self._farewell: int | None = None
        self._taken = False
        self._weighs = limits.units_per_second is not None
        # A cost is waited for by all who may be the one to go beyond it.
        self._report_delay_s = REPORT_DELAY_S if limits.max_cost is None else 0.0
        self._calls = 0
        self._units = 0.0
        self._received = 0
        self._used = 0
        self._units_used = 0.0
        self._cost = 0.0
        self._cool_until = -math.inf
        self._cool_downs = 0
        # Until when, and what had been received by then. The oldest first.
        self._leases: deque[tuple[float, int]] = deque()
        self._lapse_at = math.inf
        self._lapse_timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        # True until what was asked for has come; each of so many units.
        self._asked = False
        self._asked_units = 0.0
        self._held_back = False
        self._held_back_at = 0.0
        # So many calls to hold: twice as many after running dry, without those that were not used.
        self._most = MAX_CALLS_PER_REQUEST
        if limits.per_second is not None:
            self._most = min(self._most, max(1, int(limits.per_second * HELD_AHEAD_S)))
        self._size = min(FIRST_CALLS, self._most)

    # -- for the operator ---------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `RateLimiter.start`."""
        self._loop = loop
        self._wake = wake
        self._task = loop.create_task(self._guarded())

    def admit(self, units: float = 1.0) -> float:
        """See `RateLimiter.admit`."""
        if self._failure is not None:
            raise self._failure
        if self.exhausted is not None:
            return math.inf
        now = self._clock()
        if now < self._cool_until:
            return self._cool_until - now + WAIT_MARGIN_S
        if now >= self._lapse_at:
            self._lapse()
        if self._weighs and self._calls and self._units < units:
            # It is for a lighter call than the one that is next now.
            self._give_back()
        if self._calls < 1:
            if not self._held_back:
                self._held_back, self._held_back_at = True, now
                self._size = min(self._size * 2, self._most)
            self._ask(units)
            return math.inf
        # spec: RateLease!Begin
        self._held_back = False
        self._calls -= 1
        self._used += 1
        self._units_used += units
        if self._report_timer is None:
            self._report()
        if self._calls <= self._size // 2 and self._size >= FIRST_CALLS and not self._weighs:
            self._ask(0.0)
        return 0.0

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        self._cost += cost
        if cost:
            self._report()

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`. All who share the limits are told."""
        pause = self.limits.cool_down if seconds is None else seconds
        self._cooled(pause)
        self._say(CoolDown(pause))

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        self._before = name, calls, cost

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        return LimiterStatistics(self._used, self._units_used, self._cost, self._cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`. Takes two seconds at most, where nobody answers."""
        task, self._task = self._task, None
        if task is None:
            return
        self._wake = lambda: None
        self._farewell = self._calls
        self._give_back()
        for timer in (self._lapse_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        if self._channel is not None:
            self._say_farewell()
        # What was spent and not said would be lost: wait for a coordinator that is just starting again.
        if self._channel is not None or self._received:
            await asyncio.wait([task], timeout=LEAVE_TIMEOUT_S)
        await end(task)

    # -- leases -------------------------------------------------------------------------------

    def _granted(self, calls: int, units: float) -> None:
        """So many calls were granted, of so many units each, and may begin for the life of a lease."""
        # spec: RateLease!Receive
        self._calls += calls
        self._received += calls
        self._units = units
        self._asked = False
        self._leases.append((self._clock() + self.limits.life, self._received))
        if self._lapse_timer is None:
            self._await_lapse()
        if self._held_back:
            self._wake()

    def _cooled(self, seconds: float) -> None:
        """Everybody cools down. What is held is given back: it would be a burst at the end."""
        until = self._clock() + seconds
        if until > self._cool_until:
            self._cool_until = until
            self._cool_downs += 1
        self._give_back()

    def _give_back(self) -> None:
        # spec: RateLease!GiveBack
        self._calls = 0
        self._report()

    def _await_lapse(self) -> None:
        self._lapse_timer = None
        self._lapse_at = math.inf
        if self._leases and self._task is not None:
            self._lapse_at = self._leases[0][0]
            wait = max(0.0, self._lapse_at - self._clock()) + 0.001
            self._lapse_timer = self._loop.call_later(wait, self._lapse)

    def _lapse(self) -> None:
        """Give back what is left of leases that are over. The oldest is used first."""
        now, calls = self._clock(), self._calls
        while self._leases and self._leases[0][0] <= now:
            # Of what came after it, all is still there.
            self._calls = min(self._calls, self._received - self._leases.popleft()[1])
        if self._calls < calls:
            self._size = max(1, self._size - (calls - self._calls))
            if not self._held_back and self._asked:
                # What was asked for is not needed any more, and would be taken from others.
                self._want(0, 0.0)
            self._report()
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
        self._await_lapse()

    # -- requests and reports -----------------------------------------------------------------

    def report(self) -> UsageReport:
        """Counts of this task since its beginning."""
        # What was received and is neither used nor there any more was given back.
        return UsageReport(self._received, self._used, self._received - self._used - self._calls, self._cost)

    def _ask(self, units: float) -> None:
        """Ask for more calls, unless enough were asked for; the next one needs so many units."""
        if self._asked and units <= self._asked_units:
            return
        if self._weighs:
            self._want(1, units)
        else:
            self._want(max(1, self._size - self._calls), 0.0)

    def _want(self, calls: int, units: float) -> None:
        self._asked, self._asked_units = calls > 0, units
        if self.connected:
            self._say(Want(self.report(), calls, units))

    def _report(self) -> None:
        """Have the counts said soon, once for all that changes until then."""
        if self._report_timer is None and self._task is not None:
            self._report_timer = self._loop.call_later(self._report_delay_s, self._report_now)

    def _report_now(self) -> None:
        # spec: RateLease!Report
        self._report_timer = None
        if self.connected:
            self._say(Did(self.report()))

    # -- the coordinator ----------------------------------------------------------------------

    def _say(self, message: Any) -> None:
        """Send a message, where anybody may hear it."""
        if self._channel is not None:
            self._channel.send(*TO_COORDINATOR.to_json(message))

    def _say_farewell(self) -> None:
        assert self._farewell is not None
        self._say(Leave(self.report(), self._farewell))

    def _fail(self, why: str) -> None:
        """The server of the shared limits is lost for good."""
        if self._failure is None:
            self._failure = CoordinatorError(why)
            self._wake()

    async def _guarded(self) -> None:
        """Talk to the coordinator. If that fails in a way that nobody thought of, so does the job."""
        try:
            await self._run()
        except RefusedError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"sharing the limits has failed: {type(error).__name__}: {error}")

    async def _run(self) -> None:
        lost_at = self._clock()
        while True:
            try:
                # Nothing that matters is unsent at the end: the last word is the coordinator's.
                await self._way.attempt(self._talk, self._hello)
            finally:
                self._channel = None
            if self.connected:
                self.connected = False
                self._way.connected()
                lost_at = self._clock()
            if self._taken:
                return
            left = self._patience
            if self._held_back:
                left -= self._clock() - max(lost_at, self._held_back_at)
                if left <= 0.0:
                    self._fail(f"no coordinator for patience={self._patience:g} s at {self._way}")
                    return
            await self._way.pause(left)

    def _hello(self) -> list[Any]:
        opening = Open(self._name, self.limits, self._id, self._before, self.report())
        return TO_COORDINATOR.to_json(opening)[1:]

    async def _talk(self, connection: Connection) -> None:
        self._channel = connection
        await asyncio.wait_for(self._hear_until(connection, Opened), CONNECT_TIMEOUT_S)
        # What was asked for is asked for again.
        self._want(0, 0.0)
        self.connected = True
        if self._held_back:
            self._wake()
        cooling = self._cool_until - self._clock()
        if cooling > 0.0:
            self._say(CoolDown(cooling))
        if self._farewell is not None:
            self._say_farewell()
        await self._hear_until(connection, Left)
        self._taken = True

    async def _hear_until(self, connection: Connection, last: type) -> None:
        """Take what the coordinator says, until a message of this class."""
        while True:
            message = TO_TASK.from_json(await connection.receive())
            if isinstance(message, last):
                return
            if isinstance(message, Granted):
                self._granted(message.calls, message.units)
            elif isinstance(message, CoolDown):
                self._cooled(message.seconds)
            elif isinstance(message, Exhausted) and self.exhausted is None:
                self.exhausted = message.why
                self._wake()
