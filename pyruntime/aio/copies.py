"""Results that rows of one call do not share: `copied` gives one that a row may change. Pure; any thread."""

# Why results are copied here and not with `copy.deepcopy` alone: what most functions give, dicts and lists of
# texts and numbers, is copied twenty times as fast by their own types, and a result that nobody can change,
# the usual one, not at all.

from __future__ import annotations

import copy
import datetime
import decimal
import fractions
import uuid
from typing import Any

from pillarbox.aio.sizes import Weighed

BY_VALUE = frozenset(
    {str, int, bool, bytes, type(None), datetime.date, datetime.timedelta, uuid.UUID, fractions.Fraction}
)
"""Types whose values are equal where they are written alike."""
_UNCHANGING = BY_VALUE | frozenset(
    {float, complex, decimal.Decimal, datetime.datetime, datetime.time, range, type(...), datetime.timezone}
)
"""Types whose values cannot be changed, nor anything that they hold."""


def copied(value: object) -> Any:
    """Return `value` if it cannot be changed, otherwise a copy with copies of all that it holds.

    What cannot be copied, such as an object with a lock or a connection, is given as it is.
    """
    for copy_of in (_copy, copy.deepcopy):
        try:
            return copy_of(value)
        except Exception:
            # A list that holds itself has an end for the second way only.
            continue
    return value


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is list:
        return value.copy() if _UNCHANGING.issuperset(map(type, value)) else [*map(_copy, value)]
    if kind is dict:
        if _UNCHANGING.issuperset(map(type, value.values())):
            return value.copy()
        return {name: _copy(each) for name, each in value.items()}
    if kind is tuple:
        return value if _UNCHANGING.issuperset(map(type, value)) else tuple(map(_copy, value))
    if isinstance(value, Weighed) or kind.__module__.startswith("pyarrow."):
        return value
    return copy.deepcopy(value)
