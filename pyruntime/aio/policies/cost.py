"""Adds up what the calls of an operator used, and cost. Confined to the mailbox thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import said
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import Budget
from pillarbox.aio.policy import CallPolicy, HookFailed
from pillarbox.aio.usage import Result, Usage, UsageMissing, sum_of, usage_of
from pillarbox.redaction import DEFAULT, Redact
from pillarbox.wire import leaves

log = logging.getLogger("pillarbox")


class CostPolicy(CallPolicy):
    """Adds up what the calls of one operator used, and reports the cost to the limiter.

    The usage is what the function itself says, with a `Result` or an error that has a `Usage` as its
    attribute `usage`; for other results it is what the hook `Budget.usage` says, or without a hook what
    clients said of their requests while the function ran.
    """

    __slots__ = (
        *("_bills_requests", "_clock", "_hook", "_max_cost", "_meter", "_redact", "_spend", "_unpriced"),
        *("_use", "looks"),
    )

    def __init__(
        self,
        budget: Budget,
        meter: Meter,
        spend: Callable[[float], None],
        clock: Callable[[], float],
        redact: Redact = DEFAULT,
        use: Callable[[Sequence[Call], Usage], None] = lambda calls, usage: None,
    ) -> None:
        self._clock = clock
        # Takes the tokens of a call, for limits that count them.
        self._use = use
        self._hook: Callable[..., Any] | None = budget.usage
        self._max_cost = budget.max_cost
        self._meter = meter
        self._spend = spend
        self._redact = redact
        self.looks = budget.usage is not None or budget.max_cost is not None
        """True if each result is to be looked at, not only those that carry a usage."""
        self._bills_requests = False
        # The calls that made a request whose cost nobody knows, and why.
        self._unpriced: dict[Call, str | None] = {}

    @property
    def bills_requests(self) -> bool:
        """True if the cost of requests was counted, and no call that runs has made one of unknown cost."""
        return self._bills_requests and not self._unpriced

    def bill_request(self, calls: Sequence[Call], usage: Usage, seconds: float, knows_cost: bool) -> None:
        """Count what one request used that the call for the rows of `calls` made, and was answered.

        knows_cost: `usage` says what it cost, not only its tokens. Of a hedge its rows have the cost, and the
        endpoint that has answered it the tokens.
        """
        # All calls of a batch hedge, or none.
        rows = calls if calls[0].hedges is None else [call.hedges or call for call in calls]
        self._meter.gen_ai.ended(usage, seconds, rows[0])
        if self._hook is not None:
            self._use(calls, usage)
        # Or the hook decides: who gave one, counts as he wants.
        if self._hook is None:
            self._bills_requests = self._bills_requests or knows_cost
            if self._max_cost is not None and not knows_cost:
                self._unpriced.update(dict.fromkeys(rows, usage.unknown_cost))
            self._add(rows, usage, calls)

    def bill(self, calls: Sequence[Call], usage: Usage) -> None:
        """Count what one call for the rows of `calls` used; each of them has its share of the cost."""
        self._add(calls, usage, calls)
        self._meter.gen_ai.ended(usage, self._clock() - calls[0].began, calls[0])

    def _add(self, rows: Sequence[Call], usage: Usage, calls: Sequence[Call]) -> None:
        """Count the usage of `calls`, which made the request, for `rows`, whose calls they are or hedge."""
        meter = self._meter
        meter.cost += usage.cost
        meter.tokens += usage.tokens
        if usage.tokens:
            self._use(calls, usage)
        if not usage.cost:
            return
        self._spend(usage.cost)
        share = usage.cost / len(rows)
        for call in rows:
            call.cost += share

    def bill_batch(self, calls: Sequence[Call], usage: Usage) -> bool:
        """Count what one call for the rows of `calls` said of all of them; False where the hook decides.

        Raises UsageMissing.
        """
        if self._hook is not None and usage.unknown_cost is not None:
            self._meter.gen_ai.ended(usage, self._clock() - calls[0].began, calls[0])
            return False
        self.bill(calls, usage)
        missing = self._missing(calls, usage, "Result")
        if missing is not None:
            raise missing
        return True

    def accept(self, call: Call, result: Any) -> Any:
        """Count what a call used that gave `result`; returns its value.

        Raises UsageMissing, and HookFailed with what the hook raises.
        """
        try:
            return self.bill_result(call, result)
        except UsageMissing:
            raise
        except BaseException as error:
            raise HookFailed(error) from error

    def bill_result(self, call: Call, result: Any) -> Any:
        """Count what a call used that gave `result`; returns its value.

        Raises what the hook raises, TypeError or ValueError for what that says, and UsageMissing.
        """
        usage, calls = None, (call,)
        if type(result) is Result:
            result, usage = result.value, result.usage
        if self._hook is not None and (usage is None or usage.unknown_cost is not None):
            if usage is not None:
                # Telemetry has what the service counted all the same.
                self._meter.gen_ai.ended(usage, self._clock() - call.began, call)
            usage = usage_of(self._hook(call.row, result))
        if usage is not None:
            self.bill(calls, usage)
        if self._max_cost is not None:
            missing = self._missing(calls, usage, type(result).__name__)
            if missing is not None:
                raise missing
        return result

    def _missing(self, calls: Sequence[Call], usage: Usage | None, kind: str) -> UsageMissing | None:
        """Return an error if the cost is bounded, and what a call said of itself, `usage`, leaves it unknown.

        kind: the type of its result or error.
        """
        if self._hook is not None or self._max_cost is None:
            return None
        reasons = [self._unpriced.pop(call) for call in calls if call in self._unpriced]
        if usage is not None:
            is_unknown, reason = usage.unknown_cost is not None, usage.unknown_cost
        else:
            is_unknown, reason = bool(reasons) or not self._bills_requests, next(iter(reasons), None)
        return UsageMissing(self._max_cost, kind, reason) if is_unknown else None

    def bill_late(self, call: Call, result: Any) -> tuple[Any, float]:
        """The same for a result that came too late for its row, so that no row can be failed.

        Returns its value and its cost, which is none of the row's: its record may be another one.
        """
        before = call.cost
        try:
            value = self.bill_result(call, result)
        except BaseException as error:
            text = said(error, self._redact)
            log.warning("usage raised for a late result: %s: %s", type(error).__name__, text)
            value = result.value if type(result) is Result else result
        cost, call.cost = call.cost - before, before
        return value, cost

    def bill_error(self, calls: Sequence[Call], error: BaseException) -> UsageMissing | None:
        """Count what a call for the rows of `calls` used that failed with `error`, also where it was a hedge.

        Returns what ends the job: the cost is bounded, this was paid for, and nobody knows how much.
        """
        said = [usage for each in leaves(error) if (usage := _usage_in(each)) is not None]
        usage = sum_of(said) if said else None
        rows = [call.hedges or call for call in calls]
        if usage is not None:
            self._add(rows, usage, calls)
        first = rows[0]
        self._meter.gen_ai.failed(usage, self._clock() - first.began, first, error)
        # An error that says nothing is one of a call that cost nothing, most often.
        if usage is None and not any(call in self._unpriced for call in rows):
            return None
        return self._missing(rows, usage, type(error).__name__)


def _usage_in(error: BaseException) -> Usage | None:
    try:
        usage = getattr(error, "usage", None)
    except BaseException:
        # Of an error whose attributes raise nothing is known.
        return None
    # What other packages call so is their own.
    return usage if isinstance(usage, Usage) else None
