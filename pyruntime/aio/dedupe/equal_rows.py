"""Values as keys that tell apart what a service would: `exact` gives what is compared of a row. Pure.

Any thread.
"""

# Python's own equality is that of numbers and instants: 1, 1.0 and True are one key of a dict, at whatever
# depth of a tuple they stand, and so are 0.0 and -0.0, two prices of another number of digits, and noon in
# Paris and eleven in London. A service gets texts, in which they differ. So what is compared stands beside
# its type, and numbers and times stand there as they are written. Where in doubt two values differ: that
# costs a call, and the other way round costs an answer that is wrong.
#
# A class of a user compares its objects as it likes, but for dataclasses, whose comparison Python wrote: two
# objects of one whose user wrote it are equal where both ways say so. Scalars of Arrow and intervals of
# pandas take 0.0 for -0.0, so they are compared by what they hold.

from __future__ import annotations

import datetime
import decimal
import functools
import struct
from collections.abc import Hashable, Mapping
from pathlib import PurePath
from typing import Any

from pillarbox.aio.copies import BY_VALUE

_bits = struct.Struct("<d").pack


def exact(value: Any) -> Hashable:
    """A key of `value`: equal to that of another of the same types at every depth that is written alike.

    Raises TypeError for what has no hash, which says what to do.
    """
    kind = type(value)
    if kind in BY_VALUE:
        return kind, value
    if kind is tuple:
        kinds = tuple(map(type, value))
        # The usual row, without a line of Python for each value.
        return (kinds, value) if BY_VALUE.issuperset(kinds) else (kind, *map(exact, value))
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
    if hasattr(value, "as_py") and hasattr(value, "type"):
        return str(value.type), _held(value)
    if hasattr(value, "closed_left") and hasattr(value, "closed"):
        return exact(value.left), exact(value.right), value.closed
    # Of a class that says so by itself there is none for an object that can be changed.
    _check_hash(value)
    if isinstance(value, Mapping):
        return _of_items(value)
    names = _compared_fields(kind)
    if names is None:
        return value  # type: ignore[no-any-return]
    # Pydantic has what was given beyond its fields, where that is allowed, apart.
    extra = getattr(value, "__pydantic_extra__", None) or {}
    fields = tuple([exact(getattr(value, name)) for name in names]), _of_items(extra)
    return (value, fields) if _is_compared_by_user(kind) else fields


def _of_items(items: Mapping[Any, Any]) -> Hashable:
    return tuple([(exact(name), exact(each)) for name, each in items.items()])


def _held(scalar: Any) -> Hashable:
    """Return the value of an Arrow scalar, in a form that has a hash."""

    def frozen(value: object) -> Hashable:
        if isinstance(value, list):
            return tuple(map(frozen, value))
        if isinstance(value, tuple):
            return tuple, *map(frozen, value)
        if isinstance(value, dict):
            return tuple([(name, frozen(each)) for name, each in value.items()])
        return exact(value)

    try:
        return frozen(scalar.as_py())
    except (ValueError, OverflowError):
        # A time that Python does not have, which Arrow compares by its number.
        _check_hash(scalar)
        return scalar  # type: ignore[no-any-return]


def _check_hash(value: object) -> None:
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


@functools.lru_cache(maxsize=256)
def _is_compared_by_user(kind: object) -> bool:
    """Return True if a class with fields has an `__eq__` that no library has written."""
    compare = kind.__eq__
    code = getattr(compare, "__code__", None)
    if code is None or compare.__module__.partition(".")[0] == "pydantic":
        return False
    # The names that dataclasses and attrs give to what they write.
    return not code.co_filename.startswith(("<string>", "<attrs generated"))
