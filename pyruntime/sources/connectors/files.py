"""Files as a source: Parquet, JSON lines and text, of a folder or of any file system that Arrow knows.

`FileSource` is a plain value; made on the driver, used in any process.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from pillarbox.ledger.private_files import expand_home
from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.file_discovery import (
    READ_ERRORS,
    FileEnumerator,
    FileSplit,
    Known,
    KnownSerializer,
    StateFolder,
    hiding,
    list_files,
    open_file_system,
    retold,
    root_of,
)
from pillarbox.sources.connectors.file_formats import (
    FileFormat,
    JsonFormat,
    ParquetFormat,
    TextFormat,
    check_columns,
    read_split,
    without,
)
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.fetching import FetchingReader
from pillarbox.sources.reader import ReaderContext
from pillarbox.sources.simple import LoopReader
from pillarbox.sources.source import ON_DATA_LOSS, Boundedness, Source, check_options, option, read_options
from pillarbox.sources.split import Serializer
from pillarbox.validate import naming_arguments

# CSV is not among them, since Spark's own reader has many options for it, which would have to mean the same.
FORMATS: dict[str, type[FileFormat]] = {"parquet": ParquetFormat, "json": JsonFormat, "text": TextFormat}
NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder, `name=value`, as Hive and Spark write null."""
# So many digits always fit into 64 bits; a longer number stays text, as an identifier should.
WHOLE = re.compile(r"-?[0-9]{1,18}")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@naming_arguments
@dataclass(frozen=True)
class FileSource(Source[FileSplit, Known]):
    """Rows of files, in Arrow batches. A file must not change once it has its name.

        >>> from pathlib import Path
        >>> from pillarbox.sources.connectors.files import FileSource
        >>> from pillarbox.testing import SourceHarness
        >>> _ = Path("words.txt").write_text("first")
        >>> source = FileSource("words.txt", format="text", settle=0)
        >>> with SourceHarness(source) as harness:
        ...     print(harness.read_all())
        [('first',)]

    Folders below `path` that are called `name=value`, as Spark's `partitionBy` writes them, give a column.

    path: a file, a folder, a pattern (`*`, `?`, `[...]`, `**`), or a URI that `pyarrow.fs` knows.
    format: "parquet", "json" (an object a line, needs `schema`) or "text" (a row a line).
    schema: the columns, by name; None: those of the first file of Parquet, `value` of text.
    recursive: whether files in folders within the folder count. What begins with "." or "_" never does.
    discovery_interval: seconds between two looks for new files; None: one look at each start, and no other.
    split_bytes: large files are read in parts of about so many bytes: ranges of lines, row groups.
    batch_bytes: bytes of a batch, about.
    on_data_loss: "fail", or "ignore" to pass over what has vanished, was rewritten or is broken, with a
        warning. Errors that may pass (of a network, of permission) fail all the same.
    on_bad_row: "fail", which names file, line and value; "null" for null in the place of a value that cannot
        be read, in a line or in the name of a folder; "column" for that and the line in the column
        `bad_row_column`, in formats of lines.
    settle: seconds that a file must not have been modified to be taken; None: 2, or 0 in an object store.
    state: a folder, as a path or a URI, of one query: for what it has read, which its checkpoint then names.
        Without one a checkpoint remembers at most 8,192 files.
    moved_from: the place of these files when the checkpoint was written, as the error says that asks for it.
    filesystem: instead of the one that `path` tells.

    Raises ValueError for what is not allowed, on the driver. The idea of ranges of lines is Hadoop's.
    """

    split_type = FileSplit

    path: str
    format: str = option("parquet", one_of=("parquet", "json", "text"))
    schema: pa.Schema | None = None
    recursive: bool = option(True)
    discovery_interval: float | None = option(None, at_least=0.0, unit="number of seconds")
    split_bytes: int = option(64 * 2**20, at_least=1)
    batch_bytes: int = option(2 * 2**20, at_least=1)
    on_data_loss: str = option("fail", one_of=ON_DATA_LOSS)
    on_bad_row: str = option("fail", one_of=("fail", "null", "column"))
    bad_row_column: str = option("_corrupt_record")
    settle: float | None = option(None, at_least=0.0, unit="number of seconds")
    state: str | None = None
    moved_from: str | None = None
    filesystem: fs.FileSystem | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        path = os.fspath(self.path)
        if not isinstance(path, str) or not path:
            raise ValueError(f"path={shown_address(repr(path))}: must be a path or a URI")
        if self.filesystem is None:
            # The home folder of the driver, not of whatever worker reads.
            path = expand_home("path", path)
        object.__setattr__(self, "path", path)
        if self.format == "csv":
            raise ValueError("format='csv': Spark reads CSV: spark.read.csv(...)")
        check_options(self)
        if self.format == "json" and self.schema is None:
            raise ValueError(
                "format='json': needs schema=, the columns and their types, which are not guessed from the "
                "files; spark.read.json(...).schema tells those of a sample"
            )
        if self.format == "parquet" and self.on_bad_row == "column":
            raise ValueError(
                "on_bad_row='column': is of lines (json, text), and format='parquet': say 'fail' or 'null'"
            )
        if self.schema is not None:
            self._check_schema(self.schema)
        open_file_system(self.path, self.filesystem)
        if self.state is not None:
            object.__setattr__(self, "state", expand_home("state", os.fspath(self.state)))
            open_file_system(self.state, None, "state")

    def __repr__(self) -> str:
        return f"FileSource({shown_address(self.path)!r}, format={self.format!r})"

    @property
    def boundedness(self) -> Boundedness:
        """Bounded without `discovery_interval`."""
        return Boundedness.BOUNDED if self.discovery_interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def checkpoint_serializer(self) -> Serializer[Known]:
        """Return the serializer of the files that were found."""
        return KnownSerializer(self)

    def create_enumerator(
        self, context: EnumeratorContext[FileSplit], checkpoint: Known | None = None
    ) -> FileEnumerator:
        """Return an enumerator that has found no file, or that continues from `checkpoint`."""
        return FileEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[FileSplit]:
        """Return a reader of one split after another, in one thread, that decodes the requested columns."""
        if context.schema is not None:
            self._check_schema(context.schema)
        return FetchingReader(
            context, partial(LoopReader, self, None, partial(read_split, self, context.schema))
        )

    def arrow_schema(self) -> pa.Schema:
        """The columns: those that were given, or those of the first file in which values are.

        Raises ValueError if there is no file, or if one cannot be read.
        """
        return self._schema_of_files if self.schema is None else self.schema

    @cached_property
    def _schema_of_files(self) -> pa.Schema:
        filesystem, path = self.opened
        with hiding(self.path):
            listed = list_files(filesystem, path, recursive=self.recursive)
        found, named = None, dict[str, str | None]()
        for file in listed:
            if not file.size:
                continue
            try:
                found = self.file_format.file_schema(file.path)
                if found.names:
                    check_columns(found.names, found)
            except READ_ERRORS as error:
                place = f"{file.path!r}: its columns cannot be looked up: "
                raise retold(error, self.path, place) from None
            named = self.columns_in(file.path, path)
            # A file all of whose values are null has columns without types: the next one may know better.
            if any(kind != pa.null() for kind in found.types):
                break
        if found is None:
            raise ValueError(
                f"path={shown_address(self.path)!r}: there is no file with rows, so its columns are unknown: "
                "give a schema"
            )
        # The type of a column of folders is known only of all: one value that is not a number makes it text.
        folders = [self.columns_in(file.path, path) for file in listed]
        kinds = [pa.field(name, _kind_of(values.get(name) for values in folders)) for name in named]
        bad = [pa.field(self.bad_row_column, pa.string())] if self.on_bad_row == "column" else []
        schema = pa.schema([*_plain_schema(without(found, named)), *kinds, *bad])
        self._check_schema(schema)
        return schema

    def _check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError unless the source can give these columns."""
        if self.on_bad_row == "column":
            at = schema.get_field_index(self.bad_row_column)
            if at < 0 or schema.field(at).type != pa.string():
                raise ValueError(
                    f"bad_row_column={self.bad_row_column!r}: the schema must have a column of this name, of "
                    f"text, for on_bad_row='column'; it has {schema.names!r}"
                )
            schema = schema.remove(at)
        self.file_format.check_schema(schema)

    @cached_property
    def file_format(self) -> FileFormat:
        """The format."""
        return FORMATS[self.format](self.opened[0])

    @cached_property
    def opened(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it. Any thread."""
        return open_file_system(self.path, self.filesystem)

    @cached_property
    def state_folder(self) -> StateFolder | None:
        """The folder of `state`. On the driver."""
        return None if self.state is None else StateFolder(self.state)

    # What was found out travels with the source, as the schema of its files: each task would look at a file
    # for it. But the folder of `state` is the driver's.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "state_folder"}

    # -- names of files ----------------------------------------------------------------------------

    @cached_property
    def root(self) -> str:
        """The place that names of files are relative to, as a checkpoint has it: without secrets."""
        filesystem, path = self.opened
        # Without host and user: the same bucket through another endpoint, or with other keys, is the same
        # place.
        kind = filesystem.type_name
        return root_of(path) or "/" if kind == "local" else f"{kind}://{root_of(path)}"

    def relative(self, path: str) -> str:
        """The name of a file, by which it is known, of its path in the file system."""
        return path[len(root_of(self.opened[1])) :].lstrip("/")

    def absolute(self, name: str) -> str:
        """The path in the file system of a file of this name."""
        path = self.opened[1]
        root = root_of(path)
        return root + "/" * bool(name and (root or path.startswith("/"))) + name

    def check_root(self, root: str) -> None:
        """Raise ValueError unless a checkpoint that was written for the files of `root` is one for these."""
        if root != self.root and root != (self.moved_from or "").rstrip("/"):
            before = self.moved_from and shown_address(self.moved_from)
            raise ValueError(
                f"path={shown_address(self.path)!r}: its files lie in {self.root!r}, and the checkpoint is "
                f"of {root!r}. If these are the same files by the same names, say moved_from={root!r}, and "
                f"they are not read again; else begin a new checkpoint (now moved_from={before!r})"
            )

    @staticmethod
    def columns_in(path: str, given: str) -> dict[str, str | None]:
        """The values by name in the folders of a file, of those below the path or pattern `given`."""
        above = given if path.startswith(given) else root_of(given)
        found: dict[str, str | None] = {}
        for folder in path[len(above) :].split("/")[:-1]:
            name, equals, value = folder.partition("=")
            if name and equals:
                found[unquote(name)] = None if value == NULL else unquote(value)
        return found

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> FileSource:
        """The source that options of the same names describe."""
        if "paths" in options:
            raise ValueError(f"option 'paths' is {options['paths']!r}: give one path, which may be a pattern")
        return cls(schema=schema, **read_options(cls, options))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that a source says it has: no metadata, no dictionaries, text where nothing was seen."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    kinds = [pa.string() if pa.types.is_null(kind) else kind for kind in kinds]
    return pa.schema(zip(schema.names, kinds, strict=True))


def _kind_of(values: Iterable[str | None]) -> pa.DataType:
    """The type of a column with these values: int64 or date32 where all of them are such, or else string."""
    said = {value for value in values if value is not None}
    if said and all(map(WHOLE.fullmatch, said)):
        return pa.int64()
    return pa.date32() if said and all(map(_is_date, said)) else pa.string()


def _is_date(text: str) -> bool:
    """Return True for a date of the calendar, which the 30th of February is not, nor one of the year 0."""
    if DATE.fullmatch(text) is None:
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
