"""Counts and spans of calls to generative AI, under the names of OpenTelemetry's conventions for it.

A `Usage` tells of each call; one that names an operation is counted here, and is a span where the process has
a tracer. Confined to the mailbox thread, but for `snapshot`.
"""

# A histogram of the SDK costs some microseconds a measurement, and there are three for each call: input
# tokens, output tokens, duration. So they are counted in histograms of ours, which add up over tasks, and
# become those of OpenTelemetry where they are exported (`pillarbox.aio.observe.gen_ai`).
#
# A span of the SDK costs a hundred times what a call costs here, so it is decided before an attempt begins
# whether it has one, by a random number and without the SDK. One that has runs in its span, which gets its
# usage at the end. Any other has a span only if it fails, made afterwards with the times that it had. What
# an operator calls is known once a call has said so: those that have begun before are as those not chosen.

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from random import random
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.usage import Usage
from pillarbox.mailbox.metrics import LatencyHistogram, LatencySnapshot

log = logging.getLogger("pillarbox")

SPAN_SHARE = "pillarbox.span_share"
"""The attribute of a tracer provider's resource that says which share of the calls have a span, 0 to 1."""

DEFAULT_SPAN_SHARE = 0.01
"""The share where the resource says none."""

MAX_SERIES = 100
"""Series of one operator, each of a model, a kind of tokens or of errors; those beyond are not counted."""

TOKEN_S = 1e-6
"""Seconds that stand for a token in a histogram, whose scale is one of seconds."""

OPERATION, PROVIDER, MODEL = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"
TOKEN_TYPE, ERROR_TYPE = "gen_ai.token.type", "error.type"

Values = list[float] | deque[float]
Series = tuple[str | None, str | None, str | None, str]
"""Operation, provider and model, and last the kind of tokens or of the error; empty for no error."""


def attributes_of(series: Iterable[str | None], last: str) -> dict[str, str]:
    """Return the attributes that a series has. last: the name of the attribute that comes last."""
    values = zip((OPERATION, PROVIDER, MODEL, last), series, strict=True)
    return {name: value for name, value in values if value}


def read_series(key: str) -> list[str | None]:
    """Return the series of a key of `Totals`."""
    series: list[str | None] = json.loads(key)
    return series


def span_share_of(provider: object) -> float:
    """Return the share of the calls that have a span. What is not from 0 to 1 is said, and no error."""
    resource = getattr(provider, "resource", None)
    given = (
        DEFAULT_SPAN_SHARE if resource is None else resource.attributes.get(SPAN_SHARE, DEFAULT_SPAN_SHARE)
    )
    # A text where it comes from the environment (OTEL_RESOURCE_ATTRIBUTES).
    with suppress(TypeError, ValueError):
        if 0.0 <= float(given) <= 1.0:
            return float(given)
    # Calls that are paid for do not fail for it.
    text = "%s=%r of the tracer provider's resource: must be from 0 to 1; %g is taken"
    log.warning(text, SPAN_SHARE, given, DEFAULT_SPAN_SHARE)
    return DEFAULT_SPAN_SHARE


def about_span(usage: Usage, error: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the attributes of a call's span; error: the type of its error, or empty."""
    series = usage.operation, usage.provider, usage.model, error
    name = f"{usage.operation} {usage.model}" if usage.model else str(usage.operation)
    return name, {**attributes_of(series, ERROR_TYPE)}


@dataclass
class CallSpan:
    """The span of an attempt, and the tokens that it has used so far."""

    span: Any
    input_tokens: float = 0.0
    output_tokens: float = 0.0


class GenAiMeter:
    """Counts what the calls of one operator used and how long they took, by operation, provider, model.

    span_share: with which probability `begin` chooses an attempt; 0 while it would choose none.
    context: that in which the job began; a span that is current there is the parent of all.
    """

    __slots__ = (
        *("_durations", "_names", "_open", "_parent", "_tokens", "_tracer", "_values"),
        *("context", "span_share"),
    )

    def __init__(self, context: Context) -> None:
        self.span_share = 0.0
        self.context = context
        self._durations: dict[Series, Histogram] = {}
        self._tokens: dict[Series, Histogram] = {}
        # By the series of durations: one look for each call.
        self._values: dict[Series, tuple[Values, Values, Values]] = {}
        self._names: Usage | None = None
        self._open: dict[Call, CallSpan] = {}
        self._parent: Any = None
        self._tracer: Any = None

    def begin(self, calls: Sequence[Call]) -> CallSpan | None:
        """Have an attempt for the rows of `calls` run in a span, if it is chosen: now, in this context.

        One that follows a failed attempt is chosen whatever the share.
        """
        attempt = calls[0].attempt
        if self._names is None or (attempt == 1 and random() >= self.span_share):
            return None
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        begun = CallSpan(self._start_span(self._names, "", attempt))
        # Nothing detaches it: a context in which a variable was set is that of one attempt.
        attach(set_span_in_context(begun.span))
        self._open.update(dict.fromkeys(calls, begun))
        return begun

    def end(self, calls: Sequence[Call], begun: CallSpan) -> None:
        """End the span of an attempt, whose usage or error has been counted."""
        for call in calls:
            if self._open.get(call) is begun:
                del self._open[call]
        begun.span.end()

    def failed(self, usage: Usage | None, seconds: float, call: Call, error: BaseException) -> None:
        """Count a call that failed; usage: None where the error says nothing of it."""
        if usage is None and self._names is not None:
            # Of what the calls before it were: an error of the connection knows no model.
            usage = self._names._replace(input_tokens=0.0, output_tokens=0.0)
        if usage is not None:
            self.ended(usage, seconds, call, type(error).__name__)

    def ended(self, usage: Usage, seconds: float, call: Call, error: str = "") -> None:
        """Count a call that took so long. error: the name of the type of the one that it failed with."""
        if usage.operation is None:
            return
        if not error:
            self._names = usage
        key = usage.operation, usage.provider, usage.model, error
        took, asked, answered = self._values.get(key) or self._new_values(key)
        took.append(seconds)
        if usage.input_tokens:
            asked.append(usage.input_tokens)
        if usage.output_tokens:
            answered.append(usage.output_tokens)
        # Without the module nobody has set a tracer up.
        if self._tracer is not None or ("opentelemetry.trace" in sys.modules and self._finds_tracer()):
            self._tell_span(usage, seconds, call, error)

    def _new_values(self, key: Series) -> tuple[Values, Values, Values]:
        """The lists of values of calls of one name, and with one error: seconds, tokens in, and out."""
        operation, provider, model, _ = key
        took = _values_of(self._durations, key)
        asked = _values_of(self._tokens, (operation, provider, model, "input"))
        answered = _values_of(self._tokens, (operation, provider, model, "output"))
        if len(self._values) < MAX_SERIES:
            self._values[key] = took, asked, answered
        return took, asked, answered

    def _finds_tracer(self) -> bool:
        from opentelemetry.context import get_current
        from opentelemetry.trace import ProxyTracerProvider, get_current_span, get_tracer_provider

        # A process sets one up once, perhaps in its first call.
        provider = get_tracer_provider()
        if isinstance(provider, ProxyTracerProvider):
            return False
        self._parent = self.context.run(get_current)
        parent = get_current_span(self._parent).get_span_context()
        self.span_share = float(parent.trace_flags.sampled) if parent.is_valid else span_share_of(provider)
        self._tracer = provider.get_tracer("pillarbox")
        return True

    def _start_span(self, names: Usage, error: str, attempt: int, start: int | None = None) -> Any:
        from opentelemetry.trace import SpanKind

        # By these attributes a sampler may decide.
        name, attributes = about_span(names, error)
        attributes["pillarbox.attempt"] = attempt
        return self._tracer.start_span(name, self._parent, SpanKind.CLIENT, attributes, start_time=start)

    def _tell_span(self, usage: Usage, seconds: float, call: Call, error: str) -> None:
        # What fails after its time-out has failed already, and its row may be called again by then.
        begun = self._open.pop(call, None) if error else self._open.get(call)
        if begun is None and not error and self.span_share < 1.0:
            return
        from opentelemetry.trace import Status, StatusCode

        end = time.time_ns()
        told = begun or CallSpan(self._start_span(usage, error, call.attempt, end - round(seconds * 1e9)))
        told.input_tokens += usage.input_tokens
        told.output_tokens += usage.output_tokens
        name, attributes = about_span(usage, error)
        attributes["gen_ai.usage.input_tokens"] = round(told.input_tokens)
        attributes["gen_ai.usage.output_tokens"] = round(told.output_tokens)
        told.span.update_name(name)
        told.span.set_attributes(attributes)
        if error:
            told.span.set_status(Status(StatusCode.ERROR))
        if begun is None:
            told.span.end(end)

    def fold(self) -> None:
        """Put what has come together into the histograms."""
        for histogram in self._durations.values():
            histogram.fold(1.0)
        for histogram in self._tokens.values():
            histogram.fold(TOKEN_S)

    def snapshot(self) -> dict[str, Any]:
        """The fields of `Totals` that are kept here. Any thread."""
        return {
            "operation_duration": _snapshots(self._durations),
            "token_usage": _snapshots(self._tokens),
            "tokens_used": {
                json.dumps(series): histogram.total
                for series, histogram in list(self._tokens.items())
                if histogram.total
            },
        }


class Histogram:
    """A histogram, the sum of all that is in it, and the values since it was folded: see `Meter`."""

    __slots__ = ("_histogram", "total", "values")

    def __init__(self) -> None:
        self._histogram = LatencyHistogram()
        self.total = 0.0
        self.values: list[float] = []

    def fold(self, seconds: float) -> None:
        """Put the values into the histogram. seconds: those that stand for a value of one."""
        if self.values:
            self._histogram.record_all([value * seconds for value in self.values])
            self.total += sum(self.values)
            self.values.clear()

    def snapshot(self) -> LatencySnapshot:
        """The values that were folded. Any thread."""
        return self._histogram.snapshot()


def _values_of(histograms: dict[Series, Histogram], series: Series) -> Values:
    histogram = histograms.get(series)
    if histogram is None:
        if len(histograms) >= MAX_SERIES:
            # Keeps nothing.
            return deque(maxlen=0)
        histogram = histograms[series] = Histogram()
    return histogram.values


def _snapshots(histograms: dict[Series, Histogram]) -> dict[str, LatencySnapshot]:
    found = [(series, histogram.snapshot()) for series, histogram in list(histograms.items())]
    return {json.dumps(series): snapshot for series, snapshot in found if snapshot.measurements}
