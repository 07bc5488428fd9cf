"""Which files are new, in a memory that is bounded: `Known`, and the enumerator of files.

`discover` runs on the discovery thread, everything else on the enumerator's, as `SplitEnumerator` says.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pillarbox.redaction import reason_of
from pillarbox.sources.connectors.files.listing import (
    FoundFile,
    hiding,
    list_files,
    may_pass,
    same_kind,
)
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files.source import FileSource

log = logging.getLogger("pillarbox")


@dataclass(frozen=True)
class Known:
    """Which files were found: all up to `after`, and those in `seen` behind it. A plain value.

    Files have an order, by when they were modified and then by path. `after` follows the newest one that was
    found, or the present if that is earlier, at a distance. What is in front of it is never looked at again,
    so the memory is bounded.
    """

    after: tuple[int, str] = (-1, "")
    seen: dict[str, int] = field(default_factory=dict)
    """When they were modified, by path."""
    until: tuple[int, str] | None = None
    """The newest file of a bounded source."""
    begun: tuple[int, str, int, int] | None = None
    """A file of which parts were found: when it was modified, path, size, where the next part begins."""

    def new(self, listed: Sequence[FoundFile]) -> list[FoundFile]:
        """Those that were not found, of files in their order."""
        front = bisect.bisect_right(listed, self.after, key=lambda file: (file.modified, file.path))
        until = self.until
        return [
            file
            for file in listed[front:]
            if file.path not in self.seen and (until is None or (file.modified, file.path) <= until)
        ]

    def forgetting(self, seconds: float, most: int) -> Known:
        """The same, where `after` follows at `seconds`, and at most `most` files behind it are remembered."""
        order = sorted((modified, path) for path, modified in self.seen.items())
        if not order:
            return self
        # A file whose time is in the future must not hide all that come until then.
        oldest = min(order[-1][0], time.time_ns()) - int(seconds * 1e9)
        kept = max(0, len(order) - most, bisect.bisect_left(order, (oldest, "")))
        after = max(self.after, (oldest, ""), order[kept - 1] if kept else (-1, ""))
        return replace(self, after=after, seen={path: modified for modified, path in order[kept:]})


class KnownSerializer:
    """Writes `Known` down. Thread-safe."""

    version = 1

    def to_json(self, value: Known) -> Any:
        """What JSON can hold."""
        return {"after": value.after, "seen": value.seen, "until": value.until, "begun": value.begun}

    def from_json(self, version: int, written: Any) -> Known:
        """What `to_json` has written. Raises ValueError for another version, or what it has not."""
        if version != self.version:
            raise ValueError(f"version={version!r}: this reads version {self.version}")
        try:
            after, seen, until, begun = (written[name] for name in ("after", "seen", "until", "begun"))
            return Known(
                (after[0], after[1]),
                dict(seen),
                until and (until[0], until[1]),
                begun and (begun[0], begun[1], begun[2], begun[3]),
            )
        except (KeyError, TypeError, IndexError, ValueError):
            raise ValueError(f"written={written!r}: must be what a source of files knows") from None


class FileEnumerator(SplitEnumerator[FileSplit, Known]):
    """Finds files, those modified first in front, and divides them. Confined as `SplitEnumerator` is."""

    def __init__(self, context: EnumeratorContext[FileSplit], checkpoint: Known, source: FileSource) -> None:
        super().__init__(context, checkpoint)
        self.discovery_interval = source.discovery_interval
        self._source = source
        # The files of the latest listing. A folder of a million files is listed once for all its splits.
        self._listed: list[FoundFile] | None = None

    def discover(self, checkpoint: Known, most: int) -> tuple[Sequence[FileSplit], Known]:
        """Splits of the files that are new. Raises FileNotFoundError where there is no such folder."""
        with hiding(self._source.path):
            return self._discover(checkpoint, most)

    def _discover(self, checkpoint: Known, most: int) -> tuple[Sequence[FileSplit], Known]:
        source = self._source
        known = replace(checkpoint, seen=dict(checkpoint.seen))
        splits: list[FileSplit] = []
        files = known.new(self._listed or ())
        if known.begun is not None:
            modified, path, size, start = known.begun
            known = self._divide(FoundFile(modified, path, size), start, most, splits, known)
        elif not files and (self._listed is None or source.discovery_interval is not None):
            self._listed = self._list()
            if known.until is None and source.discovery_interval is None:
                newest = self._listed[-1] if self._listed else FoundFile(-1, "")
                known = replace(known, until=(newest.modified, newest.path))
            files = known.new(self._listed)
            self._note_rewritten(known)
        for file in files:
            if len(splits) >= most or known.begun is not None:
                break
            known.seen[file.path] = file.modified
            known = self._divide(file, 0, most, splits, known)
        return splits, known.forgetting(source.remember, source.max_remembered)

    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit | None:
        """The front of a split. Of a file that can never be read, all: its reader says what is wrong.

        Raises OSError where another attempt may read it: a limit that is not known now must still hold then.
        """
        import pyarrow as pa

        filesystem = self._source.open()[0]
        try:
            return self._source.file_format.advance(filesystem, split, limit)
        except (OSError, ValueError, EOFError, pa.ArrowException) as error:
            if may_pass(error, filesystem):
                what = reason_of(error, self._source.path)
                raise same_kind(error, f"{split.path!r}, looking how far to read: {what}") from None
            return split

    def _list(self) -> list[FoundFile]:
        source = self._source
        filesystem, path = source.open()
        settled = time.time_ns() - int(source.settle * 1e9) if source.settle else None
        return [
            file
            for file in list_files(filesystem, path, recursive=source.recursive)
            # One that is empty has no row, and may be one that is being written.
            if file.size and (settled is None or file.modified <= settled)
        ]

    def _note_rewritten(self, known: Known) -> None:
        for file in self._listed or ():
            if known.seen.get(file.path, file.modified) != file.modified:
                log.warning("%r was rewritten after it had been found; it is not read again", file.path)
                known.seen[file.path] = file.modified

    def _divide(self, file: FoundFile, start: int, most: int, splits: list[FileSplit], known: Known) -> Known:
        """Add splits of a file, from `start` on, while there is room."""
        source = self._source
        file_format = source.file_format
        for piece in file_format.pieces(source.open()[0], file, source.split_bytes, start):
            if len(splits) >= most:
                return replace(known, begun=(file.modified, file.path, file.size, piece.start))
            splits.append(
                FileSplit(
                    f"{file.path}@{file.modified}+{piece.start}",
                    piece.start,
                    piece.stop,
                    path=file.path,
                    size=file.size,
                    modified=file.modified,
                    weight=piece.weight,
                    by_rows=file_format.by_rows,
                )
            )
        return replace(known, begun=None)
