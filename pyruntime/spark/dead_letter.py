"""Where failed rows are put aside: the value that a user gives, and what of it is sent to the tasks.

Values without state: safe in any thread. `letters.py` writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyspark.sql import types as T

from pillarbox.kernel import PillarboxError
from pillarbox.ledger.private_files import check_mode, locked_out
from pillarbox.redaction import shown_address
from pillarbox.spark.error_column import ERROR, FAILED_AT
from pillarbox.spark.schema import holds
from pillarbox.validate import check_choice

FORMATS = ("parquet", "json")

SCHEMES = ("file", "s3", "s3a", "s3n", "hdfs", "viewfs", "gs", "gcs", "abfs", "abfss")
"""Kinds of paths, by what stands before their `://`; `s3a` and `s3n` are Hadoop's names of `s3`."""

REMEDY = "DeadLetter(path, mode=0o660)"

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


class DeadLetterError(PillarboxError, OSError):
    """Failed rows could not be put aside; says where and why."""


@dataclass(frozen=True, repr=False)
class DeadLetter:
    """A folder where tasks put the rows that failed for good: the input row, `_error` and `_failed_at`.

    path: a folder, local or as a URI (file://, s3://, hdfs://, gs://, abfs://); one that all workers see.
    format: "parquet" keeps the types of the input; "json" is a JSON object a line, which gives them back
        where `spark.read` is given the input's schema.
    keep: the columns of the input that are put aside, "*" for all; those that name the row are enough where
        people's data should not be copied.
    mode: of files in a local folder, such as 0o640 for users who share it; None for 0600. A folder that is
        made may be entered by whoever may read, 0700 by default; one that is there stays as it is.

    A file appears when its task's rows are through; a task that fails before leaves none. Letters are never
    lost, but the same row may have several: each action leaves its own, see the guide.
    The folder is made when the first row is written.
    Raises TypeError or ValueError for a bad path, or a local one that cannot be written to.
    """

    path: str | os.PathLike[str]
    format: Literal["parquet", "json"] = "parquet"
    keep: Literal["*"] | Sequence[str] = field(default="*", kw_only=True)
    mode: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(
                f"dead_letter={shown_address(repr(self.path))}: must be a path or a "
                f"pillarbox.spark.DeadLetter, not {type(self.path).__name__}"
            )
        path = os.fspath(self.path)
        if not path:
            raise ValueError(f"dead_letter={path!r}: must be the path of a folder")
        check_choice("format", self.format, FORMATS)
        if self.keep != "*":
            given = self.keep
            if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
                raise TypeError(f"keep={given!r}: must be '*' or a list of column names")
            object.__setattr__(self, "keep", tuple(given))
        found = _URI.match(path)
        if found is None:
            # Workers run in folders of their own.
            path = os.path.abspath(path)
        elif found[1].lower() == "file" and not path[len("file:/") :].startswith("/"):
            # As Hadoop and Spark write it.
            path = f"file:///{path[len('file:/') :]}"
        elif found[1].lower() not in SCHEMES or not path[found.end() :].startswith("/"):
            raise ValueError(
                f"dead_letter={shown_address(path)!r}: must be a local path or one of {'://, '.join(SCHEMES)}://"
            )
        object.__setattr__(self, "path", path)
        if check_mode(self.mode) is not None and _local(path) is None:
            raise ValueError(
                f"mode={self.mode:#o}: is for a local folder; an object store has its own permissions"
            )
        self._check_local(path)

    @property
    def uri(self) -> str:
        """The path as Arrow knows it. May hold a secret."""
        return re.sub(r"^s3[an]://", "s3://", str(self.path), flags=re.IGNORECASE)

    def __repr__(self) -> str:
        keep = "" if self.keep == "*" else f", keep={[*self.keep]!r}"
        mode = "" if self.mode is None else f", mode={self.mode:#o}"
        return f"DeadLetter({shown_address(str(self.path))!r}, format={self.format!r}{keep}{mode})"

    def check_types(self, schema: T.StructType) -> None:
        """Raise ValueError if the input has a column that files of the format cannot hold."""
        for column in schema.fields:
            is_kept = self.keep == "*" or column.name in self.keep
            if is_kept and self.format == "parquet" and holds(column.dataType, T.CalendarIntervalType):
                raise ValueError(
                    f"dead_letter={self!r}: column {column.name!r} has the type interval, which Parquet "
                    "cannot hold: use DeadLetter(path, format='json'), or cast it"
                )

    def _check_local(self, path: str) -> None:
        local = _local(path)
        if local is None:
            return
        folder = path = local
        while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            raise ValueError(f"dead_letter={path!r}: {folder} is no folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(
                f"dead_letter={path!r}: folder {folder} cannot be written to: {locked_out(folder, REMEDY)}"
            )


def _local(path: str) -> str | None:
    """The folder on a file system of the machine; None for an object store."""
    if not _URI.match(path):
        return path
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme.lower() == "file" else None


def dead_letter_of(value: Any, columns: Sequence[str]) -> DeadLetter | None:
    """The `DeadLetter` of what a user gave as `dead_letter`. On the driver.

    columns: of the input rows. Raises TypeError or ValueError.
    """
    if value is None:
        return None
    letter = value if isinstance(value, DeadLetter) else DeadLetter(value)
    taken = sorted({ERROR, FAILED_AT}.intersection(columns))
    if taken:
        raise ValueError(
            f"dead_letter={letter!r}: the input has a column {taken[0]!r}, as dead letters get: rename it"
        )
    missing = [] if letter.keep == "*" else [each for each in letter.keep if each not in columns]
    if missing:
        raise ValueError(
            f"dead_letter={letter!r}: no column {missing[0]!r}; the input has {', '.join(columns)}"
        )
    return letter


@dataclass(frozen=True)
class LetterBox:
    """What tasks need to write dead letters. Made on the driver.

    names: the columns of the input. operator: the operator's identity in restarts of a streaming query, as
    far as it can be known. run: the identity of this use of the operator.
    """

    dead_letter: DeadLetter
    names: tuple[str, ...]
    operator: str
    run: str
