"""Rows on their way to the buckets of a stream and back, as Arrow IPC blobs. For the tasks' threads.

`transformWithState` hands rows over one by one, as Python objects. So rows are packed before it and unpacked
behind it, by `mapInArrow`, and travel through it by the thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import types as T

from pillarbox.spark.arrow_io import from_ipc, to_ipc

KEY = "__pillarbox_key"
"""The column with the hash of the key, the last one of the rows that are packed."""

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
    """Sorts rows into buckets by the hash of their key. Sent to the workers as it is."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pieces of buckets, in the order of their rows."""
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        number = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            pieces = list(self._pieces(batch))
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


class Unpack:
    """Unpacks the rows that leave. Sent to the workers as it is."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output batches."""
        for batch in batches:
            for rows in batch.column(batch.schema.get_field_index(ROWS)):
                yield from from_ipc(_bytes(rows))


def _bytes(value: Any) -> bytes:
    data: bytes = value.as_py()
    return data
