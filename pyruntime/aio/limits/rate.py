"""A rate of calls: what users give as `rate=...`. A value without state: safe in any thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillarbox.validate import check_function_or_none, check_positive_number


@dataclass(frozen=True)
class Rate:
    """Calls a second, units a minute, or both: a call begins when there is room for it in each.

    per_second: calls a second, retries included. None for no limit.
    units_per_minute: units a minute, such as the tokens of a language model (needs `weight`).
        None for no limit.
    weight: a function of the row that gives its units, 0 or more. Called on the operator's thread.
    burst: seconds of the rate that may be used at once after a pause. At least one call may always begin, and
        one that weighs more than a whole burst begins when nothing is used; the following ones wait for it.
    cool_down: seconds in which no call begins after an answer that says "overloaded" without saying how long.

    Over any time of t seconds no more than (burst + t) x rate begins, or a single heavier call.
    Retries count as calls. The rate holds for each task, or with a `Coordinator` for all together.
    The idea is the token bucket (Turner, "New directions in communications", 1986).

    Raises TypeError or ValueError that name the argument, its value and what is allowed.
    """

    per_second: float | None = None
    units_per_minute: float | None = None
    weight: Callable[[Any], float] | None = None
    burst: float = 1.0
    cool_down: float = 1.0

    def __post_init__(self) -> None:
        if self.per_second is None and self.units_per_minute is None:
            raise ValueError("per_second=None, units_per_minute=None: at least one of the two must be given")
        for name in ("per_second", "units_per_minute"):
            if getattr(self, name) is not None:
                check_positive_number(name, getattr(self, name))
        check_positive_number("burst", self.burst)
        check_positive_number("cool_down", self.cool_down)
        check_function_or_none("weight", self.weight)
        if (self.weight is None) != (self.units_per_minute is None):
            raise ValueError(
                f"units_per_minute={self.units_per_minute!r}, weight={self.weight!r}: give both or neither: "
                "weight says how many units a row needs"
            )

    def units_of(self, row: Any) -> float:
        """The units of a row; 1.0 where nothing weighs rows.

        Raises what `weight` raises, and TypeError or ValueError where it gives no finite number of 0 or more.
        """
        if self.weight is None:
            return 1.0
        units = self.weight(row)
        if type(units) is not float and type(units) is not int:
            try:
                units = float(units)
            except (TypeError, ValueError):
                raise TypeError(f"weight gave {units!r}: must give a number of units, 0 or more") from None
        # Also false for what is not a number.
        if not 0.0 <= units < math.inf:
            raise ValueError(f"weight gave {units!r}: must give a finite number of units, 0 or more")
        return units
