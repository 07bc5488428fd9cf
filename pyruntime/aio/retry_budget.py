"""A retry budget: how many retries a task may make, so that retries do not finish off a service.

`RetryBudget` is a value: safe in any thread. Its account is confined to the mailbox thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from pillarbox.validate import check_int, check_number, check_positive_number

_SLOTS = 10
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RetryBudget:
    """Retries of one task, at most: in any `seconds`, `least` and a `share` of the rows begun.

    When a service fails, retries multiply the calls that it gets just then: three attempts make it three
    times as many. A budget bounds that. What is beyond it is not tried again: the row fails with the error
    that it has.

    share: retries for each row that was begun in the last `seconds` (0 or more; 0.2: one for five).
    least: retries in `seconds` that need no rows (0 or more), for tasks with few.
    seconds: how long rows and retries are counted, to a tenth of it.

    After the retry budgets of Finagle and of "Site Reliability Engineering" (Google, 2016, chapter 21).
    A value without state: safe in any thread. Raises TypeError or ValueError for a bad argument.
    """

    share: float = 0.2
    least: int = 10
    _: KW_ONLY
    seconds: float = 10.0

    def __post_init__(self) -> None:
        check_number("share", self.share, minimum=0.0)
        check_int("least", self.least, 0)
        check_positive_number("seconds", self.seconds)


class BudgetAccount:
    """What one operator has used of its budget. Confined to the mailbox thread."""

    __slots__ = ("_budget", "_clock", "_retries", "_rows", "_slot", "_width")

    def __init__(self, budget: RetryBudget, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._clock = clock
        self._width = budget.seconds / _SLOTS
        # Rings of slots, each for a tenth of the time: a time for each row would need memory for each.
        self._rows = [0] * _SLOTS
        self._retries = [0] * _SLOTS
        self._slot = math.floor(clock() / self._width)

    def row_begins(self) -> None:
        """A row's first attempt begins."""
        self._rows[self._turn()] += 1

    def take(self) -> bool:
        """Count a retry, if there is one left; otherwise False."""
        place = self._turn()
        allowed = self._budget.least + self._budget.share * sum(self._rows) + _ROUNDING
        if sum(self._retries) + 1 > allowed:
            return False
        self._retries[place] += 1
        return True

    def snapshot(self) -> list[tuple[int, int]]:
        """Rows and retries of each tenth of the time, the present one last."""
        place = self._turn()
        order = [(place + 1 + step) % _SLOTS for step in range(_SLOTS)]
        return [(self._rows[each], self._retries[each]) for each in order]

    def restore(self, counts: list[tuple[int, int]]) -> None:
        """Count on from a snapshot, as if no time had passed."""
        place = self._turn()
        for step, (rows, retries) in enumerate(counts):
            self._rows[(place + 1 + step) % _SLOTS] += rows
            self._retries[(place + 1 + step) % _SLOTS] += retries

    def _turn(self) -> int:
        slot = math.floor(self._clock() / self._width)
        for passed in range(max(self._slot + 1, slot - _SLOTS + 1), slot + 1):
            self._rows[passed % _SLOTS] = self._retries[passed % _SLOTS] = 0
        self._slot = slot
        return slot % _SLOTS
