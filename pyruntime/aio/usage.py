"""What a call used, as the hook `usage` says it.

`Usage` is a value without state: safe in any thread. A `Bill` is confined to the mailbox thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.aio.errors import said
from pillarbox.redaction import DEFAULT, Redact

if TYPE_CHECKING:
    from pillarbox.aio.limits.limiter import RateLimiter
    from pillarbox.aio.meter import Meter

log = logging.getLogger("pillarbox")


class Usage(NamedTuple):
    """What one call cost, in a currency of the user's choice, and the tokens that it used."""

    cost: float = 0.0
    tokens: float = 0.0


def usage_of(said: Any) -> Usage:
    """What the hook `usage` returned, as a `Usage`: None is nothing, a number is a cost.

    Raises TypeError or ValueError for anything else.
    """
    if said is None:
        return Usage()
    used = said if isinstance(said, Usage) else Usage(said)
    for value in used:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"usage gave {said!r}: must be a number, a pillarbox.Usage or None")
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"usage gave {said!r}: must be finite and not below 0")
    return used


class CostTracker:
    """Adds up what the calls of one operator used, where its hook says it, and tells the gate of the cost."""

    __slots__ = ("_gate", "_meter", "_redact", "_usage")

    def __init__(
        self,
        usage: Callable[[Any, Any], Any] | None,
        meter: Meter,
        gate: RateLimiter | None,
        redact: Redact = DEFAULT,
    ) -> None:
        self._usage = usage
        self._meter = meter
        self._gate = gate
        self._redact = redact

    def pay(self, row: Any, result: Any) -> float:
        """A call gave `result`; returns its cost. Raises what the hook raises, and what its answer lacks."""
        if self._usage is None:
            return 0.0
        used = usage_of(self._usage(row, result))
        self._meter.cost += used.cost
        self._meter.tokens += used.tokens
        if self._gate is not None:
            self._gate.spend(used.cost)
        return used.cost

    def late(self, row: Any, result: Any) -> None:
        """The same for a result that came too late for its row, so that no row can be failed."""
        try:
            self.pay(row, result)
        except BaseException as error:
            text = said(error, self._redact.about(row, result))
            log.warning("usage raised for a late result: %s: %s", type(error).__name__, text)
