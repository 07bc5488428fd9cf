"""The endpoints of a user's function: which one an attempt goes to. Confined to the mailbox thread.

A client of a service with several addresses chooses by itself, within a call: `pillarbox.clients`.
"""

# The function makes one request in an attempt, so a request that an endpoint refuses goes to another one in
# another attempt, at once. That attempt is not charged, as the endpoint refused whatever the row is; a row
# goes to each endpoint once, and then to `Retry`. What may be of the row (a 500, a time-out) is charged, and
# `Retry` decides: its next attempt goes elsewhere.
#
# What this policy settles must not reach the operator's own breaker and adaptive limit, which would hold back
# the calls of all endpoints for one. So it stands in front of `LoadPolicy`, and reports to it what is not of
# one endpoint alone.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.endpoint_counts import EndpointCounts
from pillarbox.aio.endpoint_pool import EndpointPool, Journey, Verdict, pool_of
from pillarbox.aio.endpoints import Endpoint
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policies.service_limits import ServiceLimitsPolicy
from pillarbox.aio.policy import Again, CallSuperseded, PolicyServices
from pillarbox.aio.policy_parts import OptionPolicy, PolicyParts
from pillarbox.aio.service_addresses import Endpoints
from pillarbox.wire import Kind, read_error


class _Attempt:
    """An attempt of some rows: its way, the rows that are not settled, and how it failed."""

    __slots__ = ("journey", "rows", "verdict")

    def __init__(self, journey: Journey, rows: int) -> None:
        self.journey = journey
        self.rows = rows
        self.verdict: Verdict | None = None


class EndpointPolicy(OptionPolicy):
    """Chooses the endpoint of each attempt, and has refused rows called again at another one.

    load: gets the ends of attempts that are not of one endpoint alone. counts: gets the calls of each.
    limits: follows the limits that each endpoint names. share: shares the states of the endpoints with other
    tasks.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        load: LoadPolicy,
        counts: EndpointCounts,
        limits: ServiceLimitsPolicy,
        share: Callable[[EndpointPool], None] = lambda pool: None,
    ) -> None:
        self._endpoints = endpoints
        self._limits = limits
        self._load = load
        self._counts = counts
        self._share = share
        self._reports = "ended" not in load.skips
        # By this policy from now on.
        load.skips |= {"ended"}
        # The last attempts of rows that are called, or are to be called again; and of those that leave, whose
        # attempt is reported next.
        self._attempts: dict[Call, _Attempt] = {}
        self._leaving: dict[Call, _Attempt] = {}
        # The hedges of rows, each with an attempt of its own.
        self._hedges: dict[Call, list[Call]] = {}
        self.pool: EndpointPool

    @classmethod
    def of(cls, parts: PolicyParts) -> EndpointPolicy:
        """See `OptionPolicy.of`."""
        given, service = parts.options.endpoints, parts.service
        assert given is not None
        return cls(given, parts.load, service.counts, service.limits, service.share)

    def open(self, services: PolicyServices) -> None:
        """Take the facts that this process has of the endpoints."""
        self.pool = pool_of(self._endpoints.spread, services.loop)
        self._counts.watch(self.pool)
        self._share(self.pool)
        self._services = services
        if self.pool.is_alone:
            # What holds for one endpoint holds for the operator.
            self.skips = frozenset({"may_begin", "again"})
        else:
            self._limits.follow(self.pool)

    def may_begin(self, calls: Sequence[Call]) -> float:
        """Hold back all calls while no endpoint takes one, for as long as an outage is waited for."""
        now = self.pool.clock()
        wait = self.pool.wait(now)
        if wait == 0.0 or not self._load.waits_for_service():
            return 0.0
        # spec: Addresses!Pause
        self._load.ended(calls, self.pool.resting(now), 0.0)
        return wait

    def choose(self, calls: Sequence[Call]) -> Endpoint:
        """Choose the endpoint of an attempt, another one than those that have failed its rows."""
        known, first = self._attempts, calls[0]
        if first.hedges is not None:
            for call in calls:
                assert call.hedges is not None
                self._hedges.setdefault(call.hedges, []).append(call)
        elif self._hedges:
            for call in calls:
                self._end_hedges(call)
        before = next((known[call] for call in calls if call in known), None) if known else None
        if before is None:
            journey = Journey(self.pool)
            # A hedge goes where no other call of its row runs, if it can.
            journey.tried = [*first.avoided]
        else:
            if before.journey.is_out:
                # Taken back by the operator, before it had an outcome.
                before.journey.release()
            journey = before.journey.another()
        journey.demand = self._limits.demand_of(calls)
        chosen = journey.next()
        if chosen is None:
            # All others have failed it; or another thread has taken the place of a probe just now.
            journey.tried.clear()
            chosen = journey.next() or journey.next(anywhere=True)
        assert chosen is not None
        attempt = _Attempt(journey, len(calls))
        for call in calls:
            self._drop(call)
            known[call] = attempt
        return chosen

    def ended(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Report the attempt to its endpoint, and to the load policy unless that settles it."""
        first = calls[0]
        attempt = self._attempts.get(first) or self._leaving.get(first)
        is_hedge = first.hedges is not None
        if isinstance(error, CallSuperseded):
            # Another call of its row was faster: it says nothing of its endpoint.
            self._release(attempt)
            if is_hedge:
                self._drop_all(calls)
            return
        is_settled = False
        if attempt is not None:
            if error is None:
                if attempt.journey.is_out:
                    at = attempt.journey.at
                    self._counts.count(self.pool, at, attempt.journey.answered(), False)
            else:
                verdict = self._settle(attempt, error)
                is_settled = verdict.moves
                if verdict.waits and self._load.waits_for_service():
                    error = self.pool.resting(self.pool.clock())
        self._leaving.clear()
        if is_hedge:
            self._drop_all(calls)
        if self._reports and not is_settled and (error is not None or self._load.needs_answers):
            self._load.ended(calls, error, seconds)

    def _settle(self, attempt: _Attempt, error: BaseException) -> Verdict:
        """Report an error to the endpoint of the attempt, once."""
        verdict, journey = attempt.verdict, attempt.journey
        if verdict is None:
            if not journey.is_out:
                return Verdict(False, False, read_error(error).kind, False)
            seconds = self.pool.clock() - journey.began
            verdict = journey.failed(error)
            if verdict.kind is Kind.LATE:
                # It may have been made: `Retry` decides, that of a probe too.
                verdict = verdict._replace(moves=False)
            attempt.verdict = verdict
            self._counts.count(self.pool, journey.at, seconds, verdict.is_fault)
        return verdict

    def again(self, calls: Sequence[Call], error: BaseException) -> Again | None:
        """Have rows that an endpoint refused called again at another one, at once."""
        attempt = self._attempts.get(calls[0])
        if attempt is None:
            return None
        if (ends := self._limits.again(calls, error)) is not None:
            # Nothing is waited for any more.
            return ends
        verdict = self._settle(attempt, error)
        if read_error(error).kind is not verdict.kind:
            # Of a row of a batch, beside that of the request.
            return None
        if verdict.moves and not self._is_given_up(calls[0]):
            return Again(0.0, "refusal")
        # Later attempts may go to any endpoint but the last one.
        attempt.journey.tried.clear()
        if verdict.waits and self._load.waits_for_service():
            return self._load.again(calls, self.pool.resting(self.pool.clock()))
        return None

    def _is_given_up(self, call: Call) -> bool:
        """Return True if a row was refused for longer than an outage is waited for."""
        since = call.refused_since
        return since is not None and self._services.loop.time() - since > self._limits.longest

    def finish(self, call: Call, result: Any) -> None:
        """Forget the way of a row that leaves; free its endpoint where its attempt has no outcome."""
        if self._hedges:
            self._end_hedges(call)
        attempt = self._attempts.get(call)
        if attempt is None:
            return
        if call.error is None and attempt.journey.is_out:
            # Its answer is reported next.
            self._leaving[call] = attempt
        self._drop(call)
        if call.error is not None and not attempt.rows:
            self._release(attempt)

    def _end_hedges(self, call: Call) -> None:
        """Forget the hedges of an attempt that is over; one that has answered is reported next."""
        for hedge in self._hedges.pop(call, ()):
            attempt = self._attempts.get(hedge)
            if attempt is None:
                continue
            self._drop(hedge)
            if call.error is None:
                self._leaving[hedge] = attempt
            else:
                self._release(attempt)

    def _release(self, attempt: _Attempt | None) -> None:
        """Free the endpoint of an attempt that has no outcome."""
        # spec: Addresses!Cancel
        if attempt is not None and attempt.journey.is_out:
            attempt.journey.release()

    def _drop_all(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._drop(call)

    def _drop(self, call: Call) -> None:
        attempt = self._attempts.pop(call, None)
        if attempt is not None:
            attempt.rows -= 1

    def close(self) -> None:
        """Free the endpoints of attempts that have no outcome: other tasks of the process use them."""
        # spec: Addresses!Close
        for attempt in (*self._attempts.values(), *self._leaving.values()):
            self._release(attempt)
        self._hedges.clear()
        self._attempts.clear()
        self._leaving.clear()
