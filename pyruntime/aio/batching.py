"""The option `Batch`, which puts rows together into one call. A value without state: safe in any thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox.providers import BATCH_SCHEDULER, check_provided
from pillarbox.validate import (
    check_bool,
    check_duration,
    check_function_or_none,
    check_positive_int,
    check_positive_number,
    naming_arguments,
)


@naming_arguments
@dataclass(frozen=True)
class Batch:
    """Call the function with a list of rows; it returns a list of as many results, by position.

    size: rows of a batch, at most.
    linger: seconds that a row waits for other rows, at most, while a slot is free; 0 for no wait. A batch
        does not wait if no more rows can arrive.
    weight: a function of the row that returns its weight, 0 or more, such as bytes or tokens. It is called
        once for each row, on the operator's thread; if it raises, its row fails.
    max_weight: total weight of a batch, at most. A heavier row is called alone.
    arrow: for a DataFrame: the function takes a `pyarrow.RecordBatch` (for `async_udf` a `pyarrow.Array` for
        each argument) and may return one, or a NumPy array with one result in each row. Values of rows do not
        become Python objects.

        >>> from pillarbox import Batch, async_map
        >>> async def call(rows):
        ...     return [f"{row} of {len(rows)}" for row in rows]
        >>> list(async_map(["a", "b", "c"], call, batch=Batch(2)))
        ['a of 2', 'b of 2', 'c of 1']

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    size: int = 64
    linger: float = 0.01
    weight: Callable[[Any], float] | None = None
    max_weight: float | None = None
    arrow: bool = False

    def __post_init__(self) -> None:
        check_provided(BATCH_SCHEDULER, "batch")
        check_positive_int("size", self.size)
        check_bool("arrow", self.arrow)
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
        """Weight of `row`; 0 where nothing weighs rows.

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
