"""The limiter of a task whose calls are granted by a coordinator, ahead, so that a call costs no round trip.

A `LeasedLimiter` and its parts are confined to the task's mailbox thread: the account of what was granted and
used (`TaskAccount`), how much to ask for (`Demand`), the messages about both (`Statements`), and the
connection that carries them (`CoordinatorLink`). The parts do not hold each other; the limiter ties them.
"""

# The weight of the next calls is not known beforehand: so units that were granted are in one pool, for calls
# of the mean weight of late, and a call that is heavier than the pool asks for all of its own weight. It does
# not ask for what is lacking alone: while that is waited for the pool lapses, and a heavy call could ask for
# one half after the other for ever.

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence

from pillarbox.aio.limits.headers import LimitReading
from pillarbox.aio.limits.learned import NamedLimits
from pillarbox.aio.limits.messages import (
    TO_COORDINATOR,
    TO_TASK,
    CoolDown,
    Exhausted,
    Granted,
    Learned,
    Leave,
    Left,
    Named,
    Open,
    Update,
    UsageReport,
    Used,
)
from pillarbox.aio.limits.rate import (
    WAIT_MARGIN_S,
    CoordinatorError,
    LimiterStatistics,
    Limits,
    LocalLimiter,
    explain_cool_down,
)
from pillarbox.loop_thread import end
from pillarbox.rpc.connection import Connection, Reconnector, RefusedError, RpcHandle

HELD_AHEAD_S = 0.1
"""Seconds of a rate that one task asks for at a time, at most."""
FIRST_CALLS = 4
"""Calls to ask for before it is known how many are needed; who needs fewer asks when it needs one."""
MAX_CALLS_PER_REQUEST = 4096
"""Calls to ask for at a time, at most."""
MEAN_CALLS = 16
"""Calls over which the mean weight is taken, about."""
REPORT_DELAY_S = 0.02
"""Seconds until counts that nothing waits for are reported."""
LEAVE_TIMEOUT_S = 2.0
"""For the last report to be taken."""


NOTHING_USED = Used(0, 0.0, 0.0, 0.0, 0.0, 0.0)


class TaskAccount:
    """Calls and units that a task was granted, has used, and may still use. It has no clock.

    weighs: whether calls have units that the coordinator counts.
    """

    __slots__ = (
        "_leases", "_received", "_units_received", "calls", "cost", "lapses_at", "mean_units", "units",
        "units_used", "used", "weighs",
    )  # fmt: skip

    def __init__(self, weighs: bool) -> None:
        self.weighs = weighs
        self.calls = 0
        """Calls that may still begin."""
        self.units = 0.0
        """Units of these calls, all together."""
        self.used = 0
        self.units_used = 0.0
        self.cost = 0.0
        self.mean_units = 0.0
        """Units of a call of late, in the mean."""
        self.lapses_at = math.inf
        """The time at which the oldest lease is over; infinite if there is none."""
        self._received = 0
        self._units_received = 0.0
        # Until when, and what had been received by then. The oldest first.
        self._leases: deque[tuple[float, int, float]] = deque()

    @property
    def has_received(self) -> bool:
        """Return True if any call was ever granted."""
        return self._received > 0

    def receive(self, calls: int, units: float, until: float) -> None:
        """So many calls were granted, of so many units each, and may begin until then."""
        # spec: RateLease!Receive
        self.calls += calls
        self._received += calls
        self.units += calls * units
        self._units_received += calls * units
        self._leases.append((until, self._received, self._units_received))
        self.lapses_at = self._leases[0][0]

    def use(self, units: float) -> None:
        """A call of so many units begins."""
        # spec: RateLease!Begin
        self.calls -= 1
        self.used += 1
        self.units_used += units
        if self.weighs:
            self.units -= units
            self.mean_units += (units - self.mean_units) / min(self.used, MEAN_CALLS)

    def undo(self, units: float) -> None:
        """A call of so many units was not made after all."""
        self.calls += 1
        self.used -= 1
        self.units_used -= units
        if self.weighs:
            self.units += units

    def drop(self) -> None:
        """Give back all that was not used."""
        # spec: RateLease!GiveBack
        self.calls, self.units = 0, 0.0

    def lapse(self, now: float) -> int:
        """Give back what is left of leases that are over, the oldest used first; returns how many calls."""
        calls, leases = self.calls, self._leases
        while leases and leases[0][0] <= now:
            # Of what came after it, all is still there.
            _, received, units = leases.popleft()
            self.calls = min(self.calls, self._received - received)
            self.units = min(self.units, self._units_received - units)
        self.lapses_at = leases[0][0] if leases else math.inf
        return calls - self.calls

    def report(self) -> UsageReport:
        """Counts of this task since its beginning."""
        # What was received and is neither used nor there any more was given back.
        return UsageReport(self._received, self.used, self._received - self.used - self.calls, self.cost)


class Demand:
    """The number of calls to hold ahead, by how a task has used them, and so to ask for. It has no clock."""

    __slots__ = ("_most", "_size", "_units_per_second", "asked_units", "held_back_at")

    def __init__(self, limits: Limits) -> None:
        self.asked_units: float | None = None
        """The units of each call that was asked for and has not come; None where nothing is awaited."""
        self.held_back_at: float | None = None
        """The time since which a call waits for a grant; None while none does."""
        self._units_per_second = limits.units_per_second or 0.0
        # So many calls to hold: twice as many after running dry, without those that were not used.
        self._most = MAX_CALLS_PER_REQUEST
        if limits.per_second is not None:
            self._most = min(self._most, max(1, int(limits.per_second * HELD_AHEAD_S)))
        self._size = min(FIRST_CALLS, self._most)

    def hold_back(self, now: float) -> None:
        """A call waits, as too few were held."""
        if self.held_back_at is None:
            self.held_back_at = now
            self._size = min(self._size * 2, self._most)

    def shrink(self, calls: int) -> None:
        """So many calls were held and not used."""
        self._size = max(1, self._size - calls)

    def is_low(self, account: TaskAccount) -> bool:
        """Return True if half of the calls to hold are used."""
        size = self._size
        if account.mean_units != 0.0:
            size = self._size_by_weight(account.mean_units)
        is_low = account.calls <= size // 2 or account.units < account.mean_units * (size // 2)
        return is_low and size >= FIRST_CALLS

    def wanted(self, account: TaskAccount, units: float) -> tuple[int, float] | None:
        """Calls to ask for, and the units of each; None if enough were. units: of the call that waits."""
        if self.asked_units is not None and units <= self.asked_units:
            return None
        size, mean = self._size_by_weight(account.mean_units), account.mean_units
        calls = max(1, size - account.calls)
        each = max(0.0, size * mean - account.units) / calls
        if account.units < units:
            each = max(each, units)
            calls = max(1, min(calls, int((size * mean - account.units) / each)))
        return calls, each

    def _size_by_weight(self, mean_units: float) -> int:
        """So many calls to hold, by their number and by their weight."""
        if mean_units == 0.0:
            return self._size
        return min(self._size, max(1, int(self._units_per_second * HELD_AHEAD_S / mean_units)))


class Statements:
    """The messages of a task to its coordinator: its name, its counts, its wants, its farewell.

    say: sends a message, and returns False while there is no coordinator. report: the counts as they are.
    """

    def __init__(
        self, name: str, limits: Limits, say: Callable[[object], bool], report: Callable[[], UsageReport]
    ) -> None:
        self.before: tuple[str, int, float] | None = None
        """Calls and cost of the run before: see `RateLimiter.count_before`."""
        self.is_due = False
        """True while a report of the counts is about to be sent."""
        self._name = name
        self._limits = limits
        self._id = uuid.uuid4().hex
        self._say = say
        self._report = report
        # A cost is waited for by all who may be the one to go beyond it.
        self._delay_s = REPORT_DELAY_S if limits.max_cost is None else 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unspent: tuple[int, float] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report on this loop from now on."""
        self._loop = loop

    def opening(self) -> Open:
        """Make the first message of a connection."""
        return Open(self._name, self._limits, self._id, self.before, self._report())

    def want(self, calls: int, units: float) -> None:
        """Ask for so many calls, of so many units each."""
        self._say(Update(self._report(), calls, units))

    def report_soon(self) -> None:
        """Report the counts soon, once for all changes until then."""
        if not self.is_due and self._loop is not None:
            self.is_due = True
            self._timer = self._loop.call_later(self._delay_s, self._report_now)

    def leave(self, calls: int, units: float) -> None:
        """Report nothing more, and say farewell as soon as there is a coordinator. calls, units: not used."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        self._unspent = calls, units
        self.say_farewell()

    def say_farewell(self) -> None:
        """Say farewell, if the task leaves."""
        if self._unspent is not None and self._say(Leave(self._report(), *self._unspent)):
            # Said a second time it would go back into the buckets twice.
            self._unspent = 0, 0.0

    def _report_now(self) -> None:
        # spec: RateLease!Report
        self.is_due = False
        self._say(Update(self._report()))


class Lessons:
    """The words of the service about its limits, for the coordinator: the last ones, some times a second.

    And what the coordinator has learned by those of all tasks. say: sends a message. clock: seconds, which
    never go back.
    """

    def __init__(self, say: Callable[[object], bool], clock: Callable[[], float]) -> None:
        self.learned: Learned | None = None
        """The limits of the job, as the coordinator has last said them; None for none. Any thread."""
        self._say = say
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._named: tuple[tuple[LimitReading, ...], float] | None = None
        self._used = NOTHING_USED

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say them on this loop from now on."""
        self._loop = loop

    def name(self, readings: Sequence[LimitReading], age: float) -> None:
        """The service has named its limits. Of several answers the one to the last call is said."""
        began = self._clock() - age
        if self._named is None or began >= self._named[1]:
            self._named = tuple(readings), began
        self._say_soon()

    def use(self, units: float, usage: tuple[float, float, float], age: float) -> None:
        """A call that began `age` seconds ago has used tokens."""
        calls, *sums = self._used
        self._used = Used(calls + 1, *map(sum, zip(sums, (units, *usage, age), strict=True)))
        self._say_soon()

    def forget(self) -> None:
        """The coordinator is lost: another one may know nothing of these limits."""
        # spec: ToldLimits!Cut
        self.learned = None

    def close(self) -> None:
        """Say nothing more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def _say_soon(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(REPORT_DELAY_S, self._say_now)

    def _say_now(self) -> None:
        self._timer = None
        used, self._used = self._used, NOTHING_USED
        if used.calls:
            self._say(used._replace(age=used.age / used.calls))
        if self._named is not None:
            (readings, began), self._named = self._named, None
            self._say(Named(readings, max(0.0, self._clock() - began)))


class CoordinatorLink:
    """The connection of a task to its coordinator, made again for as long as it takes.

    It fails when a call waits and the coordinator has not been there for `patience` seconds.
    """

    def __init__(
        self, handle: RpcHandle, patience: float, clock: Callable[[], float], leave_timeout_s: float
    ) -> None:
        self._way = Reconnector(handle)
        self._patience = patience
        self._clock = clock
        self._leave_timeout_s = leave_timeout_s
        self._lost_at = clock()
        self._task: asyncio.Task[None] | None = None

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        opening: Callable[[], Open],
        opened: Callable[[], None],
        receive: Callable[[object], None],
        lost: Callable[[], None],
        held_back_at: Callable[[], float | None],
        fail: Callable[[CoordinatorError], None],
    ) -> None:
        """Connect, and connect again.

        opening: makes the first message of a connection. opened: is called when it is accepted, `receive`
        with each message that comes, and `lost` when it ends without a farewell. held_back_at: gives the
        time since which a call waits, None for none. fail: is called once if the coordinator is lost for
        good.
        """

        async def talk(connection: Connection) -> None:
            opened()
            try:
                # `Left` is the last word.
                while not isinstance(message := TO_TASK.from_json(await connection.receive()), Left):
                    receive(message)
            except BaseException:
                lost()
                raise
            finally:
                self._lost_at = self._clock()

        async def run() -> None:
            try:
                await self._way.run(
                    lambda: TO_COORDINATOR.to_json(opening())[1:],
                    talk,
                    lambda: self._patience_left(held_back_at()),
                )
                return
            except RefusedError as error:
                why = str(error)
            except Exception as error:
                # A fault of any other kind fails the job, too.
                why = f"sharing the limits has failed: {type(error).__name__}: {error}"
            fail(CoordinatorError(why))

        self._task = loop.create_task(run())

    def say(self, message: object) -> bool:
        """Send a message; False if there is no coordinator now."""
        if self._way.connection is None:
            return False
        self._way.say(*TO_COORDINATOR.to_json(message))
        return True

    def explain_absence(self) -> str | None:
        """Say that there is no coordinator; None if there is one."""
        if self._way.connection is not None:
            return None
        return f"there is no coordinator at {self._way}; it is waited for, for {self._patience:g} s in all"

    async def close(self, must_say: bool) -> None:
        """Wait until the farewell is answered, where there is a coordinator or `must_say`; then end."""
        task, self._task = self._task, None
        if task is None:
            return
        # What was spent and not said would be lost: wait for a coordinator that is just starting again.
        if self._way.connection is not None or must_say:
            await asyncio.wait([task], timeout=self._leave_timeout_s)
        await end(task)

    def _patience_left(self, held_back_at: float | None) -> float:
        if held_back_at is None:
            return self._patience
        left = self._patience - (self._clock() - max(self._lost_at, held_back_at))
        if left <= 0.0:
            raise RefusedError(f"no coordinator for patience={self._patience:g} s at {self._way}")
        return left


class LeasedLimiter:
    """A `RateLimiter` that admits from what a `Coordinator` has granted. `clock` gives seconds, never back.

    What it says of itself are counts since its beginning, so that it may be said again. It connects again for
    as long as it takes. While it is cut off, calls begin from what is held. When a call waits and the
    coordinator has not been there for `patience` seconds, the job fails.

    own: what lets calls of this task alone begin, where the tasks share a budget, but neither rate nor
    cool-downs.
    """

    def __init__(
        self,
        handle: RpcHandle,
        name: str,
        limits: Limits,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        leave_timeout_s: float = LEAVE_TIMEOUT_S,
        own: LocalLimiter | None = None,
    ) -> None:
        self.exhausted: str | None = None
        self.limits = limits
        self._own = own
        # Units that `own` has let through for a call that the coordinator still holds back.
        self._own_admitted: float | None = None
        self._clock = clock
        # None before the start, and behind the end.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], None] = lambda: None
        self._failure: CoordinatorError | None = None
        self._cool_until = -math.inf
        self._cool_downs = 0
        self._lapse_timer: asyncio.TimerHandle | None = None
        self._account = TaskAccount(limits.units_per_second is not None)
        self._demand = Demand(limits)
        self._link = CoordinatorLink(handle, patience, clock, leave_timeout_s)
        self._statements = Statements(name, limits, self._link.say, self._account.report)
        self._lessons = Lessons(self._link.say, clock)

    # -- for the operator ---------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `RateLimiter.start`."""
        self._loop = loop
        self._wake = wake
        self._statements.start(loop)
        self._lessons.start(loop)
        if self._own is not None:
            self._own.start(loop, wake)
        self._link.start(
            loop,
            opening=self._statements.opening,
            opened=self._opened,
            receive=self._receive,
            lost=self._lessons.forget,
            held_back_at=lambda: self._demand.held_back_at,
            fail=self._fail,
        )

    def admit(self, units: float = 1.0) -> float:
        """See `RateLimiter.admit`."""
        if self._failure is not None:
            raise self._failure
        if self.exhausted is not None:
            return math.inf
        # First, as what is taken from the coordinator counts as called.
        if self._own is not None and self._own_admitted != units:
            wait = self._own.admit(units)
            if wait > 0.0:
                return wait
            self._own_admitted = units
        now = self._clock()
        if now < self._cool_until:
            return self._cool_until - now + WAIT_MARGIN_S
        account, demand = self._account, self._demand
        if now >= account.lapses_at:
            self._lapse()
        needed = units if account.weighs else 0.0
        if account.calls < 1 or account.units < needed:
            demand.hold_back(now)
            self._ask(needed)
            return math.inf
        demand.held_back_at = None
        self._own_admitted = None
        account.use(units)
        if not self._statements.is_due:
            self._statements.report_soon()
        if demand.asked_units is None and demand.is_low(account):
            self._ask(0.0)
        return 0.0

    def give_back(self, units: float) -> None:
        """See `RateLimiter.give_back`. The coordinator may have been told of it: its sum is never lowered."""
        self._account.undo(units)

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        self._account.cost += cost
        if cost:
            self._statements.report_soon()

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`. All who share the limits are told."""
        if self._own is not None:
            self._own.cool_down(seconds)
            return
        pause = self.limits.cool_down if seconds is None else seconds
        self._cooled(pause)
        self._link.say(CoolDown(pause))

    def learn(self, readings: Sequence[LimitReading], age: float) -> None:
        """See `RateLimiter.learn`. All who share the limits learn from it."""
        if self._own is not None:
            self._own.learn(readings, age)
        elif self.limits.learn:
            self._lessons.name(readings, age)

    def use(self, units: float, usage: tuple[float, float, float], age: float) -> None:
        """See `RateLimiter.use`."""
        if self._own is not None:
            self._own.use(units, usage, age)
        elif self.limits.learn:
            self._lessons.use(units, usage, age)

    @property
    def learned(self) -> NamedLimits | None:
        """See `RateLimiter.learned`."""
        return self._lessons.learned if self._own is None else self._own.learned

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        self._statements.before = name, calls, cost

    def explain_now(self) -> str | None:
        """See `RateLimiter.explain_now`."""
        own = None if self._own is None else self._own.explain_now()
        return self._link.explain_absence() or own or explain_cool_down(self._cool_until, self._clock())

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        cool_downs = self._cool_downs if self._own is None else self._own.statistics().cool_downs
        account = self._account
        return LimiterStatistics(account.used, account.units_used, account.cost, cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`. Takes two seconds at most, where nobody answers."""
        if self._loop is None:
            return
        self._loop = None
        self._wake = lambda: None
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
        unspent = self._account.calls, self._account.units
        self._account.drop()
        self._lessons.close()
        self._statements.leave(*unspent)
        await self._link.close(must_say=self._account.has_received)

    # -- the account --------------------------------------------------------------------------

    def _ask(self, units: float) -> None:
        """Ask for more calls, unless enough were asked for; the next one needs so many units."""
        wanted = self._demand.wanted(self._account, units)
        if wanted is not None:
            self._want(*wanted)

    def _want(self, calls: int, units: float) -> None:
        self._demand.asked_units = units if calls else None
        self._statements.want(calls, units)

    def _await_lapse(self) -> None:
        self._lapse_timer = None
        if self._account.lapses_at < math.inf and self._loop is not None:
            wait = max(0.0, self._account.lapses_at - self._clock()) + 0.001
            self._lapse_timer = self._loop.call_later(wait, self._lapse)

    def _lapse(self) -> None:
        lapsed = self._account.lapse(self._clock())
        if lapsed > 0:
            self._demand.shrink(lapsed)
            if self._demand.held_back_at is None and self._demand.asked_units is not None:
                # What was asked for is not needed any more, and would be taken from others.
                self._want(0, 0.0)
            self._statements.report_soon()
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
        self._await_lapse()

    # -- for the coordinator ------------------------------------------------------------------

    def _opened(self) -> None:
        # What was asked for is asked for again.
        self._want(0, 0.0)
        if self._demand.held_back_at is not None:
            self._wake()
        cooling = self._cool_until - self._clock()
        if cooling > 0.0:
            self._link.say(CoolDown(cooling))
        self._statements.say_farewell()

    def _receive(self, message: object) -> None:
        if isinstance(message, Granted):
            self._account.receive(message.calls, message.units, self._clock() + self.limits.life)
            self._demand.asked_units = None
            if self._lapse_timer is None:
                self._await_lapse()
            if self._demand.held_back_at is not None:
                self._wake()
        elif isinstance(message, CoolDown):
            self._cooled(message.seconds)
        elif isinstance(message, Learned):
            # spec: ToldLimits!Hear
            self._lessons.learned = message
        elif isinstance(message, Exhausted) and self.exhausted is None:
            self.exhausted = message.why
            self._wake()

    def _cooled(self, seconds: float) -> None:
        """Everybody cools down. What is held is given back: it would be a burst at the end."""
        until = self._clock() + seconds
        if until > self._cool_until:
            self._cool_until = until
            self._cool_downs += 1
        self._account.drop()
        self._statements.report_soon()

    def _fail(self, error: CoordinatorError) -> None:
        """If sharing fails, the job fails with the next call."""
        self._failure = error
        self._wake()
