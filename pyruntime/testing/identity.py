"""`identity`: a form of a row by which a test tells rows apart, however alike they look. Pure; any thread.

And `Alike`: rows that are equal, for a subject that must know each by where it is and not by its value.

Made for oracles: none of what ships compares rows by it, so a mistake there is not repeated here.
"""

# Why neither `==` nor `repr`. 1, 1.0 and True are equal, 0.0 and -0.0 too, and NaN is not equal to itself;
# the text of an array of NumPy has eight digits of a number, and of many numbers the first and the last
# three. An oracle that compares by one of them passes whatever mixes such rows up.
#
# Why every NaN is one unless it is asked for: a NaN that was computed has another sign than one that was
# written, and no service can be asked with the one and not with the other.

from __future__ import annotations

import datetime
import decimal
import enum
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

_bits = struct.Struct(">d").pack

_PLAIN = frozenset({str, bytes, int, bool, type(None)})


def identity(value: Any, *, nan_bits: bool = False) -> Hashable:
    """A hashable form of a value or a row: equal for two of the same types and content, to each bit.

    value: plain values, times, decimals, lists, tuples, rows of Spark, dicts, sets, arrays and scalars of
    NumPy and Arrow, and objects with fields or attributes; of any other object its `repr` counts. The order
    of a dict does not. nan_bits: tell NaNs apart by their bits.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, int):
        return kind, int(value)
    if isinstance(value, float):
        return kind, "nan" if value != value and not nan_bits else _bits(value)
    if isinstance(value, complex):
        return kind, identity(value.real, nan_bits=nan_bits), identity(value.imag, nan_bits=nan_bits)

    def all_of(values: Iterable[object]) -> tuple[Hashable, ...]:
        return tuple([identity(each, nan_bits=nan_bits) for each in values])

    if isinstance(value, list | tuple):
        # The names of a row of Spark are its own; another named tuple is of a class of its own.
        return kind, tuple(getattr(value, "__fields__", ())), all_of(value)
    if isinstance(value, Mapping):
        return kind, frozenset(map(all_of, value.items()))
    if isinstance(value, set | frozenset):
        return kind, frozenset(all_of(value))
    if isinstance(value, datetime.datetime | datetime.time):
        # A NaT of pandas is a datetime of the class of its own.
        return kind, value.isoformat(), getattr(value, "fold", 0), repr(value.tzinfo)
    if isinstance(value, decimal.Decimal):
        return kind, str(value)
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        return kind, repr(value.dtype), getattr(value, "shape", ()), _of_numpy(value, all_of)
    if hasattr(value, "as_py"):
        return kind, str(value.type), identity(value.as_py(), nan_bits=nan_bits)
    if hasattr(value, "to_pylist"):
        return kind, str(value.type), all_of(value.to_pylist())
    state = _state_of(value)
    return (kind, repr(value)) if state is None else (kind, all_of(state.items()))


def _of_numpy(value: Any, all_of: Callable[[Iterable[object]], Hashable]) -> Hashable:
    """The content of an array or scalar of NumPy; masked elements are missing."""
    if value.dtype.hasobject or value.dtype.kind in "fc" or hasattr(value, "mask"):
        flat = value.reshape(-1).tolist()
        return all_of(flat)
    content: bytes = value.tobytes()
    return content


def _state_of(value: object) -> dict[str, Any] | None:
    """The attributes of an object whose class was written in Python; None for another."""
    slots: list[str] = []
    for kind in type(value).__mro__:
        own = vars(kind).get("__slots__", ())
        slots += [own] if isinstance(own, str) else own
    if not slots and not getattr(value, "__dict__", None):
        return None
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**state, **getattr(value, "__dict__", {})}


class Alike(int):
    """A number that is equal to each other one of this class, and has its hash; `int` gives which it is.

    What looks a row up by its value, in a dict or in a list, takes one of these for another.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Alike({int(self)})"


def told_apart(value: object) -> Any:
    """A value in which `==` sees which `Alike` is where: in a list or tuple of any depth, or alone."""
    if isinstance(value, Alike):
        return Alike, int(value)
    if isinstance(value, list):
        return [*map(told_apart, value)]
    return tuple(map(told_apart, value)) if isinstance(value, tuple) else value
