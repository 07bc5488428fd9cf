"""Values as keys that tell apart what a service would, and results that equal rows do not share. Pure.

`exact` gives for a row what is compared of it, `copied` for a result one that its row may change. Any thread.
"""

# Python's own equality is that of numbers and instants: 1, 1.0 and True are one key of a dict, at whatever
# depth of a tuple they stand, and so are 0.0 and -0.0, two prices of another number of digits, and noon in
# Paris and eleven in London. A service gets texts, in which they differ. So what is compared stands beside
# its type, and numbers and times stand there as they are written. Where in doubt two values differ: that
# costs a call, and the other way round costs an answer that is wrong.
#
# A class of a user compares its objects as it likes, but for dataclasses, whose comparison Python wrote.
#
# Why results are copied here and not with `copy.deepcopy` alone: what most functions give, dicts and lists of
# texts and numbers, is copied twenty times as fast by their own types, and a result that nobody can change,
# the usual one, not at all.

from __future__ import annotations

import copy
import datetime
import decimal
import fractions
import functools
import struct
import uuid
from collections.abc import Hashable, Mapping
from pathlib import PurePath
from typing import Any

from pillarbox.aio.sizes import Weighed

_bits = struct.Struct("<d").pack

_BY_VALUE = frozenset(
    {str, int, bool, bytes, type(None), datetime.date, datetime.timedelta, uuid.UUID, fractions.Fraction}
)
"""Types whose values are equal where they are written alike."""


def exact(value: Any) -> Hashable:
    """A key of `value`: equal to that of another of the same types at every depth that is written alike.

    Raises TypeError for what has no hash, which says what to do.
    """
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind is tuple:
        kinds = tuple(map(type, value))
        # The usual row, without a line of Python for each value.
        return (kinds, value) if _BY_VALUE.issuperset(kinds) else (kind, *map(exact, value))
    if kind is float:
        return kind, _bits(value)
    return kind, _written(value, kind)


def _written(value: Any, kind: type) -> Hashable:
    if isinstance(value, datetime.datetime | datetime.time):
        # With its zone, as it is named: the same instant is another text in another.
        return value.replace(tzinfo=None), value.fold, repr(value.tzinfo)
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, tuple):
        # The names of a Row are its own; another named tuple is of a class of its own.
        names = getattr(value, "__fields__", ())
        return tuple(names), tuple(map(exact, value))
    if isinstance(value, frozenset):
        return tuple(map(exact, value))
    if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
        _check_hash(value)
        return value.dtype.str, value.tobytes()
    if isinstance(value, float):
        return _bits(value)
    if isinstance(value, complex):
        return _bits(value.real), _bits(value.imag)
    if isinstance(value, range | PurePath):
        # Empty ranges are equal, as are some paths of Windows.
        return repr(value)
    # Of a class that says so by itself there is none for an object that can be changed.
    _check_hash(value)
    if isinstance(value, Mapping):
        return tuple([(exact(name), exact(each)) for name, each in value.items()])
    names = _compared_fields(kind)
    return value if names is None else tuple([exact(getattr(value, name)) for name in names])


def _check_hash(value: Any) -> None:
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(
            f"dedupe: rows are compared, and a value of type {type(value).__name__} has no hash ({error}): "
            "give a function of what is compared, such as dedupe=lambda row: tuple(row.values)"
        ) from None


@functools.lru_cache(maxsize=256)
def _compared_fields(kind: Any) -> tuple[str, ...] | None:
    """The fields by which objects of a class are compared that a library has written; None for others."""
    if hasattr(kind, "__dataclass_fields__"):
        fields = kind.__dataclass_fields__.values()
        return tuple([each.name for each in fields if each.compare]) if kind.__dataclass_params__.eq else None
    if hasattr(kind, "__attrs_attrs__"):
        return tuple([each.name for each in kind.__attrs_attrs__ if each.eq])
    names = getattr(kind, "model_fields", None) or getattr(kind, "__struct_fields__", None)
    return None if names is None else tuple(names)


# -- results -------------------------------------------------------------------------------------------------

_UNCHANGING = _BY_VALUE | frozenset(
    {float, complex, decimal.Decimal, datetime.datetime, datetime.time, range, type(...), datetime.timezone}
)
"""Types whose values nobody can change, with all that they hold."""


def copied(value: Any) -> Any:
    """`value` if nobody can change it, otherwise a copy with copies of all that it holds.

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
