"""Limits that a service names: the limiter gets them, and no row is called where none is taken for long.

Those of a service with several endpoints are of each endpoint: its pool follows them, and here calls are held
back while the quotas of all are used up. Confined to the mailbox thread.
"""

# A service that says "come back tomorrow" is neither overloaded nor away: to wait for it as for an outage
# costs ten minutes and then fails each row, to go on calling costs a refused request for each. So no row is
# called any more, as where a budget is used up: rows that were not called are done by a later run, and a
# ledger has the others. Of several endpoints that needs all of them: `RefusalWatch` is certain of each.

from __future__ import annotations

import time
from collections.abc import Sequence

from pillarbox.aio.calls import Call
from pillarbox.aio.endpoint_limits import Demand
from pillarbox.aio.endpoint_pool import EndpointPool
from pillarbox.aio.endpoints import FAILED_AT, Endpoint
from pillarbox.aio.errors import QuotaUsedUp, ServiceResting
from pillarbox.aio.limits.headers import headers_of, read_limits
from pillarbox.aio.limits.used_up import RefusalWatch, UsedUp, is_refusal
from pillarbox.aio.options import Options
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policy import Again, CallPolicy, PolicyServices
from pillarbox.aio.retry import MAX_OUTAGE_S
from pillarbox.aio.totals import clock_time
from pillarbox.aio.usage import Usage
from pillarbox.wire import Kind, read_error


class ServiceLimitsPolicy(CallPolicy):
    """Reads the limits that answers name, and finds out that the service takes no call for long.

    load: has the limiter, and has no row called any more. `longest`: seconds for which a quota may be gone.
    """

    needs_answers = False

    def __init__(self, options: Options, load: LoadPolicy) -> None:
        rate, retry = options.rate, options.retry
        self._learns = rate is None or bool(rate.learn)
        self.longest = MAX_OUTAGE_S if retry is None or not retry.max_outage else retry.max_outage
        """Seconds for which an outage is waited for, at most: a quota that is gone for longer is gone."""
        self._mode = options.errors.mode
        self._redact = options.errors.redaction
        self._load = load
        self._watch = RefusalWatch()
        self._is_gone = False
        # Until endpoints have named limits.
        self.skips = frozenset({"may_begin"})
        self._services: PolicyServices
        self._followed: list[EndpointPool] = []
        self._pools: dict[Endpoint, EndpointPool] = {}
        # Rows that were let through, by the first of each call, with the attempts that they had.
        self._let_through: dict[Call, int] = {}
        self._is_held = False

    def open(self, services: PolicyServices) -> None:
        """Take what the operator gives."""
        self._services = services

    # -- the limits of each endpoint ----------------------------------------------------------------

    def follow(self, pool: EndpointPool) -> None:
        """Follow the limits of the endpoints of `pool`, to which calls go from now on."""
        if not pool.is_alone and pool not in self._followed:
            self._followed.append(pool)
            self._pools.update(dict.fromkeys(pool.all, pool))
            if pool.has_limits:
                # Of an operator before.
                self._have_gate()

    def _have_gate(self) -> None:
        # spec: Feeding!GateAppears
        if self._learns and "may_begin" in self.skips:
            self.skips = frozenset()
            if hasattr(self, "_services"):
                self._services.gate_appears()

    def demand_of(self, calls: Sequence[Call]) -> Demand:
        """Return what a request for `calls` asks of the limits of an endpoint; their weights are known."""
        units = self._load.units_in(calls)
        return Demand(units, self._learns, self.longest, self._load.waits_for_service())

    def may_begin(self, calls: Sequence[Call]) -> float:
        """Hold back all calls while the quotas of all endpoints that take calls are used up."""
        # spec: Addresses!Pause
        first, known = calls[0], self._let_through
        if known:
            # Calls of before that have begun, or that another policy held back.
            for call in [
                call for call, had in known.items() if call.execution is None or call.attempt != had
            ]:
                del known[call]
            known.pop(first, None)
        demand = self.demand_of(calls)
        for pool in self._followed:
            wait = pool.quota_wait(demand, pool.clock(), len(known))
            if wait > 0.0:
                self._is_held = True
                return wait
        if first.hedges is None:
            known[first] = first.attempt
        return 0.0

    def _used_up(self) -> UsedUp | None:
        """Return what is gone for long at all endpoints of a service; None where one has some left."""
        for pool in self._followed:
            seconds = pool.used_up_for(pool.clock())
            if seconds > self.longest:
                return UsedUp(seconds)
        return None

    # -- answers ------------------------------------------------------------------------------------

    def ended(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Look at a refusal; end the calls where it says that there will be none for long."""
        if self._is_gone or error is None:
            return
        reading = read_error(error)
        is_resting = isinstance(error, ServiceResting)
        if not (is_refusal(reading) or is_resting):
            return
        if is_resting or hasattr(error, FAILED_AT) or self._pool_of(calls) is not None:
            # Of several endpoints each has limits of its own, which have been read.
            used_up = self._used_up()
        else:
            limits = read_limits(headers_of(error), time.time())
            if limits and self._learns:
                self._load.learn(calls, limits)
            used_up = self._watch.look(reading, limits, self._services.finished(), self.longest)
            if self._mode == "fail" and reading.kind is Kind.OUT_OF_QUOTA:
                # The row fails for good, and the job with it.
                return
        if used_up is None:
            return
        self._is_gone = True
        why = self._words(used_up)
        if self._mode == "column":
            self._load.exhaust(why)
        else:
            # Nothing would show that rows are missing.
            self._services.stop(QuotaUsedUp(why, self._redact.sealed(error)))

    def again(self, calls: Sequence[Call], error: BaseException) -> Again | None:
        """Have a refused row wait, so that it counts as not called again, and not as one that failed."""
        if not self._is_gone or not (isinstance(error, ServiceResting) or is_refusal(read_error(error))):
            return None
        return Again(0.0, "refusal")

    def report_limits(self, calls: Sequence[Call], headers: object) -> None:
        """Take what an answer to `calls` says of limits in its headers."""
        if not self._learns or not (limits := read_limits(headers, time.time())):
            return
        pool = self._pool_of(calls)
        if pool is None:
            self._load.learn(calls, limits)
            return
        pool.learn(calls[0].endpoint, limits, calls[0].began)
        self._have_gate()
        if self._is_held:
            self._is_held = False
            # Not within the call that has just reported it.
            self._services.loop.call_soon(self._services.wake)

    def use(self, calls: Sequence[Call], usage: Usage) -> None:
        """Count the tokens that a call has used against what was reserved for it."""
        if not self._learns or (self._load.limiter is None and not self._pools):
            return
        used = usage.input_tokens, usage.output_tokens, usage.tokens
        units, limiter, pool = self._load.units_in(calls), self._load.limiter, self._pool_of(calls)
        if pool is not None:
            pool.use(calls[0].endpoint, units, used, calls[0].began)
        elif limiter is not None:
            limiter.use(units, used, max(0.0, self._services.clock() - calls[0].began))

    def _pool_of(self, calls: Sequence[Call]) -> EndpointPool | None:
        """The pool of the endpoint that `calls` went to last; None where the service has one alone."""
        endpoint = getattr(calls[0], "endpoint", None) if self._pools else None
        return self._pools.get(endpoint) if isinstance(endpoint, Endpoint) else None

    def _words(self, used_up: UsedUp) -> str:
        """Return what is used up, in words."""
        several = len(self._pools)
        at = f" of each of {several} addresses" if several else ""
        if used_up.is_credit:
            return f"the credit of the account{at}"
        first = ", the first of which is there again at" if several else ", which is there again at"
        of = at if several else " of the service"
        return f"the quota{of}{first} {clock_time(used_up.seconds)},"
