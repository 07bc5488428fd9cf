"""The identity of a record: 16 bytes that are the same in every process, on every machine, in every Python.

Values are written down in one canonical way, type before content, and hashed (BLAKE2b). Not with `hash`,
which is salted, and not with pickle, whose bytes depend on the version and on which objects are shared.
`fingerprint` is pure; a `KeyMaker` counts, so it belongs to one thread, the one that reads the rows of a
task.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pillarbox.ledger.errors import LedgerValueError

KEY_BYTES = 16
_LONG = 10**100
_pack = struct.Struct("<Q").pack


def canonical(value: Any) -> bytes:
    """`value` in one way of writing that depends on nothing but its type and content. Any thread.

    Known are None, bool, int, float, str, bytes, list, tuple, dict, set, date, time, datetime, timedelta,
    Decimal, UUID and the scalars and arrays of numpy. A dict is written by its keys' order in this very
    encoding, not by that of its insertion. 1, 1.0 and True differ, and so do 0.0 and -0.0; every NaN is one.
    Raises LedgerValueError for others.
    """
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def fingerprint(value: Any, what: str = "") -> bytes:
    """16 bytes for `value`; `what` tells apart what happens to look the same. Any thread.

    Raises LedgerValueError as `canonical` does.
    """
    return _hashed(_hasher(what), canonical(value))


@functools.cache
def _hasher(what: str, begin: bytes = b"") -> Any:
    """What has hashed `begin`, to be copied: that costs a third of making one."""
    return hashlib.blake2b(begin, digest_size=KEY_BYTES, person=what.encode()[:16])


def _hashed(hasher: Any, content: bytes) -> bytes:
    copy = hasher.copy()
    copy.update(content)
    digest: bytes = copy.digest()
    return digest


def config_hash(config: Mapping[str, Any] | None) -> str:
    """Hexadecimal digits for what of an operator's configuration decides about its results. Any thread."""
    return fingerprint(dict(config or {}), "config").hex()[:16]


class KeyMaker:
    """Gives each row of a task its key. For one thread.

    columns: names (rows that are mappings or have such attributes) or positions (rows that are sequences) of
    what
        identifies a row; None to take the whole row. Whoever names columns says that their values do not come
        twice, or that rows with the same ones may share a result.

    Without columns, equal rows of a task are counted: the second one has a key of its own. For that it holds
    the keys of all rows of the task, some 130 bytes each. Idea: the occurrence numbers with which relational
    systems tell equal rows of a bag apart.
    """

    def __init__(self, columns: Sequence[str | int] | None = None) -> None:
        if columns is not None:
            if isinstance(columns, str) or not isinstance(columns, Sequence):
                raise TypeError(f"columns={columns!r}: must be a list of names or positions, or None")
            if not columns:
                raise ValueError(f"columns={columns!r}: must name a column, or be None for the whole row")
            for column in columns:
                if isinstance(column, bool) or not isinstance(column, str | int):
                    raise TypeError(f"columns={columns!r}: {column!r} is neither a name nor a position")
        self._columns = None if columns is None else tuple(columns)
        self._seen: dict[bytes, int] = {}
        # Most keys are one column: the list of its one value is hashed up to there.
        self._only = columns[0] if columns is not None and len(columns) == 1 else None
        self._hasher = _hasher("key", _list_of(1))

    def __call__(self, row: Any) -> bytes:
        """The key of `row`, the next one of the task. Raises LedgerValueError; KeyError without a column."""
        if self._only is not None:
            parts: list[bytes] = []
            _write(_field(row, self._only), parts)
            return _hashed(self._hasher, parts[0] if len(parts) == 1 else b"".join(parts))
        if self._columns is not None:
            return fingerprint([_field(row, column) for column in self._columns], "key")
        key = fingerprint(row, "row")
        count = self._seen.get(key, 0)
        self._seen[key] = count + 1
        return key if count == 0 else fingerprint([key, count], "again")


def _field(row: Any, column: str | int) -> Any:
    try:
        if type(row) is dict or type(column) is int or isinstance(row, Mapping):
            return row[column]
        return getattr(row, str(column))
    except (KeyError, IndexError, AttributeError, TypeError):
        raise KeyError(f"key: a row has no column {column!r}") from None


def _list_of(length: int) -> bytes:
    return b"l" + _pack(length)


def _sized(tag: bytes, content: bytes, parts: list[bytes]) -> None:
    parts.append(tag + _pack(len(content)) + content)


def _write(value: Any, parts: list[bytes]) -> None:
    kind = type(value)
    if kind is str:
        _sized(b"s", value.encode("utf-8", "surrogatepass"), parts)
    elif kind is int:
        _sized(b"i", str(value).encode() if -_LONG < value < _LONG else hex(value).encode(), parts)
    elif kind is float:
        parts.append(b"f" + (b"nan-----" if value != value else struct.pack("<d", value)))
    elif value is None:
        parts.append(b"n")
    elif kind is bool:
        parts.append(b"T" if value else b"F")
    else:
        _write_other(value, parts)


def _write_other(value: Any, parts: list[bytes]) -> None:
    if isinstance(value, bytes | bytearray | memoryview):
        _sized(b"b", bytes(value), parts)
    elif isinstance(value, tuple | list):
        # Rows of Spark and named tuples are tuples: what counts is their values.
        parts.append(b"t" + _pack(len(value)) if isinstance(value, tuple) else _list_of(len(value)))
        for item in value:
            _write(item, parts)
    elif isinstance(value, Mapping):
        items = _sorted(value)
        parts.append(b"d" + _pack(len(items)))
        for key, item in items:
            parts.append(key)
            _write(item, parts)
    elif isinstance(value, set | frozenset):
        members = sorted(canonical(item) for item in value)
        parts.append(b"S" + _pack(len(members)) + b"".join(members))
    elif isinstance(value, datetime.datetime):
        # An instant, its offset, and which of two equal wall clock times: the name of the zone is not needed.
        _sized(b"D", f"{value.isoformat()} {value.fold}".encode(), parts)
    elif isinstance(value, datetime.date):
        _sized(b"A", value.isoformat().encode(), parts)
    elif isinstance(value, datetime.time):
        _sized(b"C", f"{value.isoformat()} {value.fold}".encode(), parts)
    elif isinstance(value, datetime.timedelta):
        _sized(b"E", f"{value.days} {value.seconds} {value.microseconds}".encode(), parts)
    elif isinstance(value, decimal.Decimal):
        _sized(b"M", str(value).encode(), parts)
    elif isinstance(value, uuid.UUID):
        _sized(b"U", value.bytes, parts)
    elif isinstance(value, int | float | str):
        _write_subclass(value, parts)
    elif type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        _write_array(value, parts)
    else:
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise LedgerValueError(
            f"a value of type {name} has no fingerprint: name the columns that identify a row, with key=[...]"
        )


def _sorted(value: Mapping[Any, Any]) -> list[tuple[bytes, Any]]:
    return sorted(((canonical(key), item) for key, item in value.items()), key=lambda pair: pair[0])


def _write_subclass(value: Any, parts: list[bytes]) -> None:
    """An enumeration's member, or a str of a library: it has the plain value of its base."""
    if isinstance(value, int):
        _write(int(value), parts)
    elif isinstance(value, float):
        _write(float(value), parts)
    else:
        _write(str.__str__(value), parts)


def _write_array(value: Any, parts: list[bytes]) -> None:
    if getattr(value, "shape", ()) == ():
        _write(value.tolist(), parts)
        return
    _sized(b"N", f"{value.dtype.str} {value.shape}".encode(), parts)
    if value.dtype.hasobject:
        _write(value.tolist(), parts)
    else:
        _sized(b"b", value.tobytes(), parts)
