"""Estimates of the bytes that a row or a result holds. Pure: any thread."""

# Results are weighed one by one on the path of every row, so the usual ones must cost next to nothing: a
# text or a list of numbers is one or two calls in C. What nests is followed, up to a bound of work.
# Libraries that follow every reference (pympler, `gc.get_referents`) are exact, and take longer than most
# calls would allow; to pickle a result and take its length copies it. An estimate that is right within a
# factor of two is enough to keep the memory of a task bounded.

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Collection, Mapping
from sys import getrefcount, getsizeof
from typing import Any

SMALL_TYPES = frozenset({bool, complex, float, int, type(None), decimal.Decimal, uuid.UUID}) | frozenset(
    {datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
)
"""Types whose values are so small that a result of one is not worth weighing."""

_FLAT = frozenset({bool, float, type(None)})
"""Types of numbers whose values all take as much."""

_LEAVES = SMALL_TYPES | {bytearray, bytes, str}

MAX_PARTS = 4096
"""Parts of one value that are looked at."""

MAX_SAMPLE = 64
"""Elements of one long collection that are looked at, spread over it; the others count like those."""


SMALL_BYTES = -(-getsizeof(0.5) // 16) * 16
"""Bytes that a number takes in a collection: memory is given out in steps of 16, and a float has 24, or
40 without a GIL."""

STEP_BYTES = 8
"""Bytes that are given out with a value and not used, on average."""

CALL_BYTES = 448
"""Bytes of a row that waits besides what it holds: its call, its times, its place and its handle."""

LEDGER_BYTES = 416
"""Bytes of such a row besides, where a ledger keeps its result: its key, its input, and their places in the
index and in the part that is written. By the resident memory of 130,000 short results."""

ARROW_BYTES = 464
"""Bytes of an Arrow array beside its buffers and its Python object: C++ objects, unknown to Python.

As pyarrow 26 has them. Where vectors are short, that is most of what they hold.
"""


class Weighed:
    """Base of values that know the bytes that they hold: `nbytes`."""

    __slots__ = ("nbytes",)

    nbytes: int


def size_of(value: object) -> int:
    """Bytes of `value` with all that it holds. An estimate: what is shared counts each time."""
    kind = type(value)
    if kind in _LEAVES:
        return getsizeof(value)
    if isinstance(value, Weighed):
        return value.nbytes
    parts = MAX_PARTS
    stack: list[tuple[Any, float]] = []
    size = _add(value, kind, 1.0, stack)
    while stack and parts > 0:
        value, times = stack.pop()
        before = len(stack)
        size += times * _add(value, type(value), times, stack)
        parts -= 1 + len(stack) - before
    return int(size)


def _add(value: object, kind: type, times: float, stack: list[tuple[Any, float]]) -> float:
    """Bytes of `value` and of its parts that hold no others, which go on the stack, `times` as often."""
    size = float(getsizeof(value, 64))
    if isinstance(value, Mapping):
        if kind is not dict:
            size += 32 * len(value)
        values: Collection[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, tuple | list | set | frozenset):
        values = value
    else:
        held = getattr(value, "nbytes", 0)
        if type(held) is int:
            # Of a view too; an array that has its bytes itself has told them by now.
            size = max(size, float(held), _base_bytes(value))
            if held and hasattr(value, "buffers"):
                size += ARROW_BYTES
        values = _attributes(value)
    each_for = 1.0
    if len(values) > MAX_SAMPLE:
        some = [*values] if not isinstance(values, list | tuple) else values
        values = some[:: -(-len(some) // MAX_SAMPLE)]
        kinds = {*map(type, values)}
        if kinds <= SMALL_TYPES:
            return size + len(some) * (SMALL_BYTES if kinds <= _FLAT else _mean_bytes(values[::8]))
        each_for = len(some) / len(values)
    for each in values:
        inner = type(each)
        if inner in _FLAT:
            size += each_for * SMALL_BYTES
        elif inner in _LEAVES:
            size += each_for * (getsizeof(each) + STEP_BYTES)
        elif inner is not type:
            # A class, as a key of an equal row has it, is there anyway.
            stack.append((each, times * each_for))
    return size


def _base_bytes(view: object) -> float:
    """Bytes of the array that `view` is a part of and keeps: its share, as all views of one keep it."""
    base = getattr(view, "base", None)
    held = getattr(base, "nbytes", 0)
    # Besides the views the name here and the argument of the call refer to it.
    return held / max(1, getrefcount(base) - 2) if type(held) is int else 0.0


def _mean_bytes(values: Collection[Any]) -> float:
    return sum(map(getsizeof, values)) / len(values) + STEP_BYTES


def _attributes(value: object) -> Collection[Any]:
    held = getattr(value, "__dict__", None)
    if type(held) is dict and not isinstance(value, type):
        return held.values()
    kind = type(value)
    fields: Any = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "__attrs_attrs__", None) or ()
    return [getattr(value, each if isinstance(each, str) else each.name, None) for each in fields]
