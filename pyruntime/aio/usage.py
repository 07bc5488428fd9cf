"""What a call used, as the hook `usage` says it. A value without state: safe in any thread."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


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
