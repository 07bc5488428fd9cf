"""`FileSource`: files as a source. A plain value; made on the driver, used in any process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pillarbox.redaction import reason_of, shown_address
from pillarbox.sources.connectors.files.csv import CsvFormat
from pillarbox.sources.connectors.files.discovery import FileEnumerator, Known, KnownSerializer
from pillarbox.sources.connectors.files.folders import columns_in, kind_of, without
from pillarbox.sources.connectors.files.formats import FileFormat, check_columns, plain_schema
from pillarbox.sources.connectors.files.json import JsonFormat
from pillarbox.sources.connectors.files.listing import (
    hiding,
    list_files,
    open_file_system,
    same_kind,
)
from pillarbox.sources.connectors.files.parquet import ParquetFormat
from pillarbox.sources.connectors.files.plain import LinesFormat
from pillarbox.sources.connectors.files.reading import FileReader
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.connectors.options import Options, check_on_data_loss
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.source import Boundedness, Source
from pillarbox.task.moments import check_duration

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

FORMATS = ("parquet", "csv", "json", "text")
FLAGS = ("recursive", "header", "newlines_in_values")
SIZES = ("split_bytes", "batch_bytes", "max_remembered")
TIMES = ("settle", "remember")


@dataclass(frozen=True)
class FileSource(Source[FileSplit, Known]):
    """The rows of files, in Arrow batches. A file must not change once it has its name.

    Folders below `path` that are called `name=value`, as Spark's `partitionBy` writes them, give a column.

    path: a file, a folder, a pattern (`*`, `?`, `[...]`, `**`), or a URI that `pyarrow.fs` knows.
    format: "parquet", "csv", "json" (an object a line) or "text" (a row a line).
    schema: the columns, by name; None: those of the first file, as they look on the driver.
    recursive: whether files in folders within the folder count. What begins with "." or "_" never does.
    discovery_interval: seconds between two looks for new files; None: those that are there now, and no more.
    split_bytes: large files are read in parts of about so many bytes: ranges of lines, row groups.
    batch_bytes: bytes of a batch, about.
    on_data_loss: "fail", or "ignore" to pass over what has vanished, was rewritten or is broken, with a
        warning. Errors that may pass (of a network, of permission) fail all the same.
    settle: seconds that a file must not have been modified to be taken for whole.
    remember, max_remembered: how late a file may come. One that is older than the newest by more than
        `remember` seconds, or than so many files that were found, is not found any more.
    header, delimiter, quote, newlines_in_values: of CSV. Without a header the columns are those of `schema`
        in their order. quote="": quotes mean nothing.
    filesystem: instead of the one that `path` tells.

    Raises ValueError for what is not allowed, on the driver. The idea of ranges of lines is Hadoop's.
    """

    split_type = FileSplit

    path: str
    format: str = "parquet"
    schema: pa.Schema | None = None
    recursive: bool = True
    discovery_interval: float | None = None
    split_bytes: int = 64 * 2**20
    batch_bytes: int = 2 * 2**20
    on_data_loss: str = "fail"
    settle: float = 0.0
    remember: float = 3600.0
    max_remembered: int = 5000
    header: bool = True
    delimiter: str = ","
    quote: str = '"'
    newlines_in_values: bool = False
    filesystem: fs.FileSystem | None = field(default=None, repr=False)
    file_format: FileFormat = field(init=False, repr=False)
    _opened: tuple[fs.FileSystem, str] = field(init=False, repr=False, compare=False)
    _found: list[pa.Schema] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        path = os.fspath(self.path)
        if not isinstance(path, str) or not path:
            raise ValueError(f"path={shown_address(repr(path))}: must be a path or a URI")
        object.__setattr__(self, "path", path)
        for name in SIZES:
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}={size!r}: must be a whole number of at least 1")
        for name in TIMES:
            check_duration(name, getattr(self, name))
        if self.discovery_interval is not None:
            check_duration("discovery_interval", self.discovery_interval)
        check_on_data_loss(self.on_data_loss)
        object.__setattr__(self, "file_format", self._format())
        if self.schema is not None:
            self.file_format.check_schema(self.schema)
        object.__setattr__(self, "_opened", open_file_system(path, self.filesystem))

    def __repr__(self) -> str:
        return f"FileSource({shown_address(self.path)!r}, format={self.format!r})"

    @property
    def boundedness(self) -> Boundedness:
        """Without `discovery_interval` it has an end."""
        return Boundedness.BOUNDED if self.discovery_interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def checkpoint_serializer(self) -> Serializer[Known]:
        """How what was found is written down."""
        return KnownSerializer()

    def create_enumerator(self, context: EnumeratorContext[FileSplit]) -> FileEnumerator:
        """One that has found nothing."""
        return FileEnumerator(context, Known(), self)

    def restore_enumerator(self, context: EnumeratorContext[FileSplit], checkpoint: Known) -> FileEnumerator:
        """One that goes on from `checkpoint`."""
        return FileEnumerator(context, checkpoint, self)

    def create_reader(self, context: ReaderContext) -> SourceReader[FileSplit]:
        """One that reads a split after the other, with one thread; of the columns only what is asked for."""
        wanted = context.schema
        if wanted is not None:
            self.file_format.check_schema(wanted)
        return FetchingReader(
            context,
            lambda: FileReader(self, lambda: self.arrow_schema() if wanted is None else wanted),
            threading=Threading.ONE_SPLIT_AT_A_TIME,
        )

    def arrow_schema(self) -> pa.Schema:
        """The columns: those that were given, or those of the first file in which values are.

        Raises ValueError if there is no file, or if one cannot be read.
        """
        import pyarrow as pa

        if self.schema is not None:
            return self.schema
        if not self._found:
            filesystem, path = self.open()
            with hiding(self.path):
                listed = list_files(filesystem, path, recursive=self.recursive)
            found = None
            named: dict[str, str | None] = {}
            for file in listed:
                if file.size:
                    found = self._schema_of(filesystem, file.path)
                    named = columns_in(file.path, path)
                    if any(kind != pa.null() for kind in found.types):
                        break
            if found is None:
                raise ValueError(
                    f"path={shown_address(self.path)!r}: there is no file with rows, so its columns are "
                    "unknown: give a schema"
                )
            folders = [columns_in(file.path, path) for file in listed]
            kinds = [pa.field(name, kind_of(values.get(name) for values in folders)) for name in named]
            self._found.append(pa.schema([*plain_schema(without(found, named)), *kinds]))
        return self._found[0]

    def _schema_of(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """The columns of a file. Raises what names it."""
        import pyarrow as pa

        try:
            found = self.file_format.file_schema(filesystem, path)
            if found.names:
                check_columns(found.names, found)
            return found
        except (OSError, ValueError, EOFError, pa.ArrowException) as error:
            what = reason_of(error, self.path)
            text = f"{path!r}: its columns cannot be looked up: {what}"
            raise same_kind(error, text) from (error if what == str(error) else None)

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it. Any thread."""
        return self._opened

    def _format(self) -> FileFormat:
        if self.format == "parquet":
            return ParquetFormat()
        if self.format == "csv":
            names = None if self.schema is None else tuple(self.schema.names)
            return CsvFormat(self.header, self.delimiter, self.quote, self.newlines_in_values, names)
        if self.format in FORMATS:
            return JsonFormat() if self.format == "json" else LinesFormat()
        raise ValueError(f"format={self.format!r}: must be one of {', '.join(FORMATS)}")

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> FileSource:
        """The source that options of the same names describe."""
        found = Options(options)
        if "paths" in options:
            raise ValueError(f"option 'paths' is {options['paths']!r}: give one path, which may be a pattern")
        path = found.text("path", required=True)
        every = found.number("discovery_interval", float, 0.0)
        given: dict[str, Any] = {name: found.flag(name, getattr(cls, name)) for name in FLAGS}
        texts = {name: found.text(name) for name in ("format", "on_data_loss", "delimiter", "quote")}
        sizes = {name: found.number(name, int, getattr(cls, name)) for name in SIZES}
        times = {name: found.number(name, float, getattr(cls, name)) for name in TIMES}
        found.check_all_read()
        given.update((name, text) for name, text in texts.items() if text is not None)
        if "discovery_interval" in options:
            given["discovery_interval"] = every
        return cls(path, schema=schema, **given, **sizes, **times)
