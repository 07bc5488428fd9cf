"""Usage of calls: what they cost and used, how a function says so itself, and what an operator counts.

`Usage`, `Result` and `AskAgain` are for any thread; a `CostTracker` is confined to the mailbox thread, and so
is a `Meter`, which any thread reads as an estimate.
"""

# A function that is asked for its usage afterwards (`Budget.usage`) has to find it in the result, so the
# result has to carry it on, into the ledger and the output. What a service says of tokens and prices stands
# in its answer, which the function has at hand and nobody after it: so it may say both apart.
#
# Why errors carry usage too: an answer that is cut off, refused or of the wrong form was paid for as any
# other, and a budget that did not count it would be spent on such answers without an end.

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.aio.errors import CallTimeout, ResultRejected, said
from pillarbox.aio.gen_ai import GenAiMeter
from pillarbox.aio.limits.rate import LimiterStatistics
from pillarbox.aio.totals import SPENT, Totals
from pillarbox.kernel import PillarboxError
from pillarbox.mailbox.metrics import LatencyHistogram, merge_snapshots
from pillarbox.redaction import DEFAULT, Redact
from pillarbox.validate import check_positive_int
from pillarbox.wire import leaves

if TYPE_CHECKING:
    from pillarbox.aio.calls import Call
    from pillarbox.aio.limits.rate import RateLimiter
    from pillarbox.aio.options import Budget

log = logging.getLogger("pillarbox")


class _UsageFields(NamedTuple):
    cost: float
    tokens: float
    input_tokens: float
    output_tokens: float
    model: str | None
    operation: str | None
    provider: str | None
    unknown_cost: str | None


class Usage(_UsageFields):
    """Cost and tokens of one call.

    cost: 0 or more, in any one currency. tokens: of input and output together; by default their sum.
    input_tokens, output_tokens: for services that count them separately.
    model, operation, provider: names for telemetry, in OpenTelemetry's conventions for generative AI, such as
        "gpt-4o-mini", "chat", "openai"; None for no name.
    unknown_cost: the reason why the cost is incomplete, such as "the reply counts no tokens"; None if `cost`
        is complete. `Budget.usage` is then called, and without it a limit on the cost ends the job.

        >>> from pillarbox import Usage
        >>> used = Usage(0.002, input_tokens=120, output_tokens=30)
        >>> used.cost, used.tokens
        (0.002, 150)

    An immutable tuple; any thread may use it. Raises TypeError or ValueError for a bad argument.
    """

    __slots__ = ()

    def __new__(
        cls,
        cost: float = 0.0,
        tokens: float = 0.0,
        *,
        input_tokens: float = 0.0,
        output_tokens: float = 0.0,
        model: str | None = None,
        operation: str | None = None,
        provider: str | None = None,
        unknown_cost: str | None = None,
    ) -> Usage:
        """Make the value. Raises TypeError or ValueError for a bad argument."""
        numbers = {
            "cost": cost,
            "tokens": tokens,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        for name, value in numbers.items():
            _check_amount(f"{name}=", value, "a number")
        texts = {
            "model": model,
            "operation": operation,
            "provider": provider,
            "unknown_cost": unknown_cost,
        }
        for name, text in texts.items():
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name}={text!r}: must be a text or None")
        in_all = tokens or input_tokens + output_tokens
        return super().__new__(
            cls, cost, in_all, input_tokens, output_tokens, model, operation, provider, unknown_cost
        )

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self[:2], {name: getattr(self, name) for name in self._fields[2:]}


def _check_amount(source: str, value: Any, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{source}{value!r}: must be {allowed}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{source}{value!r}: must be finite and not below 0")


def usage_of(given: Any, source: str = "usage gave ") -> Usage:
    """Return a usage that was said as a `Usage`: None is nothing, a number is a cost.

    source: begins the text of the error. Raises TypeError or ValueError for anything else.
    """
    if isinstance(given, Usage):
        return given
    if given is None:
        return Usage()
    _check_amount(source, given, "a number, a pillarbox.Usage or None")
    return Usage(given)


def sum_of(usages: Sequence[Usage]) -> Usage:
    """Return the usage of all together, which are one at least, under the names of the last one."""
    amounts = zip(*(each[:4] for each in usages), strict=True)
    cost, tokens, input_tokens, output_tokens = map(sum, amounts)
    last = usages[-1]
    return Usage(
        cost,
        tokens,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        model=last.model,
        operation=last.operation,
        provider=last.provider,
        unknown_cost=next((each.unknown_cost for each in usages if each.unknown_cost is not None), None),
    )


class Result:
    """Result of a row together with the usage of its call.

        >>> from pillarbox import Result, Usage, async_map
        >>> async def call(row):
        ...     return Result(row.upper(), Usage(cost=0.01, tokens=3))
        >>> list(async_map(["a", "b"], call))
        ['A', 'B']

    The operator bills `usage` and emits `value`; later steps do not see this object. A function of batches
    may return one for each row, or one for all, whose value is the list of results.

    value: the result, as the function would return it alone. usage: a cost (a number) or a `Usage`; None if
        it is not known: `Budget.usage` is then called, as for any other result.

    Any thread may make one. Raises TypeError or ValueError for a bad usage.
    """

    __slots__ = ("usage", "value")

    def __init__(self, value: Any, usage: float | Usage | None = None) -> None:
        self.value = value
        self.usage = None if usage is None else usage_of(usage, "Result: usage=")

    def __repr__(self) -> str:
        return f"Result({self.value!r}, {self.usage!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and (self.value, self.usage) == (other.value, other.usage)

    __hash__ = None  # type: ignore[assignment]


class AskAgain(PillarboxError):
    """Exception by which a function repeats its call at once, in addition to the attempts of `Retry`.

    reason: the text of the error. times: repeats of one row, at most (1 or more). usage: the usage of the
        failed attempt: a cost (a number), a `Usage`, or None for nothing.

        >>> from pillarbox import AskAgain, async_map, current_call
        >>> async def call(row):
        ...     if current_call().error is None:
        ...         raise AskAgain("the answer is not JSON", times=2)
        ...     return f"{row} on attempt {current_call().attempt}"
        >>> list(async_map(["answered"], call))
        ['answered on attempt 2']

    The repeat is an attempt like any other: it needs a slot and counts against rate, budget and `timeout`.
        The
    function finds this error in `current_call().error`. It works without `retry` too. A row that has been
    repeated `times` times fails with the error, and `retry` decides about it. May be subclassed.

    The idea is that of `tenacity.TryAgain`. Any thread. Raises TypeError or ValueError for a bad argument.
    """

    def __init__(self, reason: str = "", times: int = 2, usage: float | Usage | None = None) -> None:
        super().__init__(reason, times, usage)
        self.reason = reason
        self.times = check_positive_int("times", times)
        self.usage = None if usage is None else usage_of(usage, "AskAgain: usage=")

    def __str__(self) -> str:
        return self.reason


def repeats_of(error: BaseException) -> int:
    """Return how often `error` asks for its row to be called again at once; 0 where it does not."""
    # A group of errors, as a task group raises it, asks for that if each of its members does.
    return min(each.times if isinstance(each, AskAgain) else 0 for each in leaves(error))


class UsageMissing(PillarboxError, TypeError):
    """A bound on the cost, and a call of unknown cost. Ends the job.

    kind: the name of the type of the result, or of the error. reason: `Usage.unknown_cost`.
    """

    def __init__(self, max_cost: float, kind: str, reason: str | None = None) -> None:
        super().__init__(max_cost, kind, reason)
        self.max_cost = max_cost
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        if self.reason is not None:
            return (
                f"max_cost={self.max_cost!r}: the bound cannot be held, since nobody knows what a call cost: "
                f"{self.reason}"
            )
        return (
            f"max_cost={self.max_cost!r}: the function gave a result of type {self.kind} and does not "
            "say what the call cost: return pillarbox.Result(value, usage), or give Budget(usage=...)"
        )


# -- what an operator counts -----------------------------------------------------------------------

# On the path of every row stands one `append` to a list, of the seconds of an attempt. To put each into its
# histogram at once would cost several times that; so they are folded together, some times a second, in one
# call of C. Counts are attributes that the scheduler adds to: a method for each would be a call a row.

SAMPLE_INTERVAL_S = 0.05
"""Seconds between two looks at what the slots are busy with."""

LATE_AFTER_S = 0.02
"""Seconds by which a look may come too late before the event loop counts as held up since the look before."""


_COUNTS = (
    *("rows_in", "results", "calls", "retries", "errors", "timeouts", "batches"),
    *("shared", "not_called", "found", "tokens", "cost"),
)
"""Fields of `Totals` that `Meter` keeps under the same names."""


class Meter:
    """Counts, latencies and what the time went on, of one operator.

    The counts are plain attributes, which the operator adds to. `ended` and `ended_again` take the
    seconds of attempts: of rows that needed one, and of those that needed more.
    """

    __slots__ = (
        *_COUNTS,
        *("retries_by_reason", "errors_by_type", "spent", "ended", "ended_again", "rows_ended_again"),
        *("_first", "_more", "_rows", "_began", "_sampled", "gen_ai"),
    )

    def __init__(self) -> None:
        self.rows_in = self.results = self.calls = self.retries = self.batches = 0
        self.errors = self.timeouts = self.shared = self.not_called = self.found = 0
        self.tokens = self.cost = 0.0
        self.retries_by_reason: Counter[str] = Counter()
        self.errors_by_type: Counter[str] = Counter()
        self.spent = dict.fromkeys(SPENT, 0.0)
        self.ended: list[float] = []
        self.ended_again: list[float] = []
        self.rows_ended_again: list[float] = []
        self.gen_ai = GenAiMeter()
        self._first = LatencyHistogram()
        self._more = LatencyHistogram()
        self._rows = LatencyHistogram()
        self._began = self._sampled = time.monotonic()

    def count_retries(self, error: BaseException, rows: int) -> None:
        """So many rows are tried again because of `error`."""
        self.retries += rows
        names = {CallTimeout: "timeout.attempt", ResultRejected: "result"}
        self.retries_by_reason[names.get(type(error), type(error).__name__)] += rows

    def fold(self) -> None:
        """Put the latencies that have come together into their histograms. On the mailbox thread."""
        for durations, histogram in (
            (self.ended, self._first),
            (self.ended_again, self._more),
            (self.rows_ended_again, self._rows),
        ):
            if durations:
                histogram.record_all(durations)
                durations.clear()

    def sample(self, busy: float, idle_reason: str, late: float = 0.0) -> None:
        """Since the last sample the share `busy` of the slots was, and the rest was idle for the reason.

        late: seconds by which this look came after its time. A loop that was held up had no turn to begin a
        call or to end one, so what the slots look like says nothing about the time that has passed.
        """
        now = time.monotonic()
        passed = now - self._sampled
        self._sampled = now
        if late > LATE_AFTER_S:
            self.spent["loop"] += passed
            return
        self.spent["calls"] += passed * busy
        self.spent[idle_reason] += passed * (1.0 - busy)

    def statistics(self, limiter: LimiterStatistics | None, **others: Any) -> Totals:
        """All counts, with `others`, the fields of `Totals` that are not kept here. Any thread."""
        first, more, rows = (each.snapshot() for each in (self._first, self._more, self._rows))
        return Totals(
            **{name: getattr(self, name) for name in _COUNTS},
            **others,
            retries_by_reason=dict(self.retries_by_reason),
            errors_by_type=dict(self.errors_by_type),
            latency=merge_snapshots([first, more]),
            call_latency=merge_snapshots([first, rows]),
            rate_granted=0 if limiter is None else limiter.granted,
            cool_downs=0 if limiter is None else limiter.cool_downs,
            spent=dict(self.spent),
            elapsed=time.monotonic() - self._began,
            **self.gen_ai.snapshot(),
        )


class CostTracker:
    """Adds up what the calls of one operator used, and tells the limiter of the cost.

    The usage is what the function itself says, with a `Result` or an error that has a `Usage` as its
    attribute `usage`; for other results it is what the hook `Budget.usage` says, or without a hook what
    clients said of their requests while the function ran.
    """

    __slots__ = (
        *("_bills_requests", "_clock", "_hook", "_limiter", "_max_cost", "_meter", "_redact"),
        "_unpriced",
    )

    def __init__(
        self,
        budget: Budget,
        meter: Meter,
        limiter: RateLimiter | None,
        clock: Callable[[], float],
        redact: Redact = DEFAULT,
    ) -> None:
        self._clock = clock
        self._hook: Callable[..., Any] | None = budget.usage
        self._max_cost = budget.max_cost
        self._meter = meter
        self._limiter = limiter
        self._redact = redact
        self._bills_requests = False
        # The calls that made a request whose cost nobody knows, and why.
        self._unpriced: dict[Call, str | None] = {}

    @property
    def bills_requests(self) -> bool:
        """True if the cost of requests was counted, and no call that runs has made one of unknown cost."""
        return self._bills_requests and not self._unpriced

    def bill_request(self, calls: Sequence[Call], usage: Usage, seconds: float, knows_cost: bool) -> None:
        """Count what one request used that the call for the rows of `calls` made, and was answered.

        knows_cost: `usage` says what it cost, not only its tokens.
        """
        self._meter.gen_ai.ended(usage, seconds, calls[0])
        # Or the hook decides: who gave one, counts as he wants.
        if self._hook is None:
            self._bills_requests = self._bills_requests or knows_cost
            if self._max_cost is not None and not knows_cost:
                self._unpriced.update(dict.fromkeys(calls, usage.unknown_cost))
            self._add(calls, usage)

    def bill(self, calls: Sequence[Call], usage: Usage) -> None:
        """Count what one call for the rows of `calls` used; each of them has its share of the cost."""
        self._add(calls, usage)
        self._meter.gen_ai.ended(usage, self._clock() - calls[0].began, calls[0])

    def _add(self, calls: Sequence[Call], usage: Usage) -> None:
        meter = self._meter
        meter.cost += usage.cost
        meter.tokens += usage.tokens
        if not usage.cost:
            return
        if self._limiter is not None:
            self._limiter.spend(usage.cost)
        share = usage.cost / len(calls)
        for call in calls:
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

    def bill_result(self, call: Call, result: Any) -> Any:
        """Count what a call used that gave `result`; returns its value.

        Raises what the hook raises, TypeError or ValueError for what that says, and UsageMissing.
        """
        usage = None
        if type(result) is Result:
            result, usage = result.value, result.usage
        if self._hook is not None and (usage is None or usage.unknown_cost is not None):
            if usage is not None:
                # Telemetry has what the service counted all the same.
                self._meter.gen_ai.ended(usage, self._clock() - call.began, call)
            usage = usage_of(self._hook(call.row, result))
        if usage is not None:
            self.bill([call], usage)
        missing = self._missing([call], usage, type(result).__name__)
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
        """Count what a call for the rows of `calls` used that failed with `error`.

        Returns what ends the job: the cost is bounded, this was paid for, and nobody knows how much.
        """
        said = [usage for each in leaves(error) if (usage := _usage_in(each)) is not None]
        usage = sum_of(said) if said else None
        if usage is not None:
            self._add(calls, usage)
        first = calls[0]
        self._meter.gen_ai.failed(usage, self._clock() - first.began, first, error)
        # An error that says nothing is one of a call that cost nothing, most often.
        if usage is None and not any(call in self._unpriced for call in calls):
            return None
        return self._missing(calls, usage, type(error).__name__)


def _usage_in(error: BaseException) -> Usage | None:
    try:
        usage = getattr(error, "usage", None)
    except BaseException:
        # Of an error whose attributes raise nothing is known.
        return None
    # What other packages call so is their own.
    return usage if isinstance(usage, Usage) else None
