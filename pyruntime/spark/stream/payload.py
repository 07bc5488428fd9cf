"""The rows of a stream with a ledger, in files of the ledger: shuffle and state have references to them.

A task that packs rows writes them into *segments*, one for each bucket, before it ends. The process that
calls reads them, and so does the last stage, where columns are kept.

Each execution of a micro-batch writes segments of its own, under names that nobody else has: Spark may
commit the state of any execution, and a restart may cut the same rows into other partitions, so that equal
names would not mean equal rows. A segment is named for its bucket and for the time of the micro-batch that
has read its rows, which is in their identity too. So the state of a bucket says which of its segments are
needed, those of failed tasks included: none that is older than all rows of the state that was committed.
"""

# The alternatives, and why they are worse. A name of micro-batch and partition is the same in a replay, but
# after a restart with other parallelism a partition has other rows. One segment for all buckets is fewer
# files, but only all buckets together know when none of its rows is needed any more. A list of what is to be
# deleted would be one more state that each execution has its own of; the time of the oldest reference is in
# the state already. Rows under their own keys would be one file each.

from __future__ import annotations

import secrets
import uuid
import zlib
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.local_folder import ROWS_NAME
from pillarbox.spark.ledger_plan import QUERY, LedgerPlan
from pillarbox.spark.records import from_ipc, to_ipc
from pillarbox.spark.stream.bucket_state import (
    REFERENCE,
    BucketState,
    Columns,
    conform,
    joined,
    with_columns,
)

_PIECE = np.dtype(
    [
        ("stream", "V16"),
        ("time", ">i8"),
        ("segment", ">u8"),
        ("bucket", ">u4"),
        ("offset", ">u8"),
        ("length", ">u4"),
        ("sum", ">u4"),
        ("rows", ">u4"),
    ]
)
"""Rows that were written together: an Arrow IPC stream at a place in a segment, and its CRC-32."""
_REFERENCE = np.dtype([("piece", _PIECE), ("row", ">u4")])
STATE_COLUMNS: Columns = ((REFERENCE, pa.binary(_REFERENCE.itemsize)),)
"""The state has this of a row in the place of its columns."""


class SegmentWriter:
    """Writes the rows that a task packs. For the task's thread.

    stream: names the folder. time: of the micro-batch, in ms. piece_bytes, segment_bytes: see `Payload`.
    """

    def __init__(
        self, folder: Any, stream: bytes, time: int, *, piece_bytes: int, segment_bytes: int
    ) -> None:
        self._piece_bytes, self._segment_bytes = piece_bytes, segment_bytes
        self._folder, self._stream, self._time = folder, stream, time
        self._open: dict[int, tuple[int, bytearray]] = {}

    def add(self, bucket: int, rows: pa.RecordBatch) -> pa.Array:
        """Append rows of a bucket; returns their references, which count once `finish` has returned."""
        made = np.empty(rows.num_rows, _REFERENCE)
        step = max(1, rows.num_rows * self._piece_bytes // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, step):
            part = rows.slice(start, step)
            blob = to_ipc(part)
            number, content = self._open.setdefault(bucket, (secrets.randbits(64), bytearray()))
            piece = made["piece"][start : start + step]
            piece["stream"], piece["time"], piece["segment"] = np.void(self._stream), self._time, number
            piece["bucket"], piece["offset"], piece["length"] = bucket, len(content), len(blob)
            piece["sum"], piece["rows"] = zlib.crc32(blob), part.num_rows
            made["row"][start : start + step] = np.arange(part.num_rows)
            content += blob
            if len(content) >= self._segment_bytes:
                self._write(bucket)
        return _binary(made)

    def finish(self) -> None:
        """Have all of it on the disk, or in the store. Raises LedgerError and OSError."""
        for bucket in [*self._open]:
            self._write(bucket)

    def _write(self, bucket: int) -> None:
        # spec: StreamSegments!Write, StreamSegments!Sync
        number, content = self._open.pop(bucket)
        with closing(self._folder.create(_name(self._time, bucket, number), b"")) as segment:
            segment.append(content)
            segment.sync()


@dataclass(frozen=True)
class Payload:
    """The place of the rows of one stream. Sent to the workers as it is; any thread.

    name: a UUID that stands for the query where Spark does not tell its id, as in a thread of foreachBatch.
    columns: those of the input. piece_bytes: of rows that are read together, about: a slow row may be the
    only one of its piece that is wanted. segment_bytes: of a segment, about: a task holds so much of each
    bucket.
    """

    ledger: Ledger
    uid: str
    ledger_plan: LedgerPlan
    name: str
    columns: Columns
    piece_bytes: int = 2**18
    segment_bytes: int = 2**22

    def writer(self, time: int) -> SegmentWriter:
        """For the rows that a task of the micro-batch of `time` packs. Raises LedgerError and OSError."""
        self.ledger_plan.check_place(self.ledger)
        folder = self._folder(self._stream())
        folder.make()
        sizes = {"piece_bytes": self.piece_bytes, "segment_bytes": self.segment_bytes}
        return SegmentWriter(folder, self._stream(), time, **sizes)

    def filled(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the state with their columns in the place of their references. Raises as `read` does."""
        own = dict(zip(rows.schema.names, rows.columns, strict=True))
        return with_columns(self.read(own.pop(REFERENCE)), own)

    def read(self, references: pa.Array) -> pa.RecordBatch:
        """The rows of these references, one or more, in their order, with the columns of the input now.

        Raises LedgerError for a segment that is gone or damaged, and StreamStateError for columns that have
        become others.
        """
        whole = _values(references)
        # Arrow's dictionaries are in the order of the first of each.
        pieces = _binary(whole["piece"]).dictionary_encode()
        order = np.argsort(pieces.indices.to_numpy(), kind="stable")
        wanted = np.split(whole["row"][order], np.cumsum(np.bincount(pieces.indices))[:-1])
        found, folders = [], {}
        for blob, rows in zip(pieces.dictionary.to_pylist(), wanted, strict=True):
            (piece,) = np.frombuffer(blob, _PIECE)
            stream = piece["stream"].tobytes()
            if stream not in folders:
                folders[stream] = self._folder(stream)
            found.append(_taken(conform(_read(folders[stream], piece), self.columns), rows))
        return _taken(joined(found), np.argsort(order))

    def delete(self, bucket: int, state: BucketState, time: int) -> None:
        """Delete what a bucket needs no more by the state committed before the micro-batch of `time`."""
        # spec: StreamSegments!Delete
        # After a clock was set back the micro-batch itself may be the oldest.
        before = min([time, *_times(state)])
        folder = self._folder(self._stream())
        for name in folder.names():
            match = ROWS_NAME.fullmatch(name)
            if match is not None and int(match[2]) == bucket and int(match[1], 16) < before:
                folder.remove(name)

    def _folder(self, stream: bytes) -> Any:
        # Not the run of the calls: other queries may share that. Nor the query's id alone, under which
        # `async_map` expires what it has of former micro-batches.
        return self.ledger.folder(Scope(f"stream-{uuid.UUID(bytes=stream)}", self.uid))

    def _stream(self) -> bytes:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY)
        return uuid.UUID(self.name if query is None else query).bytes


def row_bytes(rows: pa.RecordBatch) -> int:
    """Bytes of a row of the state in the ledger, on average."""
    pieces = _values(rows.column(REFERENCE))["piece"]
    return int((pieces["length"] / pieces["rows"]).mean())


def _read(folder: Any, piece: Any) -> pa.RecordBatch:
    name = _name(piece["time"], piece["bucket"], piece["segment"])
    offset, length = int(piece["offset"]), int(piece["length"])
    advice = "or begin a new checkpoint"
    try:
        blob = folder.read(name, offset, length)
    except FileNotFoundError:
        raise LedgerError(
            f"{folder.path}/{name} is gone, and had rows of async_stream that are pending by the state in "
            f"the checkpoint: it was deleted, or expired under the query. Bring it back, {advice}"
        ) from None
    if len(blob) != length or zlib.crc32(blob) != piece["sum"]:
        raise LedgerError(
            f"{folder.path}/{name} is damaged: {length} bytes from byte {offset}, with rows of async_stream "
            f"that are pending by the state in the checkpoint. Bring it back from a copy, {advice}"
        )
    return next(from_ipc(blob))


def _taken(rows: pa.RecordBatch, places: npt.NDArray[Any]) -> pa.RecordBatch:
    if np.array_equal(places, np.arange(rows.num_rows)):
        return rows
    return rows.take(pa.array(places.astype(np.int64)))


def _times(state: BucketState) -> Iterable[int]:
    """The times of the first micro-batches that have read rows of which the state has references."""
    leaving = (batch for blob in state.leaving for batch in from_ipc(blob))
    for batch in (state.waiting, state.blocked, *leaving):
        if batch is not None and batch.num_rows and REFERENCE in batch.schema.names:
            yield int(_values(batch.column(REFERENCE))["piece"]["time"].min())


def _values(references: pa.Array) -> npt.NDArray[Any]:
    whole = np.frombuffer(references.buffers()[1], _REFERENCE)
    return whole[references.offset : references.offset + len(references)]


def _binary(values: npt.NDArray[Any]) -> pa.Array:
    kind = pa.binary(values.dtype.itemsize)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, pa.py_buffer(values.tobytes())])


def _name(time: int, bucket: int, number: int) -> str:
    return f"{int(time):x}-{bucket}-{number:016x}.rows"
