"""A finished call, and its way into a batch of Arrow and back. Pure: any thread."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from pillarbox.ledger.frames import schema
from pillarbox.ledger.values import Encoded, decode

VALUE = "value"
ERROR = "error"
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


class Entry(NamedTuple):
    """A finished call on its way to a segment."""

    key: bytes
    kind: str
    encoded: Encoded
    attempts: int
    latency: float
    cost: float
    at: int
    """Microseconds since 1970."""


def to_batch(entries: Sequence[Entry]) -> Any:
    """The Arrow batch of these entries."""
    import pyarrow as pa

    columns: list[list[Any]] = [
        [entry.key for entry in entries],
        [entry.kind for entry in entries],
        [entry.encoded.json for entry in entries],
        [entry.encoded.floats for entry in entries],
        [entry.encoded.blobs for entry in entries],
        [entry.attempts for entry in entries],
        [entry.latency for entry in entries],
        [entry.cost for entry in entries],
        [entry.at for entry in entries],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def record_at(batch: Any, row: int, allow_pickle: bool) -> Record:
    """The record in a row of a batch. Raises LedgerValueError if its value may or can not be read."""
    *columns, times = batch.columns
    key, kind, text, floats, blobs, attempts, latency, cost = (column[row].as_py() for column in columns)
    value = decode(text, floats, blobs, allow_pickle)
    # Arrow's own way to a datetime needs a package for time zones.
    when = EPOCH + datetime.timedelta(microseconds=times[row].value)
    return Record(key, value, kind == ERROR, attempts, latency, cost, when)
