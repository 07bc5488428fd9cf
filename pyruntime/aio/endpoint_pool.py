"""The endpoints of a service as all tasks of one process know them, and the way of one request among them.

`EndpointPool` is for any thread; a `Journey` is for one request, on the thread that makes it.
"""

# Why an endpoint has a breaker of its own, beside the operator's. The operator knows calls, not endpoints: a
# pause for one endpoint that is ill holds back the calls of all. So the fault of one endpoint is settled
# here, while another one takes calls: the request goes there at once, and the operator learns of it no more
# than of a connection that was made again. Only where no endpoint takes calls does the operator hold back all
# calls, until the first one takes one again: it gets a `ServiceResting`.
#
# Why facts belong to the process. Tasks of one process come one after the other, and side by side: each would
# learn again that an endpoint is dead, at the cost of its rows, and each would probe it. They are kept by the
# addresses and by what decides about answers beside these, such as the model and the name of the key: an
# endpoint may refuse one model and answer for another. Facts are times of one clock, so a loop with a clock
# of its own, as tests have it, has its own facts.
#
# Why the tasks of other processes report changes of state, and not outcomes. A state is what a task acts on,
# and changes a few times a minute at most; how it comes about stays a matter of each process. What they
# report comes over the ring of limits (`pillarbox.aio.endpoint_facts`), with the number of the change
# there: a process with several operators gets it several times, and takes it once.
#
# Why two at random, and not the least loaded of all. Tasks that see the same facts would all choose the same
# endpoint at once. The choice among two random ones is nearly as even and has no herd (Mitzenmacher, "The
# power of two choices", 2001).
#
# Why a request that has failed before does not probe, where another endpoint takes it: a probe may fail, and
# a row has few attempts.
#
# Why the pace of an endpoint only orders the choice. Where all endpoints take calls slowly it is for the
# operator to slow down, which knows the rows that wait: a request goes to the one that has room first.
#
# What an endpoint has named of its limits is followed for it alone, see `endpoint_limits`. The choice passes
# over one whose calls or tokens are used up; only where that is so of all that take calls do requests wait.

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import random
from typing import NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from pillarbox.aio.deadlines import clock_of
from pillarbox.aio.endpoint_facts import Finding
from pillarbox.aio.endpoint_limits import CREDIT_REST_S, USUAL, Demand
from pillarbox.aio.endpoints import Endpoint, names_of
from pillarbox.aio.errors import ServiceResting, cut, said
from pillarbox.aio.limits.headers import LimitReading, headers_of, read_limits
from pillarbox.aio.limits.used_up import is_refusal
from pillarbox.aio.retry import bounded_retry_after
from pillarbox.aio.service_addresses import Spread
from pillarbox.aio.totals import clock_time, seconds
from pillarbox.wire import Kind, Reading, is_unsent, read_error

log = logging.getLogger("pillarbox")

LEAST_LATENCY_S = 0.005
"""Seconds below which latencies do not differ: those of a loop that is busy."""
LATENCY_TELLS = 2.0
"""The ratio of two latencies from which on the slower endpoint counts as more loaded."""
TELL_AGAIN_S = 60.0
"""Seconds after which it is logged again that an endpoint rests."""
MAX_WORDS = 200
"""Characters of an error that say why an endpoint rests."""
MAX_TOLD = 8
"""Endpoints that an error names."""
MAX_POOLS = 256
"""Services of which a process keeps the facts, the last used ones."""
MAX_CHANNELS = 64
"""Coordinators, and names there, by which the states of one pool are shared, the last ones."""

AHEAD_S = 0.01
"""Seconds after which a call is asked for again where quotas have room only for those that begin next."""

GATEWAY_TIMEOUT = 504
NOT_REACHED = frozenset({Kind.NOT_REACHED, Kind.NOT_SENT})
FAULTS = frozenset({Kind.FAILED, Kind.LATE, Kind.BROKEN, Kind.ANSWERED_BADLY})
"""Kinds of errors that may be of the row or of the endpoint."""


class Verdict(NamedTuple):
    """Decision about a request that failed at one endpoint.

    moves: the request goes to another one at once. waits: no endpoint takes it, and one that rests may
    answer it. kind: that of the error. is_fault: the error counts as one of the endpoint.
    """

    moves: bool
    waits: bool
    kind: Kind
    is_fault: bool


class EndpointPool:
    """The endpoints of one service, with the facts about each. Any thread.

    spread: their addresses, weights and choice. clock: seconds, of a clock that never goes back. scope:
    decides about answers beside the addresses.
    """

    def __init__(
        self, spread: Spread, clock: Callable[[], float] = time.monotonic, scope: object = None
    ) -> None:
        self.clock = clock
        self._scope = scope
        self.all = tuple(_made(spread, clock))
        self._in_order = spread.choose == "in-order"
        self._lock = threading.Lock()
        self._open = 0
        self._turn = 0.0
        self._numbers = itertools.count()
        # The last request was refused by all of them for a cause of all rows.
        self._is_vain = False
        # Of those who share the states with other tasks; and by them, the changes that are known.
        self._watchers: tuple[Callable[[int, bool], None], ...] = ()
        # Of operators, which may wait for an endpoint that takes calls.
        self._awaiting: tuple[Callable[[], None], ...] = ()
        self._known_changes: OrderedDict[object, dict[int, int]] = OrderedDict()
        self.has_limits = False
        """True once an endpoint has named a limit."""

    @property
    def is_alone(self) -> bool:
        """True for one endpoint: its faults are a matter of the operator."""
        return len(self.all) == 1

    def wait(self, now: float) -> float:
        """Seconds until an endpoint may take a call, as far as is known; 0.0 if one does now."""
        if self._open < len(self.all) or self.is_alone:
            return 0.0
        with self._lock:
            if any(each.health.takes(now) for each in self.all):
                return 0.0
            return max(0.0, min(each.health.ready_in(now) for each in self.all))

    def resting(self, now: float, demand: Demand = USUAL) -> ServiceResting:
        """The error of a request that no endpoint takes."""
        soonest = max(0.0, min(_ready_in(each, demand, now) for each in self.all))
        told, is_of_quotas = [], False
        for each in self.all[:MAX_TOLD]:
            health = each.health
            left = health.rests_until - now
            if health.is_open:
                until = f"rests until {clock_time(left)}" if left > 0.0 else "is tried now"
                told.append(f"{each.shown} {until}: {health.reason}")
            elif (wait := _ready_in(each, demand, now)) > 0.0:
                is_of_quotas = True
                told.append(f"the quota of {each.shown} is used up until {clock_time(wait)}")
            else:
                told.append(f"{each.shown} has refused this call")
        more = len(self.all) - len(told)
        text = f"none of {len(self.all)} addresses takes calls: {'; '.join(told)}"
        return ServiceResting(f"{text}; and {more} more" if more else text, soonest, is_of_quotas)

    # -- the limits that endpoints name -----------------------------------------------------------

    def learn(self, at: Endpoint, readings: Sequence[LimitReading], began: float) -> None:
        """Take the limits that an answer of `at` names to a request that began at `began`."""
        now = self.clock()
        with self._lock:
            self.has_limits = True
            at.limits.learn(readings, began, now)

    def use(self, at: Endpoint, units: float, usage: tuple[float, float, float], began: float) -> None:
        """Count the tokens of a request at `at` against what was reserved: of input, of output, in all."""
        if self.has_limits:
            now = self.clock()
            with self._lock:
                at.limits.use(units, usage, began, now)

    def quota_wait(self, demand: Demand, now: float, ahead: int = 0) -> float:
        """Seconds until the quotas of an endpoint that takes calls have room, as far as is known.

        0.0 if those of one have now, and where none takes calls: that is for `wait`. ahead: calls that were
        let through and have not begun.
        """
        # spec: Addresses!HasRoom
        if not (self.has_limits and demand.learns):
            return 0.0
        with self._lock:
            left = [each.limits for each in self.all if each.health.takes(now)]
            wait = min([limits.ready_in(demand.units, now) for limits in left], default=0.0)
            if wait > 0.0:
                # One that rests may take calls before.
                return min(wait, *[each.health.ready_in(now) or wait for each in self.all])
            if not ahead:
                return 0.0
            rooms = sum([limits.room(demand.units, now) for limits in left])
            return 0.0 if rooms >= ahead + 1 else AHEAD_S

    def used_up_for(self, now: float) -> float:
        """Seconds until the first quota is back where those of all are gone for long; 0.0 where one is not.

        Infinite for the credit of the accounts.
        """
        # spec: Addresses!RefuseForQuota
        return max(0.0, min([each.limits.back_at for each in self.all]) - now)

    # -- operators that wait ------------------------------------------------------------------------

    def await_return(self, returned: Callable[[], None]) -> None:
        """Have `returned` called when an endpoint takes calls again, on the thread that has found it out.

        Any thread.
        """
        with self._lock:
            self._awaiting = (*self._awaiting, returned)

    def await_no_return(self, returned: Callable[[], None]) -> None:
        """Have it called no more."""
        with self._lock:
            self._awaiting = tuple([each for each in self._awaiting if each != returned])

    def _returns(self, at: Endpoint, now: float) -> None:
        """Log that an endpoint takes calls again, and wake who waits."""
        # spec: Addresses!Wake
        _tell_return(at, now)
        for returned in self._awaiting:
            returned()

    # -- for the tasks of other processes: see `EndpointStates` --------------------------------------

    @property
    def identities(self) -> tuple[str, ...]:
        """See `EndpointStates`."""
        return tuple([repr((each.url, self._scope)) for each in self.all])

    def watch(self, found: Callable[[int, bool], None]) -> None:
        """See `EndpointStates`."""
        with self._lock:
            self._watchers = (*self._watchers, found)

    def unwatch(self, found: Callable[[int, bool], None]) -> None:
        """See `EndpointStates`."""
        with self._lock:
            self._watchers = tuple([each for each in self._watchers if each != found])

    def finding(self, place: int, channel: object) -> tuple[int, Finding]:
        """See `EndpointStates`."""
        now = self.clock()
        with self._lock:
            return self._changes_by(channel).get(place, 0), self.all[place].health.finding(now)

    def noted(self, place: int, channel: object, number: int) -> None:
        """See `EndpointStates`."""
        with self._lock:
            known = self._changes_by(channel)
            known[place] = max(number, known.get(place, 0))

    def told(self, place: int, channel: object, number: int, finding: Finding) -> None:
        """See `EndpointStates`."""
        # spec: AddressFacts!Hear
        now, at = self.clock(), self.all[place]
        with self._lock:
            known = self._changes_by(channel)
            if number <= known.get(place, 0):
                return
            known[place] = number
            was_open = at.health.is_open
            at.health.told(now, finding)
            if finding.is_rest:
                self._rests(at, now, was_open)
            elif was_open:
                self._open -= 1
                at.returns(now)
        if finding.is_rest:
            self._tell_rest(at, now)
        elif was_open:
            self._returns(at, now)

    def told_probe(self, place: int, seconds: float) -> None:
        """See `EndpointStates`."""
        now = self.clock()
        with self._lock:
            self.all[place].health.told_probe(now, seconds)

    def _changes_by(self, channel: object) -> dict[int, int]:
        found = self._known_changes.setdefault(channel, {})
        self._known_changes.move_to_end(channel)
        if len(self._known_changes) > MAX_CHANNELS:
            self._known_changes.popitem(last=False)
        return found

    def _report(self, endpoint: Endpoint, is_probe: bool = False) -> None:
        for found in self._watchers:
            found(self.all.index(endpoint), is_probe)

    def _tell_rest(self, at: Endpoint, now: float) -> None:
        """Log that an endpoint rests: once, and again after a while."""
        if at.told_at is not None and now - at.told_at < TELL_AGAIN_S:
            return
        at.told_at = now
        health = at.health
        log.warning(
            "%s rests until %s, and gets one call then: %s; calls go to the other addresses (%d in all)",
            at.shown,
            clock_time(health.rests_until - now),
            health.reason,
            len(self.all),
        )

    # -- the choice, under the lock ---------------------------------------------------------------

    def _chosen(self, journey: Journey, now: float, wanted: str | None) -> Endpoint | None:
        """The endpoint that the request goes to; None where none takes it."""
        every: Sequence[Endpoint] = self.all
        if self.has_limits and (demand := journey.demand).learns:
            # spec: Addresses!HasRoom
            every = [each for each in every if each.limits.ready_in(demand.units, now) == 0.0]
        if not self._open and not journey.tried and wanted is None and journey.failed_at is None:
            return self._among(every, now) if every else None
        left = [each for each in every if each not in journey.tried and each.health.takes(now)]
        if not left:
            return None
        if wanted is not None and (found := next((each for each in left if each.url == wanted), None)):
            return found
        if not journey.tried and journey.failed_at is None:
            probed = next((each for each in left if each.health.is_open), None)
            if probed is not None:
                return probed
        else:
            # spec: Addresses!MayProbe
            ranks = [(each.url == journey.failed_at, each.health.is_open) for each in left]
            best = min(ranks)
            left = [each for each, rank in zip(left, ranks, strict=True) if rank == best]
        return self._among(left, now)

    def _among(self, left: Sequence[Endpoint], now: float) -> Endpoint:
        """The best of endpoints that take a call: one whose pace has room, or has it first."""
        if len(left) == 1:
            return left[0]
        if self._in_order:
            return next((each for each in left if each.pace_wait(now) == 0.0), left[0])
        one, two = _two_of(left)
        waits = one.pace_wait(now), two.pace_wait(now)
        if not any(waits):
            return self._of_two(one, two, left, now)
        ready = [each for each in left if each.pace_wait(now) == 0.0]
        if not ready:
            return min(left, key=lambda each: each.pace_wait(now))
        if len(ready) == 1:
            return ready[0]
        one, two = _two_of(ready)
        return self._of_two(one, two, ready, now)

    def _of_two(self, one: Endpoint, two: Endpoint, left: Sequence[Endpoint], now: float) -> Endpoint:
        """The less loaded of two; the slower one only where it is the least loaded of all that are left."""
        chosen, is_slower = _less_loaded(one, two, now)
        if is_slower and len(left) > 2:
            # The other one may have more than its share by chance.
            for each in left:
                chosen, _ = _less_loaded(chosen, each, now)
        return chosen

    def _soonest(self, demand: Demand, now: float) -> Endpoint:
        return min(self.all, key=lambda each: _ready_in(each, demand, now))

    def _rests(self, endpoint: Endpoint, now: float, was_open: bool) -> None:
        if not was_open:
            self._open += 1
        endpoint.rests(now, was_open)


class Journey:
    """The endpoints that one request goes to, one after the other.

    `next` begins; `answered`, `failed`, `cancelled` or `release` ends each time that it has given an
    endpoint. tried: the endpoints that have failed it. failed_at: the address of the endpoint at which the
    attempt before failed. demand: what it asks of their limits. `at`: the present one. `began`: on the clock
    of the pool.
    """

    __slots__ = (
        *("at", "began", "demand", "failed_at", "is_out", "tried"),
        *("_blamed", "_is_probe", "_number", "_period", "_pool"),
    )

    at: Endpoint

    def __init__(self, pool: EndpointPool, failed_at: str | None = None, demand: Demand = USUAL) -> None:
        self._pool = pool
        self.demand = demand
        self.tried: list[Endpoint] = []
        self.failed_at = failed_at
        self.began = 0.0
        self.is_out = False
        self._period = self._number = 0
        self._is_probe = False
        # Endpoints that refused for a cause of all rows, and the periods of these requests.
        self._blamed: list[tuple[Endpoint, int, str]] = []

    def another(self) -> Journey:
        """The way of the request after an attempt that failed, which may be of a part of its rows."""
        journey = Journey(self._pool, self.failed_at, self.demand)
        journey.tried = [*self.tried]
        journey._blamed = [*self._blamed]
        return journey

    def next(self, wanted: str | None = None, *, anywhere: bool = False) -> Endpoint | None:
        """Begin at an endpoint: `wanted`, if that takes the request. None where none does.

        anywhere: it is sent all the same then, to the endpoint that takes requests first.
        """
        # spec: Addresses!Send
        pool, now = self._pool, self._pool.clock()
        with pool._lock:
            chosen = pool._chosen(self, now, wanted)
            if chosen is None and anywhere:
                chosen = pool._soonest(self.demand, now)
            if chosen is None:
                return None
            health = chosen.health
            self._is_probe = health.is_open
            self._period = health.begin()
            self._number = next(pool._numbers)
            pool._turn = max(pool._turn, chosen.turn)
            chosen.turn = pool._turn + 1.0 / chosen.weight
            chosen.begin(now, self._number, self.demand.units)
        self.at, self.began, self.is_out = chosen, now, True
        if self._is_probe:
            pool._report(chosen, is_probe=True)
        return chosen

    def answered(self) -> float:
        """The request was answered: endpoints that refused the same one for all rows are at fault.

        Returns the seconds that it took.
        """
        # spec: Addresses!Answer
        pool, at, now = self._pool, self.at, self._pool.clock()
        began: list[Endpoint] = []
        with pool._lock:
            pool._is_vain = False
            self._end()
            ended = at.health.answered(self._period, now)
            pool._open -= ended
            at.answered(now, now - self.began, ended)
            for blamed, period, reason in self._blamed:
                was_open = blamed.health.is_open
                if blamed.health.rest(period, now):
                    blamed.health.reason, blamed.health.unreached = reason, False
                    pool._rests(blamed, now, was_open)
                    began.append(blamed)
        self.tried.clear()
        self._blamed.clear()
        if ended:
            pool._report(at)
            pool._returns(at, now)
        for each in began:
            pool._report(each)
            pool._tell_rest(each, now)
        return now - self.began

    def failed(self, error: BaseException) -> Verdict:
        """Note that the request failed with `error`, and decide where it goes."""
        # spec: Addresses!Refuse, Addresses!Fail
        reading = read_error(error)
        # A gateway that has waited for its service: perhaps for this row, and it may have been made.
        kind = Kind.LATE if reading.status == GATEWAY_TIMEOUT else reading.kind
        is_of_all = reading.is_of_all_rows
        pool, at, now = self._pool, self.at, self._pool.clock()
        is_blamed = kind is Kind.OVERLOADED or kind in NOT_REACHED or kind in FAULTS or is_of_all
        if pool.is_alone or kind is Kind.UNKNOWN:
            # Unknown: of the row, of this machine, or of an answer that is none.
            self.failed_at = at.url
            self.release()
            return Verdict(False, False, kind, is_blamed)
        if not is_blamed:
            self.answered()
            self.failed_at = at.url
            return Verdict(False, False, kind, False)
        health, period = at.health, self._period
        # A kept connection that was closed, of a function that does not send again by itself.
        is_fault = kind in FAULTS or is_unsent(error)
        reason = cut(f"{type(error).__name__}: {said(error)}", MAX_WORDS)
        self.tried.append(at)
        others = [each for each in pool.all if each not in self.tried]
        refusal = is_refusal(reading)
        limits = read_limits(headers_of(error), time.time()) if refusal else ()
        with pool._lock:
            self._end()
            was_open = health.is_open
            rest, is_of_quota = self._for_quota(reading, limits, error, now) if refusal else (0.0, False)
            if is_of_quota:
                begins = False
            elif rest:
                # It is certain, whenever the request began.
                begins, is_of_all = health.rest(health.period, now, rest), False
                reason = cut(f"a quota of it is used up: {reason}", MAX_WORDS)
            elif kind is Kind.OVERLOADED:
                asked = bounded_retry_after(error)
                begins = health.refused(period, now, asked)
                at.refused(now, asked)
            elif kind in NOT_REACHED and not is_fault:
                begins = health.rest(period, now)
            elif is_fault:
                begins = health.failed(period, now, self.began, kind is Kind.LATE, self._others_answered_at())
            else:
                begins = self._is_probe and health.rest(period, now)
                self._blamed.append((at, period, reason))
            if begins:
                health.reason, health.unreached = reason, kind in NOT_REACHED
                pool._rests(at, now, was_open)
            is_vain = is_of_all and pool._is_vain
            moves = not is_vain and (kind not in FAULTS or self._is_probe)
            follows = moves and any(each.health.takes(now) for each in others)
            if is_of_quota:
                # It is made again when a quota has room.
                follows, waits = follows or self.demand.waits, False
            elif is_of_all:
                # One of those that rest may answer.
                waits = not is_vain and bool(others)
            else:
                # Where none is reached, that is the operator's matter, as with one endpoint.
                waits = all(each.health.is_open for each in pool.all) and (
                    kind is Kind.OVERLOADED
                    or (kind in NOT_REACHED and not all(each.health.unreached for each in pool.all))
                )
            if is_of_all and not others:
                pool._is_vain = True
        if begins:
            pool._report(at)
            pool._tell_rest(at, now)
        self.failed_at = at.url
        return Verdict(follows, waits and not follows, kind, True)

    def _for_quota(
        self, reading: Reading, limits: Sequence[LimitReading], error: BaseException, now: float
    ) -> tuple[float, bool]:
        """Look at a refusal: seconds of a rest where a quota is gone for long, and whether it is used up."""
        # spec: Addresses!RefuseForQuota
        at, demand, pool = self.at, self.demand, self._pool
        if limits and demand.learns:
            pool.has_limits = True
            at.limits.learn(limits, self.began, now)
        gone = at.limits.refused(reading, limits, at.answers, demand.longest, now)
        if gone is not None:
            return CREDIT_REST_S if gone.is_credit else gone.seconds, False
        is_known = bool(limits) and not at.health.is_open
        return 0.0, is_known and at.limits.explain(demand, now, bounded_retry_after(error))

    def cancelled(self, is_late: bool) -> None:
        """The request was cancelled: by a limit of the call's time, if `is_late`, or for another reason."""
        # spec: Addresses!Cancel
        pool, at, now = self._pool, self.at, self._pool.clock()
        begins = False
        with pool._lock:
            self._end()
            was_open = at.health.is_open
            if is_late and not pool.is_alone:
                begins = at.health.failed(self._period, now, self.began, True, self._others_answered_at())
                if begins:
                    at.health.reason = f"no answer in {seconds(now - self.began)}, the time of a call"
                    pool._rests(at, now, was_open)
        if begins:
            pool._report(at)
            pool._tell_rest(at, now)

    def release(self) -> None:
        """The request has ended, and says nothing of its endpoint."""
        with self._pool._lock:
            self._end()

    def _end(self) -> None:
        self.is_out = False
        self.at.end(self._number)
        self.at.health.end(self._period)

    def _others_answered_at(self) -> float:
        return max(each.health.answered_at for each in self._pool.all if each is not self.at)


def _tell_return(at: Endpoint, now: float) -> None:
    if at.told_at is None or at.told_at < at.health.since:
        return
    log.info("%s takes calls again, after %s", at.shown, seconds(now - at.health.since))


def _ready_in(endpoint: Endpoint, demand: Demand, now: float) -> float:
    """Seconds until a request may go to an endpoint, by its rest and its quotas."""
    wait = endpoint.health.ready_in(now)
    return max(wait, endpoint.limits.ready_in(demand.units, now)) if demand.learns else wait


def _two_of(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, Endpoint]:
    """Two different ones at random; `random.sample` takes several times as long."""
    count = len(endpoints)
    first, second = int(random() * count), int(random() * (count - 1))
    return endpoints[first], endpoints[second + (second >= first)]


def _less_loaded(one: Endpoint, two: Endpoint, now: float) -> tuple[Endpoint, bool]:
    """The less loaded of two endpoints: calls in flight for its weight, and latency where it tells.

    And True if it is the one with the longer latency.
    """
    first, second = one.known_latency(now), two.known_latency(now)
    # Where one of them is not known, it is taken for as fast as the other one.
    is_known = bool(first or second)
    slow_one = max(first or second, one.age_told(now), LEAST_LATENCY_S) if is_known else 0.0
    slow_two = max(second or first, two.age_told(now), LEAST_LATENCY_S) if is_known else 0.0
    tells = max(slow_one, slow_two) > LATENCY_TELLS * min(slow_one, slow_two)
    if tells:
        load_one = (one.in_flight + 1) / one.weight * slow_one
        load_two = (two.in_flight + 1) / two.weight * slow_two
    else:
        load_one, load_two = one.in_flight / one.weight, two.in_flight / two.weight
    # By turns where they are equal.
    if (load_one, one.turn) <= (load_two, two.turn):
        return one, tells and slow_one > slow_two
    return two, tells and slow_two > slow_one


# -- the pools of a process --------------------------------------------------------------------------


_pools: OrderedDict[object, EndpointPool] = OrderedDict()
_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, EndpointPool]] = WeakKeyDictionary()
_pools_lock = threading.Lock()


def pool_of(spread: Spread, loop: asyncio.AbstractEventLoop, scope: object = None) -> EndpointPool:
    """The pool of these endpoints that all tasks of this process share, those with the clock of `loop`.

    scope: decides about answers beside the addresses; hashable. Resolves the names at the first time, if
    they are to be resolved.
    """
    clock = clock_of(loop)
    places = zip(spread.urls, spread.weights, strict=True)
    # A set of addresses, where their order means nothing.
    order = tuple(places) if spread.choose == "in-order" else frozenset(places)
    key = order, spread[2:], scope
    with _pools_lock:
        pools = _pools if clock is time.monotonic else _of_loops.setdefault(loop, {})
        found = pools.get(key)
        if found is None:
            found = pools[key] = EndpointPool(spread, clock, scope)
        if pools is _pools:
            _pools.move_to_end(key)
            if len(_pools) > MAX_POOLS:
                _pools.popitem(last=False)
        return found


def _made(spread: Spread, clock: Callable[[], float]) -> list[Endpoint]:
    if not spread.resolve:
        named = zip(spread.urls, names_of(spread.urls), spread.weights, strict=True)
        return [Endpoint(url, name, weight, clock) for url, name, weight in named]
    found = []
    for url, weight in zip(spread.urls, spread.weights, strict=True):
        parts = urlsplit(url)
        numbers = _numbers_of(parts.hostname or url, parts.port or PORTS.get(parts.scheme, 0))
        if not numbers:
            found.append(Endpoint(url, parts.netloc or url, weight, clock))
        for number in numbers:
            host = f"[{number}]" if ":" in number else number
            place = host if parts.port is None else f"{host}:{parts.port}"
            at = f"{url}#{number}" if spread.keeps_name else parts._replace(netloc=place).geturl()
            found.append(Endpoint(at, place, weight / len(numbers), clock, host=parts.netloc))
    return found


PORTS = {"http": 80, "https": 443}
"""The ports of addresses that name none."""


def _numbers_of(host: str, port: int) -> list[str]:
    """The addresses that DNS has for a name, without repetition; none where it has none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        log.warning("%s is not resolved, and counts as one endpoint: %s", host, error)
        return []
    return [*dict.fromkeys(str(each[4][0]) for each in found)]
