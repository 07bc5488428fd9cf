"""Dead letters: rows that failed for good are put aside in a folder of Parquet files.

`DeadLetter` is the value that a user gives, and is sent to tasks. `DeadLetterWriter` is for the task thread;
the rest is pure and used by any thread.
"""

# A file is written under a hidden name, which begins with `_`, and renamed when the rows of its task are
# through: a task that fails leaves nothing. A task that Spark runs again although it was through, such as one
# of a micro-batch that is replayed, leaves its letters twice. To remove those of the first time one would
# have to know that its rows are done again: of two attempts under speculation only Spark knows which it
# keeps, and a use of the operator has no name that a restart of its query keeps. A letter that is there twice
# does less harm than one that is lost. Spark's own commit protocol knows all this, but writes the output of a
# job only. A ledger has the failed rows too; most jobs have none.

from __future__ import annotations

import datetime
import os
import posixpath
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, Literal
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs, parquet
from pyspark import TaskContext
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from pillarbox.kernel import PillarboxError
from pillarbox.ledger.private_files import (
    FILE_MODE,
    check_mode,
    expand_home,
    locked_out,
    make_folders,
    open_own,
)
from pillarbox.redaction import reason_of, shown_address
from pillarbox.spark.compat import NOT_IN_PARQUET
from pillarbox.spark.error_column import ERROR, ERROR_ARROW, ERROR_ARROW_OF_CHAIN, FAILED_AT, error_array
from pillarbox.spark.schema import check_column, holds

SCHEMES = ("s3", "s3a", "s3n", "hdfs", "viewfs", "gs", "gcs", "abfs", "abfss")
"""Kinds of paths, by what stands before their `://`; `s3a` and `s3n` are Hadoop's names of `s3`."""

REMEDY = "DeadLetter(path, mode=0o660)"

ROWS_PER_WRITE = 4096
"""Rows that are written together."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_FILE_URI = re.compile(r"file:(?:/|/{3,})(?!/)(.*)", re.IGNORECASE | re.DOTALL)
"""With one slash, as Hadoop and Spark write it, or without a host."""


class DeadLetterError(PillarboxError, OSError):
    """Failed rows could not be put aside; says where and why."""


@dataclass(frozen=True, repr=False)
class DeadLetter:
    """Folder of Parquet files for rows that failed for good: the input row, `_error` and `_failed_at`.

    path: a folder, local or as a URI (file://, s3://, hdfs://, gs://, abfs://) that all workers see.
    keep: the input columns to store, "*" for all; identifying ones are enough if personal data must not be
        copied.
    mode: of files in a local folder, such as 0o640 for users who share it; None for 0600. The readers of a
        new folder's files may enter it, by default 0700; an existing one is unchanged.

        >>> import tempfile
        >>> from pillarbox import Errors
        >>> from pillarbox.spark import async_map
        >>> from pillarbox.spark.dead_letters import DeadLetter
        >>> async def call(row):
        ...     return 10 // row.id
        >>> folder = tempfile.mkdtemp()
        >>> put_aside = Errors(dead_letter=DeadLetter(folder, keep=["id"]))
        >>> async_map(spark.range(3), call, schema="n long", errors=put_aside).count()
        2
        >>> spark.read.parquet(folder).select("id", "_error.type").collect()
        [Row(id=0, type='ZeroDivisionError')]

    A file appears when the rows of its task are finished; a task that fails before writes none. Dead letters
    are never lost, but the same row may have several: each action writes its own, see the guide. The folder
    is made when the first row is written. A value; any thread may use it. Raises TypeError or ValueError for
    a bad path, or a local one that cannot be written to.
    """

    path: str | os.PathLike[str]
    keep: Literal["*"] | Sequence[str] = field(default="*", kw_only=True)
    mode: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(
                f"dead_letter={shown_address(repr(self.path))}: must be a path or a "
                f"pillarbox.spark.dead_letters.DeadLetter, not {type(self.path).__name__}"
            )
        path = os.fspath(self.path)
        if not path:
            raise ValueError(f"dead_letter={path!r}: must be the path of a folder")
        if self.keep != "*":
            if not isinstance(self.keep, list | tuple) or not all(
                isinstance(each, str) for each in self.keep
            ):
                raise TypeError(f"keep={self.keep!r}: must be '*' or a list of column names")
            object.__setattr__(self, "keep", tuple(self.keep))
        found = _URI.match(path)
        if found is None:
            # Workers run in folders of their own.
            path = os.path.abspath(expand_home("dead_letter", path))
        elif (local := _FILE_URI.fullmatch(path)) is not None:
            # Blanks, `#` and `?` are characters of the path, as Hadoop has it, and not so for Arrow.
            path = os.path.abspath(f"/{unquote(local[1])}")
        elif found[1].lower() not in SCHEMES or not path[found.end() :].startswith("/"):
            raise ValueError(
                f"dead_letter={shown_address(path)!r}: must be a local path or one of file:///, "
                f"{'://, '.join(SCHEMES)}://"
            )
        object.__setattr__(self, "path", path)
        is_local = _URI.match(path) is None
        if check_mode(self.mode) is not None and not is_local:
            raise ValueError(
                f"mode={self.mode:#o}: is for a local folder; an object store has its own permissions"
            )
        if is_local:
            _check_folder(path)

    @property
    def uri(self) -> str:
        """The path as Arrow knows it. May hold a secret."""
        return re.sub(r"^s3[an]://", "s3://", str(self.path), flags=re.IGNORECASE)

    def __repr__(self) -> str:
        keep = "" if self.keep == "*" else f", keep={[*self.keep]!r}"
        mode = "" if self.mode is None else f", mode={self.mode:#o}"
        return f"DeadLetter({shown_address(str(self.path))!r}{keep}{mode})"

    def batch(self, rows: pa.RecordBatch, results: Sequence[Any]) -> pa.RecordBatch:
        """The dead letters of rows; `results` are the `Failed` of each. Any thread."""
        names = [name for name in rows.schema.names if self.keep == "*" or name in self.keep]
        errors = error_array(results, ERROR_ARROW if results[0].info.uid is None else ERROR_ARROW_OF_CHAIN)
        now = pa.scalar(datetime.datetime.now(datetime.timezone.utc), pa.timestamp("us", "UTC"))
        columns = [*rows.select(names).columns, errors, pa.repeat(now, len(results))]
        return pa.RecordBatch.from_arrays(columns, [*names, ERROR, FAILED_AT])

    def writer(self) -> DeadLetterWriter:
        """Make the writer of one task attempt. On its thread."""
        return DeadLetterWriter(self)

    def check_types(self, schema: T.StructType) -> None:
        """Raise ValueError if the input has a column that Parquet cannot hold."""
        for column in schema.fields:
            is_kept = self.keep == "*" or column.name in self.keep
            if is_kept and holds(column.dataType, NOT_IN_PARQUET):
                raise ValueError(
                    f"dead_letter={self!r}: column {column.name!r} has the type "
                    f"{column.dataType.simpleString()}, which Parquet cannot hold: cast it, or leave it out "
                    "by keep="
                )


def _check_folder(path: str) -> None:
    folder = path
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise ValueError(f"dead_letter={path!r}: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            f"dead_letter={path!r}: folder {folder} cannot be written to: {locked_out(folder, REMEDY)}"
        )


def dead_letter_of(
    value: str | os.PathLike[str] | DeadLetter | None, columns: Sequence[str]
) -> DeadLetter | None:
    """The `DeadLetter` that a user gave as `dead_letter`, by path or as it is. On the driver.

    columns: of the input rows. Raises TypeError or ValueError.
    """
    if value is None:
        return None
    found = value if isinstance(value, DeadLetter) else DeadLetter(value)
    taken = sorted({ERROR, FAILED_AT}.intersection(columns))
    if taken:
        raise ValueError(
            f"dead_letter={found!r}: the input has a column {taken[0]!r}, as dead letters get: rename it"
        )
    for name in () if found.keep == "*" else found.keep:
        check_column(f"dead_letter={found!r}", name, columns)
    return found


class DeadLetterWriter:
    """Writes the dead letters of one run of the operator in one task attempt; a context manager around it.

    name: of the file, which is left as it is where it is there; None for one of its own.
    A `with` block that ends well makes them visible, one that ends early or badly leaves nothing.
    """

    def __init__(self, letter: DeadLetter, name: str | None = None) -> None:
        self._letter = letter
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        own = uuid.uuid4().hex
        self._is_named = name is not None
        self._name = f"part-{partition:05d}-{own}.parquet" if name is None else name
        # Two attempts may write a file of one name at a time.
        self._hidden_name = f"_{self._name}" if name is None else f"_{own}-{name}"
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._files: fs.FileSystem | None = None
        self._folder = ""
        self._stream: Any = None
        self._parquet: Any = None

    def add(self, rows: pa.RecordBatch, results: Sequence[Any]) -> None:
        """Put rows aside; `results` are the `Failed` of each. Raises `DeadLetterError`."""
        self.add_batch(self._letter.batch(rows, results))

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Put aside what `DeadLetter.batch` has made. Raises `DeadLetterError`."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROWS_PER_WRITE:
            with self._errors_named():
                self._flush()

    def commit(self) -> None:
        """Make the file visible: the rows of the task are through. Raises `DeadLetterError`."""
        with self._errors_named():
            self._flush()
            written = self._stream is not None
            self._close_file()
            if written:
                target = posixpath.join(self._folder, self._name)
                if self._is_named and self._open().get_file_info(target).type == fs.FileType.File:
                    self._open().delete_file(self._hidden)
                else:
                    self._open().move(self._hidden, target)

    def abort(self) -> None:
        """Leave nothing behind. Never raises."""
        self._waiting.clear()
        with suppress(Exception):
            self._close_file()
        if self._files is not None:
            # It may never have been written, or be gone already.
            with suppress(OSError):
                self._files.delete_file(self._hidden)

    def __enter__(self) -> DeadLetterWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.abort()
            reason = f"{type(error).__name__}: {reason_of(error, self._letter.uri)}"
            if isinstance(error, PermissionError) and error.filename is not None:
                reason = locked_out(str(error.filename), REMEDY)
            # Arrow's own text may hold the address with its secrets.
            shown = shown_address(str(self._letter.path))
            raise DeadLetterError(f"dead_letter={shown!r}: failed rows were not written: {reason}") from None

    @property
    def _hidden(self) -> str:
        return posixpath.join(self._folder, self._hidden_name)

    def _open(self) -> fs.FileSystem:
        if self._files is None:
            self._files, self._folder = fs.FileSystem.from_uri(self._letter.uri)
        return self._files

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        # A note of Spark's types, as Spark's own files have it: Parquet has no intervals.
        types = from_arrow_schema(table.schema, prefer_timestamp_ntz=True).json()
        table = table.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": types})
        if self._stream is None:
            self._stream = self._open_file()
            self._parquet = parquet.ParquetWriter(self._stream, table.schema)
        self._parquet.write_table(table)

    def _open_file(self) -> Any:
        files = self._open()
        if files.type_name == "local":
            mode = self._letter.mode or FILE_MODE
            make_folders(self._folder, mode)
            opened: BinaryIO = os.fdopen(
                open_own(self._hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb"
            )
            return opened
        files.create_dir(self._folder, recursive=True)
        return files.open_output_stream(self._hidden)

    def _close_file(self) -> None:
        opened, self._parquet, self._stream = (self._parquet, self._stream), None, None
        for each in opened:
            if each is not None:
                each.close()
