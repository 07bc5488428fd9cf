"""The limiter of a task that shares its limits: it holds calls ahead, so that a call costs no round trip.

Confined to the mailbox thread.
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
from pillarbox.aio.limits.rate import WAIT_MARGIN_S, LimiterStatistics
from pillarbox.aio.limits.shared import CoordinatorError, Limits
from pillarbox.rpc.connection import CONNECT_TIMEOUT_S, Connection, Reconnector, RefusedError, RpcHandle
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
        self._farewell: tuple[int, float] | None = None
        self._taken = False
        self._weighs = limits.units_per_second is not None
        # A cost is waited for by all who may be the one to go beyond it.
        self._report_delay_s = REPORT_DELAY_S if limits.max_cost is None else 0.0
        self._calls = 0
        self._units = 0.0
        self._received = 0
        self._used = 0
        self._units_received = 0.0
        self._units_used = 0.0
        self._cost = 0.0
        self._cool_until = -math.inf
        self._cool_downs = 0
        # Until when, and what had been received by then. The oldest first.
        self._leases: deque[tuple[float, int, float]] = deque()
        self._lapse_at = math.inf
        self._lapse_timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None
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
        if self._calls < 1 or (self._weighs and self._units + UNITS_TOLERANCE < units):
            if not self._held_back:
                self._held_back_at = now
            self._held_back = self._dry = True
            self._ask(now, units)
            return math.inf
        # spec: RateLease!Begin
        self._held_back = False
        self._calls -= 1
        self._used += 1
        self._units_used += units
        if self._weighs:
            self._units -= units
        if self._report_timer is None:
            self._report()
        if self._calls <= self._low and self._wanted_calls <= 0:
            self._ask(now, 0.0)
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
        self._farewell = self._calls, max(0.0, self._units)
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
        """So much was granted, and may be used for the life of a lease."""
        # spec: RateLease!Receive
        self._calls += calls
        self._received += calls
        self._units += units
        self._units_received += units
        self._wanted_calls -= calls
        self._wanted_units -= units
        self._leases.append((self._clock() + self.limits.life, self._received, self._units_received))
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
        self._calls, self._units = 0, 0.0
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
            _, received, units_received = self._leases.popleft()
            # Of what came after it, all is still there.
            self._calls = min(self._calls, self._received - received)
            self._units = min(self._units, self._units_received - units_received)
        if self._calls < calls:
            if not self._held_back and self._wanted_calls > 0:
                # What was asked for is not needed any more, and would be taken from others.
                self._want(0, 0.0, 0.0)
            self._report()
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
        self._await_lapse()

    # -- requests and reports -----------------------------------------------------------------

    def report(self) -> UsageReport:
        """Counts of this task since its beginning."""
        # What was received and is neither used nor there any more was given back.
        return UsageReport(self._received, self._used, self._received - self._used - self._calls, self._cost)

    def _ask(self, now: float, units: float) -> None:
        """Ask for more calls, unless enough were asked for; the next call needs so many units."""
        lacks = units - self._units if self._weighs else 0.0
        if self._wanted_calls > 0 and lacks <= max(self._wanted_head, 0.0) + UNITS_TOLERANCE:
            return
        self._measure(now)
        calls = max(1 if self._calls < 1 else 0, self._size - self._calls)
        if not self._weighs:
            self._want(calls, 0.0, 0.0)
            return
        mean = self._units_used / self._used if self._used else units
        self._want(calls, max(0.0, lacks, mean * self._size - self._units), max(0.0, lacks))

    def _want(self, calls: int, units: float, head: float) -> None:
        self._wanted_calls, self._wanted_units, self._wanted_head = calls, units, head
        if self.connected:
            self._say(Want(self.report(), calls, units, head))

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
        self._say(Leave(self.report(), *self._farewell))

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
        self._want(0, 0.0, 0.0)
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
