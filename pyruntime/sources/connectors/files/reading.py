"""The split reader of files, and the columns that stand in the names of folders.

The reader is made, called and closed by one thread, a fetcher's; the functions may be called by any thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from pillarbox.redaction import reason_of
from pillarbox.sources.connectors.files import listing
from pillarbox.sources.connectors.files.formats import BadRow
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.reader import Fetched, SplitReader, SplitsAdded, SplitsChange

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files.source import FileSource

log = logging.getLogger("pillarbox")

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder, `name=value`, as Hive and Spark write null."""
WHOLE = re.compile(r"-?\d{1,18}")
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


class FileReader(SplitReader[FileSplit]):
    """Reads one split after the other. `wanted`: gives the columns; called once, before the first."""

    def __init__(self, source: FileSource, wanted: Callable[[], pa.Schema]) -> None:
        self._source = source
        self._wanted = wanted
        self._schema: pa.Schema | None = None
        self._reading: dict[str, Iterator[Fetched]] = {}

    def handle_splits_changes(self, change: SplitsChange[FileSplit]) -> None:
        """Take splits up, or close their files."""
        if isinstance(change, SplitsAdded):
            self._reading |= {split.split_id: self._read(split) for split in change.splits}
        else:
            for split_id in change.split_ids:
                del self._reading[split_id]

    def fetch(self) -> Sequence[Fetched]:
        """The next batch of the split at hand. Raises what names its file."""
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
