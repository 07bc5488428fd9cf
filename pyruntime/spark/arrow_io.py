"""Arrow batches on their way into a task, and the rows of a snapshot as Arrow batches.

`ArrowInput` reads slices of a partition ahead, in a thread of its own; the rest of it is confined to the
mailbox thread. `ArrowRows` is for any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from pillarbox.aio.snapshots import PlainRows, packed_ints, unpacked_ints
from pillarbox.aio.task_io import IterableInput
from pillarbox.kernel import HandoverClosedError
from pillarbox.spark.record import Record, records, rows_of
from pillarbox.task import InputStatus, RowBatch, TaskOutput

READ_AHEAD_SLICES = 64
READ_AHEAD_BYTES = 64 * 1024 * 1024

Slice: TypeAlias = "pa.RecordBatch | tuple[pa.Array, ...]"
"""Rows that are decoded together: a batch, or columns of one length."""


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_ipc(data: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow IPC stream."""
    with pa.ipc.open_stream(data) as reader:
        yield from reader


class ArrowInputState(NamedTuple):
    """The position of an `ArrowInput` in a snapshot. Any thread."""

    position: int
    """Rows that were emitted."""
    ahead: tuple[Slice, ...]
    """Slices that were read and not emitted, in order."""


class ArrowInput(IterableInput):
    """The rows of Arrow slices, read ahead up to `READ_AHEAD_SLICES` and `READ_AHEAD_BYTES`.

    slices: none of them empty. unpack: makes the batch of rows of a slice.

    A restored input emits the slices that had been read first. What it is given to read begins where the
    first one began, as Spark has a task that is tried again read the same rows in the same order; all rows of
    the snapshot are passed over, however the slices are cut now.
    """

    __slots__ = ("_ahead", "_ready", "_restored", "_unpack")

    def __init__(self, slices: Iterable[Slice], unpack: Callable[[Any], RowBatch] = rows_of) -> None:
        super().__init__(self._noted(slices), READ_AHEAD_SLICES, READ_AHEAD_BYTES)
        self._unpack = unpack
        # The reading thread appends before it hands over, so that each slice it has is in here.
        self._ahead: deque[Slice] = deque()
        self._ready = 0
        self._restored: deque[Slice] = deque()

    def _noted(self, slices: Iterable[Slice]) -> Iterator[Slice]:
        for each in slices:
            self._ahead.append(each)
            yield each

    def weigh(self, item: Slice) -> int:
        """The bytes of a slice. On the reading thread."""
        return item.nbytes if isinstance(item, pa.RecordBatch) else sum(column.nbytes for column in item)

    def emit_next(self, output: TaskOutput) -> InputStatus:
        """Emit the rows of the next slice; raises what the reading thread failed with."""
        if self._restored:
            given = self._restored.popleft()
        else:
            if not self._ready:
                try:
                    self._ready = len(self._handover.take_all())
                except HandoverClosedError:
                    return self._end()
                if not self._ready:
                    return InputStatus.NOTHING_AVAILABLE
            self._ready -= 1
            given = self._ahead.popleft()
            if self._passed:
                count = rows_in(given)
                passed = min(self._passed, count)
                self._passed -= passed
                if passed == count:
                    return InputStatus.MORE_AVAILABLE
                given = _behind(given, passed)
        self._position += rows_in(given)
        output.collect(self._unpack(given))
        return InputStatus.MORE_AVAILABLE

    def snapshot_state(self) -> ArrowInputState:  # type: ignore[override]
        """The rows that were emitted, and the slices that were read ahead."""
        # One look at what the reading thread changes.
        read, passed = self._ahead.copy(), self._passed
        while read and passed:
            count = rows_in(read[0])
            if count > passed:
                read[0] = _behind(read[0], passed)
                break
            read.popleft()
            passed -= count
        return ArrowInputState(self._position, (*self._restored, *read))

    def restore_state(self, state: ArrowInputState) -> None:  # type: ignore[override]
        """Emit the slices that had been read ahead, then what comes behind them."""
        self._position = state.position
        self._restored.extend(state.ahead)
        self._passed = state.position + sum(map(rows_in, state.ahead))


def rows_in(given: Slice) -> int:
    """The number of rows of a slice."""
    return given.num_rows if isinstance(given, pa.RecordBatch) else len(given[0])


def _behind(given: Slice, rows: int) -> Slice:
    """The slice without its first rows."""
    if isinstance(given, pa.RecordBatch):
        return given.slice(rows)
    return tuple([column.slice(rows) for column in given])


class ArrowRows(PlainRows):
    """Makes bytes of the rows of a task on Spark: of records, a batch for each slice that some are of.

    Only the rows that are asked for are in it, so that none of them keeps a whole slice.
    """

    def encode(self, rows: Sequence[Any]) -> Any:
        """Rows as values of a snapshot."""
        if not rows or not all(isinstance(row, Record) for row in rows):
            return super().encode(rows)
        places: dict[int, int] = {}
        slices: list[tuple[pa.RecordBatch, list[int]]] = []
        order = []
        for row in rows:
            columns = row._columns
            place = places.setdefault(id(columns), len(slices))
            if place == len(slices):
                slices.append((columns.batch, []))
            slices[place][1].append(row._index)
            order.append(place)
        taken = [to_ipc(batch.take(pa.array(indices, pa.int64()))) for batch, indices in slices]
        return {"slices": taken, "order": packed_ints(order)}

    def decode(self, given: Any) -> list[Any]:
        """The rows that were encoded."""
        if not isinstance(given, dict) or "slices" not in given:
            return super().decode(given)
        found = [iter(batch.rows) for ipc in given["slices"] for batch in records(from_ipc(ipc))]
        return [next(found[place]) for place in unpacked_ints(given["order"])]

    def encode_state(self, state: Any) -> Any:
        """The state of an input as values of a snapshot, where it is that of an `ArrowInput`."""
        if not isinstance(state, ArrowInputState):
            return super().encode_state(state)
        is_batch = [isinstance(each, pa.RecordBatch) for each in state.ahead]
        batches = [each if isinstance(each, pa.RecordBatch) else _as_batch(each) for each in state.ahead]
        return {"position": state.position, "ahead": [to_ipc(each) for each in batches], "is_batch": is_batch}

    def decode_state(self, given: Any) -> Any:
        """The state of an input that was encoded."""
        if not isinstance(given, dict) or "is_batch" not in given:
            return super().decode_state(given)
        batches = [batch for ipc in given["ahead"] for batch in from_ipc(ipc)]
        ahead = [
            batch if is_batch else tuple(batch.columns)
            for batch, is_batch in zip(batches, given["is_batch"], strict=True)
        ]
        return ArrowInputState(given["position"], tuple(ahead))


def _as_batch(columns: tuple[pa.Array, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), list(map(str, range(len(columns)))))
