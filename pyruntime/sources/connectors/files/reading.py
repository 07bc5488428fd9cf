"""The split reader of files. One thread, a fetcher's, makes it, calls it and closes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pillarbox.redaction import reason_of
from pillarbox.sources.connectors.files.folders import columns_in, scalars, without
from pillarbox.sources.connectors.files.formats import BadRow, BadRowError, LostDataError
from pillarbox.sources.connectors.files.listing import CutFileError, UnfitFileError, may_pass, same_kind
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.reader import Fetched, SplitReader, SplitsAdded, SplitsChange

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.files.source import FileSource

log = logging.getLogger("pillarbox")


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
            for split in change.splits:
                self._reading[split.split_id] = self._read(split)
        else:
            for split_id in change.split_ids:
                self._reading.pop(split_id)

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
        import pyarrow as pa

        source = self._source
        if self._schema is None:
            self._schema = self._wanted()
        wanted, position = self._schema, split.start
        filesystem, given = source.open()
        bad_rows = 0
        try:
            said = scalars(columns_in(split.path, given), wanted)
            elsewhere = {*said, source.bad_row_column} if source.on_bad_row == "column" else said
            own = without(wanted, elsewhere) if elsewhere else wanted
            if not own.names:
                raise UnfitFileError(
                    f"of {wanted.names!r} all stand in its folders: ask for a column of the file"
                )
            for batch, behind, bad in source.file_format.read(filesystem, split, own, source.batch_bytes):
                if bad and source.on_bad_row == "fail":
                    place = source.file_format.place(filesystem, split.path, bad[0].at)
                    raise BadRowError(f"{place}: {bad[0].problem}. on_bad_row='null' reads all other values")
                bad_rows += len(bad)
                # The last line of a part may end behind its `stop`, where the next part goes on by itself.
                position = min(behind, split.stop)
                yield Fetched(split.split_id, self._whole(batch, bad, said, wanted), position)
        except (OSError, ValueError, EOFError, pa.ArrowException) as error:
            what = reason_of(error, source.path)
            if source.on_data_loss == "fail" or not _is_data_loss(error) or may_pass(error, filesystem):
                place = f"{split.path!r}, from {'row' if split.by_rows else 'byte'} {position} on: "
                raise same_kind(error, place + what) from (error if what == str(error) else None)
            log.warning(
                "%r: what stands from position %s on is not read, as on_data_loss is 'ignore': %s",
                split.path,
                position,
                what,
            )
        if bad_rows:
            log.warning(
                "%r: %d rows have values that cannot be read, which are null, as on_bad_row is %r",
                split.path,
                bad_rows,
                source.on_bad_row,
            )
        yield Fetched(split.split_id, (), position, finished=True)

    def _whole(
        self, batch: pa.RecordBatch, bad: Sequence[BadRow], said: Mapping[str, pa.Scalar], wanted: pa.Schema
    ) -> pa.RecordBatch:
        """Return `batch` with the columns that its folders have `said`, and the one of bad lines."""
        import pyarrow as pa

        if batch.schema is wanted:
            return batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {name: pa.repeat(value, batch.num_rows) for name, value in said.items()}
        if self._source.on_bad_row == "column":
            lines: list[str | None] = [None] * batch.num_rows
            for each in bad:
                lines[each.row] = each.line.decode(errors="replace")
            field = wanted.field(self._source.bad_row_column)
            columns[field.name] = pa.array(lines, field.type)
        return pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)


def _is_data_loss(error: Exception) -> bool:
    """Return True for rows that have gone: a file that is gone, another, cut short, or broken."""
    import pyarrow as pa

    return isinstance(error, LostDataError | CutFileError | OSError | EOFError | pa.ArrowException)
