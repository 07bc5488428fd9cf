"""The accounts of a coordinator: what it has granted to each task, and who is granted more.

A `QuotaAllocator` is for the coordinator's thread only, and has no sockets and no clock of its own.
"""

# A lease is a time: calls that are not used within it are given back (Gray and Cheriton, "Leases", 1989).
# Without it, a task that has got calls and has no rows left would keep them from others until it ends. A
# round trip for each call, the other way, would cost every call a tenth of a millisecond, and the
# coordinator its thread.
#
# What a task held when it died counts as used: it says some time later which calls have begun. To say so
# before each call would cost a message a call, and only the end that the task's own system makes of a
# connection would prove that all of it had arrived.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pillarbox.aio.limits.headers import LimitReading
from pillarbox.aio.limits.learned import LearnedLimits
from pillarbox.aio.limits.messages import Granted, KnownLimit, Learned, UsageReport, Used
from pillarbox.aio.limits.rate import Limits, TokenBucket
from pillarbox.rpc.codec import Codec

TURN_S = 0.05
"""Seconds of the rate that all who want calls are granted in one turn."""
RETURN_TIMEOUT_S = 2.0
"""Seconds after the life of a lease in which a client that has gone may come back and say what it used."""
MAX_ENDED_CLIENTS = 200
"""Clients that have ended and whose counts are known one by one: one that comes back is not counted twice."""

_LIMITS = Codec(Limits)


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
        self._learned = LearnedLimits(is_alone=True) if limits.learn else None
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
        self._give_back(client, client.granted - report.received)
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
        if self._learned is not None:
            now, weight = self._clock(), self._weight_of(client)
            if used > client.used:
                self._learned.note_begun(weight, now, used - client.used)
            self._give_back(client, back - client.back)
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

    def learn(self, readings: Sequence[LimitReading], age: float) -> None:
        """The service has named its limits in its answer to a call that a client began `age` seconds ago."""
        if self._learned is not None:
            now = self._clock()
            self._learned.observe(readings, now - age, now)

    def use(self, used: Used) -> None:
        """Calls of a client have used tokens: see `RateLimiter.use`."""
        if self._learned is not None and used.calls:
            now = self._clock()
            units = used.units if self._weights is not None else float(used.calls)
            tokens = used.input_tokens, used.output_tokens, used.tokens
            self._learned.use(units, tokens, now - used.age, now, used.calls)

    def known_limits(self) -> Learned:
        """Return the limits that the service has named, and what may begin of them now."""
        named = {} if self._learned is None else self._learned.named(self._clock())
        return Learned(tuple([KnownLimit(kind, *amounts) for kind, amounts in named.items()]))

    def _give_back(self, client: Client, calls: int) -> None:
        """Note that so many calls that were granted to a client do not begin, as far as is known."""
        if self._learned is not None and calls > 0:
            self._learned.give_back(self._weight_of(client), self._clock(), calls)

    def _weight_of(self, client: Client) -> float:
        return client.units if self._weights is not None else 1.0

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
        if self._learned is not None:
            wait = max(wait, self._learned.ready_in(self._weight_of(client), now))
        if wait > 0.0:
            return 0, wait
        for bucket, amount in some:
            share = min(bucket.rate * TURN_S / sharers, bucket.level(now))
            calls = min(calls, max(1, int(share / amount)))
        if self._learned is not None:
            room = self._learned.room(self._weight_of(client), now) / (2 * sharers)
            calls = calls if room >= calls else max(1, int(room))
            self._learned.reserve(self._weight_of(client), now, calls)
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
        self._give_back(client, client.held)
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
        # A state that was written before limits were learned has one field less.
        limits = [*value["limits"], *Limits()[len(value["limits"]) :]]
        allocator = cls(_LIMITS.from_json([Limits.__name__, *limits]), clock, 0.0)
        allocator.committed, allocator.used, allocator.cost = value["sums"]
        allocator._before = [*value.get("before", ())]
        allocator._remembered = {name: (calls, cost) for name, (calls, cost) in value["remembered"].items()}
        for name, (granted, used, back, cost) in value["clients"].items():
            allocator.clients[name] = Client(granted, used, back, cost)
            allocator.lost(name, return_timeout_s)
        return allocator
