"""Reading of files: the interface of formats, `FileFormat`; the split reader; columns in folders' names.

A format is a plain value. Its methods block, and are called on whichever thread has the file to read. The
reader is made, called and closed by one thread, a fetcher's; the functions may be called by any thread.
"""

# What has gone is told apart from what cannot be read now (`is_loss`, `may_pass`). A file that was deleted,
# rewritten or cut short will not come back; a network or a right may, and its rows are there. Taken for one
# another under "ignore", a server that is away for a minute would be files without rows, and the stream's
# offset would be past them for good.
#
# Why a value that no cast can give is found by halves: Arrow casts a column whole or not at all, and does not
# say which value it was. Row by row, in Python, would cost every column what now the bad ones cost.

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import compute, fs

from pillarbox.redaction import reason_of
from pillarbox.sources.connectors.files import listing
from pillarbox.sources.connectors.files.listing import ChangedFileError, UnfitFileError, found
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.reader import Fetched, SplitReader, SplitsAdded

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files.source import FileSource


UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
"""Units of times, the coarsest first, and as `floor_temporal` calls them."""
SHOWN_CHARACTERS = 100
"""Characters of a value that an error shows."""


class BadRow(NamedTuple):
    """A row with a value that cannot be read. A plain value."""

    at: int
    """Its position in the file."""
    row: int
    """Its place in the batch."""
    problem: str
    """Says the column, the value and the type that was wanted, or the line."""
    line: bytes = b""
    """The line in which it stands, in formats of lines."""


class Rows(NamedTuple):
    """Rows of a file, the position behind them, and which of them could not be read. A plain value."""

    batch: pa.RecordBatch
    position: int
    bad: Sequence[BadRow] = ()


class FileFormat(ABC):
    """Divides, cuts and reads the files of one format. A plain value that pickles; any thread."""

    position_name = "byte"

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self.filesystem = filesystem

    @abstractmethod
    def pieces(self, file: FileSplit, nbytes: int, start: int) -> Iterator[FileSplit]:
        """The parts of a whole file of about `nbytes` each, from the one that begins at `start`."""

    @abstractmethod
    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit:
        """The front of `split`, at most so much of it, but a row at least. Some limit there is."""

    @abstractmethod
    def file_schema(self, path: str) -> pa.Schema:
        """Return the columns of a file."""

    @abstractmethod
    def read(self, split: FileSplit, wanted: pa.Schema, nbytes: int) -> Iterator[Rows]:
        """Yield the rows of `split` in batches of about `nbytes`, with the columns `wanted`.

        A value that cannot be read is null, and its row is among the bad ones.
        """

    def place(self, path: str, at: int) -> str:
        """Return what people call position `at`."""
        return f"{self.position_name} {at}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ValueError for columns that files of this format cannot have."""
        names = schema.names
        if not names or len(set(names)) < len(names):
            raise ValueError(f"schema={names!r}: must have columns, and each name once")

    def check_same_file(self, split: FileSplit) -> None:
        """Raise unless a file, opened already, is what it was when the split was made.

        Raises FileNotFoundError, or ChangedFileError for another size or time.
        """
        # By size and time: a checksum would have to read every file once more.
        info = self.filesystem.get_file_info(split.path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"{split.path!r}: there is no such file")
        modified, _, size = found(info)
        if (size, modified) != (split.size, split.modified):
            raise ChangedFileError(
                f"{split.path!r} was rewritten after it had been found: it had {split.size} bytes then and "
                f"has {size} now, modified {(modified - split.modified) / 1e9:g} s later. Files must not "
                "change: write them elsewhere, or under a name that begins with a dot, and rename them when "
                "they are whole"
            )


def check_columns(names: Sequence[str], wanted: pa.Schema) -> None:
    """Raise ValueError if a file with columns of these names has none that is wanted, or one twice."""
    twice = sorted({name for name in wanted.names if names.count(name) > 1})
    if twice:
        raise UnfitFileError(f"it has columns {twice!r} more than once: it must have each column once")
    if not set(names) & set(wanted.names):
        raise UnfitFileError(
            f"it has none of the columns {wanted.names!r} but {list(names)!r}: the names must be those "
            "of the file, with the same upper and lower case"
        )


def null_where_refused(
    values: Any, kind: pa.DataType, convert: Callable[[Any], pa.Array]
) -> tuple[pa.Array, list[int]]:
    """Return `values` converted, null where `convert` refuses a value, and the places of those.

    By halves: one that is refused among n costs about twice the conversion of n.
    """
    try:
        return convert(values), []
    except pa.ArrowNotImplementedError:
        raise
    except (pa.ArrowException, ValueError, OverflowError):
        if len(values) == 1:
            return pa.nulls(1, kind), [0]
    half = len(values) // 2
    front, refused = null_where_refused(values[:half], kind, convert)
    back, refused_behind = null_where_refused(values[half:], kind, convert)
    return pa.concat_arrays([front, back]), refused + [half + at for at in refused_behind]


def unfit(field: pa.Field, value: Any) -> str:
    """Return what is wrong with a value, of which the first characters are shown."""
    return f"column {field.name!r}: {shown(value)} cannot be read as {field.type}"


def shown(value: Any) -> str:
    """Return the representation of a value, cut to `SHOWN_CHARACTERS`."""
    text = repr(value[:SHOWN_CHARACTERS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def conform(
    batch: pa.RecordBatch, wanted: pa.Schema, casts: Mapping[str, pa.DataType], at: int
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Return `batch` with the columns `wanted`, by name, and the rows with a value that no cast can give.

    casts: types that columns are cast to first. at: the position of the first row. Times of a finer unit are
    floored to the unit that is wanted. A column that the file has not is null. Raises ValueError for one
    that has a type of which there is no cast.
    """
    if batch.schema.equals(wanted):
        return batch, []
    columns = []
    bad: dict[int, BadRow] = {}
    for field in wanted:
        place = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
        if field.name in casts:
            column = column.cast(casts[field.name])
        if column.type != field.type:
            given = column
            try:
                column, refused = null_where_refused(given, field.type, partial(_floored, field.type))
            except pa.ArrowNotImplementedError as error:
                raise UnfitFileError(
                    f"column {field.name!r} is {given.type} and cannot be read as {field.type}: {error}"
                ) from None
            for row in refused:
                bad.setdefault(row, BadRow(at + row, row, unfit(field, given[row].as_py())))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted), [bad[row] for row in sorted(bad)]


def _floored(wanted: pa.DataType, column: pa.Array) -> pa.Array:
    """Return `column` as `wanted`, times of finer units rounded down."""
    are_times = pa.types.is_timestamp(column.type) and pa.types.is_timestamp(wanted)
    if are_times and [*UNITS].index(column.type.unit) > [*UNITS].index(wanted.unit):
        # Without a zone: where it has one, the time is in UTC, and stays so.
        plain = column.cast(pa.timestamp(column.type.unit))
        column = compute.floor_temporal(plain, unit=UNITS[wanted.unit]).cast(pa.timestamp(wanted.unit))
    return column.cast(wanted)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that a source says it has: no metadata, no dictionaries, text where nothing was seen."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    kinds = [pa.string() if pa.types.is_null(kind) else kind for kind in kinds]
    return pa.schema(zip(schema.names, kinds, strict=True))


log = logging.getLogger("pillarbox")

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder, `name=value`, as Hive and Spark write null."""
# So many digits always fit into 64 bits; a longer number stays text, as an identifier should.
WHOLE = re.compile(r"-?\d{1,18}")
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


class FileReader(SplitReader[FileSplit]):
    """Reads one split after the other. `wanted`: gives the columns; called once, before the first."""

    def __init__(self, source: FileSource, wanted: Callable[[], pa.Schema]) -> None:
        self._source = source
        self._wanted = wanted
        self._schema: pa.Schema | None = None
        self._reading: dict[str, Iterator[Fetched]] = {}

    def handle_splits_changes(self, change: SplitsAdded[FileSplit]) -> None:
        """Take splits up."""
        self._reading |= {split.split_id: self._read(split) for split in change.splits}

    def fetch(self) -> Sequence[Fetched]:
        """The next batch of the split at hand. Raises what names its file."""
        # The first that is left, until it is finished.
        for split_id, batches in self._reading.items():
            fetched = next(batches)
            if fetched.finished:
                del self._reading[split_id]
            return (fetched,)
        return ()

    def close(self) -> None:
        """Close the files."""
        self._reading.clear()

    def _read(self, split: FileSplit) -> Iterator[Fetched]:
        """Yield the batches of a split, the last of which says that it is."""
        source, path, position = self._source, split.path, split.start
        if self._schema is None:
            self._schema = self._wanted()
        wanted, (filesystem, given), form = self._schema, source.open(), source.file_format
        bad_rows = 0
        try:
            said = scalars(columns_in(path, given), wanted)
            elsewhere = {*said, source.bad_row_column} if source.on_bad_row == "column" else said
            own = without(wanted, elsewhere) if elsewhere else wanted
            if not own.names:
                raise listing.UnfitFileError(
                    f"of {wanted.names!r} all stand in its folders: ask for a column of the file"
                )
            for batch, behind, bad in form.read(split, own, source.batch_bytes):
                if bad and source.on_bad_row == "fail":
                    place = f"{form.place(path, bad[0].at)}: {bad[0].problem}"
                    raise listing.UnfitFileError(f"{place}. on_bad_row='null' reads all other values")
                bad_rows += len(bad)
                # The last line of a part may end behind its `stop`, where the next part goes on by itself.
                position = min(behind, split.stop)
                yield Fetched(split.split_id, self._whole(batch, bad, said, wanted), position)
        except listing.read_errors() as error:
            # A stream that has planned a file plans it again at each start, so it has a say of its own.
            changed = split.in_offset and isinstance(error, listing.ChangedFileError)
            option = "on_change" if changed else "on_data_loss"
            # Rows that have gone: of a file that is gone, another, cut short, or broken.
            is_loss = isinstance(error, listing.LostDataError | OSError | EOFError | pa.ArrowException)
            if getattr(source, option) == "fail" or not is_loss or listing.may_pass(error, filesystem):
                place = f"{path!r}, from {form.position_name} {position} on"
                advice = " (on_change='ignore' goes on without it)" if changed else ""
                raise listing.retold(error, source.path, f"{place}{advice}: ") from None
            log.warning(
                "%r: what stands from position %s on is not read, as %s is 'ignore': %s",
                *(path, position, option, reason_of(error, source.path)),
            )
        if bad_rows:
            log.warning(
                "%r: %d rows have values that cannot be read, which are null, as on_bad_row is %r",
                *(path, bad_rows, source.on_bad_row),
            )
        yield Fetched(split.split_id, (), position, finished=True)

    def _whole(
        self, batch: pa.RecordBatch, bad: Sequence[BadRow], said: Mapping[str, pa.Scalar], wanted: pa.Schema
    ) -> pa.RecordBatch:
        """Return `batch` with the columns that its folders have `said`, and the one of bad lines."""
        if batch.schema is wanted:
            return batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {name: pa.repeat(value, batch.num_rows) for name, value in said.items()}
        if self._source.on_bad_row == "column":
            lines = {each.row: each.line.decode(errors="replace") for each in bad}
            column = pa.array([lines.get(row) for row in range(batch.num_rows)], pa.string())
            columns[self._source.bad_row_column] = column
        return pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)


# -- columns in the names of folders -------------------------------------------------------------------


def columns_in(path: str, given: str) -> dict[str, str | None]:
    """The values by name in the folders of a file, of those below the path or pattern that was `given`."""
    above = given if path.startswith(given) else listing.root_of(given)
    found: dict[str, str | None] = {}
    for folder in path[len(above) :].split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if name and equals:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found


def kind_of(values: Iterable[str | None]) -> pa.DataType:
    """The type of a column with these values: int64, date32, or else string, as Spark takes them."""
    said = [value for value in values if value is not None]
    if said and all(map(WHOLE.fullmatch, said)):
        return pa.int64()
    return pa.date32() if said and all(map(DATE.fullmatch, said)) else pa.string()


def scalars(values: Mapping[str, str | None], wanted: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of the columns that are wanted, as these are to be. Raises ValueError for what cannot be."""
    found = {}
    for name in values.keys() & set(wanted.names):
        kind = wanted.field(name).type
        try:
            found[name] = pa.scalar(values[name], pa.string()).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            said = f"its folder says {name}={values[name]}, which cannot be read as {kind}: {error}"
            raise ValueError(said) from None
    return found


def without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """The columns of `schema` but these."""
    left_out = set(names)
    return pa.schema([field for field in schema if field.name not in left_out])
