"""The split reader of files. One thread, a fetcher's, makes it, calls it and closes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pillarbox.redaction import reason_of
from pillarbox.sources.connectors.files.folders import columns_in, scalars, with_scalars, without
from pillarbox.sources.connectors.files.listing import UnfitFileError, may_pass, same_kind
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
        """The batches of a split, the last of which says that it is."""
        import pyarrow as pa

        source = self._source
        if self._schema is None:
            self._schema = self._wanted()
        wanted, position = self._schema, split.start
        filesystem, given = source.open()
        try:
            folders = columns_in(split.path, given)
            said = scalars(folders, wanted)
            own = without(wanted, said) if said else wanted
            if not own.names:
                raise UnfitFileError(
                    f"of {wanted.names!r} all stand in its folders: ask for a column of the file"
                )
            file_format = source.file_format.in_folders(folders)
            for batch, position in file_format.read(filesystem, split, own, source.batch_bytes):
                whole = with_scalars(batch, said, wanted) if said else batch
                # The last line of a part may end behind its `stop`, where the next part goes on by itself.
                yield Fetched(split.split_id, whole, min(position, split.stop))
        except (OSError, ValueError, EOFError, pa.ArrowException) as error:
            what = reason_of(error, source.path)
            if source.on_data_loss == "fail" or may_pass(error, filesystem):
                place = f"{split.path!r}, from {'row' if split.by_rows else 'byte'} {position} on: "
                raise same_kind(error, place + what) from (error if what == str(error) else None)
            log.warning(
                "%r: what stands from position %s on is not read, as on_data_loss is 'ignore': %s",
                split.path,
                position,
                what,
            )
        yield Fetched(split.split_id, (), position, finished=True)
