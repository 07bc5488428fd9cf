"""Finished calls for other programs and for people: JSON lines, Parquet. One thread at a time."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

from pillarbox.ledger.errors import LedgerError, LedgerValueError
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.private_files import replacing
from pillarbox.ledger.reader import LedgerReader
from pillarbox.ledger.records import Rows
from pillarbox.ledger.scope import Scope

FORMATS = (".parquet", ".jsonl")
ROWS = 4096
"""Records of a row group."""


def readable(value: Any) -> Any:
    """`value` in plain JSON: what JSON has not becomes a text, bytes become base64."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        return readable(value.tolist())
    return str(value)


def rows_of(scope: Scope, reader: LedgerReader, allow_pickle: bool = False) -> Iterator[dict[str, Any]]:
    """What a scope has, a dict a record; a value that may not be read is said to be so."""
    about = {"run": scope.run, "batch": scope.batch, "uid": scope.uid, "config": scope.config}
    for batch, counts in reader.batches():
        rows = Rows(batch)
        for row, count in enumerate(counts):
            if not count:
                continue
            try:
                record = rows.record(row, allow_pickle)
                value = json.dumps(readable(record.value), ensure_ascii=False)
            except LedgerValueError as error:
                value = json.dumps({"unreadable": str(error)})
            yield {
                **about,
                "key": batch.column(0)[row].as_py().hex(),
                "kind": batch.column(1)[row].as_py(),
                "value": value,
                "attempts": batch.column(5)[row].as_py(),
                "latency": batch.column(6)[row].as_py(),
                "cost": batch.column(7)[row].as_py(),
                "at": batch.column(8)[row].value,
            }


def export(ledger: Ledger, scopes: Iterable[Scope], target: str) -> int:
    """Write what scopes have into one file, by its ending; returns the number of records.

    target: a path that ends with `.parquet` or `.jsonl`. The file appears when it is complete.
    Raises ValueError for another ending, LedgerError if the file cannot be written.
    """
    if not target.endswith(FORMATS):
        raise ValueError(f"target={target!r}: must end with {' or '.join(FORMATS)}")
    rows = (
        row
        for scope in scopes
        for row in rows_of(scope, ledger.reader(scope), allow_pickle=ledger.values == "pickle")
    )
    write = _write_parquet if target.endswith(".parquet") else _write_lines
    try:
        with replacing(target) as file:
            count = write(rows, file)
    except OSError as error:
        raise LedgerError(f"{target} cannot be written: {error}") from error
    return count


def _write_lines(rows: Iterator[dict[str, Any]], file: BinaryIO) -> int:
    count = 0
    for row in rows:
        line = json.dumps({**row, "value": json.loads(row["value"])}, ensure_ascii=False) + "\n"
        file.write(line.encode("utf-8", "backslashreplace"))
        count += 1
    return count


def _write_parquet(rows: Iterator[dict[str, Any]], file: BinaryIO) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        {
            "run": pa.string(),
            "batch": pa.int64(),
            "uid": pa.string(),
            "config": pa.string(),
            "key": pa.string(),
            "kind": pa.string(),
            "value": pa.string(),
            "attempts": pa.int32(),
            "latency": pa.float64(),
            "cost": pa.float64(),
            "at": pa.timestamp("us", "UTC"),
        }
    )
    count = 0
    with pq.ParquetWriter(file, schema) as parquet:
        while group := list(islice(rows, ROWS)):
            parquet.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count
