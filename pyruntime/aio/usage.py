"""Usage of calls: what they cost and used, and how a function reports it. Values, for any thread."""

# A function that is asked for its usage afterwards (`Budget.usage`) has to find it in the result, so the
# result has to carry it on, into the ledger and the output. What a service says of tokens and prices stands
# in its answer, which the function has at hand and nobody after it: so it may say both apart.
#
# Why errors carry usage too: an answer that is cut off, refused or of the wrong form was paid for as any
# other, and a budget that did not count it would be spent on such answers without an end.

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pillarbox.kernel import PillarboxError
from pillarbox.validate import check_positive_int
from pillarbox.wire import leaves

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
        # Each request has one, of plain numbers and texts: what is not plain is looked at one by one.
        amounts = cost, tokens, input_tokens, output_tokens
        names = model, operation, provider, unknown_cost
        most = math.inf
        if not (
            _NUMBERS.issuperset(map(type, amounts))
            and _TEXTS.issuperset(map(type, names))
            and (0 <= cost < most and 0 <= tokens < most and 0 <= input_tokens < most)
            and 0 <= output_tokens < most
        ):
            cls._check(amounts, names)
        in_all = tokens or input_tokens + output_tokens
        return super().__new__(
            cls, cost, in_all, input_tokens, output_tokens, model, operation, provider, unknown_cost
        )

    @classmethod
    def _check(cls, amounts: Sequence[Any], names: Sequence[Any]) -> None:
        """Raise TypeError or ValueError for the first one that is not allowed."""
        for place, value in enumerate(amounts):
            if type(value) not in _NUMBERS or not 0 <= value < math.inf:
                _check_amount(f"{cls._fields[place]}=", value, "a number")
        for place, text in enumerate(names, len(amounts)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{cls._fields[place]}={text!r}: must be a text or None")

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self[:2], {name: getattr(self, name) for name in self._fields[2:]}


_NUMBERS = frozenset({float, int})
_TEXTS = frozenset({str, type(None)})


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
        self.usage = usage if type(usage) is Usage or usage is None else usage_of(usage, "Result: usage=")

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
    The function finds this error in `current_call().error`. It works without `retry` too. A row that has been
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
