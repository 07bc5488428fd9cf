"""Where failed rows are put aside: the value that a user gives, and what of it is sent to the tasks.

Values without state: safe in any thread. `letters.py` writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyspark.sql import types as T

from pillarbox.kernel import PillarboxError
from pillarbox.mailbox.check import check_choice
from pillarbox.spark.error_column import ERROR, FAILED_AT
from pillarbox.spark.types import holds

FORMATS = ("parquet", "json")

SCHEMES = ("file", "s3", "s3a", "s3n", "hdfs", "viewfs", "gs", "gcs", "abfs", "abfss")
"""Kinds of paths, by what stands before their `://`; `s3a` and `s3n` are Hadoop's names of `s3`."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


class DeadLetterError(PillarboxError, OSError):
    """Failed rows could not be put aside; says where and why."""


@dataclass(frozen=True, repr=False)
class DeadLetter:
    """A folder where tasks put the rows that failed for good: the whole input row, `_error` and `_failed_at`.

    path: a folder, local or as a URI (file://, s3://, hdfs://, gs://, abfs://); one that all workers see.
    format: "parquet" keeps the types of the input; "json" is a JSON object a line, which gives them back
        where `spark.read` is given the input's schema.

    A file appears when its task's rows are through; a task that fails before leaves none. Letters are never
    lost, but the same row may have several: each action leaves its own, see the guide.
    The folder is made when the first row is written.
    Raises TypeError or ValueError for a bad path, or a local one that cannot be written to.
    """

    path: str | os.PathLike[str]
    format: Literal["parquet", "json"] = "parquet"

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(
                f"dead_letter={self.path!r}: must be a path or a pillarbox.spark.DeadLetter, "
                f"not {type(self.path).__name__}"
            )
        path = os.fspath(self.path)
        if not path:
            raise ValueError(f"dead_letter={path!r}: must be the path of a folder")
        check_choice("format", self.format, FORMATS)
        found = _URI.match(path)
        if found is None:
            # Workers run in folders of their own.
            path = os.path.abspath(path)
        elif found[1].lower() == "file" and not path[len("file:/") :].startswith("/"):
            # As Hadoop and Spark write it.
            path = f"file:///{path[len('file:/') :]}"
        elif found[1].lower() not in SCHEMES or not path[found.end() :].startswith("/"):
            raise ValueError(
                f"dead_letter={shown(path)!r}: must be a local path or one of {'://, '.join(SCHEMES)}://"
            )
        object.__setattr__(self, "path", path)
        self._check_local(path)

    @property
    def uri(self) -> str:
        """The path as Arrow knows it. May hold a secret."""
        return re.sub(r"^s3[an]://", "s3://", str(self.path), flags=re.IGNORECASE)

    def __repr__(self) -> str:
        return f"DeadLetter({shown(str(self.path))!r}, format={self.format!r})"

    def check_types(self, schema: T.StructType) -> None:
        """Raise ValueError if the input has a column that files of the format cannot hold."""
        for field in schema.fields:
            if self.format == "parquet" and holds(field.dataType, T.CalendarIntervalType):
                raise ValueError(
                    f"dead_letter={self!r}: column {field.name!r} has the type interval, which Parquet "
                    "cannot hold: use DeadLetter(path, format='json'), or cast it"
                )

    def _check_local(self, path: str) -> None:
        if _URI.match(path):
            parts = urlsplit(path)
            if parts.scheme.lower() != "file":
                return
            path = unquote(parts.path)
        folder = path
        while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            raise ValueError(f"dead_letter={path!r}: {folder} is no folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"dead_letter={path!r}: folder {folder} cannot be written to")


def shown(path: str) -> str:
    """`path` without what may be a secret: a user's part, which may hold any character, and a query."""
    scheme, mark, rest = path.partition("://")
    if not mark:
        return path
    user, at, place = rest.rpartition("@")
    if "?" in user:
        # A secret with a question mark in it, or a query with an at sign.
        return f"{scheme}://***"
    return f"{scheme}://{'***@' if at else ''}{place.partition('?')[0]}"


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
