"""The policies of one operator, in the order that its options give. Confined to the mailbox thread."""

# The order. Policies of the user come first, so that one of them may answer, hold back or decide before the
# options do. A result is billed before anything looks at it, as it was paid for whatever becomes of it; it is
# refused (`Retry.result`) before it is converted. Of an attempt that failed, the function's own wish comes
# before an outage, which is not charged to the row, and that before `Retry`. The fault of one endpoint of
# several comes before all of these: it is settled at another endpoint.
#
# Where the policy of an option stands its declaration says, in `pillarbox.aio.options`: a new one is made,
# put into its place, opened, begun, counted and closed here as the others are, without a line of its own.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.function import ResultConverter
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import FIXED, Options
from pillarbox.aio.policies.errors import ErrorPolicy
from pillarbox.aio.policies.fit import FitPolicy
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policies.retry import RepeatPolicy, RetryPolicy
from pillarbox.aio.policy import CallPolicy, PolicyStack, copies_of
from pillarbox.aio.policy_parts import LetsThrough, OptionPolicy, PolicyParts
from pillarbox.aio.uncounted import UncountedCosts
from pillarbox.providers import COST_POLICY, KNOWN_SERVICE, provided, provided_if_there


class OperatorPolicies:
    """The stack of an operator with some options, and those policies that are asked by name.

    `costs` and `errors` are asked outside of the stack: each result that carries its usage is billed, on time
    or late, and each row that failed for good gets what stands for its result. `brought` are the policies of
    options, by the option. `service`: what is known of the service, as `KnownService`; None where that is not
    installed. hold, resume: as `PolicyParts` has them.
    """

    __slots__ = (
        *("brought", "by_key", "convert", "costs", "errors", "fit", "is_plain", "load"),
        *("looks_at_results", "looks_beside_costs", "rejects", "retry", "service", "slots", "stack", "users"),
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
        self.load = LoadPolicy(options, self.retry, clock)
        know = provided_if_there(KNOWN_SERVICE)
        self.service: Any = None if know is None else know(options, self.load)
        use = () if self.service is None else (self.service.limits.use,)
        count = provided_if_there(COST_POLICY)
        redact = options.errors.redaction
        self.costs: Any = (
            UncountedCosts()
            if count is None
            else count(options.budget, meter, self.load.spend, clock, redact, *use)
        )
        self.errors = ErrorPolicy(options, meter, clock)
        self.fit = FitPolicy(converter)
        self.convert = self.fit.convert
        self.users = tuple(copies_of(options.policies))
        parts = PolicyParts(options, clock, self.load, self.service, hold, resume)
        self.brought: dict[str, OptionPolicy] = {}
        behind: dict[str, list[CallPolicy]] = {name: [] for name in FIXED}
        for each in options.brought():
            policy = self.brought[each.option] = provided(each.policy, each.option).of(parts)
            behind[each.behind].append(policy)
        self.by_key: LetsThrough | None = self.brought.get("per_key")  # type: ignore[assignment]
        """Lets rows through by their keys; None where they have none."""
        self.slots: Any = self.brought.get("capacity")
        fixed: dict[str, CallPolicy | None] = {
            # Opened before those that find endpoints.
            "returns": None if self.service is None else self.service.returns,
            "retry": self.retry,
            "fit": self.fit,
            "repeat": RepeatPolicy(self.retry),
            "limits": None if self.service is None else self.service.limits,
            "load": self.load,
        }
        in_order = [policy for name in FIXED for policy in (fixed[name], *behind[name])]
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

    def totals(self) -> dict[str, Any]:
        """The fields of `Totals` that policies and the service have. Any thread."""
        found: dict[str, Any] = {} if self.service is None else self.service.counts.tables(self.load.learned)
        for policy in self.brought.values():
            found.update(policy.totals())
        return found

    @property
    def found(self) -> int | None:
        """Calls in flight, at most, as found so far or leased; None where their number is given."""
        limit: int | None = self.load.found if self.slots is None else self.slots.limit
        return limit

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to share what is shared. wake: called when a shared limiter may have more."""
        self.load.start(wake)
        if self.service is not None:
            self.service.start()
        for policy in self.brought.values():
            policy.start()

    async def closed(self) -> None:
        """Close the policies, and give back what was granted and not used."""
        self.stack.close()
        for policy in self.brought.values():
            await policy.closed()
        if self.service is not None:
            await self.service.closed()
        await self.load.closed()

    def for_calls(self) -> tuple[Any, Callable[[Sequence[Call], object], None]]:
        """The values `endpoints` and `report_limits` of `CallServices`."""
        if self.service is None:
            return None, lambda calls, headers: None
        return self.service.for_calls, self.service.limits.report_limits

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
