"""How rows are put together into one call. A value without state: safe in any thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox.validate import (
    check_duration,
    check_function_or_none,
    check_positive_int,
    check_positive_number,
)


@dataclass(frozen=True)
class Batch:
    """Call the function with a list of rows; it gives a list of as many results, by position.

    size: rows in a batch, at most.
    linger: seconds that a row waits for others, at most, while there is a slot; 0 to wait for none. Where
        no row can come, a batch does not wait.
    weight: a function of the row that gives what it weighs, 0 or more: its bytes, its tokens. Called once
        for a row, on the operator's thread; a row for which it raises fails.
    max_weight: what the rows of a batch weigh together, at most. A row that is heavier is called alone.

    Raises TypeError or ValueError that name the argument, its value and what is allowed.
    """

    size: int = 64
    linger: float = 0.01
    weight: Callable[[Any], float] | None = None
    max_weight: float | None = None

    def __post_init__(self) -> None:
        check_positive_int("size", self.size)
        check_duration("linger", self.linger)
        if (self.weight is None) != (self.max_weight is None):
            raise ValueError(
                f"weight={self.weight!r}, max_weight={self.max_weight!r}: give both or neither: "
                "weight says what a row weighs, max_weight what a batch may"
            )
        if self.weight is not None:
            check_function_or_none("weight", self.weight, "the row")
            check_positive_number("max_weight", self.max_weight)

    def weight_of(self, row: Any) -> float:
        """What `row` weighs; 0 where nothing weighs rows.

        Raises what `weight` raises, and TypeError or ValueError where it gives no finite number of 0 or more.
        """
        if self.weight is None:
            return 0.0
        weight = self.weight(row)
        if isinstance(weight, bool) or not hasattr(weight, "__float__"):
            raise TypeError(f"weight gave {weight!r}: must give a number, 0 or more")
        number = float(weight)
        if not 0.0 <= number < math.inf:
            raise ValueError(f"weight gave {weight!r}: must give a finite number, 0 or more")
        return number
