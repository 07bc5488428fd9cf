"""The limiter of a task that shares its limits: it holds calls ahead, so that a call costs no round trip.

Confined to the mailbox thread. `CoordinatedLimiter` gets them from a `Coordinator`; one for Redis is beside
it.
"""

# A lease is a time: calls that are not used within it are given back (Gray and Cheriton, "Leases", 1989).
# Without it, a task that has got calls and has no rows left would keep them from others until it ends. A
# round trip for each call, the other way, would cost every call a tenth of a millisecond, and the
# coordinator its thread.

from __future__ import annotations

import asyncio
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from pillarbox.aio.limits.limiter import LimiterStatistics
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
from pillarbox.aio.limits.rate import WAIT_MARGIN_S
from pillarbox.aio.limits.shared import CoordinatorError, Limits
from pillarbox.rpc.client import Reconnector, RpcHandle
from pillarbox.rpc.connection import CONNECT_TIMEOUT_S, Connection, RefusedError
from pillarbox.rpc.loop_thread import end

HELD_AHEAD_S = 0.1
"""Seconds of calls to hold ahead."""
FIRST_CALLS = 4
"""Calls to ask for before it is known how many are needed."""
MAX_CALLS_PER_REQUEST = 4096
"""Calls to ask for at a time, at most."""
MEASURE_INTERVAL_S = 0.02
"""Seconds over which it is measured how many are needed, at least."""
REPORT_DELAY_S = 0.02
"""Seconds until what nobody waits for is said."""
UNITS_TOLERANCE = 1e-9
"""Units by which sums may differ that were added up in another order."""


LEAVE_TIMEOUT_S = 2.0
"""For the last report to be taken."""


class LeasedLimiter(ABC):
    """A `RateLimiter` that admits from what it was granted. `clock` gives seconds and never goes back.

    What it says of itself are counts since its beginning, so that it may be said again.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.exhausted: str | None = None
        self.limits = limits
        self.connected = False
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop
        self._wake: Callable[[], None] = lambda: None
        self._failure: CoordinatorError | None = None
        self._before: tuple[str, int, float] | None = None
        self._closed = False
        # Of a number of calls no more than that may begin: each is said before it begins, or does not begin.
        self._strict = limits.max_calls is not None
        self._weighs = limits.units_per_second is not None
        self._calls = 0
        self._units = 0.0
        self._received = 0
        self._used = 0
        self._back = 0
        self._units_received = 0.0
        self._units_gone = 0.0
        self._units_used = 0.0
        self._cost = 0.0
        self._cool_until = -math.inf
        self._cool_downs = 0
        # Until when, and what had been received by then. The oldest first.
        self._leases: deque[tuple[float, int, float]] = deque()
        self._lapse_at = math.inf
        self._lapse_timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.Handle | None = None
        self._report_soon = False
        # What was asked for and has not come.
        self._wanted_calls = 0
        self._wanted_units = 0.0
        self._wanted_head = 0.0
        self._held_back = False
        self._held_back_at = 0.0
        self._size = FIRST_CALLS
        self._low = FIRST_CALLS // 2
        self._measured_at = clock()
        self._measured_used = 0
        self._dry = False

    # -- for the operator ---------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `RateLimiter.start`."""
        self._loop = loop
        self._wake = wake
        self._begin()

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
            self._lapse(now)
        if (
            self._calls < 1
            or (self._weighs and self._units + UNITS_TOLERANCE < units)
            or (self._strict and not (self.connected and self._say_begun()))
        ):
            if not self._held_back:
                self._held_back_at = now
            self._held_back = self._dry = True
            self._ask(now, units)
            return math.inf
        # spec: RateLease!Begin
        self._held_back = False
        self._calls -= 1
        if not self._strict:
            self._used += 1
        self._units_used += units
        if self._weighs:
            self._units -= units
            self._units_gone += units
        if not self._strict and not self._report_soon:
            self._report(False)
        if self._calls <= self._low and self._wanted_calls <= 0:
            self._ask(now, 0.0)
        return 0.0

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        self._cost += cost
        if cost and not self._report_soon:
            self._report(self.limits.max_cost is not None)

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`. All who share the limits are told."""
        pause = self.limits.cool_down if seconds is None else seconds
        self._cooled(pause)
        self._tell_cool_down(pause)

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        self._before = name, calls, cost

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        return LimiterStatistics(self._used, self._units_used, self._cost, self._cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`. Takes two seconds at most, where nobody answers."""
        if self._closed:
            return
        self._closed = True
        self._wake = lambda: None
        for timer in (self._lapse_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        unspent, units = self._calls, max(0.0, self._units)
        self._give_back()
        await self._finish(unspent, units)

    # -- for subclasses -----------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Begin to connect."""

    @abstractmethod
    def _tell_want(self) -> None:
        """Send what is wanted: `_wanted_calls`, `_wanted_units`, `_wanted_head`."""

    @abstractmethod
    def _tell_report(self) -> bool:
        """Say what `report` gives. False if surely nobody hears it. With the system when it returns."""

    @abstractmethod
    def _tell_cool_down(self, seconds: float) -> None:
        """Have all others cool down."""

    @abstractmethod
    async def _finish(self, unspent: int, units: float) -> None:
        """Say the last report, and what may go back into the buckets; then end everything."""

    async def _guarded(self, run: Coroutine[Any, Any, None]) -> None:
        """Run what talks to the others. If it fails in a way that nobody thought of, so does the job."""
        try:
            await run
        except Exception as error:
            self._fail(f"sharing the limits has failed: {type(error).__name__}: {error}")

    def report(self) -> UsageReport:
        """Counts of this task since its beginning."""
        return UsageReport(self._received, self._used, self._back, self._cost)

    def _held_back_for(self, lost_at: float) -> float:
        """Seconds that a call has waited for a connection that was lost then; 0.0 if none waits."""
        return self._clock() - max(lost_at, self._held_back_at) if self._held_back else 0.0

    def _granted(self, calls: int, units: float) -> None:
        """So much was granted, and may be used for the life of a lease."""
        # spec: RateLease!Receive
        now = self._clock()
        self._calls += calls
        self._received += calls
        self._units += units
        self._units_received += units
        self._wanted_calls -= calls
        self._wanted_units -= units
        self._leases.append((now + self.limits.life, self._received, self._units_received))
        if self._lapse_timer is None:
            self._await_lapse()
        if self._held_back:
            self._wake()

    def _cooled(self, seconds: float) -> None:
        """Everybody cools down. What is held is given back: it would be a burst at the end."""
        now = self._clock()
        if now + seconds > self._cool_until:
            self._cool_until = now + seconds
            self._cool_downs += 1
        self._give_back()

    def _end_with(self, why: str) -> None:
        """No call will be let through any more."""
        if self.exhausted is None:
            self.exhausted = why
            self._wake()

    def _fail(self, why: str) -> None:
        """The server of the shared limits is lost for good."""
        if self._failure is None and not self._closed:
            self._failure = CoordinatorError(why)
            self._wake()

    def _connection(self, connected: bool) -> None:
        """The connection is made, or lost; what was asked for is asked for again."""
        self.connected = connected
        self._wanted_calls = 0
        self._wanted_units = self._wanted_head = 0.0
        if connected and self._held_back:
            self._wake()

    # -- leases -------------------------------------------------------------------------------

    def _give_back(self) -> None:
        # spec: RateLease!GiveBack
        self._back += self._calls
        self._calls = 0
        self._units_gone += self._units
        self._units = 0.0
        if not self._closed and not self._report_soon:
            self._report(False)

    def _await_lapse(self) -> None:
        self._lapse_timer = None
        if self._leases and not self._closed:
            self._lapse_at = self._leases[0][0]
            wait = max(0.0, self._lapse_at - self._clock()) + 0.001
            self._lapse_timer = self._loop.call_later(wait, lambda: self._lapse(self._clock()))
        else:
            self._lapse_at = math.inf

    def _lapse(self, now: float) -> None:
        """Give back what is left of leases that are over. The oldest is used first."""
        back = self._back
        while self._leases and self._leases[0][0] <= now:
            _, received, units_received = self._leases.popleft()
            lapsed = min(received - self._used - self._back, self._calls)
            if lapsed > 0:
                self._calls -= lapsed
                self._back += lapsed
            units = min(units_received - self._units_gone, self._units)
            if units > 0.0:
                self._units -= units
                self._units_gone += units
        if self._back != back:
            if not self._held_back and self._wanted_calls > 0:
                # What was asked for is not needed any more, and would be taken from others.
                self._wanted_calls = 0
                self._wanted_units = self._wanted_head = 0.0
                if self.connected:
                    self._tell_want()
            if not self._report_soon:
                self._report(False)
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
        self._await_lapse()

    # -- requests and reports -----------------------------------------------------------------

    def _ask(self, now: float, units: float) -> None:
        """Ask for more calls, unless enough were asked for; the next call needs so many units."""
        lacks = units - self._units if self._weighs else 0.0
        if self._wanted_calls > 0 and lacks <= max(self._wanted_head, 0.0) + UNITS_TOLERANCE:
            return
        self._measure(now)
        self._wanted_calls = max(1 if self._calls < 1 else 0, self._size - self._calls)
        if self._weighs:
            mean = self._units_used / self._used if self._used else units
            self._wanted_head = max(0.0, lacks)
            self._wanted_units = max(self._wanted_head, mean * self._size - self._units)
        if self.connected:
            self._tell_want()

    # How many calls to hold ahead? Few cost round trips, many lie idle here while others wait. A tenth of a
    # second of the rate at which this task uses them is both; doubling when it ran dry finds a rate that
    # has grown.
    def _measure(self, now: float) -> None:
        """See how many calls to hold ahead: those of a tenth of a second, twice as many after running dry."""
        elapsed = now - self._measured_at
        if elapsed < MEASURE_INTERVAL_S:
            return
        calls = math.ceil((self._used - self._measured_used) / elapsed * HELD_AHEAD_S)
        self._size = min(
            MAX_CALLS_PER_REQUEST, max(FIRST_CALLS if self._dry else 1, calls * 2 if self._dry else calls)
        )
        # Who needs a call now and then asks for it then: what is held ahead would lapse.
        self._low = self._size // 2 if self._size >= FIRST_CALLS else -1
        self._dry = False
        self._measured_at = now
        self._measured_used = self._used

    # A budget of calls is exact only if a call is counted before it begins: it may end its process, and
    # then nobody could tell. One frame for each call costs some 25 us; reserving blocks of calls would cost
    # less, and after a kill the rest of the block would be lost to the others.
    def _say_begun(self) -> bool:
        """Say that a call begins, before it does: it may end this process. False if it may not begin."""
        self._used += 1
        if self._tell_report():
            return True
        self._used -= 1
        return False

    def _report(self, soon: bool) -> None:
        """Have the counts said: in the next turn of the loop, or where nobody waits for them, later."""
        if self._report_timer is not None:
            if not soon:
                return
            self._report_timer.cancel()
        self._report_soon = soon
        if soon:
            self._report_timer = self._loop.call_soon(self._report_now)
        else:
            self._report_timer = self._loop.call_later(REPORT_DELAY_S, self._report_now)

    def _report_now(self) -> None:
        self._report_timer = None
        self._report_soon = False
        if self.connected:
            self._tell_report()


class CoordinatedLimiter(LeasedLimiter):
    """A `LeasedLimiter` whose calls come from a `Coordinator`.

    Connects again for as long as it takes; each time it says anew what it has done. While it is cut off,
    calls begin from what is held, unless their number is bounded. When a call waits and the coordinator has
    not been there for `patience` seconds, the job fails.
    """

    def __init__(self, handle: RpcHandle, name: str, limits: Limits, patience: float) -> None:
        super().__init__(limits)
        self._way = Reconnector(handle)
        self._name = name
        self._patience = patience
        self._id = uuid.uuid4().hex
        self._channel: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._farewell: tuple[int, float] | None = None
        self._taken = False

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._guarded(self._run()))

    # -- messages -----------------------------------------------------------------------------

    def _say(self, message: Any) -> bool:
        if self._channel is None:
            return False
        return self._channel.send(*TO_COORDINATOR.to_json(message))

    def _tell_want(self) -> None:
        calls, units = max(0, self._wanted_calls), max(0.0, self._wanted_units)
        self._say(Want(self.report(), calls, units, self._wanted_head))

    def _tell_report(self) -> bool:
        return self._say(Did(self.report()))

    def _tell_cool_down(self, seconds: float) -> None:
        self._say(CoolDown(seconds))

    async def _finish(self, unspent: int, units: float) -> None:
        task = self._task
        if task is None:
            return
        self._farewell = unspent, units
        if self._channel is not None:
            self._say_farewell()
        # What was spent and not said would be lost: wait for a coordinator that is just starting again.
        if self._channel is not None or self._received:
            await asyncio.wait([task], timeout=LEAVE_TIMEOUT_S)
        await end(task)

    def _say_farewell(self) -> None:
        assert self._farewell is not None
        self._say(Leave(self.report(), *self._farewell))

    # -- the connection -----------------------------------------------------------------------

    async def _run(self) -> None:
        lost_at = self._clock()
        while not self._taken:
            try:
                # Nothing that matters is unsent at the end: the last word is the coordinator's.
                await self._way.attempt(self._talk, self._hello, direct=True)
            except RefusedError as error:
                self._fail(str(error))
                return
            finally:
                self._channel = None
            if self.connected:
                self._connection(False)
                self._way.connected()
                lost_at = self._clock()
            if self._taken:
                return
            left = self._patience
            if self._held_back:
                left -= self._held_back_for(lost_at)
                if left <= 0.0:
                    self._fail(f"no coordinator for patience={self._patience:g} s at {self._way}")
                    return
            await self._way.pause(left)

    def _hello(self) -> list[Any]:
        opening = Open(self._name, self.limits, self._id, self._before, self.report())
        return TO_COORDINATOR.to_json(opening)[1:]

    async def _talk(self, connection: Connection) -> None:
        self._channel = connection
        await asyncio.wait_for(self._opened(connection), CONNECT_TIMEOUT_S)
        self._connection(True)
        cooling = self._cool_until - self._clock()
        if cooling > 0.0:
            self._tell_cool_down(cooling)
        if self._farewell is not None:
            self._say_farewell()
        while not self._taken:
            self._hear(TO_TASK.from_json(await connection.receive()))

    async def _opened(self, connection: Connection) -> None:
        """Wait until the coordinator has this task on its books."""
        while True:
            message = TO_TASK.from_json(await connection.receive())
            if isinstance(message, Opened):
                return
            self._hear(message)

    def _hear(self, message: Any) -> None:
        if isinstance(message, Granted):
            self._granted(message.calls, message.units)
        elif isinstance(message, CoolDown):
            self._cooled(message.seconds)
        elif isinstance(message, Exhausted):
            self._end_with(message.why)
        elif isinstance(message, Left):
            self._taken = True
