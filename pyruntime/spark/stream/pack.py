"""Rows on their way to the buckets of a stream and back, as Arrow IPC blobs. For the tasks' threads.

`transformWithState` hands rows over one by one, as Python objects. So rows are packed before it and unpacked
behind it, by `mapInArrow`, and travel through it by the thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import types as T

from pillarbox.spark.arrow_io import from_ipc, to_ipc
from pillarbox.spark.stream.bucket_state import MAX_OUTPUT_BYTES, REFERENCE, without
from pillarbox.spark.stream.payload import Payload, SegmentWriter, row_bytes

KEY, HASH, READ = "__pillarbox_key", "__pillarbox_hash", "__pillarbox_read"
"""Columns with the hash of the key and of the whole row, and with the time of the micro-batch in ms."""

BUCKET, PART, NUMBER, ROWS = "bucket", "part", "number", "rows"

BUCKETS = (12, 16, 5, 1, 37, 20, 2, 35, 13, 6, 49, 7, 25, 15, 4, 0)
"""The keys of the buckets, by which Spark deals them out evenly: their hashes are 0 to 15, modulo 16."""

PACKED = (
    T.StructType()
    .add(BUCKET, T.IntegerType())
    .add(PART, T.IntegerType())
    .add(NUMBER, T.LongType())
    .add(ROWS, T.BinaryType())
)
"""A piece of a bucket's input: the partition that it comes from, its place there, and its rows."""

LEAVING = T.StructType().add(ROWS, T.BinaryType())


class Pack:
    """Sorts rows into buckets by the hash of their key. Sent to the workers as it is.

    payload: where rows are written, so that their references are packed, and they come with a column `READ`;
    None to pack the rows.
    """

    def __init__(self, payload: Payload | None = None) -> None:
        self._payload = payload

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pieces of buckets, in the order of their rows."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        writer = None
        if self._payload is not None:
            writer = self._payload.writer(first.column(first.schema.get_field_index(READ))[0].as_py())
        yield from self._packed(chain([first], filled), writer)
        # spec: StreamSegments!Sync
        # Spark takes what a task has given once it has ended.
        if writer is not None:
            writer.finish()

    def _packed(
        self, batches: Iterable[pa.RecordBatch], writer: SegmentWriter | None
    ) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        number = 0
        for batch in batches:
            pieces = list(self._pieces(batch))
            if writer is not None:
                pieces = [(place, _written(writer, BUCKETS[place], rows)) for place, rows in pieces]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([BUCKETS[place] for place, _ in pieces], pa.int32()),
                    pa.array([part] * len(pieces), pa.int32()),
                    pa.array(range(number, number + len(pieces)), pa.int64()),
                    pa.array([to_ipc(rows) for _, rows in pieces], pa.binary()),
                ],
                [BUCKET, PART, NUMBER, ROWS],
            )
            number += len(pieces)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        keys = batch.column(batch.schema.get_field_index(KEY))
        # The low bits of a hash are as good as any.
        buckets = pc.bit_wise_and(keys, pa.scalar(len(BUCKETS) - 1, pa.int64()))
        table = pa.table({"bucket": buckets, "place": pa.array(range(batch.num_rows), pa.int64())})
        # By place too, as this sort need not be stable.
        order = pc.sort_indices(table, sort_keys=[("bucket", "ascending"), ("place", "ascending")])
        rows, found = batch.take(order), buckets.take(order)
        start = 0
        for run in pc.run_end_encode(found, run_end_type=pa.int32()).run_ends.to_pylist():
            yield found[start].as_py(), rows.slice(start, run - start)
            start = run


def _written(writer: SegmentWriter, bucket: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Write rows; returns their references with what else is to be known of them."""
    references = writer.add(bucket, without(rows, [READ, HASH, KEY]))
    arrays = [references, *(rows.column(rows.schema.get_field_index(name)) for name in (HASH, KEY))]
    return pa.RecordBatch.from_arrays(arrays, [REFERENCE, HASH, KEY])


class Unpack:
    """Unpacks the rows that leave. Sent to the workers as it is.

    payload: where the columns of the input are, of which `kept` leave; None where they are with the rest.
    """

    def __init__(self, payload: Payload | None = None, kept: Sequence[str] = ()) -> None:
        self._payload = payload
        self._kept = kept

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output batches."""
        for batch in batches:
            for rows in batch.column(batch.schema.get_field_index(ROWS)):
                for outputs in from_ipc(_bytes(rows)):
                    if self._payload is None or not self._kept:
                        yield outputs
                    elif outputs.num_rows:
                        # References to more rows than fit into memory may fit into a blob.
                        step = max(1, MAX_OUTPUT_BYTES // max(1, row_bytes(outputs)))
                        for start in range(0, outputs.num_rows, step):
                            yield self._filled(outputs.slice(start, step), self._payload)

    def _filled(self, outputs: pa.RecordBatch, payload: Payload) -> pa.RecordBatch:
        kept = payload.read(outputs.column(REFERENCE)).select(list(self._kept))
        rest = without(outputs, [REFERENCE])
        return pa.RecordBatch.from_arrays(
            [*kept.columns, *rest.columns], [*kept.schema.names, *rest.schema.names]
        )


def _bytes(value: Any) -> bytes:
    data: bytes = value.as_py()
    return data
