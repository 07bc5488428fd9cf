"""Writes the failed rows of one task to the dead letters' folder. For the task's thread.

A file is written under a hidden name and renamed when the rows of the task are through; then it removes what
it stands in for (`letter_names.py`).
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import os
import posixpath
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema

from pillarbox.ledger.private_files import FILE_MODE, locked_out, make_folders, open_own
from pillarbox.redaction import reason_of, shown_address
from pillarbox.spark.dead_letter import REMEDY, DeadLetterError, LetterBox
from pillarbox.spark.error_column import ERROR, FAILED_AT, error_array
from pillarbox.spark.letter_names import LetterName
from pillarbox.spark.records import decode_column

GROUP = 4096
"""Rows that are written together."""


def dead_letters(box: LetterBox, rows: pa.RecordBatch, results: list[Any]) -> pa.RecordBatch:
    """The dead letters of rows; `results` are the `Failed` of each. Any thread."""
    now = pa.scalar(datetime.datetime.now(datetime.timezone.utc), pa.timestamp("us", "UTC"))
    keep = box.dead_letter.keep
    kept = [
        (name, column)
        for name, column in zip(box.names, rows.columns, strict=True)
        if keep == "*" or name in keep
    ]
    errors = error_array(results, of_chain=results[0].info.uid is not None)
    columns = [*(column for _, column in kept), errors, pa.repeat(now, len(results))]
    return pa.RecordBatch.from_arrays(columns, [*(name for name, _ in kept), ERROR, FAILED_AT])


class LetterWriter:
    """The dead letters of one run of the operator in one task attempt; a context manager around it.

    A `with` block that ends well makes them visible, one that ends early or badly leaves nothing.
    """

    def __init__(self, box: LetterBox) -> None:
        self._box = box
        self._name = LetterName(box)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._files: fs.FileSystem | None = None
        self._folder = ""
        self._stream: Any = None
        self._parquet: Any = None
        self._schema: Any = None

    def add(self, rows: pa.RecordBatch, results: list[Any]) -> None:
        """Put rows aside; `results` are the `Failed` of each. Raises `DeadLetterError`."""
        self.add_letters(dead_letters(self._box, rows, results))

    def add_letters(self, letters: pa.RecordBatch) -> None:
        """Put aside what `dead_letters` has made. Raises `DeadLetterError`."""
        self._waiting.append(letters)
        self._waiting_rows += letters.num_rows
        if self._waiting_rows >= GROUP:
            self._guarded(self._flush)

    def commit(self) -> None:
        """Make the file visible: the rows of the task are through. Raises `DeadLetterError`."""
        self._guarded(self._commit)

    def abort(self) -> None:
        """Leave nothing behind. Never raises."""
        self._waiting.clear()
        try:
            self._end_file()
        except Exception:
            self._stream = None
        if self._files is not None:
            self._remove(self._hidden)

    def __enter__(self) -> LetterWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _guarded(self, step: Callable[[], None]) -> None:
        path, uri = str(self._box.dead_letter.path), self._box.dead_letter.uri
        try:
            step()
        except Exception as error:
            self.abort()
            reason = f"{type(error).__name__}: {reason_of(error, uri)}"
            if isinstance(error, PermissionError) and error.filename is not None:
                reason = locked_out(str(error.filename), REMEDY)
            # Arrow's own text may hold the address with its secrets.
            raise DeadLetterError(
                f"dead_letter={shown_address(path)!r}: failed rows were not written: {reason}"
            ) from None

    @property
    def _hidden(self) -> str:
        return posixpath.join(self._folder, f"_{self._name.name}")

    def _open(self) -> fs.FileSystem:
        if self._files is None:
            self._files, self._folder = fs.FileSystem.from_uri(self._box.dead_letter.uri)
        return self._files

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        files = self._open()
        if self._stream is None:
            if files.type_name == "local":
                self._stream = self._open_local()
            else:
                files.create_dir(self._folder, recursive=True)
                self._stream = files.open_output_stream(self._hidden)
        if self._box.dead_letter.format == "parquet":
            if self._parquet is None:
                from pyarrow import parquet

                self._schema = _with_spark_types(table.schema)
                self._parquet = parquet.ParquetWriter(self._stream, self._schema)
            self._parquet.write_table(table.replace_schema_metadata(self._schema.metadata))
        else:
            self._stream.write(json_lines(table))

    def _open_local(self) -> BinaryIO:
        mode = self._box.dead_letter.mode
        mode = FILE_MODE if mode is None else mode
        make_folders(self._folder, mode)
        return os.fdopen(open_own(self._hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb")

    def _end_file(self) -> None:
        parquet, self._parquet = self._parquet, None
        stream, self._stream = self._stream, None
        if parquet is not None:
            parquet.close()
        if stream is not None:
            stream.close()

    def _commit(self) -> None:
        self._flush()
        written = self._stream is not None
        self._end_file()
        if not written and not self._name.may_replace:
            return
        files = self._open()
        if written:
            files.move(self._hidden, posixpath.join(self._folder, self._name.name))
        if self._name.may_replace:
            for each in files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True)):
                if self._name.replaces(each.base_name):
                    self._remove(each.path)

    def _remove(self, path: str) -> None:
        assert self._files is not None
        try:
            self._files.delete_file(path)
        except OSError:
            # Never written, or gone already.
            return


def _with_spark_types(schema: pa.Schema) -> pa.Schema:
    """`schema` with a note of Spark's types, as Spark's own files have it: Parquet has no intervals."""
    types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return schema.with_metadata({"org.apache.spark.sql.parquet.row.metadata": types.json()})


def json_lines(table: pa.Table) -> bytes:
    """The rows as JSON, one a line, in the forms that Spark reads."""
    names = table.column_names
    columns = [decode_column(column.combine_chunks()) for column in table.columns]
    lines = [
        json.dumps(dict(zip(names, map(_plain, values), strict=True)), ensure_ascii=False)
        for values in zip(*columns, strict=True)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Row):
        return {name: _plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return str(value)
