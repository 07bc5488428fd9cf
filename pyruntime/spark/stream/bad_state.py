"""Rows of a committed state that nothing can go on from: what is wrong with them, where they are put aside.

`Errors(bad_state=...)` says what becomes of them; `bucket_state` finds them. For the tasks' threads,
but for `bad_state_folder`, which is for the driver.
"""

# A state is committed with what a version of Pillarbox took for right. Where a later one finds a null that
# Spark's Java process dies of, each start of the query would end at the same micro-batch: the state has no
# door but Spark's. So what is wrong is found where the state is read, before anything of it leaves.
#
# Why a file for each bucket that has such rows, of a name that follows from them and from the time of the
# micro-batch. An execution does not know whether it counts: each action has one, each replay, each attempt.
# All of them read the same state and have the same time, so they write the same file, and the row is put
# aside once, though it is read many times. The file is there before the state without the row is written:
# what is killed in between leaves both, and the next execution has the same file.
#
# Why a schema of its own. What is put aside may be a row of the input, a result, or bytes; files of several
# schemas in one folder can be read by nothing. The row is in `raw` as Arrow IPC, with all of its types.

from __future__ import annotations

import datetime
import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pillarbox.aio.errors import MESSAGE_CHARACTERS, ErrorInfo, Failed, cut, shorten
from pillarbox.redaction import Redact, shown_address
from pillarbox.spark.dead_letters import DeadLetter, DeadLetterWriter
from pillarbox.spark.error_column import ERROR, FAILED_AT, DeadLetters, error_array

log = logging.getLogger("pillarbox")

ROW_CHARACTERS = 400
"""Those of a row in an error, at most."""

PARTS = {
    "waiting": "the row, which waits for its call,",
    "blocked": "the result, which waits for its order,",
    "leaving": "the result, which is to leave,",
    "dead_letters": "the dead letter",
    "state": "the state of the bucket,",
}
"""The rows of each part of a state, in words."""

COLUMNS = pa.schema(
    {
        "bucket": pa.int32(),
        "batch": pa.int64(),
        "part": pa.string(),
        "row": pa.string(),
        "raw": pa.binary(),
    }
)
"""Those of a row that is put aside, in front of `_error` and `_failed_at`."""


class BadRow(NamedTuple):
    """A row of a state that nothing can go on from, or a part of it that cannot be decoded."""

    part: str
    """One of `PARTS`."""
    reason: str
    raw: bytes
    """Arrow IPC of the row alone; the bytes as they are where `row` is None."""
    row: pa.RecordBatch | None
    """Without columns of our own."""

    def shown(self, redact: Redact) -> str | None:
        """The row in words, redacted; None where it is to be left out."""
        if self.row is None:
            return f"{len(self.raw):,} bytes"
        return None if redact.rows else shorten(_Values(_values(self.row)), ROW_CHARACTERS, redact)

    def told(self, redact: Redact) -> str:
        """Say which row it is, and what is wrong with it, redacted."""
        shown = self.shown(redact)
        what = PARTS[self.part] if shown is None else f"{PARTS[self.part]} {shown}"
        return f"{what}: {cut(redact.text(self.reason), MESSAGE_CHARACTERS)}"


class _Values(dict[str, Any]):
    """The columns of a row, for its picture."""

    def __repr__(self) -> str:
        return f"({', '.join(f'{name}={shorten(value, ROW_CHARACTERS)}' for name, value in self.items())})"


def _values(row: pa.RecordBatch) -> dict[str, Any]:
    return {name: _value(column) for name, column in zip(row.schema.names, row.columns, strict=True)}


def _value(column: pa.Array) -> Any:
    try:
        return column.to_pylist()[0]
    except (ValueError, OverflowError, pa.ArrowException):
        # Text that is none is shown as its bytes.
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return column.cast(pa.large_binary()).to_pylist()[0]
        return f"<{column.type} that cannot be decoded>"


def bad_state_folder(value: object, dead_letter: DeadLetters | None) -> DeadLetter | None:
    """The folder that a user gave as `bad_state`. Raises TypeError or ValueError.

    dead_letter: where failed rows are put aside.
    """
    if value is None:
        return None
    if not isinstance(value, DeadLetter | str | os.PathLike):
        raise TypeError(
            f"bad_state={shown_address(repr(value))}: must be a path or a "
            f"pillarbox.spark.dead_letters.DeadLetter, or None to end the query, not {type(value).__name__}"
        )
    found = value if isinstance(value, DeadLetter) else DeadLetter(value)
    if found.keep != "*":
        raise ValueError(
            f"bad_state={found!r}: keep must be '*', as nothing else has what is put aside of the state"
        )
    if dead_letter is not None and dead_letter.path == found.path:
        raise ValueError(
            f"bad_state={found!r}: must be another folder than dead_letter, whose files have other columns"
        )
    return found


def remedy_of(bad: Sequence[BadRow], redact: Redact) -> str:
    """Say of bad rows of one bucket, of which there is one at least, what is wrong and what to do."""
    more = "" if len(bad) == 1 else f"; and {len(bad) - 1:,} more of this bucket"
    return (
        f"{bad[0].told(redact)}{more}. To have what is wrong put aside in a folder, and the query go on with "
        "all else, start it with async_stream(..., errors=Errors(bad_state='<folder>'))"
    )


def put_aside(
    folder: DeadLetter, bad: Sequence[BadRow], *, bucket: int, batch: int, time_ms: int, redact: Redact
) -> None:
    """Put bad rows of one bucket aside, once for all executions of the micro-batch. Raises DeadLetterError.

    batch: the number of the micro-batch, -1 where it is not known. time_ms: its time.
    """
    digest = hashlib.blake2b(f"{bucket} {time_ms}".encode(), digest_size=16)
    for each in bad:
        digest.update(f" {each.part} {len(each.raw)} ".encode())
        digest.update(each.raw)
    errors = [
        Failed(ErrorInfo("StreamStateError", cut(redact.text(each.reason), MESSAGE_CHARACTERS), 0, 0.0, None))
        for each in bad
    ]
    now = pa.scalar(datetime.datetime.now(datetime.timezone.utc), pa.timestamp("us", "UTC"))
    given = {
        "bucket": [bucket] * len(bad),
        "batch": [None if batch < 0 else batch] * len(bad),
        "part": [each.part for each in bad],
        "row": [each.shown(redact) for each in bad],
        "raw": [each.raw for each in bad],
    }
    columns = [pa.array(given[field.name], field.type) for field in COLUMNS]
    rows = pa.RecordBatch.from_arrays(
        [*columns, error_array(errors), pa.repeat(now, len(bad))], [*COLUMNS.names, ERROR, FAILED_AT]
    )
    with DeadLetterWriter(folder, name=f"bad-state-{digest.hexdigest()}.parquet") as writer:
        writer.add_batch(rows)
    log.warning(
        "async_stream: bucket %d: %d rows of the state were put aside in %r, the first: %s",
        bucket,
        len(bad),
        folder,
        bad[0].told(redact),
    )
