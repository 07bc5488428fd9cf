"""The split reader of files. One thread, a fetcher's, makes it, calls it and closes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pillarbox.sources.connectors.files.listing import hidden, same_kind
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.reader import Fetched, SplitReader, SplitsAdded, SplitsChange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

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
        position = split.start
        try:
            rows = source.file_format.read(source.open()[0], split, self._schema, source.batch_bytes)
            for batch, position in rows:
                yield Fetched(split.split_id, batch, position)
        except (OSError, ValueError, EOFError, pa.ArrowException) as error:
            what = hidden(str(error), source.path)
            if source.on_data_loss == "fail" or _may_pass(error, source.open()[0]):
                place = f"{split.path!r}, from {'row' if split.by_rows else 'byte'} {position} on: "
                raise same_kind(error, place + what) from (error if what == str(error) else None)
            log.warning(
                "%r: what stands from position %s on is not read, as on_data_loss is 'ignore': %s",
                split.path,
                position,
                what,
            )
        yield Fetched(split.split_id, (), position, finished=True)


def _may_pass(error: Exception, filesystem: fs.FileSystem) -> bool:
    """Whether another attempt may read what this one could not: the file is there, but not within reach."""
    from pyarrow import fs

    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return False
    # What Arrow says of the content has no number; nor have the errors of a network.
    return error.errno is not None or not isinstance(filesystem, fs.LocalFileSystem)
