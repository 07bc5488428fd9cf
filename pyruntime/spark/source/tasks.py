"""A task of a read: its splits, and its rows in the shape that Spark wants.

In tasks; the partitions are made when a read is planned, and are plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from pillarbox.sources.enumerator import SourceEvent
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.spark.source.options import Read


@dataclass(eq=False)
class TaskPartition(InputPartition):
    """The part of a read that one task reads: these splits. A plain value that pickles."""

    number: int
    splits: list[Any]


def read_partition(read: Read, partition: TaskPartition) -> Iterator[Any]:
    """The rows of a partition, as tuples or Arrow batches with the columns of the read's schema.

    Closing the iterator ends the reading.
    """
    context = ReaderContext(subtask=partition.number, send=_no_events, schema=read.schema)
    reader = read.source.create_reader(context)
    with closing(read_splits(reader, partition.splits)) as reading:
        for fetched in reading:
            if not isinstance(fetched.records, pa.RecordBatch):
                yield from fetched.records
            elif fetched.records.num_rows:
                yield fit(fetched.records, read.schema)


def _no_events(event: SourceEvent) -> NoReturn:
    raise RuntimeError(
        f"event {event.kind!r}: a read of Spark has no way to its enumerator, which ends when the read is "
        "planned; readers and enumerators of a task (SourceInput) can say events to each other"
    )


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the columns of `schema`, in its order, with its types.

    Raises ValueError that names the column, for one that is missing, has values of another type, or has nulls
    that the schema does not have.
    """
    fits = batch.schema.equals(schema)
    columns = batch.columns if fits else [_column(batch, field) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name!r} has nulls, and the schema says that it has none")
    return batch if fits else pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    at = batch.schema.get_all_field_indices(field.name)
    if len(at) != 1:
        raise ValueError(
            f"column {field.name!r} stands {len(at)} times in what was read, which has the columns "
            f"{', '.join(batch.schema.names)}"
        )
    column = batch.column(at[0])
    try:
        # Spark's timestamps are microseconds.
        return column.cast(options=pc.CastOptions(field.type, allow_time_truncate=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ValueError(f"column {field.name!r} is {column.type} and not {field.type}: {error}") from None
