"""Sinks into folders of files: `ParquetSink` and `JsonLinesSink`. On the job's thread.

The rows of a checkpoint are one file. It is hidden until it is committed, by a rename; the names of hidden
files begin with a dot, which Spark, Arrow and others pass over.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pillarbox.aio.row_fields import as_fields
from pillarbox.job.checkpoints import CheckpointError
from pillarbox.job.sink import Sink
from pillarbox.ledger.local_folder import sync_path

if TYPE_CHECKING:
    import pyarrow as pa

JOB_CHARACTERS = 12
"""Of the job's name, in the names of its files."""


class FolderSink(Sink):
    """Writes the rows of each checkpoint into one file of a folder. Derive the formats from it.

    suffix: of the files' names.
    """

    suffix: str

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._prefix = ""
        self._file: IO[bytes] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._folder)!r})"

    def files(self) -> list[Path]:
        """The files of committed rows, of all jobs that write into the folder, by their names."""
        return sorted(self._folder.glob(f"part-*{self.suffix}"))

    def open(self, job: str, interval: float) -> None:
        """Make the folder."""
        self._prefix = f"part-{job[:JOB_CHARACTERS]}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def recover(self, prepared: Sequence[Any]) -> bool:
        """Give prepared files their names, and remove other hidden files of the job."""
        # spec: SinkCommit!Recover
        self.commit(prepared)
        for path in self._folder.glob(f".{self._prefix}-*"):
            path.unlink()
        return True

    def write(self, rows: Sequence[Any]) -> None:
        """Add rows to the hidden file."""
        if self._file is None:
            self._file = (self._folder / f".{self._prefix}-open{self.suffix}").open("wb")
            self.begin(self._file)
        self.append(self._file, rows)

    def prepare(self, checkpoint: int) -> str | None:
        """End the hidden file, durably. Returns the name that it is to have."""
        if self._file is None:
            return None
        file, self._file = self._file, None
        self.end(file)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        name = f"{self._prefix}-{checkpoint:010}{self.suffix}"
        os.replace(file.name, self._folder / f".{name}")
        sync_path(str(self._folder))
        return name

    def commit(self, prepared: Sequence[Any]) -> None:
        """Give files their names."""
        for name in prepared:
            hidden, named = self._folder / f".{name}", self._folder / name
            if hidden.exists():
                os.replace(hidden, named)
            elif not named.exists():
                raise CheckpointError(
                    f"{str(named)!r}: is not there, and the checkpoint has it; give the folder to which the "
                    "job has written, or begin anew with another folder of checkpoints"
                )
        if prepared:
            sync_path(str(self._folder))

    def close(self) -> None:
        """Close the hidden file; the next start removes it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @abstractmethod
    def begin(self, file: IO[bytes]) -> None:
        """Begin a file."""

    @abstractmethod
    def append(self, file: IO[bytes], rows: Sequence[Any]) -> None:
        """Write rows."""

    @abstractmethod
    def end(self, file: IO[bytes]) -> None:
        """Write what stands at the end of a file."""


class JsonLinesSink(FolderSink):
    """Writes rows as JSON, one a line, into files of a folder that become visible with the job's checkpoints.

    A row with names becomes an object; times, decimals and UUIDs become texts.

        >>> from pillarbox import run
        >>> from pillarbox.job import JsonLinesSink
        >>> async def measure(word):
        ...     return {"word": word, "length": len(word)}
        >>> sink = JsonLinesSink("words")
        >>> run(["a", "bc"], measure, sink, checkpoints="checkpoints").wait()
        True
        >>> print(sink.files()[0].read_text(), end="")
        {"word": "a", "length": 1}
        {"word": "bc", "length": 2}

    Raises TypeError, which ends the job, for a value that JSON cannot hold.
    """

    suffix = ".jsonl"

    def begin(self, file: IO[bytes]) -> None:
        """Nothing stands at the beginning."""

    def append(self, file: IO[bytes], rows: Sequence[Any]) -> None:
        """Write a line for each row."""
        file.write("".join([json.dumps(as_fields(row), default=_told) + "\n" for row in rows]).encode())

    def end(self, file: IO[bytes]) -> None:
        """Nothing stands at the end."""


class ParquetSink(FolderSink):
    """Writes rows into Parquet files of a folder, which become visible with the job's checkpoints.

    schema: the columns: a `pyarrow.Schema`, or pairs of a name and a type. A row is a dict, or another value
        with names; a value without names is that of the only column. What a row lacks is null.

        >>> import pyarrow.parquet
        >>> from pillarbox import run
        >>> from pillarbox.job import ParquetSink
        >>> async def measure(word):
        ...     return {"word": word, "length": len(word)}
        >>> sink = ParquetSink("words", [("word", "string"), ("length", "int32")])
        >>> run(["a", "bc"], measure, sink, checkpoints="checkpoints").wait()
        True
        >>> pyarrow.parquet.read_table("words")["length"].to_pylist()
        [1, 2]

    Raises what Arrow raises, which ends the job, for a row that does not fit.
    """

    suffix = ".parquet"

    def __init__(self, folder: str | os.PathLike[str], schema: pa.Schema | Sequence[tuple[str, Any]]) -> None:
        import pyarrow as pa

        super().__init__(folder)
        self._schema = schema if isinstance(schema, pa.Schema) else pa.schema([*schema])
        self._writer: Any = None

    def begin(self, file: IO[bytes]) -> None:
        """Begin a file of these columns."""
        import pyarrow.parquet

        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema)

    def append(self, file: IO[bytes], rows: Sequence[Any]) -> None:
        """Write rows as a group of their own."""
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist([self._fields(row) for row in rows], self._schema))

    def end(self, file: IO[bytes]) -> None:
        """Write the footer."""
        writer, self._writer = self._writer, None
        writer.close()

    def _fields(self, row: object) -> Mapping[str, Any]:
        fields = as_fields(row)
        if isinstance(fields, dict):
            return fields
        names = self._schema.names
        if len(names) == 1:
            return {names[0]: row}
        if isinstance(row, tuple) and len(row) == len(names):
            return dict(zip(names, row, strict=True))
        raise TypeError(
            f"row {row!r:.200}: has no names, and the schema has the columns {', '.join(names)}; return a "
            "dict or a dataclass"
        )


def _told(value: object) -> Any:
    """The form of a value in JSON that has none of its own."""
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    fields = as_fields(value)
    if fields is value:
        raise TypeError(
            f"{value!r:.200}: JSON cannot hold a {type(value).__name__}; return a text or a number"
        )
    return fields
