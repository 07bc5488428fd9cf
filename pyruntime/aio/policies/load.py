"""The load on a service: when calls may begin by rate, budget and breaker, and how many may be in flight.

Confined to the mailbox thread.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.adaptive import CapacityFinder
from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed, ServiceResting
from pillarbox.aio.limits.rate import (
    LimiterStatistics,
    RateLimiter,
    SlidingCounts,
    learning_limiter,
    open_limiter,
)
from pillarbox.aio.options import Options
from pillarbox.aio.policies.retry import RetryPolicy
from pillarbox.aio.policy import FINAL, Again, CallPolicy, CallSuperseded, PolicyServices
from pillarbox.aio.retry import bounded_retry_after
from pillarbox.providers import CIRCUIT_BREAKER, STUCK_CALLS, provided, provided_if_there
from pillarbox.wire import is_overload, is_unreached, may_have_poison_row, status_of

FULL_STATUSES = (503, 529)
"""Answers of a service that works on as many calls as it can; others that mean overload are of a rate."""
FULL_AFTER_TRIPS = 2.0
"""Round trips without an answer after which such a service is away instead."""


MANY_REFUSALS = 3
"""Refusals in a window: fewer may be chance."""
WINDOW_S = 1.0
"""Seconds over which calls and refusals are counted."""
SPORADIC_SHARE = 0.1
"""A share of refused calls up to which they hold back their own rows only."""
BEGUN, REFUSED = range(2)
"""Places of the counts of calls."""


def are_many(refusals: int, calls: int) -> bool:
    """Return True if so many refusals of so many calls are more than a sporadic share of them, and chance."""
    borne = SPORADIC_SHARE * calls
    # Twice what chance makes of so few.
    return refusals >= MANY_REFUSALS and refusals > borne + 2 * math.sqrt(borne * (1 - SPORADIC_SHARE))


class LoadPolicy(CallPolicy):
    """Controls the load of one operator by a limiter, a circuit breaker, an adaptive limit, or some of them.

    options: the limits. retry: says how long an outage is waited for; None without attempts to wait for.
    clock: seconds, by which the limits of this task alone go.

    A limiter with a rate is held back with the first refusals that are more than chance; one without only for
    an overload that is new to this task: cool-downs would interrupt the paces that the other tasks find.
    """

    def __init__(
        self,
        options: Options,
        retry: RetryPolicy | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        rate, budget = options.rate, options.budget
        self.breaker: Any = None
        """The `CircuitBreaker`, since the service was overloaded, or not reached, for the first time."""
        self._break: Any = (
            provided_if_there(CIRCUIT_BREAKER) if retry is not None and retry.waits_out else None
        )
        self.can_break = self._break is not None
        """True if there may be a breaker."""
        self.limiter: RateLimiter | None = open_limiter(
            rate, budget.max_calls, budget.max_cost, options.limits, cools=self.can_break, clock=clock
        )
        self._gone: str | None = None  # what is used up for good, in words
        self._retry = retry
        self._clock = clock
        adaptive = options.adaptive
        # Finds the calls in flight of this task alone; or there is another one, for all tasks.
        self._own = None if adaptive is None else adaptive.open(clock)
        self._controller: CapacityFinder | None = None
        self._stuck = 0
        # Counts the calls that seem never to end, where the calls in flight are found.
        self._stuck_calls: Any = None
        self._is_paced = rate is not None and rate.has_limit
        self._units = None if rate is None or rate.weight is None else rate.units_of
        self._counts: SlidingCounts | None = None  # where there is no breaker, since the first refusal
        self._spent_before = 0, 0.0  # calls and cost of the lives before, of which a snapshot has told
        self._counts_before = options.ledger is None and options.limits is None
        self.skips = frozenset(() if self.limiter is not None else ("may_begin",))
        if self.limiter is None and not self.can_break:
            # Nothing depends on the ends of attempts.
            self.skips |= {"ended"}
        # Answers count for an adaptive limit, and for a breaker once there is one.
        self.needs_answers = False
        if self._own is not None:
            self.find_by(self._own, self._hang)
        self.weighs = self._units is not None
        """True if rows have weights, which a user's function gives."""

    def find_by(self, finder: CapacityFinder, hang: Callable[[int], None]) -> None:
        """Have `finder` take the outcomes, by which the calls in flight are found. Before `open`.

        hang: takes now and then how many calls seem never to end.
        """
        self._controller = finder
        self._stuck_calls = provided(STUCK_CALLS, "capacity")(lambda: finder.round_trip, hang)
        self.skips -= {"ended"}
        self.needs_answers = True

    def open(self, services: PolicyServices) -> None:
        """Take what the operator gives."""
        self._services = services

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to grant calls. wake: called when a shared limiter may have more."""
        if self.limiter is not None:
            self.limiter.start(self._services.loop, wake)
        if self._stuck_calls is not None:
            self._stuck_calls.start(self._services)

    def close(self) -> None:
        """Cancel the timer."""
        if self._stuck_calls is not None:
            self._stuck_calls.close()

    # -- how many calls, and when -------------------------------------------------------------

    @property
    def found(self) -> int | None:
        """Calls in flight, at most, as found so far; None where their number is given."""
        if self._own is None:
            return None
        slots: int = self._own.slots(self._stuck)
        return slots

    def _hang(self, calls: int) -> None:
        if calls != self._stuck:
            self._stuck = calls
            self._services.changed()

    @property
    def observes_answers(self) -> bool:
        """True if an attempt that was answered counts, now or once there is a breaker."""
        return self._controller is not None or self.can_break

    @property
    def exhausted(self) -> str | None:
        """The limit that lets no call through any more; None while some may."""
        return self._gone if self.limiter is None else self._gone or self.limiter.exhausted

    def exhaust(self, why: str) -> None:
        """Have no call begin any more: `why` is used up."""
        self._gone = why
        self._have_gate()

    def _have_gate(self) -> None:
        # spec: Feeding!GateAppears
        self.skips -= {"may_begin"}
        self._services.gate_appears()

    def units_of(self, row: Any) -> float:
        """The weight of a row at the limiter. Raises what the user's function raises."""
        return 1.0 if self._units is None else self._units(row)

    def may_begin(self, calls: Sequence[Call]) -> float:
        """Ask the breaker, then the limiter, which grants the units of `calls`; their weights are known."""
        breaker, limiter = self.breaker, self.limiter
        if self._gone is not None:
            return math.inf
        units = self.units_in(calls)
        if breaker is None:
            wait = 0.0 if limiter is None else limiter.admit(units)
            if wait == 0.0 and self._counts is not None:
                self._counts.add(BEGUN, self._services.loop.time())
            return wait
        now = self._services.loop.time()
        wait = breaker.ready_in(now)
        if wait == 0.0 and limiter is not None:
            # Behind the breaker, as it counts what it lets through.
            wait = limiter.admit(units)
        if wait == 0.0:
            breaker.count_granted(now)
        return wait

    def units_in(self, calls: Sequence[Call]) -> float:
        """The weight of calls together; their weights are known."""
        return float(len(calls)) if self._units is None else sum([call.units or 0.0 for call in calls])

    def spend(self, cost: float) -> None:
        """Count what a call has cost against the budget."""
        if self.limiter is not None:
            self.limiter.spend(cost)

    def give_back(self, calls: Sequence[Call]) -> None:
        """Note that `calls`, which were let through, were not made, or did not come to their end."""
        if self.limiter is not None:
            for call in calls:
                self.limiter.give_back(1.0 if call.units is None else call.units)

    # -- what the service says ----------------------------------------------------------------

    def learn(self, calls: Sequence[Call], readings: Sequence[Any]) -> None:
        """Take the limits that the service named in an answer to `calls`, which run or have just ended."""
        if self.limiter is None:
            self.limiter = learning_limiter(self._clock, self._services.loop, self._services.wake)
            self._have_gate()
        self.limiter.learn(readings, max(0.0, self._services.clock() - calls[0].began))

    def ended(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Report an attempt to the adaptive limit, the breaker and the limiter."""
        # spec: Feeding!Fail
        if error is None:
            if self._controller is not None:
                self._controller.succeeded(seconds)
                self._services.changed()
            if self.breaker is not None:
                self.breaker.succeeded()
            return
        if isinstance(error, CallSuperseded) or (isinstance(error, ServiceResting) and error.is_of_quotas):
            # It was neither answered nor refused; or its endpoints are well, and calls wait for their quotas.
            return
        overload = is_overload(error)
        # Where no pace is found, the calls in flight are all that can be lowered.
        is_full = overload and (not self.can_break or status_of(error) in FULL_STATUSES)
        is_resting = isinstance(error, ServiceResting)
        if self._controller is not None and not is_resting and (is_full or not overload):
            self._controller.failed(is_full, seconds)
            self._services.changed()
        if not overload:
            if self.can_break and is_unreached(error):
                self.open_breaker().unreached(calls[-1].is_first)
                return
            # An answer, though no good one, tells that the service is there; that it was late does not.
            is_late = isinstance(error, TimeoutError | asyncio.TimeoutError)
            if self.breaker is not None and not is_late and may_have_poison_row(error):
                self.breaker.succeeded()
            return
        if self.can_break:
            self.open_breaker()
        if self.breaker is not None or self.limiter is not None:
            self._cool_down(self._asked_delay(error), error, is_full)

    def _asked_delay(self, error: BaseException) -> float | None:
        """Seconds for which the service asked for no call; None where it did not, or where a hook raised.

        A hook that raises fails its row when `again` asks it; here it must not stop the others.
        """
        try:
            return bounded_retry_after(error) if self._retry is None else self._retry.retry_after(error)
        except BaseException:
            return None

    def _cool_down(self, asked: float | None, error: BaseException, is_full: bool) -> None:
        """Hold calls back after refusals that are more than chance; fewer hold back their own rows only."""
        breaker, limiter = self.breaker, self.limiter
        if isinstance(error, ServiceResting):
            # Other tasks that share the limiter know their addresses by themselves.
            if breaker is not None:
                breaker.rest(error)
            return
        if breaker is not None:
            was_paced = breaker.is_paced
            controller = self._controller
            full_after = 0.0
            if controller is not None and is_full:
                # One controller for one load: the calls in flight are lowered, and no pace beside them.
                trip = controller.round_trip
                full_after = max(WINDOW_S, FULL_AFTER_TRIPS * trip if trip < math.inf else 0.0)
            holds = breaker.overloaded(asked, self._services.in_flight(), full_after)
            if self._is_paced:
                holds = holds or (breaker.is_refusing and not full_after)
            else:
                holds = holds and not was_paced
        else:
            holds = self._are_refused()
        if holds and limiter is not None:
            limiter.cool_down(asked)

    def end_rest(self) -> None:
        """Hold no call back for endpoints that rested: one of them takes calls."""
        if self.breaker is not None:
            self.breaker.end_rest()

    def _are_refused(self) -> bool:
        """Return True if many calls of the last second were refused, with this one."""
        now = self._services.loop.time()
        if self._counts is None:
            self._counts = SlidingCounts(2, WINDOW_S, now)
            # Those that began just now, which were not counted yet.
            self._counts.add(BEGUN, now, min(self._services.begun(), 2 * self._services.limit()))
        self._counts.add(REFUSED, now)
        calls, refusals = self._counts.totals(now)
        return are_many(refusals, calls)

    def open_breaker(self) -> Any:
        """The breaker, made by the first error that needs one."""
        if self.breaker is None:
            retry, services = self._retry, self._services
            assert retry is not None
            reached = services.finished()
            answered = min(reached, services.limit())
            self.breaker = self._break(
                services.loop.time, retry.backoff, retry.max_outage, answered, reached, services.in_flight()
            )
            self.needs_answers = True
            self._have_gate()
        return self.breaker

    def is_refusal(self, error: BaseException) -> bool:
        """Return True if an attempt that ended with `error` is not charged to its rows."""
        if is_overload(error):
            return True
        return self.breaker is not None and self.breaker.is_outage and is_unreached(error)

    def again(self, calls: Sequence[Call], error: BaseException) -> Again | None:
        """Have a refused row called again for as long as an outage is waited for."""
        retry = self._retry
        if retry is None or not self.can_break or not self.is_refusal(error):
            return None
        breaker = self.open_breaker()
        first = calls[0]
        since = self._services.loop.time() if first.refused_since is None else first.refused_since
        if breaker.is_given_up(since):
            return FINAL._replace(charge="refusal")
        if isinstance(error, ServiceResting) and error.seconds > 0.0 and not error.is_of_quotas:
            # With all others, until an endpoint takes calls: that may be earlier than is known now.
            return Again(0.0, "refusal")
        # While all calls are held back, this row need not wait longer than they do.
        refusals = 1 if breaker.is_cooling else first.refusals + 1
        return Again(retry.pause_of_overload(refusals, error), "refusal")

    def waits_for_service(self) -> bool:
        """Return True if a call for which nothing was sent is made again, uncharged. Any thread."""
        breaker = self.breaker
        return self.can_break and (breaker is None or not breaker.has_given_up)

    def explain(self, call: Call, error: CallFailed) -> None:
        """Say in `error` for how long `call` has waited, if that is why it fails."""
        if self.breaker is not None and self.is_refusal(error.cause):
            self.breaker.explain(call, error)

    def explain_limiter(self) -> str | None:
        """The reason for which the limiter holds calls back, in words; None where it has none."""
        return None if self.limiter is None else self.limiter.explain_now()

    # -- the operator's life --------------------------------------------------------------------

    def limiter_statistics(self) -> LimiterStatistics | None:
        """Counts so far; None where nothing was limited. Any thread, as an estimate."""
        if self.limiter is not None:
            return self.limiter.statistics()
        breaker = self.breaker
        if breaker is None:
            return None
        return LimiterStatistics(breaker.granted, breaker.granted, cool_downs=breaker.cool_downs)

    @property
    def learned(self) -> Any:
        """The limits that the service has named to this task, or to its job; None for none. Any thread.

        A `NamedLimits`, of the ring that knows services.
        """
        return None if self.limiter is None else self.limiter.learned

    def spent(self) -> tuple[int, float]:
        """Calls and cost of this life and those before."""
        counts = self.limiter_statistics()
        # The limiter counts those of this life only.
        calls, cost = self._spent_before
        return (calls, cost) if counts is None else (calls + counts.granted, cost + counts.cost)

    def restore_spent(self, calls: int, cost: float) -> None:
        """Count calls and cost of the lives before. The budget of a run with a ledger knows more."""
        self._spent_before = calls, cost
        if self.limiter is not None and self._counts_before:
            self.limiter.count_before("snapshot", calls, cost)

    async def closed(self) -> None:
        """Give back what was granted and not used."""
        if self.limiter is not None:
            await self.limiter.close()
