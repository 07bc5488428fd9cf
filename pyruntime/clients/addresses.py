"""The addresses of a service: the one that the next request goes to, and the health of each.

`Addresses` is for all loops and threads on which one client is open; a `Route` is for one request.
"""

# Why an address has a breaker of its own, beside the operator's. The operator knows calls, not addresses: a
# pause for one address that is ill holds back the calls of all. So the client settles the fault of one
# address by itself, while another one takes calls: the request goes there at once, and the operator learns
# of it no more than of a connection that was made again. Only where no address takes calls is the operator
# told, by `ServiceResting`, for how long that is: it holds back all calls, since nobody could make them.
#
# Whose fault is it? An address that says that it has too much to do, or that is not reached, says so of
# itself. A 401, a model that it does not know or a name that does not exist may be a mistake of the job: it
# is the address's where the same request is answered by another one. A 500 may be of the row: it is the
# address's where several requests in a row end so, while others are answered elsewhere. A request that met
# its time-out is the address's where it has answered nothing meanwhile, and others have.
#
# Why an outcome counts only in the period in which its request began. Those that were in flight when an
# address fell ill end at any time later, and would end its rest, or begin another one just after its return.
#
# Why there is no pace for each address: the operator has one, of all calls. An address that takes some calls
# and refuses others rests for ever longer times, and costs its share; the others get all that they take.
#
# The breaker is Nygard's ("Release It!", 2007), ejection by outcomes Envoy's.

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from pillarbox.aio.current_call import running_call
from pillarbox.aio.deadlines import clock_of
from pillarbox.aio.errors import ServiceResting, cut, said
from pillarbox.aio.retry import bounded_retry_after
from pillarbox.aio.totals import clock_time, seconds
from pillarbox.clients.transport import without_query
from pillarbox.wire import Kind, read_error

log = logging.getLogger("pillarbox")

T = TypeVar("T")

FIRST_REST_S = 0.25
"""Seconds for which an address rests at first, unless it asks for others; twice as many each time."""
MAX_REST_S = 30.0
"""Seconds for which an address rests at most, unless it asks for more."""
REFUSALS_IN_A_ROW = 3
"""Refusals in a row of an address that names no time to come back, after which it rests."""
REFUSALS_WITH_TIME = 2
"""The same where it names one, and has answered again after a rest that a single refusal began."""
FAULTS_IN_A_ROW = 3
"""Faults in a row, such as 500, after which an address rests, if another one has answered meanwhile."""
TELL_AGAIN_S = 60.0
"""Seconds after which it is logged again that an address rests."""
MAX_WORDS = 200
"""Characters of an error that say why an address rests."""
MAX_TOLD = 8
"""Addresses that an error names."""

FAILED_AT = "_pillarbox_failed_at"
"""The attribute of an error with the address that a request has failed at."""
GATEWAY_TIMEOUT = 504
NOT_REACHED = frozenset({Kind.NOT_REACHED, Kind.NOT_SENT})
FAULTS = frozenset({Kind.FAILED, Kind.LATE, Kind.BROKEN, Kind.ANSWERED_BADLY})
"""Kinds of errors that may be of the row or of the address."""


class Health:
    """The breaker of one address: closed, open while it rests, then half open, for one request that probes.

    Pure; not thread-safe. now: seconds, of a clock that never goes back. period: counts openings and
    closings. A request has the period in which it began, and says nothing of a later one.
    """

    __slots__ = (
        *("answered_at", "is_open", "period", "reason", "rests_until", "since", "unreached", "_closed_at"),
        *("_faults", "_faults_since", "_is_moody", "_probes", "_refusals", "_rest", "_rests"),
    )

    def __init__(self) -> None:
        self.is_open = False
        self.period = 0
        self.rests_until = self.since = 0.0
        self.answered_at = -1.0
        self.reason = ""
        """The error for which it rests, in words."""
        self.unreached = False
        """True if that is of a kind that says that it was not reached."""
        self._probes = -1
        # In a row.
        self._refusals = self._faults = self._rests = 0
        self._faults_since = self._closed_at = self._rest = 0.0
        # It has refused a request by chance, and named a time to come back.
        self._is_moody = False

    def takes(self, now: float) -> bool:
        """Return True if a request may go there: it is closed, or has rested, and no other request probes."""
        # spec: Addresses!CanTake
        return not self.is_open or (now >= self.rests_until and self._probes != self.period)

    def ready_in(self, now: float) -> float:
        """Seconds until a request may go there, as far as is known."""
        if not self.is_open:
            return 0.0
        return self.rests_until - now if now < self.rests_until else FIRST_REST_S

    def begin(self) -> int:
        """A request goes there; returns its period."""
        if self.is_open:
            self._probes = self.period
        return self.period

    def end(self, period: int) -> None:
        """A request of `period` has ended, in whatever way: another one may probe."""
        # spec: Addresses!Freed
        if self._probes == period:
            self._probes = -1

    def answered(self, period: int, now: float) -> bool:
        """An answer came. Returns True if it ends a rest."""
        self.answered_at = now
        if period != self.period:
            return False
        self._refusals = self._faults = 0
        if not self.is_open:
            return False
        self.is_open, self._closed_at = False, now
        self.period += 1
        return True

    def refused(self, period: int, now: float, asked: float | None) -> bool:
        """It has too much to do, and asks to be left alone for so long, or not. True if a rest begins."""
        if period != self.period:
            if self.is_open and asked is not None:
                self.rests_until = max(self.rests_until, now + asked)
            return False
        self._refusals += 1
        needed = REFUSALS_IN_A_ROW if asked is None else REFUSALS_WITH_TIME if self._is_moody else 1
        if not self.is_open and self._refusals < needed:
            return False
        self._is_moody = asked is not None and self._refusals == 1 and not self.is_open
        return self.rest(period, now, asked)

    def failed(self, period: int, now: float, began: float, is_late: bool, others_at: float) -> bool:
        """A request that began at `began` ended with a fault. Returns True if a rest begins.

        is_late: it met a limit of time. others_at: when another address has answered last.
        """
        if period != self.period:
            return False
        if self.is_open:
            return self.rest(period, now)
        if is_late:
            return self.answered_at < began < others_at and self.rest(period, now)
        self._faults_since = began if not self._faults else self._faults_since
        self._faults += 1
        if self._faults < FAULTS_IN_A_ROW or others_at < self._faults_since:
            return False
        return self.rest(period, now)

    def rest(self, period: int, now: float, asked: float | None = None) -> bool:
        """Begin a rest, or the next one, of as many seconds as asked for. False in a later period."""
        if period != self.period:
            return False
        is_again = self.is_open or (self._rests > 0 and now - self._closed_at < 2 * self._rest)
        self._rests = self._rests + 1 if is_again else 1
        if not self.is_open:
            self.since = now
        longest = min(MAX_REST_S, FIRST_REST_S * 2.0 ** min(self._rests - 1, 32))
        self._rest = longest if asked is None else asked
        self.rests_until = now + self._rest
        self.is_open = True
        self._refusals = self._faults = 0
        self.period += 1
        return True


class _Address:
    """An address of the service, and what goes on there. shown: without its query."""

    __slots__ = ("health", "in_flight", "shown", "told_at", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = without_query(url)
        self.health = Health()
        self.in_flight = 0
        self.told_at: float | None = None


class Addresses:
    """The addresses of one service. Any thread.

    A request goes to the address with the fewest requests in flight, by turns where several have as few.
    only: the address, where there is one alone: nothing is known of it then but by the operator. first: the
    first one.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.first = urls[0]
        self.only = self.first if len(urls) == 1 else None
        self._all = [_Address(url) for url in urls]
        self._turn = 0
        self._lock = threading.Lock()
        # The last request was refused by all of them for a cause of all rows.
        self._is_vain = False

    def route(self) -> Route:
        """The way of a request that is made now, on the running loop, in the call that runs."""
        return Route(self)

    async def call(self, ask: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return what `ask` gives for an address and `args`; at another address where one is at fault.

        Raises what `ask` raises, and ServiceResting where no address takes requests.
        """
        route = Route(self)
        while True:
            url = route.next()
            try:
                result = await ask(url, *args)
            except Exception as error:
                if not route.failed(error):
                    raise
            except BaseException:
                route.cancelled()
                raise
            else:
                route.answered()
                return result

    def _taken(self, route: Route, now: float, wanted: str | None) -> _Address | None:
        """The address that the request of `route` goes to; None where none takes it."""
        chosen, best = None, None
        count = len(self._all)
        for place in range(count):
            each = self._all[(self._turn + place) % count]
            if each in route.tried or not each.health.takes(now):
                continue
            if each.url == wanted:
                chosen = each
                break
            rank = (each.url == route.failed_at, each.in_flight)
            if best is None or rank < best:
                chosen, best = each, rank
        if chosen is None and not route.waits and not route.tried:
            # Nobody makes the call again: it goes where requests may go first.
            chosen = min(self._all, key=lambda each: each.health.ready_in(now))
        if chosen is not None:
            self._turn = (self._all.index(chosen) + 1) % count
            chosen.in_flight += 1
        return chosen

    def _resting(self, now: float) -> ServiceResting:
        """The error of a request that no address takes."""
        soonest = max(0.0, min(each.health.ready_in(now) for each in self._all))
        told = []
        for each in self._all[:MAX_TOLD]:
            health = each.health
            left = health.rests_until - now
            if health.is_open:
                until = f"rests until {clock_time(left)}" if left > 0.0 else "is tried now"
                told.append(f"{each.shown} {until}: {health.reason}")
            else:
                told.append(f"{each.shown} has refused this call")
        more = len(self._all) - len(told)
        text = f"none of {len(self._all)} addresses takes calls: {'; '.join(told)}"
        return ServiceResting(f"{text}; and {more} more" if more else text, soonest)


class Route:
    """The addresses that one request goes to, one after the other. On the thread of its loop.

    `next` begins; `answered`, `failed` or `cancelled` ends each time that it has given an address.
    tried: the addresses until now. failed_at: the address at which the call before failed. waits: the call is
    made again, apart from its attempts, where no address takes it now.
    """

    __slots__ = (
        *("failed_at", "tried", "waits", "_addresses", "_at", "_began", "_blamed", "_clock", "_ends_at"),
        *("_is_probe", "_period"),
    )

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._clock = clock_of(asyncio.get_running_loop())
        self.tried: list[_Address] = []
        self.waits = False
        self.failed_at: str | None = None
        self._ends_at: float | None = None
        call = running_call()
        if call is not None:
            self.waits = call.waits_for_service
            self.failed_at = getattr(call.error, FAILED_AT, None)
            left = call.seconds_left
            self._ends_at = None if left is None else self._clock() + left
        self._at: _Address
        self._began = 0.0
        self._period = 0
        self._is_probe = False
        # Addresses that refused for a cause of all rows, and the periods of these requests.
        self._blamed: list[tuple[_Address, int, str]] = []

    def next(self, wanted: str | None = None) -> str:
        """The address that the request goes to: `wanted`, if that takes it. Raises ServiceResting."""
        # spec: Addresses!Send
        addresses, now = self._addresses, self._clock()
        with addresses._lock:
            chosen = addresses._taken(self, now, wanted)
            if chosen is not None:
                self._is_probe = chosen.health.is_open
                self._period = chosen.health.begin()
        if chosen is None:
            raise addresses._resting(now)
        self.tried.append(chosen)
        self._at, self._began = chosen, now
        return chosen.url

    def answered(self) -> None:
        """The request was answered: addresses that refused the same one for all rows are at fault."""
        # spec: Addresses!Answer
        at, now = self._at, self._clock()
        began: list[_Address] = []
        with self._addresses._lock:
            self._addresses._is_vain = False
            self._end(at)
            ended = at.health.answered(self._period, now)
            for blamed, period, reason in self._blamed:
                if blamed.health.rest(period, now):
                    blamed.health.reason, blamed.health.unreached = reason, False
                    began.append(blamed)
        if ended:
            self._tell_return(at, now)
        for each in began:
            self._tell_rest(each, now)

    def failed(self, error: BaseException) -> bool:
        """The request failed. Returns True if `next` is to give another address: this one is at fault.

        Otherwise `error` is that of the request. Raises ServiceResting where those that may answer rest.
        """
        # spec: Addresses!Refuse, Addresses!Fail
        reading = read_error(error)
        # A gateway that has waited for its service: perhaps for this row, and it may have been made.
        kind = Kind.LATE if reading.status == GATEWAY_TIMEOUT else reading.kind
        is_of_all = reading.is_of_all_rows
        if not (kind is Kind.OVERLOADED or kind in NOT_REACHED or kind in FAULTS or is_of_all):
            if kind is Kind.UNKNOWN:
                # Of the row, of this machine, or of an answer that is none: nobody knows.
                self._release()
            else:
                self.answered()
            self._mark(error)
            return False
        addresses, at, now = self._addresses, self._at, self._clock()
        health, period = at.health, self._period
        reason = cut(f"{type(error).__name__}: {said(error)}", MAX_WORDS)
        others = [each for each in addresses._all if each not in self.tried]
        with addresses._lock:
            self._end(at)
            if kind is Kind.OVERLOADED:
                begins = health.refused(period, now, bounded_retry_after(error))
            elif kind in NOT_REACHED:
                begins = health.rest(period, now)
            elif kind in FAULTS:
                begins = health.failed(
                    period, now, self._began, kind is Kind.LATE, self._others_answered_at(at)
                )
            else:
                begins = self._is_probe and health.rest(period, now)
                self._blamed.append((at, period, reason))
            if begins:
                health.reason, health.unreached = reason, kind in NOT_REACHED
            is_vain = is_of_all and addresses._is_vain
            moves = not is_vain and (kind not in FAULTS or self._is_probe)
            follows = moves and any(each.health.takes(now) for each in others)
            if is_of_all:
                # One of those that rest may answer.
                waits = not is_vain and bool(others)
            else:
                # Where none is reached, that is the operator's matter, as with one address.
                waits = all(each.health.is_open for each in addresses._all) and (
                    kind is Kind.OVERLOADED
                    or (kind in NOT_REACHED and not all(each.health.unreached for each in addresses._all))
                )
            if is_of_all and not others:
                addresses._is_vain = True
        if begins:
            self._tell_rest(at, now)
        if follows:
            return True
        if waits and self.waits:
            raise addresses._resting(now) from error
        self._mark(error)
        return False

    def cancelled(self) -> None:
        """The request was cancelled: by a limit of the call's time, or for a reason of its own."""
        # spec: Addresses!Cancel
        addresses, at, now = self._addresses, self._at, self._clock()
        begins = False
        with addresses._lock:
            self._end(at)
            if self._ends_at is not None and now >= self._ends_at:
                begins = at.health.failed(self._period, now, self._began, True, self._others_answered_at(at))
                if begins:
                    at.health.reason = f"no answer in {seconds(now - self._began)}, the time of a call"
        if begins:
            self._tell_rest(at, now)

    def _release(self) -> None:
        """The request has ended, and says nothing of its address."""
        with self._addresses._lock:
            self._end(self._at)

    def _end(self, at: _Address) -> None:
        at.in_flight -= 1
        at.health.end(self._period)

    def _others_answered_at(self, at: _Address) -> float:
        return max(each.health.answered_at for each in self._addresses._all if each is not at)

    def _mark(self, error: BaseException) -> None:
        """Have the next attempt go to another address, where one takes it."""
        with suppress(AttributeError):
            setattr(error, FAILED_AT, self._at.url)

    def _tell_rest(self, at: _Address, now: float) -> None:
        """Log that an address rests: once, and again after a while."""
        if at.told_at is not None and now - at.told_at < TELL_AGAIN_S:
            return
        at.told_at = now
        health = at.health
        log.warning(
            "%s rests until %s, and gets one call then: %s; calls go to the other addresses (%d in all)",
            at.shown,
            clock_time(health.rests_until - now),
            health.reason,
            len(self._addresses._all),
        )

    def _tell_return(self, at: _Address, now: float) -> None:
        if at.told_at is None or at.told_at < at.health.since:
            return
        log.info("%s takes calls again, after %s", at.shown, seconds(now - at.health.since))
