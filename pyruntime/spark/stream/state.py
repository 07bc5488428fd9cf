"""What a bucket of a stream leaves for the next micro-batch: one Arrow IPC blob, with a version.

Pure: any thread.

Rows stand in the order in which they came. Each has its input columns, event time among them, and where its
call is: a *ticket*, the process that makes it and the number that it has there. A row that has its result,
and waits for its order only, has its output rows instead. The idea of keeping what is in flight with the
state is that of Flink's `AsyncWaitOperator` (FLIP-12).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pillarbox.spark.arrow_io import from_ipc, to_ipc
from pillarbox.spark.record import Record, records, sliced
from pillarbox.spark.stream.bucket_state import Columns, StreamStateError, conform

VERSION = 2
"""1 had neither tickets nor attempts nor keys of a ledger."""

_VERSION = b"pillarbox.stream.version"
_OUTPUT = b"pillarbox.stream.output"


class Ticket(NamedTuple):
    """Where a call is: the process that makes it, and the call's number there. No two calls have the same."""

    process: bytes
    number: int


class Held(NamedTuple):
    """A row that has not left."""

    record: Record
    key: int
    """The hash of its key: rows of one key keep their order, where that is asked for."""
    batch: int
    """The micro-batch that read it."""
    identity: bytes | None
    """Its key in the ledger."""
    attempts: int
    """Attempts of its call that have begun."""
    ticket: Ticket | None
    output: pa.RecordBatch | None
    """Its output rows, where it has its result."""


def encode(held: Sequence[Held], output: str) -> bytes:
    """The blob of a bucket's rows. output: the columns that leave, in words."""
    rows = _rows(held)
    outputs = [None if each.output is None else to_ipc(each.output) for each in held]
    tickets = [each.ticket for each in held]
    columns = {
        "row": pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema)),
        "key": pa.array([each.key for each in held], pa.int64()),
        "batch": pa.array([each.batch for each in held], pa.int64()),
        "identity": pa.array([each.identity for each in held], pa.binary()),
        "attempts": pa.array([each.attempts for each in held], pa.int32()),
        "process": pa.array([None if each is None else each.process for each in tickets], pa.binary()),
        "number": pa.array([None if each is None else each.number for each in tickets], pa.int64()),
        "output": pa.array(outputs, pa.binary()),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    named = {_VERSION: str(VERSION).encode(), _OUTPUT: output.encode()}
    return to_ipc(batch.replace_schema_metadata(named))


def decode(blob: bytes, columns: Columns, output: str) -> list[Held]:
    """The rows of a blob of this version or an earlier one, in order.

    columns: those of the input as they are now. output: the columns that leave now, in words; rows whose
    results had others are called again.
    Raises StreamStateError.
    """
    try:
        with pa.ipc.open_stream(blob) as reader:
            metadata = reader.schema.metadata or {}
            version = int(metadata.get(_VERSION, b"0"))
            if not 1 <= version <= VERSION:
                raise StreamStateError(
                    f"it has version {version}, and this Pillarbox knows 1 to {VERSION}: use a later one"
                )
            table = reader.read_all().combine_chunks()
    except pa.ArrowException as error:
        raise StreamStateError(f"it is damaged ({error})") from error
    if not table.num_rows:
        return []
    keeps_output = metadata.get(_OUTPUT) == output.encode()
    count = table.num_rows

    def column(name: str, default: Any = None) -> list[Any]:
        return table.column(name).to_pylist() if name in table.column_names else [default] * count

    struct = table.column("row")
    whole = struct.chunk(0) if struct.num_chunks == 1 else struct.combine_chunks()
    rows = conform(pa.RecordBatch.from_struct_array(whole), columns)
    made = [record for batch in records(sliced([rows])) for record in batch.rows]
    parts = zip(
        made,
        column("key"),
        column("batch"),
        column("identity"),
        column("attempts", 0),
        column("process"),
        column("number"),
        column("output"),
        strict=True,
    )
    return [
        Held(
            record,
            key,
            batch,
            identity,
            attempts,
            None if process is None else Ticket(process, number),
            next(from_ipc(leaving)) if leaving is not None and keeps_output else None,
        )
        for record, key, batch, identity, attempts, process, number, leaving in parts
    ]


def _rows(held: Sequence[Held]) -> pa.RecordBatch:
    """The input rows, in one batch: runs of rows of one batch are taken together."""
    taken: list[pa.RecordBatch] = []
    run: list[int] = []
    batch: Any = None
    for each in held:
        record = each.record
        if record._columns.batch is not batch and run:
            taken.append(batch.take(pa.array(run, pa.int64())))
            run = []
        batch = record._columns.batch
        run.append(record._index)
    taken.append(batch.take(pa.array(run, pa.int64())))
    if len(taken) == 1:
        return taken[0]
    return pa.Table.from_batches(taken).combine_chunks().to_batches()[0]
