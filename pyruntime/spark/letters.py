"""Writes the failed rows of one task to the dead letters' folder. For the task's thread.

A file is written under a hidden name and renamed when the rows of the task are through. Its name says which
rows it is about (micro-batch and partition, or run and partition) and which attempt wrote it: the latest
attempt removes what others left. The attempt is in the name since a task can hold the operator several times
(after `coalesce`), and those files stand side by side.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import posixpath
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import Row

from pillarbox.spark.dead_letter import DeadLetterError, LetterBox, shown
from pillarbox.spark.error_column import ERROR, FAILED_AT, error_array
from pillarbox.spark.types import decode_column

GROUP = 4096
"""Rows that are written together."""

_first_batches: dict[str, str | None] = {}
"""The first micro-batch that this process saw of each run: the only one that may be a replay."""


class LetterWriter:
    """The dead letters of one run of the operator in one task attempt; a context manager around it.

    A `with` block that ends well makes them visible, one that ends early or badly leaves nothing.
    """

    def __init__(self, box: LetterBox) -> None:
        self._box = box
        context = TaskContext.get()
        query = batch = None
        partition = number = attempt = 0
        if context is not None:
            query = context.getLocalProperty("sql.streaming.queryId")
            batch = context.getLocalProperty("streaming.sql.batchId")
            partition, number, attempt = (
                context.partitionId(), context.attemptNumber(), context.taskAttemptId()
            )  # fmt: skip
        rows = box.run if query is None else f"{query}-{batch}-{box.operator}"
        self._stem = f"part-{rows}-{partition:05d}-"
        self._attempt = attempt
        self._name = f"{self._stem}{box.run}-{attempt}-{uuid.uuid4().hex[:8]}.{box.dead_letter.format}"
        self._may_replace = query is None or number > 0 or _first_batches.setdefault(box.run, batch) == batch
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._files: fs.FileSystem | None = None
        self._folder = ""
        self._stream: Any = None
        self._parquet: Any = None

    def add(self, rows: pa.RecordBatch, results: list[Any]) -> None:
        """Put rows aside; `results` are the `Failed` of each. Raises `DeadLetterError`."""
        count = len(results)
        now = pa.scalar(datetime.datetime.now(datetime.timezone.utc), pa.timestamp("us", "UTC"))
        columns = [*rows.columns, error_array(results), pa.repeat(now, count)]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, [*self._box.names, ERROR, FAILED_AT]))
        self._waiting_rows += count
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
        path = str(self._box.dead_letter.path)
        try:
            step()
        except Exception as error:
            self.abort()
            text = str(error).replace(path, shown(path)).replace(self._box.dead_letter.uri, shown(path))
            # Arrow's own text may hold the address with its secrets.
            raise DeadLetterError(
                f"dead_letter={shown(path)!r}: failed rows were not written: {type(error).__name__}: {text}"
            ) from None

    @property
    def _hidden(self) -> str:
        return posixpath.join(self._folder, f"_{self._name}")

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
            files.create_dir(self._folder, recursive=True)
            self._stream = files.open_output_stream(self._hidden)
        if self._box.dead_letter.format == "parquet":
            if self._parquet is None:
                from pyarrow import parquet

                self._parquet = parquet.ParquetWriter(self._stream, table.schema)
            self._parquet.write_table(table)
        else:
            self._stream.write(json_lines(table))

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
        if not written and not self._may_replace:
            return
        files = self._open()
        superseded = []
        for each in files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True)):
            name = each.base_name.removeprefix("_")
            if not name.startswith(self._stem) or name == self._name:
                continue
            run, _, rest = name.removeprefix(self._stem).partition("-")
            attempt = int(rest.partition("-")[0])
            if run != self._box.run or attempt < self._attempt:
                superseded.append(each.path)
            elif attempt > self._attempt and name == each.base_name:
                # A later attempt is through already.
                self._remove(self._hidden)
                return
        if written:
            files.move(self._hidden, posixpath.join(self._folder, self._name))
        for path in superseded:
            self._remove(path)

    def _remove(self, path: str) -> None:
        assert self._files is not None
        try:
            self._files.delete_file(path)
        except OSError:
            # Never written, or another attempt was faster.
            return


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
