"""The identity of a run, of a row and of its input: the same bytes in every process and every Python.

Values are written down in one canonical way, type before content, and hashed (BLAKE2b). `fingerprint` is
pure; a `KeyMaker` and a `RowIdentity` count, so they belong to one thread, the one that reads the rows of a
task.

A row's *key* says which row it is, its *input* what the function was given. The input is kept column by
column, 12 bytes each: 4 for the column's name, 8 for its value. So what differs can be named, and who later
says that only some columns count finds what was kept before.
"""

# Not with `hash`, which is salted, and not with pickle, whose bytes depend on the version and on which
# objects are shared. JSON has no bytes, dates and decimals, and writes a tuple as it does a list.
#
# Why 16 bytes for a key and 8 for a value. Two rows with one key get one answer, and nobody sees it: among
# 10^9 rows 128 bits let that happen with a chance of 10^-21. A value is compared with one other only, that of
# the same row before: 64 bits are wrong once in 10^19 changes, and the prints of all columns stay short. They
# are checked against accidents, not against somebody who looks for a collision: the ledger is the user's own.
#
# Why a null in a key is not taken as a value. It says that a row is not known by that column, as in SQL,
# where null equals nothing. Else all rows without a customer would share the answer of the first.

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import functools
import hashlib
import secrets
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat, starmap
from operator import itemgetter
from types import BuiltinFunctionType
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from pillarbox.ledger.errors import LedgerValueError
from pillarbox.validate import check_int, check_text

KEY_BYTES = 16
EXECUTION_BYTES = 8
NAME_BYTES = 4
VALUE_BYTES = 8
COLUMN_BYTES = NAME_BYTES + VALUE_BYTES
"""Bytes of a column in the fingerprint of an input."""
_DECIMAL_LIMIT = 10**100
Column: TypeAlias = Sequence[Any]
"""The values of a column of many rows."""
Columns: TypeAlias = "tuple[list[Column], tuple[Any, ...], list[Column]]"
"""Columns of the key; names of the other columns that count; these columns."""
MIN_ROWS_OF_COLUMNS = 4
"""Rows that are written down by columns, at least: of fewer ones each alone is as cheap."""
_pack = struct.Struct("<Q").pack
_pack_float = struct.Struct("<d").pack


def canonical(value: Any) -> bytes:
    """`value` in one way of writing that depends on nothing but its type and content. Any thread.

    Known are None, bool, int, float, str, bytes, list, tuple, dict, set, date, time, datetime, timedelta,
    Decimal, UUID and the scalars and arrays of numpy. A dict is written by its keys' order in this very
    encoding, not by that of its insertion. 1, 1.0 and True differ, and so do 0.0 and -0.0; every NaN is one.
    Raises LedgerValueError for others.
    """
    # Each form begins with a tag of its own and says its length, so that no two values are written alike.
    # The first ones are what most keys and inputs are.
    kind = type(value)
    if kind is str:
        content = value.encode("utf-8", "surrogatepass")
        return b"s" + _pack(len(content)) + content  # type: ignore[no-any-return]
    if kind is int:
        # Python refuses to write longer ones in decimal digits.
        digits = str(value) if -_DECIMAL_LIMIT < value < _DECIMAL_LIMIT else hex(value)
        content = digits.encode()
        return b"i" + _pack(len(content)) + content
    if kind is float:
        return b"f" + (b"nan-----" if value != value else _pack_float(value))
    if value is None:
        return b"n"
    if kind is bool:
        return b"T" if value else b"F"
    if isinstance(value, tuple | list):
        # Rows of Spark and named tuples are tuples: what counts is their values.
        tag = b"t" if isinstance(value, tuple) else b"l"
        return tag + _pack(len(value)) + b"".join(map(canonical, value))
    if isinstance(value, Mapping):
        # By the bytes of their encodings: keys of several types have no order of their own.
        pairs = sorted(((canonical(key), item) for key, item in value.items()), key=itemgetter(0))
        return b"d" + _pack(len(pairs)) + b"".join([key + canonical(item) for key, item in pairs])
    if isinstance(value, set | frozenset):
        return b"S" + _pack(len(value)) + b"".join(sorted(map(canonical, value)))
    for base, tag, content_of in _SIMPLE_FORMS:
        if isinstance(value, base):
            return _sized(tag, content_of(value))
    # An enumeration's member, or a str of a library: it has the plain value of its base.
    for base, plain in ((int, int), (float, float), (str, str.__str__)):
        if isinstance(value, base):
            return canonical(plain(value))
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return _canonical_array(value)
    raise LedgerValueError(
        f"a value of type {kind.__module__}.{kind.__qualname__} has no fingerprint: name the columns that "
        "identify a row, with key=[...], or in a cache those that count, with inputs=[...]"
    )


def canonical_column(values: Sequence[Any]) -> list[bytes]:
    """`canonical` of each value of a column. Any thread. Raises LedgerValueError as that does."""
    kinds = set(map(type, values))
    if kinds == {str}:
        texts = [value.encode("utf-8", "surrogatepass") for value in values]
        return _sized_all(b"s", texts)
    if kinds == {int} and min(values) > -_DECIMAL_LIMIT and max(values) < _DECIMAL_LIMIT:
        numbers = [str(value).encode() for value in values]
        return _sized_all(b"i", numbers)
    if len(kinds) == 1 and len(values) >= MIN_ROWS_OF_COLUMNS:
        (kind,) = kinds
        if kind is dict:
            return _canonical_dicts(values) or [*map(canonical, values)]
        if issubclass(kind, tuple | list) and len(lengths := {*map(len, values)}) == 1 and lengths != {0}:
            head = (b"t" if issubclass(kind, tuple) else b"l") + _pack(len(values[0]))
            return _joined([repeat(head), *map(canonical_column, zip(*values, strict=True))])
    return [*map(canonical, values)]


def _canonical_dicts(values: Sequence[dict[Any, Any]]) -> list[bytes] | None:
    """`canonical` of dicts that have the same texts for keys, in one order; None for any others."""
    names = [*values[0]]
    if {*map(type, names)} != {str} or any([*value] != names for value in values):
        return None
    columns = zip(*[value.values() for value in values], strict=True)
    by_name = sorted(zip(map(canonical, names), columns, strict=True), key=itemgetter(0))
    parts: list[Iterable[bytes]] = [repeat(b"d" + _pack(len(names)))]
    for name, column in by_name:
        parts += [repeat(name), canonical_column(column)]
    return _joined(parts)


def _joined(parts: Sequence[Iterable[bytes]]) -> list[bytes]:
    """The bytes of each row: of its parts, one after another. Those of all rows alike are repeated."""
    return [*map(b"".join, zip(*parts, strict=False))]


def _sized_all(tag: bytes, contents: Sequence[bytes]) -> list[bytes]:
    heads = {length: tag + _pack(length) for length in set(map(len, contents))}
    return [heads[len(content)] + content for content in contents]


def _sized(tag: bytes, content: bytes) -> bytes:
    return tag + _pack(len(content)) + content


def _parts(value: datetime.timedelta) -> list[int]:
    # A Timedelta of pandas has nanoseconds too.
    nanoseconds: int = getattr(value, "nanoseconds", 0)
    parts = [value.days, value.seconds, value.microseconds]
    return [*parts, nanoseconds] if nanoseconds else parts


def _canonical_array(value: Any) -> bytes:
    if getattr(value, "shape", ()) == ():
        plain = value.tolist()
        # A time in a unit that Python has no time of is a bare number there, one that is missing None, and a
        # number that Python does not have is what it was.
        if not (
            plain is None
            or type(plain) is type(value)
            or (value.dtype.kind in "mM" and isinstance(plain, int))
        ):
            return canonical(plain)
    # With the byte order that `dtype.str` has: the same bytes are other numbers in the other order. That of
    # a structure has its size alone.
    kind = value.dtype.str if value.dtype.fields is None else repr(value.dtype)
    head = _sized(b"N", f"{kind} {value.shape}".encode())
    if value.dtype.hasobject:
        return head + canonical(value.tolist())
    if value.dtype.char in "gG":
        # Of a long number some bytes are left over, in which anything may stand.
        return head + canonical([repr(each) for each in value.reshape(-1)])
    return head + _sized(b"b", value.tobytes())


# In this order: a datetime is a date, too. Of a datetime count the instant, its offset, and which of two
# equal wall clock times it is; the name of the zone does not.
_SIMPLE_FORMS: tuple[tuple[Any, bytes, Callable[[Any], bytes]], ...] = (
    ((bytes, bytearray, memoryview), b"b", bytes),
    (datetime.datetime, b"D", lambda value: f"{value.isoformat()} {value.fold}".encode()),
    (datetime.date, b"A", lambda value: value.isoformat().encode()),
    (datetime.time, b"C", lambda value: f"{value.isoformat()} {value.fold}".encode()),
    (datetime.timedelta, b"E", lambda value: " ".join(map(str, _parts(value))).encode()),
    (decimal.Decimal, b"M", lambda value: str(value).encode()),
    (uuid.UUID, b"U", lambda value: value.bytes),
)
_SIMPLE_TYPES = (str, int, float, *(base for base, _, _ in _SIMPLE_FORMS))


def fingerprint(value: object, what: str = "") -> bytes:
    """16 bytes for `value`; `what` tells apart what happens to look the same. Any thread.

    Raises LedgerValueError as `canonical` does.
    """
    return _hashed(_hasher(what), canonical(value))


@functools.cache
def _hasher(what: str, begin: bytes = b"") -> Any:
    """A hasher that has hashed `begin`, to be copied: that costs a third of making one."""
    return hashlib.blake2b(begin, digest_size=KEY_BYTES, person=what.encode()[:16])


_ROW_HASHER = _hasher("row")


def _hashed(hasher: Any, content: bytes) -> bytes:
    copy = hasher.copy()
    copy.update(content)
    digest: bytes = copy.digest()
    return digest


def _hashed_column(hasher: Any, contents: Sequence[bytes]) -> list[bytes]:
    """`_hashed` of each, without a line of Python for it."""
    kind, copies = type(hasher), [*starmap(hasher.copy, repeat((), len(contents)))]
    deque(map(kind.update, copies, contents), maxlen=0)
    return [*map(kind.digest, copies)]


def _hashed_rows(hasher: object, columns: Sequence[Column]) -> list[bytes]:
    """`_hashed` of each row: of the canonical forms of its values, one after another."""
    parts = [canonical_column(column) for column in columns]
    return _hashed_column(hasher, parts[0] if len(parts) == 1 else _joined(parts))


def config_hash(config: Mapping[str, Any] | None) -> str:
    """Hexadecimal digits for what of an operator's configuration decides about its results. Any thread."""
    return fingerprint(dict(config or {}), "config").hex()[:16]


def execution_id(*parts: str) -> bytes:
    """The identity of an execution that `parts` name; a new one without any. Any thread.

    An execution is one action of one run. Its tasks, and each task's retries, have the same parts.
    """
    return (
        fingerprint(parts, "execution")[:EXECUTION_BYTES] if parts else secrets.token_bytes(EXECUTION_BYTES)
    )


def name_print(name: object) -> bytes:
    """The mark of a column's name in the fingerprint of an input."""
    return fingerprint(name, "name")[:NAME_BYTES]


def is_answer(kept: bytes, input: bytes, some: bool) -> bool:
    """Return True if the answer kept for the input `kept` is one for `input`. Pure.

    some: only some columns count, those of `input`; what else was kept is no matter.
    """
    if kept == input:
        return True
    if len(kept) < len(input) or (len(kept) != len(input) and not some):
        return False
    known = _columns_of(kept)
    return all(known.get(name) == value for name, value in _columns_of(input).items())


def _columns_of(input: bytes) -> dict[bytes, bytes]:
    return {
        input[at : at + NAME_BYTES]: input[at + NAME_BYTES : at + COLUMN_BYTES]
        for at in range(0, len(input), COLUMN_BYTES)
    }


class RowIdentity:
    """Gives each row of a task its key, and the fingerprint of its input. For one thread.

    key: gives the values of a row's key columns; None where a row is known by its content. A row one of whose
        values is None has no key, and is known by its content too.
    inputs: gives the names and the values of the columns that count besides those of the key.
    content: gives what a row without a key is known by; None for the row itself. names: of the columns in
        it, where it has none.
    shown: names of columns in messages, where they are others.
    columns: gives the same by columns, of many rows: those of the key, then the names and those of `inputs`;
        None where these rows have no names in common.
    contents: gives by columns what many rows are known by that have no key.

    Rows that are known by their content are counted as a `KeyMaker` counts them.
    """

    def __init__(
        self,
        key: Callable[[Any], Sequence[Any]] | None,
        inputs: Callable[[Any], tuple[tuple[Any, ...], Sequence[Any]]],
        content: Callable[[Any], Any] | None,
        names: tuple[Any, ...] | None = None,
        shown: Mapping[Any, str] | None = None,
        columns: Callable[[Sequence[Any]], Columns | None] | None = None,
        contents: Callable[[Sequence[Any]], list[Column]] | None = None,
    ) -> None:
        self._value_hasher = hashlib.blake2b(digest_size=VALUE_BYTES, person=b"input")
        self._shown = shown or {}
        self._key = key
        self._inputs = inputs
        self._content = content
        self._columns = None if key is None else columns
        self._contents = contents if key is None else None
        # How often each key by content has come; None where equal rows share one.
        self._seen: dict[bytes, int] | None = {}
        self._names: dict[bytes, Any] = {}
        self._prints: dict[tuple[Any, ...], list[tuple[bytes, int]]] = {}
        # What is known by its content needs no input besides: a row that has changed is another row. Only of
        # which columns it was the content is kept.
        self._of_content = b"" if names is None else self._print((NAMES_OF_ALL,), [names])
        self._hasher: Any = None
        self.has_key = key is not None
        self.shares = self.has_key
        """Rows with equal keys share one call."""

    def sharing(self, key: Callable[[Any], Any] | None = None) -> RowIdentity:
        """The identity of the same rows where equal ones, of all tasks, share one call: they are not counted.

        key: gives what is compared of a row, in place of the key and of what else counts.
        """
        shared = copy.copy(self)
        shared.shares = True
        shared._seen = None
        if key is not None:
            shared._key = lambda row: (key(row),)
            shared._inputs = _no_inputs
            shared._hasher = shared._columns = shared._contents = None
        return shared

    def __call__(self, row: object) -> tuple[bytes, bytes]:
        """Key and input of the next row. Raises LedgerValueError; KeyError without a column."""
        if self._key is not None:
            values = self._key(row)
            parts: list[bytes] = []
            for value in values:
                if value is None:
                    break
                parts.append(canonical(value))
            else:
                if self._hasher is None:
                    self._hasher = _hasher("key", b"l" + _pack(len(values)))
                key = _hashed(self._hasher, b"".join(parts))
                names, columns = self._inputs(row)
                return key, self._print(names, columns) if names else b""
        content = canonical(row if self._content is None else self._content(row))
        return self._counted([_hashed(_ROW_HASHER, content)])[0], self._of_content

    def _counted(self, digests: list[bytes]) -> list[bytes]:
        """The keys of the next rows, which have these contents."""
        seen = self._seen
        if seen is None:
            return digests
        new = dict.fromkeys(digests, 1)
        if len(new) == len(digests) and seen.keys().isdisjoint(new):
            seen.update(new)
            return digests
        keys = []
        for digest in digests:
            count = seen.get(digest, 0)
            seen[digest] = count + 1
            keys.append(digest if count == 0 else fingerprint([digest, count], "again"))
        return keys

    def of_rows(self, rows: Sequence[Any]) -> tuple[list[bytes], list[bytes]]:
        """Keys and inputs of the next rows, one at least, by columns. Raises as a call for each does."""
        # What has no fingerprint is named where each row is looked at.
        with suppress(LedgerValueError):
            if self._key is None:
                if (digests := self._content_digests(rows)) is not None:
                    return self._counted(digests), [self._of_content] * len(rows)
            elif self._columns is not None and (found := self._columns(rows)) is not None:
                keys, names, inputs = found
                if all(None not in column for column in keys):
                    hasher = _hasher("key", b"l" + _pack(len(keys)))
                    return _hashed_rows(hasher, keys), self._prints_of_columns(names, inputs, len(rows))
        pairs = [self(row) for row in rows]
        return [key for key, _ in pairs], [input for _, input in pairs]

    def _content_digests(self, rows: Sequence[Any]) -> list[bytes] | None:
        """The digests of rows without a key; None where each row is to be hashed alone."""
        if self._contents is None:
            contents = rows if self._content is None else [*map(self._content, rows)]
            return _hashed_column(_ROW_HASHER, canonical_column(contents))
        whole = self._contents(rows)
        if not whole:
            # Without columns all rows are equal, and there is nothing that says how many they are.
            return None
        return _hashed_rows(_hasher("row", b"t" + _pack(len(whole))), whole)

    def _prints_of_columns(self, names: tuple[Any, ...], columns: list[Column], rows: int) -> list[bytes]:
        """`_print` of each row."""
        parts = []
        for prefix, place in self._prints.get(names) or self._prefixes(names):
            digests = _hashed_column(self._value_hasher, canonical_column(columns[place]))
            parts.append([prefix + digest for digest in digests])
        if len(parts) == 1:
            return parts[0]
        return [*map(b"".join, zip(*parts, strict=True))] if parts else [b""] * rows

    def differing(self, kept: bytes, input: bytes, some: bool = False) -> list[str]:
        """The names of the columns in which two inputs differ; some: as for `is_answer`."""
        one, other = _columns_of(kept), _columns_of(input)
        names = [name for name in other if one.get(name) != other[name]]
        if not some:
            names += [name for name in one if name not in other]
        return [self._show(self._names.get(name, GONE)) for name in names]

    def _show(self, name: object) -> str:
        return self._shown.get(name, str(name))

    def _prefixes(self, names: tuple[Any, ...]) -> list[tuple[bytes, int]]:
        """The mark of each name and its place, in the order of the marks: a row may have them in another."""
        if len(self._prints) >= MAX_COLUMN_SETS:
            self._prints.clear()
        prefixes = [name_print(name) for name in names]
        self._names.update(zip(prefixes, names, strict=True))
        places = self._prints[names] = sorted((prefix, place) for place, prefix in enumerate(prefixes))
        return places

    def _print(self, names: tuple[Any, ...], values: Sequence[Any]) -> bytes:
        out: list[bytes] = []
        hasher = self._value_hasher.copy
        try:
            for prefix, place in self._prints.get(names) or self._prefixes(names):
                copy = hasher()
                copy.update(canonical(values[place]))
                out.append(prefix)
                out.append(copy.digest())
        except LedgerValueError as error:
            raise LedgerValueError(
                f"column {self._show(names[place])!r}: {str(error).partition(': ')[0]}, which would "
                "say whether a row's input has changed: name the columns that count, with "
                "Ledger(..., inputs=[...])"
            ) from None
        return b"".join(out)


NAMES_OF_ALL = "the names of the columns"
GONE = "a column that is no longer there"
MAX_COLUMN_SETS = 1000
"""Sets of names whose fingerprints are held."""


def identity_of_values(key: Sequence[str | int] | None, inputs: Sequence[str | int] | None) -> RowIdentity:
    """The identity of rows that are mappings, sequences, or objects with attributes.

    key, inputs: names or positions of columns, None for the whole row and for all columns.
    """
    of_key = None if key is None else _fields(key)
    known = () if key is None else tuple(key)
    if inputs is None:
        others = _AllColumns(known)

        def columns(rows: Sequence[Any]) -> Columns | None:
            found = others.of_rows(rows)
            return None if found is None else (_columns(rows, known), *found)

        return RowIdentity(of_key, others, None, columns=columns)
    own = tuple(column for column in inputs if column not in known)
    return RowIdentity(
        of_key,
        _named_fields(own),
        _fields((*known, *own)),
        (*known, *own),
        columns=lambda rows: (_columns(rows, known), own, _columns(rows, own)),
    )


def identity_of_source(key: Sequence[str | int] | None) -> RowIdentity:
    """The identity of rows whose key alone is asked for; key: as for `identity_of_values`."""
    return RowIdentity(None if key is None else _fields(key), _no_inputs, None)


class ChainedIdentity(RowIdentity):
    """The identity of rows that another function of a chain gave. For one thread.

    The key is that of the row of the task's input, with the places in the results of the functions in front;
    the input is what the function itself gets. inputs: names or positions of the columns that count of that,
    None for all.
    """

    def __init__(self, inputs: Sequence[str | int] | None) -> None:
        super().__init__(None, _AllColumns(()) if inputs is None else _named_fields(tuple(inputs)), None)
        self.has_key = True

    def sharing(self, key: Callable[[Any], Any] | None = None) -> RowIdentity:
        """The identity of rows by what the function gets, whichever record of the input they come from."""
        return ContentIdentity(self._inputs).sharing(key)

    def __call__(self, call: Any) -> tuple[bytes, bytes]:
        """Key and input of a call. Raises LedgerValueError; KeyError without a column."""
        key = _hashed(_hasher("chained"), call.identity + canonical(call.ordinal))
        names, values = self._inputs(call.row)
        return key, self._print(names, values) if names else b""


def _no_inputs(row: object) -> tuple[tuple[Any, ...], Sequence[Any]]:
    return (), ()


def _fields(columns: Sequence[str | int]) -> Callable[[Any], list[Any]]:
    """A function that gives the values of these columns of a row."""
    return lambda row: [_field(row, column) for column in columns]


def _named_fields(columns: tuple[str | int, ...]) -> Callable[[Any], tuple[tuple[Any, ...], list[Any]]]:
    """A function that gives the names and the values of these columns of a row."""
    return lambda row: (columns, [_field(row, column) for column in columns])


class ContentIdentity(RowIdentity):
    """The identity of rows by what a function gets of them: equal rows have one key. For one thread.

    content: gives the names and the values of the columns that count. columns: gives the same of many rows,
    the values by columns; None where rows are looked at one by one. A null is a value like others here.
    """

    def __init__(
        self,
        content: Callable[[Any], tuple[tuple[Any, ...], Sequence[Any]]],
        columns: Callable[[Sequence[Any]], tuple[tuple[Any, ...], list[Column]]] | None = None,
    ) -> None:
        super().__init__(None, content, None)
        self._columns_of_content = columns
        self._hashers: dict[tuple[Any, ...], Any] = {}
        self.has_key = self.shares = True

    def sharing(self, key: Callable[[Any], Any] | None = None) -> RowIdentity:
        """The identity of the same rows: they share one call in any case; key: as of a `RowIdentity`."""
        if key is None:
            return self
        inputs = self._inputs
        return RowIdentity(None, inputs, lambda row: [*map(list, inputs(row))]).sharing(key)

    def __call__(self, row: object) -> tuple[bytes, bytes]:
        """Key and input of a row; the key says all. Raises LedgerValueError; KeyError without a column."""
        names, values = self._inputs(row)
        return _hashed(self._hasher_of(names), b"".join(map(canonical, values))), b""

    def of_rows(self, rows: Sequence[Any]) -> tuple[list[bytes], list[bytes]]:
        """Keys and inputs of rows, by columns. Raises as a call for each does."""
        if self._columns_of_content is None:
            return [self(row)[0] for row in rows], [b""] * len(rows)
        names, columns = self._columns_of_content(rows)
        return _hashed_rows(self._hasher_of(names), columns), [b""] * len(rows)

    def _hasher_of(self, names: tuple[Any, ...]) -> Any:
        hasher = self._hashers.get(names)
        if hasher is None:
            if len(self._hashers) >= MAX_COLUMN_SETS:
                self._hashers.clear()
            hasher = self._hashers[names] = _hasher("content", canonical(names))
        return hasher


def content_of_values(inputs: Sequence[str | int] | None) -> ContentIdentity:
    """The identity by content of rows that are mappings, sequences, values, or objects with attributes.

    inputs: names or positions of the columns that count, None for all.
    """
    if inputs is None:
        return ContentIdentity(_AllColumns(()))
    own = tuple(inputs)
    return ContentIdentity(
        _named_fields(own),
        lambda rows: (own, _columns(rows, own)),
    )


def content_of_fields(
    fields: tuple[str, ...], values_of: Callable[[Any], Mapping[str, Any]]
) -> ContentIdentity:
    """The identity by those fields of a row that a client reads; by the whole of one that lacks some.

    values_of: gives the values as the client reads them, and raises ValueError.
    """
    # By the client's own reading: a row of pandas has a column `name`, and an attribute of that name besides.
    whole = _AllColumns(())

    def content(row: object) -> tuple[tuple[Any, ...], Sequence[Any]]:
        try:
            values = values_of(row)
        except ValueError:
            return whole(row)
        return fields, [values[name] for name in fields]

    return ContentIdentity(content)


class _AllColumns:
    """Gives the names and the values of a row's columns, but of those of the key."""

    def __init__(self, but: Sequence[str | int]) -> None:
        self._but = frozenset(but)
        self._names: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __call__(self, row: object) -> tuple[tuple[Any, ...], list[Any]]:
        if type(row) is not dict:
            return _all_columns(row, self._but)
        given = tuple(row)
        names = self._names.get(given)
        if names is None:
            if len(self._names) >= MAX_COLUMN_SETS:
                self._names.clear()
            names = self._names[given] = tuple([name for name in given if name not in self._but])
        return names, [row[name] for name in names]

    def of_rows(self, rows: Sequence[Any]) -> tuple[tuple[Any, ...], list[Column]] | None:
        """The same of many rows, one at least, by columns; None unless they are dicts with the same names."""
        given = [*rows[0]] if type(rows[0]) is dict else None
        if given is None or any(type(row) is not dict or [*row] != given for row in rows):
            return None
        names, _ = self(rows[0])
        return names, _columns(rows, names)


def _all_columns(row: Any, but: frozenset[str | int]) -> tuple[tuple[Any, ...], list[Any]]:
    items: Any
    if isinstance(row, Mapping):
        items = row.items()
    elif hasattr(row, "_fields"):
        items = zip(row._fields, row, strict=True)
    elif isinstance(row, Sequence) and not isinstance(row, str | bytes):
        items = enumerate(row)
    elif dataclasses.is_dataclass(row):
        items = [(field.name, getattr(row, field.name)) for field in dataclasses.fields(row)]
    elif _is_its_attributes(row):
        # Pydantic has what was given beyond its fields, where that is allowed, apart.
        extra = getattr(row, "__pydantic_extra__", None) or {}
        items = {**vars(row), **extra}.items()
    else:
        items = [("row", row)]
    left = [(name, value) for name, value in items if name not in but]
    return tuple([name for name, _ in left]), [value for _, value in left]


def _is_its_attributes(row: object) -> bool:
    """Return True for an object whose attributes say all of it, unlike a text, a time or a function."""
    # An object of a class of texts or of times has a dict of attributes too, mostly an empty one.
    if not hasattr(row, "__dict__"):
        return False
    for kind in type(row).__mro__[:-1]:
        slots = vars(kind).get("__slots__", ())
        # Pydantic has slots of its own, with such names, beside the dict that has the fields.
        own = [name for name in ([slots] if isinstance(slots, str) else slots) if not name.endswith("__")]
        if own or isinstance(vars(kind).get("__new__"), BuiltinFunctionType):
            return False
    return True


class KeyMaker:
    """Maker of the keys by which a ledger identifies the rows of a task. For one thread.

    columns: names (of mappings or attributes) or positions (of sequences) of the identifying columns; None
        for the whole row. With columns, rows with equal values share a result.

        >>> from pillarbox.ledger import KeyMaker
        >>> make_key = KeyMaker(["id"])
        >>> first = make_key({"id": 7, "text": "hello"})
        >>> first == make_key({"id": 7, "text": "changed"}), len(first)
        (True, 16)

    Without columns, equal rows of a task are counted: the second one has its own key. For that it holds
    the keys of all rows of the task, about 130 bytes each. The idea is the occurrence numbers with which
    relational systems distinguish equal rows of a bag. Raises TypeError or ValueError for a bad argument.
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
        self._of_row = identity_of_source(None)

    def __call__(self, row: object) -> bytes:
        """Return the key of the task's next row. Raises LedgerValueError, and KeyError without a column."""
        if self._columns is not None:
            return fingerprint([_field(row, column) for column in self._columns], "key")
        return self._of_row(row)[0]


def _columns(rows: Sequence[Any], columns: Sequence[str | int]) -> list[Column]:
    """These columns of rows. Raises KeyError for a row without one."""
    if {*map(type, rows)} == {dict}:
        with suppress(KeyError):
            return [[row[column] for row in rows] for column in columns]
    return [[_field(row, column) for row in rows] for column in columns]


def _field(row: Any, column: str | int) -> Any:
    try:
        if type(row) is dict or type(column) is int or isinstance(row, Mapping):
            return row[column]
        return getattr(row, str(column))
    except (KeyError, IndexError, AttributeError, TypeError):
        raise KeyError(f"key: a row has no column {column!r}") from None


NO_BATCH = "none"
MAX_NAME_CHARACTERS = 200
"""Characters of a name, as it is written in a path: file systems allow 255 with what is before it."""


@dataclass(frozen=True, order=True)
class Scope:
    """Place of a finished call in a ledger. Results are found under the same scope only.

    run: a name given by the user, or the id of a streaming query, which is the same after a restart.
    uid: the name of the operator.
    config: 16 hexadecimal digits for the part of its configuration that affects results (`config_hash`).
    batch: the number of the micro-batch; None outside of streams.

        >>> from pillarbox.ledger import Ledger, Scope
        >>> scope = Scope.of("nightly", "embed-v1", {"model": "small"})
        >>> with Ledger("scopes").writer(scope) as writer:
        ...     number = writer.append(b"k" * 16, [0.25, 0.5], latency=0.12)
        >>> list(Ledger("scopes").scopes("nightly")) == [scope]
        True

    A value; any thread may use it. Raises TypeError or ValueError for a bad name.
    """

    run: str
    uid: str
    config: str = "0" * 16
    batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("run", "uid", "config"):
            text = check_text(name, getattr(self, name))
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{name}={text!r}: must be text that has a form in UTF-8") from None
            if len(quoted(text)) > MAX_NAME_CHARACTERS:
                raise ValueError(
                    f"{name}={text!r}: may have {MAX_NAME_CHARACTERS} characters as it is written in a path"
                )
        if self.batch is not None:
            check_int("batch", self.batch, 0, 2**63 - 1)

    @classmethod
    def of(
        cls, run: str, uid: str, config: Mapping[str, Any] | None = None, batch: int | None = None
    ) -> Scope:
        """Return the scope of an operator with this configuration: the settings that affect results."""
        return cls(run, uid, config_hash(config), batch)

    @property
    def path(self) -> str:
        """Its folder below the ledger's."""
        batch = NO_BATCH if self.batch is None else str(self.batch)
        return f"run={quoted(self.run)}/batch={batch}/uid={quoted(self.uid)}/config={quoted(self.config)}"

    @property
    def about(self) -> dict[str, str]:
        """The texts of it in the header of a segment."""
        return {"run": self.run, "uid": self.uid, "config": self.config, "batch": str(self.batch)}

    @classmethod
    def from_path(cls, path: str) -> Scope | None:
        """The scope that has this folder; None if none has."""
        parts = [part.partition("=") for part in path.strip("/").split("/")]
        if [name for name, _, _ in parts] != ["run", "batch", "uid", "config"]:
            return None
        run, batch, uid, config = (value for _, _, value in parts)
        if batch != NO_BATCH and not batch.isdecimal():
            return None
        try:
            return cls(unquote(run), unquote(uid), unquote(config), None if batch == NO_BATCH else int(batch))
        except ValueError:
            return None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f" batch {self.batch}"
        return f"{self.run}{batch} {self.uid} ({self.config})"


def quoted(text: str) -> str:
    """`text` as a part of a path: letters, digits and `_-~` stay, and a dot except in front."""
    plain = quote(text, safe="")
    return "%2E" + plain[1:] if plain.startswith(".") else plain
