"""Counts and spans of calls to generative AI, from the first call on whose `Usage` names an operation.

What counts is in the ring `observe` (`pillarbox.aio.gen_ai`). Where it is not installed nothing is counted,
which is logged once. Confined to the mailbox thread, but for `snapshot`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.usage import Usage
from pillarbox.providers import GEN_AI_METER, provided

log = logging.getLogger("pillarbox")


class AiCalls:
    """The calls of one operator to generative AI.

    span_share: with which probability `begin` chooses an attempt; 0 while it would choose none.
    context: that in which the job began; a span that is current there is the parent of all.
    """

    __slots__ = ("_is_missing", "_meter", "context", "span_share")

    def __init__(self) -> None:
        self.span_share = 0.0
        self.context = Context()
        self._meter: Any = None
        self._is_missing = False

    def begin(self, calls: Sequence[Call]) -> Any:
        """Have an attempt for the rows of `calls` run in a span, if it is chosen: now, in this context."""
        return None if self._meter is None else self._meter.begin(calls)

    def end(self, calls: Sequence[Call], begun: Any) -> None:
        """End the span of an attempt, whose usage or error has been counted."""
        self._meter.end(calls, begun)

    def ended(self, usage: Usage, seconds: float, call: Call) -> None:
        """Count a call that gave a result, and took so long."""
        if self._meter is not None or self._counts(usage):
            self._meter.ended(usage, seconds, call)
            self.span_share = self._meter.span_share

    def failed(self, usage: Usage | None, seconds: float, call: Call, error: BaseException) -> None:
        """Count a call that failed; usage: None where the error says nothing of it."""
        if self._counts(usage):
            self._meter.failed(usage, seconds, call, error)
            self.span_share = self._meter.span_share

    def fold(self) -> None:
        """Put what has come together into the histograms."""
        if self._meter is not None:
            self._meter.fold()

    def snapshot(self) -> dict[str, Any]:
        """The fields of `Totals` that are kept here. Any thread."""
        return {} if self._meter is None else self._meter.snapshot()

    def _counts(self, usage: Usage | None) -> bool:
        """Return True if there is a meter, which the first usage that names an operation has made."""
        if self._meter is not None:
            return True
        if self._is_missing or usage is None or usage.operation is None:
            return False
        try:
            self._meter = provided(GEN_AI_METER, "operation")(self.context)
        except ModuleNotFoundError as error:
            self._is_missing = True
            log.warning("calls are not counted as those of generative AI: %s", error)
        return not self._is_missing
