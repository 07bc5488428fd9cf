"""The form of a kept result: JSON, with long lists of floats and bytes beside it, exact and safe to read.

Reading runs no code, as that of a pickle would, so a ledger in a shared bucket does not open a way into a
worker; and whoever can read Arrow and JSON can read it. What JSON cannot say is an object with one key that
begins with `$`. Pure: any thread.
"""

# Why a subclass is not written as its base: `type(value) is ...` throughout. A row that comes from the ledger
# must be what the call gave, or a job gives other rows after a restart than without; a `defaultdict` that
# came back as a dict would fail somewhere behind, in the second run only. So what cannot be given back as it
# was is an error in the first run, where somebody looks.
#
# Why tags in objects of one key, and not a schema: results have any shape. A dict of the user's that looks
# like a tag (one key that begins with `$`) is written as a list of pairs, so no value can be taken for one.

from __future__ import annotations

import datetime
import decimal
import functools
import json
import math
import re
import uuid
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pillarbox.ledger.errors import LedgerValueError

MIN_PACKED_FLOATS = 8
"""Lists of at least as many floats, and of nothing else, go beside the JSON."""

MAX_DEPTH = 100
"""Containers in each other, at most: JSON is read by recursion."""


class Encoded(NamedTuple):
    """A value as a ledger keeps it."""

    json: str
    floats: Sequence[Sequence[float]]
    """The lists for which `{"$floats": i}` in the JSON stands."""
    blobs: Sequence[bytes]
    """The bytes for which `{"$bytes": i}` stands."""


# What is dumped was made here, so that nothing in it holds itself.
_dump = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
_load = json.JSONDecoder().raw_decode
_dump_escaped = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


def encode(value: Any) -> Encoded:
    """`value` as it is kept; `decode` gives back one that is equal and of the same types. Any thread.

    Raises LedgerValueError for a value that has no form.
    """
    if type(value) is list and _is_packed(value):
        # An embedding, which is what most ledgers are for.
        return Encoded(_ONE_LIST, [array("d", value)], [])
    # As is one of NumPy's, alone or as the only value of a row.
    vector = value[0] if type(value) is tuple and len(value) == 1 else value
    kind = type(vector)
    is_array = kind.__name__ == "ndarray" and kind.__module__ == "numpy"
    if is_array and vector.ndim == 1 and vector.dtype.kind in "biuf":
        text = _vector_text(vector.dtype.str, len(vector), vector is not value)
        return Encoded(text, [], [vector.tobytes()])
    floats: list[array[float]] = []
    blobs: list[bytes] = []
    plain = _plain(value, floats, blobs, MAX_DEPTH)
    text = _dump(plain)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # A lone surrogate cannot be UTF-8; escaped, it can.
            text = _dump_escaped(plain)
    return Encoded(text, floats, blobs)


def encode_all(values: Iterable[Any]) -> list[Encoded | LedgerValueError]:
    """`encode` of each, or its error. Any thread."""
    forms: list[Encoded | LedgerValueError] = []
    for value in values:
        try:
            forms.append(encode(value))
        except LedgerValueError as error:
            forms.append(error)
    return forms


@functools.lru_cache(maxsize=64)
def _vector_text(dtype: str, length: int, in_tuple: bool) -> str:
    """The JSON of a vector of NumPy, as the general way writes it."""
    vector = {"$numpy": [dtype, [length], 0]}
    return _dump({"$tuple": [vector]} if in_tuple else vector)


def encode_vectors(matrix: Any, in_tuple: bool) -> tuple[str, memoryview]:
    """The JSON of each row of a matrix of numbers, and their blobs one after another, without a copy.

    matrix: of NumPy, whose rows are in one piece of memory. in_tuple: the value is a tuple of the vector.
    Decoded, each is what `encode` of the row alone gives back. Any thread.
    """
    text = _vector_text(matrix.dtype.str, matrix.shape[1], in_tuple)
    return text, memoryview(matrix.reshape(-1).view("u1"))


def vector_form(text: str) -> tuple[Any, int] | None:
    """The type of numbers and the length of the vector that is kept under `text`; None for other values."""
    import numpy

    match = _VECTOR.fullmatch(text)
    if match is None:
        return None
    try:
        dtype = numpy.dtype(match[1])
    except TypeError:
        return None
    # To the letter what is written here, where brackets are closed.
    length = int(match[2])
    return (
        (dtype, length) if text in {_vector_text(match[1], length, each) for each in (False, True)} else None
    )


_VECTOR = re.compile(
    r'(?:\{"\$tuple":\[)?\{"\$numpy":\["([<>|][biuf][0-9]{1,2})",\[([1-9][0-9]{0,8})\],0\]\}(?:\]\})?'
)


def decode(text: str, floats: Sequence[Sequence[float]], blobs: Sequence[bytes]) -> Any:
    """The value that was encoded. Any thread.

    Raises LedgerValueError for what no version has written.
    """
    try:
        plain, end = _load(text)
        if end != len(text):
            raise ValueError(f"there is more behind character {end}")
        return plain if type(plain) is str else _value(plain, floats, blobs)
    except LedgerValueError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RecursionError) as error:
        raise LedgerValueError(f"a kept value cannot be read: {type(error).__name__}: {error}") from error


def _plain(value: Any, floats: list[array[float]], blobs: list[bytes], depth: int) -> Any:
    """`value` in what JSON has."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if -_INT_LIMIT < value < _INT_LIMIT else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if depth == 0:
        raise LedgerValueError(f"containers may be {MAX_DEPTH} deep in a kept value, at most")
    if kind is list:
        if _is_packed(value):
            floats.append(array("d", value))
            return {"$floats": len(floats) - 1}
        return [
            item if type(item) in _AS_THEY_ARE else _plain(item, floats, blobs, depth - 1) for item in value
        ]
    if kind is tuple:
        return {"$tuple": _plain(list(value), floats, blobs, depth - 1)}
    if kind is dict:
        if set(map(type, value)) <= _STR and not (len(value) == 1 and next(iter(value))[:1] == "$"):
            # The fields of most results are texts and numbers: a call for each would be half of the time.
            plain: dict[str, Any] = {}
            for key, item in value.items():
                form = type(item)
                if form in _AS_THEY_ARE or (form is int and -_INT_LIMIT < item < _INT_LIMIT):
                    plain[key] = item
                else:
                    plain[key] = _plain(item, floats, blobs, depth - 1)
            return plain
        pairs = [[_plain(part, floats, blobs, depth - 1) for part in pair] for pair in value.items()]
        return {"$dict": pairs}
    if kind is bytes:
        blobs.append(value)
        return {"$bytes": len(blobs) - 1}
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value)
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biuf":
        blobs.append(value.tobytes())
        shape = None if _is_scalar(value) else list(value.shape)
        return {"$numpy": [value.dtype.str, shape, len(blobs) - 1]}
    raise LedgerValueError(
        f"a result of type {kind.__module__}.{kind.__qualname__} cannot be kept in a ledger; kept are None, "
        "bool, int, float, str, bytes, list, tuple, dict, date, time, datetime with a fixed offset, "
        "timedelta, Decimal, UUID and numpy's numbers and arrays. Return one of these"
    )


_AS_THEY_ARE = frozenset({str, bool, type(None)})
"""The types of values that JSON has, whatever they are."""
_INT_LIMIT = 10**300
"""Python refuses to read longer numbers from a text."""
_STR = {str}
_FLOAT = {float}
_ONE_LIST = '{"$floats":0}'


def _is_packed(value: list[Any]) -> bool:
    return len(value) >= MIN_PACKED_FLOATS and type(value[0]) is float and set(map(type, value)) == _FLOAT


# By the class's name: a ledger of other values works without NumPy.
def _is_scalar(value: object) -> bool:
    return "generic" in {base.__name__ for base in type(value).__mro__}


def _write_datetime(value: datetime.datetime) -> dict[str, Any]:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        raise LedgerValueError(
            f"a result is a datetime with a {type(value.tzinfo).__name__}: a ledger keeps naive "
            "ones and those with a datetime.timezone. Use .astimezone(timezone.utc)"
        )
    return {"$datetime": [value.isoformat(), value.fold]}


def _write_time(value: datetime.time) -> dict[str, Any]:
    if value.tzinfo is not None:
        raise LedgerValueError("a result is a time with a time zone: a ledger keeps naive ones")
    return {"$time": [value.isoformat(), value.fold]}


_WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    datetime.datetime: _write_datetime,
    datetime.date: lambda value: {"$date": value.isoformat()},
    datetime.time: _write_time,
    datetime.timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    decimal.Decimal: lambda value: {"$decimal": str(value)},
    uuid.UUID: lambda value: {"$uuid": str(value)},
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$datetime": lambda pair: datetime.datetime.fromisoformat(pair[0]).replace(fold=pair[1]),
    "$date": datetime.date.fromisoformat,
    "$time": lambda pair: datetime.time.fromisoformat(pair[0]).replace(fold=pair[1]),
    "$timedelta": lambda parts: datetime.timedelta(*parts),
    "$decimal": decimal.Decimal,
    "$uuid": uuid.UUID,
}


def _value(plain: object, floats: Sequence[Sequence[float]], blobs: Sequence[bytes]) -> Any:
    if type(plain) is list:
        return [_value(item, floats, blobs) for item in plain]
    if type(plain) is not dict:
        return plain
    if len(plain) == 1:
        (tag, content), *_ = plain.items()
        if tag[:1] == "$":
            return _tagged(tag, content, floats, blobs)
    return {key: _value(item, floats, blobs) for key, item in plain.items()}


def _tagged(tag: str, content: Any, floats: Sequence[Sequence[float]], blobs: Sequence[bytes]) -> Any:
    if tag in _READERS:
        return _READERS[tag](content)
    if tag == "$tuple":
        return tuple(_value(content, floats, blobs))
    if tag == "$floats":
        part = floats[content]
        return part if type(part) is list else list(part)
    if tag == "$bytes":
        return blobs[content]
    if tag == "$dict":
        return dict([_value(part, floats, blobs) for part in pair] for pair in content)
    if tag == "$numpy":
        import numpy

        kind, shape, blob = content
        flat = numpy.frombuffer(blobs[blob], dtype=numpy.dtype(kind))
        # A copy: NumPy's view of a buffer cannot be written to, and the array of the call could.
        return flat[0] if shape is None else flat.reshape(shape).copy()
    raise LedgerValueError(f"a kept value has the unknown form {tag}")
