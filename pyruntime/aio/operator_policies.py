"""The policies of one operator, in the order that its options give. Confined to the mailbox thread."""

# The order. Policies of the user come first, so that one of them may answer, hold back or decide before the
# options do. A result is billed before anything looks at it, as it was paid for whatever becomes of it; it is
# refused (`Retry.result`) before it is converted. Of an attempt that failed, the function's own wish comes
# before an outage, which is not charged to the row, and that before `Retry`. The fault of one endpoint of
# several comes before all of these: it is settled at another endpoint.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.current_call import EndpointServices
from pillarbox.aio.endpoint_counts import EndpointCounts
from pillarbox.aio.endpoint_pool import EndpointPool
from pillarbox.aio.function import ResultConverter
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import Options
from pillarbox.aio.policies.cost import CostPolicy
from pillarbox.aio.policies.endpoints import EndpointPolicy
from pillarbox.aio.policies.errors import ErrorPolicy
from pillarbox.aio.policies.fit import FitPolicy
from pillarbox.aio.policies.hedge import HedgePolicy
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policies.per_key import KeyPolicy
from pillarbox.aio.policies.retry import RepeatPolicy, RetryPolicy
from pillarbox.aio.policies.returns import ReturnPolicy
from pillarbox.aio.policies.service_limits import ServiceLimitsPolicy
from pillarbox.aio.policies.slots import SlotPolicy
from pillarbox.aio.policies.time_budget import TimeBudgetPolicy
from pillarbox.aio.policy import PolicyStack, copies_of


class OperatorPolicies:
    """The stack of an operator with some options, and those policies that are asked by name.

    `costs` and `errors` are asked outside of the stack: each result that carries its usage is billed, on time
    or late, and each row that failed for good gets what stands for its result. `hedge` is None where no call
    is hedged. hold, resume: as `KeyPolicy` needs them.
    """

    __slots__ = (
        *("by_key", "convert", "costs", "endpoint_counts", "endpoint_services", "errors", "facts", "fit"),
        "hedge",
        *("is_plain", "load", "looks_at_results", "looks_beside_costs", "rejects", "retry"),
        *("service_limits", "slots", "stack", "time", "users"),
    )

    def __init__(
        self,
        options: Options,
        meter: Meter,
        clock: Callable[[], float],
        converter: ResultConverter | None,
        hold: Callable[[Call], object],
        resume: Callable[[Sequence[Call], bool], None],
    ) -> None:
        self.retry = None if options.retry is None else RetryPolicy(options.retry, clock)
        shared = options.shared_slots()
        self.slots = None if shared is None else SlotPolicy(shared)
        self.load = LoadPolicy(options, self.retry, clock, None if shared is None else shared.finder)
        self.service_limits = limits = ServiceLimitsPolicy(options, self.load)
        self.costs = CostPolicy(
            options.budget, meter, self.load.spend, clock, options.errors.redaction, limits.use
        )
        budget = options.budget
        self.time = TimeBudgetPolicy(budget, self.load.exhaust) if budget.has_end else None
        self.errors = ErrorPolicy(options, meter, clock)
        self.fit = FitPolicy(converter)
        self.convert = self.fit.convert
        limit = options.per_key
        self.by_key = None if limit is None else KeyPolicy(limit, hold, resume)
        """Lets rows through by their keys; None where they have none."""
        self.users = tuple(copies_of(options.policies))
        self.endpoint_counts = counts = EndpointCounts()
        self.facts = None if options.limits is None else options.limits.open_facts()
        returns = ReturnPolicy(self.load)

        def share(pool: EndpointPool) -> None:
            returns.watch(pool)
            self._share(pool)

        self.endpoint_services = EndpointServices(
            self.load.waits_for_service, share, counts.count, limits.demand_of, limits.follow
        )
        given = options.endpoints
        endpoints = None if given is None else EndpointPolicy(given, self.load, counts, limits, share)
        self.hedge = (
            None if options.hedge is None else HedgePolicy(options.hedge, options.max_capacity, clock)
        )
        in_order = (
            # Opened before those that find endpoints.
            *(returns, self.retry, self.fit, endpoints, RepeatPolicy(self.retry), limits, self.time),
            self.slots,
            *(self.load, self.hedge, self.by_key),
        )
        self.stack = stack = PolicyStack(
            [*self.users, *[each for each in in_order if each is not None]],
            again_last=() if self.retry is None else (self.retry,),
        )
        self.rejects = options.retry is not None and options.retry.result is not None
        """True if results may be asked for again."""
        self.looks_beside_costs = any(accept != self.fit.accept for accept in stack.accept)
        """True if a result is looked at before it is converted, if only its cost is not."""
        self.looks_at_results = self.costs.looks or self.looks_beside_costs
        """True if each result is looked at as its function gave it."""
        attends = self.retry or self.load.observes_answers or stack.choose or stack.begin or stack.finish
        self.is_plain = not (self.looks_at_results or attends or (self.users and stack.ended))
        """True if a call has one attempt, and ends when it ends."""

    def hedges(self) -> dict[str, int]:
        """Counts of hedges, by the fields of `Totals`. Any thread."""
        hedge = self.hedge
        return {} if hedge is None else {"hedged": hedge.hedged, "hedges_won": hedge.won}

    @property
    def found(self) -> int | None:
        """Calls in flight, at most, as found so far or leased; None where their number is given."""
        return self.load.found if self.slots is None else self.slots.limit

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to share what is shared. wake: called when a shared limiter may have more."""
        self.load.start(wake)
        if self.slots is not None:
            self.slots.start()
        if self.facts is not None:
            self.facts.start()
        if self.time is not None:
            self.time.start()

    async def closed(self) -> None:
        """Close the policies, and give back what was granted and not used."""
        self.stack.close()
        if self.slots is not None:
            await self.slots.closed()
        if self.facts is not None:
            await self.facts.close()
        await self.load.closed()

    def _share(self, pool: EndpointPool) -> None:
        """Share the states of endpoints of which there are several. Any thread."""
        if self.facts is not None and not pool.is_alone:
            self.facts.share(pool)

    def for_calls(self) -> tuple[EndpointServices, Callable[[Sequence[Call], object], None]]:
        """The values `endpoints` and `report_limits` of `CallServices`."""
        return self.endpoint_services, self.service_limits.report_limits

    def snapshot(self) -> tuple[Any, tuple[Any, ...]]:
        """The states that a restart needs: of the retries, and of the user's policies."""
        retries = None if self.retry is None else self.retry.snapshot()
        return retries, tuple([policy.snapshot() for policy in self.users])

    def restore(self, retries: Any, users: tuple[Any, ...]) -> None:
        """Go on from states; those of the user's policies by their places in the list."""
        if self.retry is not None:
            self.retry.restore(retries)
        for policy, state in zip(self.users, users, strict=False):
            if state is not None:
                policy.restore(state)
