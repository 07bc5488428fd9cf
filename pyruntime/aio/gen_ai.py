"""Counts and spans of calls to generative AI, under the names of OpenTelemetry's conventions for it.

A `Usage` tells of each call; one that names an operation is counted here, and is a span where the process has
a tracer. Confined to the mailbox thread, but for `snapshot`.
"""

# A histogram of the SDK costs some microseconds a measurement, and there are three for each call: input
# tokens, output tokens, duration. So they are counted in histograms of ours, which add up over tasks, and
# become those of OpenTelemetry where they are exported (`pillarbox.aio.observe.gen_ai`).
#
# A span is made when its attempt has ended, with the times that it had: only then is known which model
# answered, and what it used. The price is that it is not the parent of what the function does. Which of them
# are kept is the sampler's business of whoever has set the tracer up; where nobody has, nothing is made.

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pillarbox.mailbox.metrics import LatencyHistogram, LatencySnapshot

if TYPE_CHECKING:
    from pillarbox.aio.usage import Usage

MAX_SERIES = 100
"""Series of one operator, each of a model, a kind of tokens or of errors; those beyond are not counted."""

TOKEN_S = 1e-6
"""Seconds that stand for a token in a histogram, whose scale is one of seconds."""

OPERATION, PROVIDER, MODEL = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"
TOKEN_TYPE, ERROR_TYPE = "gen_ai.token.type", "error.type"

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


class GenAiMeter:
    """Counts what the calls of one operator used and how long they took, by operation, provider, model."""

    __slots__ = ("_durations", "_names", "_provider", "_spans", "_tokens", "_tracer", "_used")

    def __init__(self) -> None:
        self._durations: dict[Series, LatencyHistogram] = {}
        self._tokens: dict[Series, LatencyHistogram] = {}
        self._used: dict[Series, float] = {}
        self._names: Usage | None = None
        self._spans: dict[Series, tuple[str, dict[str, str]]] = {}
        self._provider: Any = None
        self._tracer: Any = None

    def ended(self, usage: Usage, seconds: float, attempt: int) -> None:
        """Count a call that gave a result, and took so long."""
        if usage.operation is not None:
            self._names = usage
            self._count(usage, seconds, attempt, "")

    def failed(self, usage: Usage | None, seconds: float, attempt: int, error: BaseException) -> None:
        """Count a call that failed; usage: None where the error says nothing of it."""
        if usage is None and self._names is not None:
            # Of what the calls before it were: an error of the connection knows no model.
            usage = self._names._replace(input_tokens=0.0, output_tokens=0.0)
        if usage is not None and usage.operation is not None:
            self._count(usage, seconds, attempt, type(error).__name__)

    def _count(self, usage: Usage, seconds: float, attempt: int, error: str) -> None:
        names = usage.operation, usage.provider, usage.model
        _record(self._durations, (*names, error), seconds)
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            series = (*names, kind)
            if tokens and _record(self._tokens, series, tokens * TOKEN_S):
                self._used[series] = self._used.get(series, 0.0) + tokens
        # Without the module nobody has set a tracer up.
        if "opentelemetry.trace" in sys.modules:
            self._make_span(usage, seconds, attempt, error)

    def _make_span(self, usage: Usage, seconds: float, attempt: int, error: str) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, get_tracer_provider

        provider = get_tracer_provider()
        if provider is not self._provider:
            self._provider, self._tracer = provider, provider.get_tracer("pillarbox")
        series = usage.operation, usage.provider, usage.model, error
        about = self._spans.get(series)
        if about is None:
            name = f"{usage.operation} {usage.model}" if usage.model else str(usage.operation)
            about = name, attributes_of(series, ERROR_TYPE)
            if len(self._spans) < MAX_SERIES:
                self._spans[series] = about
        name, attributes = about
        end = time.time_ns()
        # The attributes are those that a sampler may decide by; most spans may not be kept.
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, start_time=end - round(seconds * 1e9), attributes=attributes
        )
        if span.is_recording():
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": round(usage.input_tokens),
                    "gen_ai.usage.output_tokens": round(usage.output_tokens),
                    "pillarbox.attempt": attempt,
                }
            )
            if error:
                span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def snapshot(self) -> dict[str, Any]:
        """The fields of `Totals` that are kept here. Any thread."""
        return {
            "operation_duration": _snapshots(self._durations),
            "token_usage": _snapshots(self._tokens),
            "tokens_used": {json.dumps(series): tokens for series, tokens in list(self._used.items())},
        }


def _record(histograms: dict[Series, LatencyHistogram], series: Series, value: float) -> bool:
    histogram = histograms.get(series)
    if histogram is None:
        if len(histograms) >= MAX_SERIES:
            return False
        histogram = histograms[series] = LatencyHistogram()
    histogram.record(value)
    return True


def _snapshots(histograms: dict[Series, LatencyHistogram]) -> dict[str, LatencySnapshot]:
    return {json.dumps(series): histogram.snapshot() for series, histogram in list(histograms.items())}
