"""Files as a source: Parquet, JSON lines and text, of a folder or of any file system that Arrow knows.

`FileSource` is a plain value; made on the driver, used in any process.
"""

# What has gone is told apart from what cannot be read now (`may_pass`). A file that was deleted, rewritten or
# cut short will not come back; a network or a right may, and its rows are there. Taken for one another under
# "ignore", a server that is away for a minute would be files without rows, and the stream's offset would be
# past them for good.

from __future__ import annotations

import datetime
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyarrow import fs

from pillarbox.ledger.private_files import expand_home
from pillarbox.redaction import reason_of, shown_address
from pillarbox.sources.connectors.file_discovery import FileEnumerator, Known, KnownSerializer, StateFolder
from pillarbox.sources.connectors.file_formats import (
    FileFormat,
    JsonFormat,
    ParquetFormat,
    TextFormat,
    check_columns,
    scalars,
    without,
)
from pillarbox.sources.connectors.file_listing import (
    READ_ERRORS,
    FilePlace,
    FileSplit,
    LostDataError,
    UnfitFileError,
    hiding,
    list_files,
    may_pass,
    open_file_system,
    retold,
)
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.fetching import FetchingReader
from pillarbox.sources.reader import ReaderContext
from pillarbox.sources.simple import LoopReader
from pillarbox.sources.source import ON_DATA_LOSS, Boundedness, Source, check_options, option, read_options
from pillarbox.sources.split import Serializer
from pillarbox.validate import naming_arguments

log = logging.getLogger("pillarbox")

# CSV is not among them, since Spark's own reader has many options for it, which would have to mean the same.
FORMATS: dict[str, type[FileFormat]] = {"parquet": ParquetFormat, "json": JsonFormat, "text": TextFormat}
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
        """Without `discovery_interval` it has an end."""
        return Boundedness.BOUNDED if self.discovery_interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def checkpoint_serializer(self) -> Serializer[Known]:
        """The serializer of the files that were found."""
        return KnownSerializer(self.place, self.state_folder)

    def create_enumerator(
        self, context: EnumeratorContext[FileSplit], checkpoint: Known | None = None
    ) -> FileEnumerator:
        """One that has found nothing, or goes on from `checkpoint`."""
        return FileEnumerator(
            context,
            checkpoint,
            self.place,
            self.file_format,
            state_folder=self.state_folder,
            recursive=self.recursive,
            discovery_interval=self.discovery_interval,
            split_bytes=self.split_bytes,
            settle=self.settle,
        )

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[FileSplit]:
        """One that reads a split after the other, with one thread; only the columns that are asked for."""
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
        place = self.place
        with hiding(self.path):
            listed = list_files(place.filesystem, place.path, recursive=self.recursive)
        found, named = None, dict[str, str | None]()
        for file in listed:
            if not file.size:
                continue
            try:
                found = self.file_format.file_schema(file.path)
                if found.names:
                    check_columns(found.names, found)
            except READ_ERRORS as error:
                where = f"{file.path!r}: its columns cannot be looked up: "
                raise retold(error, self.path, where) from None
            named = place.columns_in(file.path)
            # A file all of whose values are null has columns without types: the next one may know better.
            if any(kind != pa.null() for kind in found.types):
                break
        if found is None:
            raise ValueError(
                f"path={shown_address(self.path)!r}: there is no file with rows, so its columns are unknown: "
                "give a schema"
            )
        # The type of a column of folders is known only of all: one value that is not a number makes it text.
        folders = [place.columns_in(file.path) for file in listed]
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
        return FORMATS[self.format](self.place.filesystem)

    @cached_property
    def place(self) -> FilePlace:
        """The place of the files, in its open file system. Any thread."""
        return FilePlace(self.path, *open_file_system(self.path, self.filesystem), self.moved_from)

    @cached_property
    def state_folder(self) -> StateFolder | None:
        """The folder of `state`. On the driver."""
        return None if self.state is None else StateFolder(self.state)

    # What was found out travels with the source, as the schema of its files: each task would look at a file
    # for it. But the folder of `state` is the driver's.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "state_folder"}

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> FileSource:
        """The source that options of the same names describe."""
        if "paths" in options:
            raise ValueError(f"option 'paths' is {options['paths']!r}: give one path, which may be a pattern")
        return cls(schema=schema, **read_options(cls, options))


def read_split(
    source: FileSource, schema: pa.Schema | None, split: FileSplit
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batches of a split with the columns of `schema`, each with the position behind it.

    On a fetcher's thread. Raises what names the file.
    """
    place, form = source.place, source.file_format
    path, position, bad_rows = place.absolute(split.name), split.start, 0
    wanted = source.arrow_schema() if schema is None else schema
    try:
        said = scalars(place.columns_in(path), wanted, path if source.on_bad_row != "fail" else None)
        # These stand in no file. The values of bad lines are null until there are some.
        elsewhere = dict(said)
        if source.on_bad_row == "column" and source.bad_row_column in wanted.names:
            elsewhere[source.bad_row_column] = pa.scalar(None, pa.string())
        own = without(wanted, elsewhere) if elsewhere else wanted
        if not own.names:
            raise UnfitFileError(
                f"of {wanted.names!r} all stand in its folders: ask for a column of the file"
            )
        for batch, behind, bad in form.read(split, path, own, source.batch_bytes):
            if bad and source.on_bad_row == "fail":
                where = f"{form.place(path, bad[0].at)}: {bad[0].problem}"
                raise UnfitFileError(f"{where}. on_bad_row='null' reads all other values")
            bad_rows += len(bad)
            if elsewhere:
                columns = dict(zip(own.names, batch.columns, strict=True))
                columns |= {name: pa.repeat(value, batch.num_rows) for name, value in elsewhere.items()}
                if bad and source.bad_row_column in elsewhere:
                    lines = {each.row: each.line.decode(errors="replace") for each in bad}
                    column = pa.array(map(lines.get, range(batch.num_rows)), pa.string())
                    columns[source.bad_row_column] = column
                batch = pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)
            # The last line of a part may end behind its `stop`, where the next part goes on by itself.
            position = min(behind, split.stop)
            yield batch, position
    except READ_ERRORS as error:
        # Rows that have gone: of a file that is gone, another, cut short, or broken.
        is_loss = isinstance(error, LostDataError | OSError | EOFError | pa.ArrowException)
        if source.on_data_loss == "fail" or not is_loss or may_pass(error, place.filesystem):
            raise retold(error, source.path, f"{path!r}, from {form.position_name} {position} on: ") from None
        text = "%r: what stands from position %s on is not read, as on_data_loss is 'ignore': %s"
        log.warning(text, path, position, reason_of(error, source.path))
    if bad_rows:
        text = "%r: %d rows have values that cannot be read, which are null, as on_bad_row is %r"
        log.warning(text, path, bad_rows, source.on_bad_row)


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
