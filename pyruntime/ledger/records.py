"""A finished call, and its way into a batch of Arrow and back. Pure: any thread."""

from __future__ import annotations

import datetime
import math
from array import array
from collections.abc import Iterator, Sequence, Sized
from itertools import accumulate, chain
from typing import Any, NamedTuple

from pillarbox.ledger.errors import LedgerValueError
from pillarbox.ledger.frames import schema
from pillarbox.ledger.keys import EXECUTION_BYTES, KEY_BYTES
from pillarbox.ledger.values import decode

VALUE = "value"
ERROR = "error"
_EMPTY = memoryview(b"")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Record(NamedTuple):
    """A finished call as it was found."""

    key: bytes
    value: Any
    """What the call gave; for a row that failed for good, what was kept about its error."""
    is_error: bool
    attempts: int
    latency: float
    """Seconds."""
    cost: float
    at: datetime.datetime
    """When it was kept, by the clock of the machine that did."""
    input: bytes = b""
    """The fingerprint of the row's input, as a `RowIdentity` makes it."""
    version: str = ""
    """That of the function, as JSON; empty where none was given."""
    execution: bytes = bytes(EXECUTION_BYTES)
    """The execution that called: one action of one run, with all its tasks and their retries."""


class Origin(NamedTuple):
    """The question that a record answers, where another was asked."""

    input: bytes
    version: str
    execution: bytes


class Entry(NamedTuple):
    """A finished call on its way to a segment; a column of the schema each."""

    key: bytes
    kind: str
    json: str
    floats: Sequence[Sequence[float]]
    blobs: Sequence[bytes]
    attempts: int
    latency: float
    cost: float
    at: int
    """Microseconds since 1970."""
    input: bytes = b""
    """The fingerprint of the row's input."""


Row = tuple[bytes, str, str, Sequence[Sequence[float]], Sequence[bytes], int, float, float, int, bytes]
"""An entry, or a plain tuple with the same items, which is made in a fifth of the time."""


def size_of(entry: Row) -> int:
    """Bytes of what the call gave, about."""
    size = len(entry[2])
    if entry[3]:
        size += 8 * sum(map(len, entry[3]))
    return size + sum(map(len, entry[4])) if entry[4] else size


def to_batch(entries: Sequence[Row], version: str = "", execution: bytes = bytes(EXECUTION_BYTES)) -> Any:
    """The Arrow batch of these entries, one at least, of one version and one execution.

    From buffers made here: Arrow's own way from Python's objects is slower, and has the first commit of a
    process wait for the import of pandas.
    """
    import pyarrow as pa

    keys, kinds, texts, floats, blobs, *numbers, inputs = zip(*entries, strict=True)
    count = len(entries)
    types = [field.type for field in schema()]

    def column(kind: Any, length: int, *buffers: Any, children: Any = None) -> Any:
        parts = [None, *(pa.py_buffer(part) for part in buffers)]
        return pa.Array.from_buffers(kind, length, parts, children=children)

    def bytes_of(kind: Any, parts: Sequence[bytes]) -> Any:
        return column(kind, len(parts), _offsets(parts), b"".join(parts))

    lists = [part if isinstance(part, array) else array("d", part) for row in floats for part in row]
    flat = column(pa.float64(), sum(map(len, lists)), b"".join(lists))
    inner = column(types[3].value_type, len(lists), _offsets(lists), children=[flat])
    arrays = [
        column(types[0], count, b"".join(keys)),
        bytes_of(types[1], [kind.encode() for kind in kinds]),
        bytes_of(types[2], [text.encode() for text in texts]),
        column(types[3], count, _offsets(floats), children=[inner]),
        column(
            types[4], count, _offsets(blobs), children=[bytes_of(pa.binary(), [*chain.from_iterable(blobs)])]
        ),
    ]
    for code, values, kind in zip("iddq", numbers, types[5:9], strict=True):
        arrays.append(column(kind, count, array(code, values)))
    arrays.append(bytes_of(types[9], inputs))
    arrays.append(bytes_of(types[10], [version.encode()] * count))
    arrays.append(column(types[11], count, execution * count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def _offsets(parts: Sequence[Sized]) -> array[int]:
    return array("i", accumulate(map(len, parts), initial=0))


class Rows:
    """The records of a frame, read from Arrow's buffers one at a time, without an object of Arrow for each.

    batch: as it was read from a segment. Slices do not go beyond a buffer, whatever its offsets say.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.count: int = batch.num_rows
        views = [[None if part is None else memoryview(part) for part in c.buffers()] for c in batch.columns]
        self._keys = views[0][1] or _EMPTY
        self._kinds = _Texts(views[1][1], views[1][2])
        self._texts = _Texts(views[2][1], views[2][2])
        self._floats = _Nested(views[3][1], views[3][3], _cast(views[3][5], "d"))
        self._blobs = _Nested(views[4][1], views[4][3], views[4][4])
        self._attempts = _cast(views[5][1], "i")
        self._latency, self._cost = _cast(views[6][1], "d"), _cast(views[7][1], "d")
        self._at = _cast(views[8][1], "q")
        self._inputs = _Texts(views[9][1], views[9][2])
        self._versions = _Texts(views[10][1], views[10][2])
        self._executions = views[11][1] or _EMPTY
        # Most frames are of one version and one execution.
        self._one_version = one = self._versions.same(self.count)
        self._version_text = None if one is None else str(one, "utf-8", "replace")
        self._one_execution = self._same_execution()
        self._all_values = bytes(self._kinds.data) == VALUE.encode() * self.count

    def _same_execution(self) -> bytes | None:
        one = bytes(self._executions[:EXECUTION_BYTES])
        return one if bytes(self._executions[: EXECUTION_BYTES * self.count]) == one * self.count else None

    def key(self, row: int) -> bytes:
        """The key of a record."""
        return bytes(self._keys[row * KEY_BYTES : (row + 1) * KEY_BYTES])

    def kind(self, row: int) -> str:
        """Its kind: "value" or "error"."""
        return VALUE if self._all_values or self._kinds[row] == VALUE.encode() else ERROR

    def at(self, row: int) -> int:
        """When it was kept: microseconds since 1970."""
        return int(self._at[row])

    def spent(self) -> tuple[int, float]:
        """Attempts and cost of all records."""
        return sum(self._attempts[: self.count]), math.fsum(self._cost[: self.count])

    def input(self, row: int) -> bytes:
        """The fingerprint of the input that it answers."""
        return bytes(self._inputs[row])

    def version(self, row: int) -> str:
        """The version of the function that gave it."""
        one = self._version_text
        return str(self._versions[row], "utf-8", "replace") if one is None else one

    def is_version(self, row: int, version: bytes) -> bool:
        """True if the function that gave it was of this version."""
        one = self._one_version
        return self._versions[row] == version if one is None else one == version

    def execution(self, row: int) -> bytes:
        """The execution that kept it."""
        one = self._one_execution
        return (
            bytes(self._executions[row * EXECUTION_BYTES : (row + 1) * EXECUTION_BYTES])
            if one is None
            else one
        )

    def origin(self, row: int) -> Origin:
        """The question that it answers."""
        return Origin(self.input(row), self.version(row), self.execution(row))

    def record(self, row: int, allow_pickle: bool, key: bytes | None = None) -> Record:
        """A record. Raises LedgerValueError if its value may or can not be read. key: where it is known."""
        try:
            text = str(self._texts[row], "utf-8")
            is_error = self.kind(row) == ERROR
            # Arrow's own way to a datetime needs a package for time zones.
            at = EPOCH + datetime.timedelta(microseconds=self._at[row])
            floats: list[Sequence[float]] = []
            blobs: list[bytes] = []
            if self._floats.has_items:
                floats = [part.tolist() for part in self._floats.items(row)]
            if self._blobs.has_items:
                blobs = [bytes(part) for part in self._blobs.items(row)]
            input = self.input(row)
            version = self.version(row)
        except (ValueError, IndexError, OverflowError) as error:
            raise LedgerValueError(f"a kept value cannot be read: {type(error).__name__}: {error}") from error
        return Record(
            self.key(row) if key is None else key,
            decode(text, floats, blobs, allow_pickle),
            is_error,
            self._attempts[row],
            self._latency[row],
            self._cost[row],
            at,
            input,
            version,
            self.execution(row),
        )


def _cast(view: memoryview | None, code: str) -> Any:
    if view is None:
        return _EMPTY.cast("B").cast(code)  # type: ignore[call-overload]
    whole = len(view) // array(code).itemsize * array(code).itemsize
    return view.cast("B")[:whole].cast(code)  # type: ignore[call-overload]


class _Texts:
    """A column of texts."""

    def __init__(self, offsets: memoryview | None, data: memoryview | None) -> None:
        self._offsets = _cast(offsets, "i")
        self.data = _EMPTY if data is None else data[: self._offsets[-1]] if len(self._offsets) else _EMPTY

    def __getitem__(self, row: int) -> memoryview:
        offsets = self._offsets
        return self.data[offsets[row] : offsets[row + 1]]

    def same(self, count: int) -> bytes | None:
        """The text that all of `count` rows have; None where they differ."""
        lengths = {
            end - begin
            for begin, end in zip(self._offsets[:count], self._offsets[1 : count + 1], strict=False)
        }
        if not count or len(lengths) != 1:
            return None
        one = bytes(self[0])
        begin = self._offsets[0]
        return one if bytes(self.data[begin : begin + len(one) * count]) == one * count else None


class _Nested:
    """A column of lists of lists, or of lists of bytes."""

    def __init__(self, outer: memoryview | None, inner: memoryview | None, data: memoryview | None) -> None:
        self._outer, self._inner = _cast(outer, "i"), _cast(inner, "i")
        self._data = _EMPTY if data is None else data
        self.has_items = len(self._outer) > 0 and self._outer[-1] > 0

    def items(self, row: int) -> Iterator[memoryview]:
        """What the list of a row has."""
        inner = self._inner
        for item in range(self._outer[row], self._outer[row + 1]):
            yield self._data[inner[item] : inner[item + 1]]
