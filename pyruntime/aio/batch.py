"""How rows are put together into one call. A value without state: safe in any thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox.aio.check import check_function_or_none, check_positive_number
from pillarbox.mailbox.check import check_positive_int


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
        linger = self.linger
        if isinstance(linger, bool) or not isinstance(linger, int | float):
            raise TypeError(f"linger={linger!r}: must be a number of seconds, not {type(linger).__name__}")
        if not math.isfinite(linger) or linger < 0:
            raise ValueError(f"linger={linger!r}: must be a finite number of seconds, 0 or more")
        if (self.weight is None) != (self.max_weight is None):
            raise ValueError(
                f"weight={self.weight!r}, max_weight={self.max_weight!r}: give both or neither: "
                "weight says what a row weighs, max_weight what a batch may"
            )
        if self.weight is not None:
            if not callable(self.weight):
                raise TypeError(
                    f"weight={self.weight!r}: must be a function of the row or None, "
                    f"not {type(self.weight).__name__}"
                )
            check_function_or_none("weight", self.weight)
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
