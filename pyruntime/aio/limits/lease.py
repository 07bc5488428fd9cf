"""Calls that tasks share: the accounts of a coordinator, the messages about them, and the limiter of a task.

A `QuotaAllocator` is for the coordinator's thread only, and has no sockets and no clock of its own. A
`LeasedLimiter` is confined to its task's mailbox thread. It holds calls ahead, so that a call costs no round
trip. Messages are plain values, any thread. Every client says what it has done in counts since its beginning,
so a report that comes twice, or after a restart, counts once.
"""

# A lease is a time: calls that are not used within it are given back (Gray and Cheriton, "Leases", 1989).
# Without it, a task that has got calls and has no rows left would keep them from others until it ends. A
# round trip for each call, the other way, would cost every call a tenth of a millisecond, and the
# coordinator its thread. How heavy the next calls are, nobody knows beforehand: so units that were granted
# are in one pool, for calls of the mean weight of late, and a call that is heavier than the pool asks for all
# of its own weight. It does not ask for what is lacking alone: while that is waited for the pool lapses, and
# a heavy call could ask for one half after the other for ever.
#
# The alternatives to counts since the beginning are numbered messages that are kept until they are
# acknowledged, or a log of grants at the coordinator. Both need state that survives
# on the side that dies: a coordinator that starts from its file would have to know which messages of each
# task it had already counted, and to write it down for each. A count is idempotent. It may be repeated to
# whoever is there, and the larger one wins; so a restart needs nothing but sums (spec/RateLease.tla).
#
# What a task held when it died counts as used: it says some time later which calls have begun. To say so
# before each call would cost a message a call, and only the end that the task's own system makes of a
# connection would prove that all was heard.

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pillarbox.aio.limits.rate import (
    WAIT_MARGIN_S,
    CoordinatorError,
    LimiterStatistics,
    Limits,
    LocalLimiter,
    TokenBucket,
    explain_cool_down,
)
from pillarbox.rpc.codec import Amount, Codec, Count
from pillarbox.rpc.connection import Connection, Reconnector, RefusedError, RpcHandle
from pillarbox.rpc.loop_thread import end

SERVICE = "limits"
"""The name under which a coordinator serves them."""
TURN_S = 0.05
"""Seconds of the rate that all who want calls are granted in one turn."""
RETURN_TIMEOUT_S = 2.0
"""Seconds after the life of a lease in which a client that has gone may come back and say what it used."""
MAX_ENDED_CLIENTS = 200
"""Clients that have ended and whose counts are known one by one: one that comes back is not counted twice."""
HELD_AHEAD_S = 0.1
"""Seconds of a rate that one task asks for at a time, at most."""
FIRST_CALLS = 4
"""Calls to ask for before it is known how many are needed; who needs fewer asks when it needs one."""
MAX_CALLS_PER_REQUEST = 4096
"""Calls to ask for at a time, at most."""
MEAN_CALLS = 16
"""Calls over which the mean weight is taken, about."""
REPORT_DELAY_S = 0.02
"""Seconds until what nobody waits for is said."""
LEAVE_TIMEOUT_S = 2.0
"""For the last report to be taken."""


class UsageReport(NamedTuple):
    """Counts of a client since its beginning."""

    received: Count = 0
    """Calls granted, as far as it knows."""
    used: Count = 0
    """Calls begun."""
    back: Count = 0
    """Calls given back unused."""
    cost: Amount = 0.0


class Open(NamedTuple):
    """A task is there, first or again. before: of the run, see `RateLimiter.count_before`."""

    name: str
    limits: Limits
    client: str
    before: tuple[str, Count, Amount] | None
    report: UsageReport


class Opened(NamedTuple):
    """The coordinator has the task in its accounts."""


class Update(NamedTuple):
    """A task has done so much, and wants so many calls, of so many units each.

    calls: None for what it wanted before. A want is said once: one grant answers it, and repeated it would be
    answered again while that is on its way.
    """

    report: UsageReport
    calls: Count | None = None
    units: Amount = 0.0


class Granted(NamedTuple):
    """A task may begin so many calls more, of so many units each."""

    calls: Count
    units: Amount


class CoolDown(NamedTuple):
    """The service is overloaded. Goes both ways."""

    seconds: Amount


class Exhausted(NamedTuple):
    """No call may begin any more."""

    why: str


class Leave(NamedTuple):
    """A task ends, and gives back calls and units that it has not used."""

    report: UsageReport
    unspent: Count
    unspent_units: Amount


class Left(NamedTuple):
    """The last report of a task is in the accounts."""


TO_COORDINATOR = Codec(Open, Update, CoolDown, Leave)
TO_TASK = Codec(Opened, Granted, CoolDown, Exhausted, Left)
_LIMITS = Codec(Limits)


# -- the accounts -------------------------------------------------------------------------------


@dataclass
class Client:
    """One task, as the coordinator sees it."""

    granted: int = 0
    used: int = 0
    back: int = 0
    cost: float = 0.0
    wanted: int = 0
    units: float = 0.0
    """Units of each call that it wants."""
    served: float = 0.0
    """Units that it got, or else calls; not less than others had when it began to want more."""

    @property
    def held(self) -> int:
        """Calls granted that it may still use."""
        return self.granted - self.used - self.back


class QuotaAllocator:
    """The accounts of one set of limits. `clock` gives seconds and never goes back.

    Never more calls are used than `max_calls`: what may have been used counts as used. What has certainly
    not been used is granted again.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float], level: float | None = None) -> None:
        self.limits = limits
        self.clients: dict[str, Client] = {}
        self.committed = 0
        """Calls that were used or may still be."""
        self.used = 0
        """Calls that were used, as far as is known."""
        self.cost = 0.0
        """Cost of the calls, as far as is known."""
        self.cool_downs = 0
        self._clock = clock
        self._remembered: dict[str, tuple[int, float]] = {}
        # The time at which a client is given up that is not connected.
        self._gone: dict[str, float] = {}
        self._before: list[str] = []
        # Who wants more, in the order of their asking; who got least so far is served first.
        self._wanting: dict[str, None] = {}
        self._served = 0.0
        self._cool_until = -math.inf
        self._requests = self._weights = None
        now = clock()
        if limits.per_second is not None:
            capacity = limits.capacity(limits.per_second, 1.0)
            self._requests = TokenBucket(limits.per_second, capacity, now, level)
        if limits.units_per_second is not None:
            capacity = limits.capacity(limits.units_per_second, 0.0) or limits.units_per_second * limits.life
            self._weights = TokenBucket(limits.units_per_second, capacity, now, level)

    # -- reports of clients --------------------------------------------------------------------

    def register(self, name: str, report: UsageReport) -> None:
        """A client is there, first or again. What was granted and never reached it, it does not hold."""
        # spec: RateLease!Register
        calls, cost = self._remembered.pop(name, (0, 0.0))
        self.used -= calls
        self.committed -= calls
        self.cost -= cost
        client = self.clients.setdefault(name, Client())
        self.committed += report.received - client.granted
        client.granted = report.received
        self._gone.pop(name, None)
        self._wanting.pop(name, None)
        self.report(name, report)

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """So many calls were made before, as a ledger says; each name counts once.

        Later the ledger has also what clients of these limits have done.
        """
        if name not in self._before:
            self._before.append(name)
            self.used += calls
            self.committed += calls
            self.cost += cost

    def report(self, name: str, report: UsageReport) -> None:
        """A client has done so much. Counts never go back, whatever is said."""
        # spec: RateLease!Hear
        client = self.clients[name]
        used = max(client.used, report.used)
        back = max(client.back, report.back)
        cost = max(client.cost, report.cost)
        granted = max(client.granted, used + back)
        self.used += used - client.used
        self.committed += granted - client.granted - (back - client.back)
        self.cost += cost - client.cost
        client.granted, client.used, client.back, client.cost = granted, used, back, cost

    def want(self, name: str, received: int, calls: int, units: float) -> None:
        """A client wants so many calls more than it knows of, of so many units each."""
        client = self.clients[name]
        client.wanted = max(0, calls - (client.granted - received))
        client.units = units
        if not client.wanted:
            self._wanting.pop(name, None)
        elif name not in self._wanting:
            self._wanting[name] = None
            client.served = max(client.served, self._served)

    def cool_down(self, seconds: float | None) -> float:
        """Nothing is granted for so long; gives the seconds from now."""
        now = self._clock()
        self._cool_until = max(
            self._cool_until, now + (self.limits.cool_down if seconds is None else seconds)
        )
        self.cool_downs += 1
        return self._cool_until - now

    def cooling(self) -> float:
        """Seconds for which nothing is granted; 0.0 for none."""
        return max(0.0, self._cool_until - self._clock())

    def leave(self, name: str, report: UsageReport, unspent: int = 0, units: float = 0.0) -> None:
        """A client ends. What it held, it holds no more; of that so much may go back into the buckets."""
        self.report(name, report)
        client = self.clients[name]
        if self._requests is not None and unspent:
            self._requests.give_back(min(unspent, max(0, client.granted - client.used)), self._clock())
        if self._weights is not None and units:
            self._weights.give_back(units, self._clock())
        self._end(name, client.used)

    def lost(self, name: str, return_timeout_s: float = RETURN_TIMEOUT_S) -> None:
        """The connection of a client has ended. It may come back until what it holds has lapsed."""
        # spec: RateLease!Notice
        if name in self.clients:
            self._gone[name] = self._clock() + self.limits.life + return_timeout_s
            self._wanting.pop(name, None)

    def expire(self) -> float:
        """Give up those who are gone for good; gives the seconds until the next one, infinite for none."""
        # spec: RateLease!GiveUp
        if not self._gone:
            return math.inf
        now = self._clock()
        for name in [name for name, until in self._gone.items() if until <= now]:
            client = self.clients[name]
            self._end(name, client.granted - client.back)
        return min(self._gone.values(), default=math.inf) - now

    def is_fresh(self) -> bool:
        """Return True if a new one would grant no more: no sums, no clients, full buckets, no cool-down."""
        if self.clients or self.limits.max_calls is not None or self.limits.max_cost is not None:
            return False
        now = self._clock()
        buckets = [bucket for bucket in (self._requests, self._weights) if bucket is not None]
        return now >= self._cool_until and all(each.level(now) >= each.capacity for each in buckets)

    # -- grants -------------------------------------------------------------------------------

    @property
    def exhausted(self) -> str | None:
        """The limit that lets no call begin any more, as "max_calls=5"; None while some may."""
        if self.limits.max_calls is not None and self.used >= self.limits.max_calls:
            return f"max_calls={self.limits.max_calls}"
        if self.limits.max_cost is not None and self.cost >= self.limits.max_cost:
            return f"max_cost={self.limits.max_cost}"
        return None

    # One grant answers what a client wants, however much it is; it asks again when it has that. Else all that
    # it asked for could be under way to a task that stands still for a moment, and begin in one burst.
    #
    # Fairness. Equal shares for each turn would give a task with one call waiting as much as one with a
    # thousand, and would leave the rest of its share unused. First come, first served, gives all to who
    # asks for most. So each client has a sum of what it was served, and the one with the least is next
    # (start-time fair queueing); one that begins to want more starts from the present sum, so that it
    # cannot claim the time in which it wanted nothing.
    def grant(self) -> tuple[dict[str, Granted], float]:
        """Grant what may be granted now, in turn, a share each; and the seconds after which to ask again."""
        # spec: RateLease!Grant
        now = self._clock()
        if not self._wanting or self.exhausted is not None:
            return {}, math.inf
        if now < self._cool_until:
            return {}, self._cool_until - now
        turns = sorted(self._wanting, key=lambda name: self.clients[name].served)
        if self._cool_until > -math.inf:
            self._cool_until = -math.inf
            self._keep_for_one(self.clients[turns[0]].units, now)
        left = None if self.limits.max_calls is None else self.limits.max_calls - self.committed
        grants: dict[str, Granted] = {}
        for name in turns:
            client = self.clients[name]
            calls, wait = self._share(client, now, left, len(turns))
            if wait > 0.0:
                # Nobody overtakes: a heavy call would otherwise wait for ever.
                return grants, wait
            grants[name] = Granted(calls, client.units)
            client.granted += calls
            self.committed += calls
            if left is not None:
                left -= calls
            self._served = client.served
            client.served += calls if self._weights is None else calls * client.units
            del self._wanting[name]
        return grants, math.inf

    def _share(self, client: Client, now: float, left: int | None, sharers: int) -> tuple[int, float]:
        """Calls for one client, and the seconds that it must wait until it gets any."""
        calls, requests, weights = client.wanted, self._requests, self._weights
        if left is not None:
            if left <= 0:
                # Until somebody gives back: then it is asked again.
                return 0, math.inf
            calls = min(calls, max(1, left // (2 * sharers)))
        buckets = [(requests, 1.0), (weights, client.units)]
        some = [(bucket, amount) for bucket, amount in buckets if bucket is not None and amount > 0.0]
        wait = max((bucket.ready_in(amount, now) for bucket, amount in some), default=0.0)
        if wait > 0.0:
            return 0, wait
        for bucket, amount in some:
            share = min(bucket.rate * TURN_S / sharers, bucket.level(now))
            calls = min(calls, max(1, int(share / amount)))
        for bucket, amount in some:
            bucket.take(calls * amount, now)
        return calls, 0.0

    def _keep_for_one(self, head: float, now: float) -> None:
        # What has gathered in a cool-down would be a burst. One call tries whether the service is well again.
        if self._requests is not None:
            self._requests.keep(1.0, now)
        if self._weights is not None:
            self._weights.keep(min(head, self._weights.capacity), now)

    def _end(self, name: str, used: int) -> None:
        client = self.clients.pop(name)
        self._gone.pop(name, None)
        self._wanting.pop(name, None)
        self.committed += used - (client.granted - client.back)
        self.used += used - client.used
        self._remembered[name] = (used, client.cost)
        while len(self._remembered) > MAX_ENDED_CLIENTS:
            del self._remembered[next(iter(self._remembered))]

    # -- state -------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """State for a coordinator that starts again."""
        return {
            "limits": [*self.limits],
            "sums": [self.committed, self.used, self.cost],
            "remembered": self._remembered,
            "before": self._before,
            "clients": {
                name: [client.granted, client.used, client.back, client.cost]
                for name, client in self.clients.items()
            },
        }

    @classmethod
    def from_json(
        cls, value: Any, clock: Callable[[], float], return_timeout_s: float = RETURN_TIMEOUT_S
    ) -> QuotaAllocator:
        """The accounts as they were. The buckets are empty: what was granted last is not known to be used."""
        # spec: RateLease!Restart
        allocator = cls(_LIMITS.from_json([Limits.__name__, *value["limits"]]), clock, 0.0)
        allocator.committed, allocator.used, allocator.cost = value["sums"]
        allocator._before = [*value.get("before", ())]
        allocator._remembered = {name: (calls, cost) for name, (calls, cost) in value["remembered"].items()}
        for name, (granted, used, back, cost) in value["clients"].items():
            allocator.clients[name] = Client(granted, used, back, cost)
            allocator.lost(name, return_timeout_s)
        return allocator


# -- the limiter of a task ---------------------------------------------------------------------


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
        self._leave_timeout_s = leave_timeout_s
        self._own = own
        # Units that `own` has let through for a call that the coordinator still holds back.
        self._own_admitted: float | None = None
        self._name = name
        self._patience = patience
        self._clock = clock
        self._id = uuid.uuid4().hex
        self._way = Reconnector(handle)
        self._lost_at = clock()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._wake: Callable[[], None] = lambda: None
        self._failure: CoordinatorError | None = None
        self._before: tuple[str, int, float] | None = None
        self._farewell: tuple[int, float] | None = None
        self._weighs = limits.units_per_second is not None
        # A cost is waited for by all who may be the one to go beyond it.
        self._report_delay_s = REPORT_DELAY_S if limits.max_cost is None else 0.0
        self._calls = 0
        self._received = 0
        # Units of these calls, all together; of calls of late, in the mean.
        self._units = self._units_received = 0.0
        self._mean_units = 0.0
        self._used = 0
        self._units_used = 0.0
        self._cost = 0.0
        self._cool_until = -math.inf
        self._cool_downs = 0
        # Until when, and what had been received by then. The oldest first.
        self._leases: deque[tuple[float, int, float]] = deque()
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
        self._task = loop.create_task(self._run())

    def admit(self, units: float = 1.0) -> float:
        """See `RateLimiter.admit`."""
        if self._failure is not None:
            raise self._failure
        needed = units if self._weighs else 0.0
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
        if self._leases and now >= self._leases[0][0]:
            self._lapse()
        if self._calls < 1 or self._units < needed:
            if not self._held_back:
                self._held_back, self._held_back_at = True, now
                self._size = min(self._size * 2, self._most)
            self._ask(needed)
            return math.inf
        # spec: RateLease!Begin
        self._held_back = False
        self._own_admitted = None
        self._calls -= 1
        self._used += 1
        self._units_used += units
        if self._weighs:
            self._units -= units
            self._mean_units += (units - self._mean_units) / min(self._used, MEAN_CALLS)
        if self._report_timer is None:
            self._report()
        if not self._asked:
            size = self._size_by_weight()
            is_low = self._calls <= size // 2 or self._units < self._mean_units * (size // 2)
            if is_low and size >= FIRST_CALLS:
                self._ask(0.0)
        return 0.0

    def _size_by_weight(self) -> int:
        """So many calls to hold, by their number and by their weight."""
        if self._mean_units == 0.0:
            return self._size
        per_second = self.limits.units_per_second or 0.0
        return min(self._size, max(1, int(per_second * HELD_AHEAD_S / self._mean_units)))

    def give_back(self, units: float) -> None:
        """See `RateLimiter.give_back`. The coordinator may have been told of it: its sum is never lowered."""
        self._calls += 1
        self._used -= 1
        self._units_used -= units
        if self._weighs:
            self._units += units

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        self._cost += cost
        if cost:
            self._report()

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`. All who share the limits are told."""
        if self._own is not None:
            self._own.cool_down(seconds)
            return
        pause = self.limits.cool_down if seconds is None else seconds
        self._cooled(pause)
        self._say(CoolDown(pause))

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        self._before = name, calls, cost

    def explain_now(self) -> str | None:
        """See `RateLimiter.explain_now`."""
        if self._way.connection is None:
            return (
                f"there is no coordinator at {self._way}; it is waited for, for {self._patience:g} s in all"
            )
        own = None if self._own is None else self._own.explain_now()
        return own or explain_cool_down(self._cool_until, self._clock())

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        cool_downs = self._cool_downs if self._own is None else self._own.statistics().cool_downs
        return LimiterStatistics(self._used, self._units_used, self._cost, cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`. Takes two seconds at most, where nobody answers."""
        task, self._task = self._task, None
        if task is None:
            return
        self._wake = lambda: None
        self._farewell = self._calls, self._units
        self._give_back()
        for timer in (self._lapse_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        self._say_farewell()
        # What was spent and not said would be lost: wait for a coordinator that is just starting again.
        if self._way.connection is not None or self._received:
            await asyncio.wait([task], timeout=self._leave_timeout_s)
        await end(task)

    # -- leases -------------------------------------------------------------------------------

    def _granted(self, calls: int, units: float) -> None:
        """So many calls were granted, of so many units each, and may begin for the life of a lease."""
        # spec: RateLease!Receive
        self._calls += calls
        self._received += calls
        self._units += calls * units
        self._units_received += calls * units
        self._asked = False
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
        if self._leases and self._task is not None:
            wait = max(0.0, self._leases[0][0] - self._clock()) + 0.001
            self._lapse_timer = self._loop.call_later(wait, self._lapse)

    def _lapse(self) -> None:
        """Give back what is left of leases that are over. The oldest is used first."""
        now, calls = self._clock(), self._calls
        while self._leases and self._leases[0][0] <= now:
            # Of what came after it, all is still there.
            _, received, units = self._leases.popleft()
            self._calls = min(self._calls, self._received - received)
            self._units = min(self._units, self._units_received - units)
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
        size = self._size_by_weight()
        calls = max(1, size - self._calls)
        each = max(0.0, size * self._mean_units - self._units) / calls
        if self._units < units:
            each = max(each, units)
            calls = max(1, min(calls, int((size * self._mean_units - self._units) / each)))
        self._want(calls, each)

    def _want(self, calls: int, units: float) -> None:
        self._asked, self._asked_units = calls > 0, units
        self._say(Update(self.report(), calls, units))

    def _report(self) -> None:
        """Have the counts said soon, once for all that changes until then."""
        if self._report_timer is None and self._task is not None:
            self._report_timer = self._loop.call_later(self._report_delay_s, self._report_now)

    def _report_now(self) -> None:
        # spec: RateLease!Report
        self._report_timer = None
        self._say(Update(self.report()))

    # -- the coordinator ----------------------------------------------------------------------

    def _say(self, message: object) -> None:
        self._way.say(*TO_COORDINATOR.to_json(message))

    def _say_farewell(self) -> None:
        if self._farewell is not None and self._way.connection is not None:
            self._say(Leave(self.report(), *self._farewell))
            # Said a second time it would go back into the buckets twice.
            self._farewell = 0, 0.0

    async def _run(self) -> None:
        """Talk to the coordinator. If that fails in a way that nobody thought of, so does the job."""
        try:
            await self._way.run(self._hello, self._talk, self._patience_left)
            return
        except RefusedError as error:
            why = str(error)
        except Exception as error:
            why = f"sharing the limits has failed: {type(error).__name__}: {error}"
        self._failure = CoordinatorError(why)
        self._wake()

    def _patience_left(self) -> float:
        if not self._held_back:
            return self._patience
        left = self._patience - (self._clock() - max(self._lost_at, self._held_back_at))
        if left <= 0.0:
            raise RefusedError(f"no coordinator for patience={self._patience:g} s at {self._way}")
        return left

    def _hello(self) -> list[Any]:
        opening = Open(self._name, self.limits, self._id, self._before, self.report())
        return TO_COORDINATOR.to_json(opening)[1:]

    async def _talk(self, connection: Connection) -> None:
        # What was asked for is asked for again.
        self._want(0, 0.0)
        if self._held_back:
            self._wake()
        cooling = self._cool_until - self._clock()
        if cooling > 0.0:
            self._say(CoolDown(cooling))
        self._say_farewell()
        try:
            await self._hear(connection)
        finally:
            self._lost_at = self._clock()

    async def _hear(self, connection: Connection) -> None:
        """Take what the coordinator says, until it has heard the farewell. That is its last word."""
        while True:
            message = TO_TASK.from_json(await connection.receive())
            if isinstance(message, Left):
                return
            if isinstance(message, Granted):
                self._granted(message.calls, message.units)
            elif isinstance(message, CoolDown):
                self._cooled(message.seconds)
            elif isinstance(message, Exhausted) and self.exhausted is None:
                self.exhausted = message.why
                self._wake()
