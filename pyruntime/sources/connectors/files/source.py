"""`FileSource`: files as a source. A plain value; made on the driver, used in any process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.files import listing
from pillarbox.sources.connectors.files.discovery import FileEnumerator, Known, KnownSerializer, StateFolder
from pillarbox.sources.connectors.files.listing import open_file_system, root_of
from pillarbox.sources.connectors.files.split import FileSplit, FileSplitSerializer
from pillarbox.sources.connectors.options import ON_DATA_LOSS, Options, check_options, option, words
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.source import Boundedness, Source
from pillarbox.validate import check_duration

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

    from pillarbox.sources.connectors.files.reading import FileFormat

# By name, and imported when a file is read: the driver may name a source of files, put it into a plan and
# print it without having pyarrow's readers in memory. CSV is not among them, since Spark's own reader has
# many options for it, which would have to mean the same here.
FORMATS = {
    "parquet": ("parquet", "ParquetFormat"),
    "json": ("lines", "JsonFormat"),
    "text": ("lines", "LinesFormat"),
}
"""The modules and classes of formats."""


@dataclass(frozen=True)
class FileSource(Source[FileSplit, Known]):
    """The rows of files, in Arrow batches. A file must not change once it has its name.

    Folders below `path` that are called `name=value`, as Spark's `partitionBy` writes them, give a column.

    path: a file, a folder, a pattern (`*`, `?`, `[...]`, `**`), or a URI that `pyarrow.fs` knows.
    format: "parquet", "json" (an object a line, needs `schema`) or "text" (a row a line).
    schema: the columns, by name; None: those of the first file of Parquet, `value` of text.
    columns: names of those columns that are read; None: all of them.
    recursive: whether files in folders within the folder count. What begins with "." or "_" never does.
    discovery_interval: seconds between two looks for new files; None: one look at each start, and no other.
    split_bytes: large files are read in parts of about so many bytes: ranges of lines, row groups.
    batch_bytes: bytes of a batch, about.
    on_data_loss: "fail", or "ignore" to pass over what has vanished, was rewritten or is broken, with a
        warning. Errors that may pass (of a network, of permission) fail all the same.
    on_bad_row: "fail", which names file, line and value; "null" for null in the place of a value that cannot
        be read; "column" for that and the line in the column `bad_row_column`, in formats of lines.
    on_change: "ignore" to tell of a file that has changed since a stream took it, of which nothing is read
        any more, and go on; "fail" to end the query as well.
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
    columns: Sequence[str] | None = option(None, parse=words)
    recursive: bool = option(True)
    discovery_interval: float | None = None
    split_bytes: int = option(64 * 2**20, at_least=1)
    batch_bytes: int = option(2 * 2**20, at_least=1)
    on_data_loss: str = option("fail", one_of=ON_DATA_LOSS)
    on_bad_row: str = option("fail", one_of=("fail", "null", "column"))
    bad_row_column: str = option("_corrupt_record")
    on_change: str = option("ignore", one_of=("ignore", "fail"))
    settle: float | None = None
    state: str | None = None
    moved_from: str | None = None
    filesystem: fs.FileSystem | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        path = os.fspath(self.path)
        if not isinstance(path, str) or not path:
            raise ValueError(f"path={shown_address(repr(path))}: must be a path or a URI")
        object.__setattr__(self, "path", path)
        if self.format == "csv":
            raise ValueError("format='csv': Spark reads CSV: spark.read.csv(...)")
        check_options(self)
        for name in ("settle", "discovery_interval"):
            if getattr(self, name) is not None:
                check_duration(name, getattr(self, name))
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
            object.__setattr__(self, "schema", self._selected(self.schema))
        self.open()
        if self.state is not None:
            object.__setattr__(self, "state", os.fspath(self.state))
            open_file_system(self.state, None, "state")

    def __repr__(self) -> str:
        return f"FileSource({shown_address(self.path)!r}, format={self.format!r})"

    @property
    def boundedness(self) -> Boundedness:
        """Without `discovery_interval` it has an end."""
        return Boundedness.BOUNDED if self.discovery_interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def checkpoint_serializer(self) -> Serializer[Known]:
        """The serializer of what was found."""
        return KnownSerializer(self)

    @property
    def split_serializer(self) -> Serializer[FileSplit]:
        """The serializer of its splits."""
        return FileSplitSerializer(self)

    def create_enumerator(
        self, context: EnumeratorContext[FileSplit], checkpoint: Known | None = None
    ) -> FileEnumerator:
        """One that has found nothing, or goes on from `checkpoint`."""
        return FileEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> SourceReader[FileSplit]:
        """One that reads a split after the other, with one thread; of the columns only what is asked for."""
        from pillarbox.sources.connectors.files.reading import FileReader

        wanted = context.schema
        if wanted is not None:
            self._check_schema(wanted)
        return FetchingReader(
            context,
            lambda: FileReader(self, lambda: self.arrow_schema() if wanted is None else wanted),
            threading=Threading.ONE_SPLIT_AT_A_TIME,
        )

    def arrow_schema(self) -> pa.Schema:
        """The columns: those that were given, or those of the first file in which values are.

        Raises ValueError if there is no file, or if one cannot be read.
        """
        return self._schema_of_files if self.schema is None else self.schema

    @cached_property
    def _schema_of_files(self) -> pa.Schema:
        import pyarrow as pa

        from pillarbox.sources.connectors.files.reading import (
            check_columns,
            columns_in,
            kind_of,
            plain_schema,
            without,
        )

        filesystem, path = self.open()
        with listing.hiding(self.path):
            listed = listing.list_files(filesystem, path, recursive=self.recursive)
        found, named = None, list[str]()
        for file in listed:
            if not file.size:
                continue
            try:
                found = self.file_format.file_schema(file.path)
                if found.names:
                    check_columns(found.names, found)
            except listing.read_errors() as error:
                raise listing.retold(
                    error, self.path, f"{file.path!r}: its columns cannot be looked up: "
                ) from None
            named = [*columns_in(file.path, path)]
            # A file all of whose values are null has columns without types: the next one may know better.
            if any(kind != pa.null() for kind in found.types):
                break
        if found is None:
            raise ValueError(
                f"path={shown_address(self.path)!r}: there is no file with rows, so its columns are unknown: "
                "give a schema"
            )
        # The type of a column of folders is known only of all: one value that is not a number makes it text.
        folders = [columns_in(file.path, path) for file in listed]
        kinds = [pa.field(name, kind_of(values.get(name) for values in folders)) for name in named]
        bad = [pa.field(self.bad_row_column, pa.string())] if self.on_bad_row == "column" else []
        return self._selected(pa.schema([*plain_schema(without(found, named)), *kinds, *bad]))

    @cached_property
    def file_format(self) -> FileFormat:
        """The format. It needs pyarrow, and whoever names a source of files need not have it."""
        module, name = FORMATS[self.format]
        kind = getattr(import_module(f"{__package__}.{module}"), name)
        made: FileFormat = kind(self.open()[0])
        return made

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
        return open_file_system(self.path, self.filesystem)

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it. Any thread."""
        return self._opened

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
        filesystem, path = self.open()
        # Without host and user: the same bucket through another endpoint, or with other keys, is the same
        # place.
        kind = filesystem.type_name
        return root_of(path) or "/" if kind == "local" else f"{kind}://{root_of(path)}"

    def relative(self, path: str) -> str:
        """The name of a file, by which it is known, of its path in the file system."""
        return path[len(root_of(self.open()[1])) :].lstrip("/")

    def absolute(self, name: str) -> str:
        """The path in the file system of a file of this name."""
        path = self.open()[1]
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

    # -- columns -----------------------------------------------------------------------------------

    def _selected(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of `schema` that are read. Raises ValueError for one that is not there."""
        import pyarrow as pa

        if self.columns is not None:
            if not self.columns or not {*self.columns} <= {*schema.names}:
                raise ValueError(
                    f"columns={list(self.columns)!r}: must be names of columns; there are {schema.names!r}"
                )
            schema = pa.schema([schema.field(name) for name in self.columns])
        self._check_schema(schema)
        return schema

    def _check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError unless the source can give these columns."""
        import pyarrow as pa

        if self.on_bad_row == "column":
            at = schema.get_field_index(self.bad_row_column)
            if at < 0 or schema.field(at).type != pa.string():
                raise ValueError(
                    f"bad_row_column={self.bad_row_column!r}: the schema must have a column of this name, of "
                    f"text, for on_bad_row='column'; it has {schema.names!r}"
                )
            schema = schema.remove(at)
        self.file_format.check_schema(schema)

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> FileSource:
        """The source that options of the same names describe."""
        if "paths" in options:
            raise ValueError(f"option 'paths' is {options['paths']!r}: give one path, which may be a pattern")
        given = Options(options).arguments(cls)
        # Spark's schema and the option are two ways to say one thing; neither is taken for the stronger.
        columns = given.get("columns")
        if columns is not None and schema is not None and set(columns) != set(schema.names):
            raise ValueError(
                f"option 'columns' is {options['columns']!r}, and the schema names {schema.names!r}: name "
                "the columns that are to be read in one of them"
            )
        return cls(schema=schema, **given)
