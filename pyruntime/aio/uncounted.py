"""The costs of an operator where nothing counts them. Confined to the mailbox thread."""

from __future__ import annotations

import logging
from typing import Any

from pillarbox.aio.usage import Result, Usage
from pillarbox.providers import COST_POLICY, check_provided

log = logging.getLogger("pillarbox")


class UncountedCosts:
    """Stands for a `CostPolicy` that is not installed, which is logged with the first usage that is said."""

    looks = bills_requests = False

    def __init__(self) -> None:
        self._has_said = False

    def accept(self, call: object, result: Any) -> Any:
        """Return the result alone."""
        if type(result) is not Result:
            return result
        self._say(result.usage)
        return result.value

    def bill_late(self, call: object, result: Any) -> tuple[Any, float]:
        """Return the result alone, and no cost."""
        return self.accept(call, result), 0.0

    def bill_batch(self, calls: object, usage: Usage) -> bool:
        """Return True: nothing else counts it either."""
        self._say(usage)
        return True

    def bill_request(self, calls: object, usage: Usage, seconds: float, knows_cost: bool) -> None:
        """Count nothing."""
        self._say(usage)

    def bill_error(self, calls: object, error: BaseException) -> None:
        """Count nothing, and end no job."""

    def _say(self, usage: Usage | None) -> None:
        if self._has_said or usage is None:
            return
        self._has_said = True
        try:
            check_provided(COST_POLICY, "usage")
        except ModuleNotFoundError as error:
            log.warning("the cost of calls is not counted: %s", error)
