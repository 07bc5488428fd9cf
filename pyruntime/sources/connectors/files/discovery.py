"""Discovery of files: `FileEnumerator` takes those that are new and have rested; `Known` is what it knows.

`discover` runs on the discovery thread, everything else on the enumerator's, as `SplitEnumerator` says.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.files import listing
from pillarbox.sources.connectors.files.listing import FoundFile
from pillarbox.sources.connectors.files.seen import UNKNOWN, SeenFiles, digest_of
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files.source import FileSource

log = logging.getLogger("pillarbox")

SETTLE_S = 2.0
"""Seconds that a file rests before it is taken, without `settle`; objects of a store appear whole."""
OBJECT_STORES = ("s3", "gcs", "abfs")
MAX_FIRST_WAIT_S = 5.0
"""Seconds that the first look may wait for files to have rested."""
MAX_NAMED = 3
"""Files that a message names; of more it tells the number."""


@dataclass(frozen=True)
class Known:
    """The files that were taken: the first `count` of `seen`. A plain value, but for that log."""

    seen: SeenFiles
    count: int = 0
    total: int = 0
    """Files that were taken or wait, by the latest look."""
    begun: tuple[str, int, int, int] | None = None
    """A file of which parts were taken: name, size, time in ns, where the next part begins."""
    changed: str | None = None
    """Words on files that have changed since they were taken, where that is to end the query."""


class KnownSerializer:
    """Writes `Known` down, by names relative to what the source lists. Thread-safe; may block on `state=`."""

    version = 2

    def __init__(self, source: FileSource) -> None:
        self._source = source

    def to_json(self, value: Known) -> Any:
        """Return what JSON can hold. Raises ValueError for more files than an offset can hold, OSError."""
        seen = value.seen.written(value.count, value.total)
        return {"root": self._source.root, "seen": seen} | ({"begun": [*value.begun]} if value.begun else {})

    def from_json(self, version: int, written: Any) -> Known:
        """Read what `to_json` has written. Raises ValueError for another version or root, or bad values."""
        if version != self.version:
            raise ValueError(
                f"version={version!r}: this reads version {self.version}; earlier ones knew files by their "
                "times: begin a new checkpoint, with a path of the files that are not read yet"
            )
        try:
            root, begun = written["root"], written.get("begun")
            seen = SeenFiles.read(self._source.state_folder, written["seen"])
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"written={written!r}: must be what a source of files knows") from None
        self._source.check_root(root)
        return Known(seen, len(seen), len(seen), begun and tuple(begun))


class FileEnumerator(SplitEnumerator[FileSplit, Known]):
    """Finds files, those modified first in front, and divides them. Confined as `SplitEnumerator` is.

    checkpoint: what to go on from; None for a new run.
    """

    def __init__(
        self, context: EnumeratorContext[FileSplit], checkpoint: Known | None, source: FileSource
    ) -> None:
        super().__init__(context, checkpoint or Known(SeenFiles(source.state_folder)))
        self.discovery_interval = source.discovery_interval
        self._source = source
        stores = source.open()[0].type_name in OBJECT_STORES
        self._settle_s = source.settle if source.settle is not None else 0.0 if stores else SETTLE_S
        self._closed = threading.Event()
        # The discovery thread: the files of the latest look that are new and not taken. A folder of a million
        # files is listed once for all its splits.
        self._new: deque[FoundFile] | None = None
        self._has_looked = False
        self._returned: Known | None = None
        self._resting: dict[str, tuple[FoundFile, float]] = {}

    def discover(self, checkpoint: Known, most: int) -> tuple[Sequence[FileSplit], Known]:
        """Splits of the files that are new. Raises FileNotFoundError where there is no such folder."""
        # spec: SeenFiles!Take
        source, known, splits = self._source, checkpoint, list[FileSplit]()
        seen = known.seen
        seen.cut(known.count)
        if known is not self._returned:
            # What was returned last was not taken up.
            self._new = None
        with listing.hiding(source.path):
            if known.begun is not None:
                name, size, modified, start = known.begun
                file = FoundFile(modified, source.absolute(name), size)
                known = self._divide(file, start, most, splits, known)
            again = self.discovery_interval is not None and not splits
            if known.begun is None and not self._new and (self._new is None or again):
                known = self._look(known)
            while self._new and len(splits) < most and known.begun is None:
                file = self._new.popleft()
                seen.add(digest_of(source.relative(file.path)), file.size, file.modified)
                known = self._divide(file, 0, most, splits, known)
        self._returned = replace(known, count=len(seen))
        return splits, self._returned

    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit | None:
        """The front of a split. Of a file that can never be read, all: its reader says what is wrong.

        Raises OSError where another attempt may read it: a limit that is not known now must still hold then.
        """
        if limit.rows is None and limit.nbytes is None:
            return split
        try:
            return self._source.file_format.advance(split, limit)
        except listing.read_errors() as error:
            if listing.may_pass(error, self._source.open()[0]):
                place = f"{split.path!r}, looking how far to read: "
                raise listing.retold(error, self._source.path, place) from None
            return split

    def let_go(self, splits: Sequence[FileSplit]) -> Collection[str]:
        """None. Raises ValueError for files that have changed, where `on_change` asks for that."""
        self.snapshot()
        return ()

    def snapshot(self) -> Known:
        """Return what is known. Raises ValueError for changed files, where `on_change` asks for that."""
        if self.checkpoint.changed is not None:
            raise listing.UnfitFileError(self.checkpoint.changed)
        return self.checkpoint

    def close(self) -> None:
        """End a wait of the first look."""
        self._closed.set()

    # -- the discovery thread -------------------------------------------------------------------------

    def _look(self, known: Known) -> Known:
        """List the files: which are new and have rested, and which have changed."""
        source, seen, is_first = self._source, known.seen, not self._has_looked
        self._has_looked = True
        new, changed = dict[bytes, FoundFile](), list[str]()
        for file in listing.list_files(*source.open(), recursive=source.recursive):
            digest = digest_of(source.relative(file.path))
            before = seen.get(digest)
            # One that is empty has no row, and may be one that is being written.
            if before is None and file.size:
                new.setdefault(digest, file)
            elif before is not None and before != (file.size, file.modified):
                seen.change(digest, file.size, file.modified)
                if before != UNKNOWN:
                    changed.append(f"{file.path!r} (of {before[0]} bytes then and {file.size} now)")
        self._new = deque(self._rested([*new.values()], is_first))
        if changed:
            what = _listed(changed) + " changed after it was taken; what is new in it is not read"
            log.warning("%s", what)
            if source.on_change == "fail" and not is_first:
                known = replace(known, changed=f"{what}: on_change='ignore' goes on, and a new start does")
        return replace(known, total=len(seen) + len(self._new))

    def _rested(self, new: list[FoundFile], is_first: bool) -> list[FoundFile]:
        """Those of the files that nobody writes any more, as far as that can be told."""
        settle, now, at = self._settle_s, time.time_ns(), time.monotonic()
        young = {file.path: file for file in new if now - file.modified < settle * 1e9}
        if not young:
            return new
        # By their own times, or where these are of another clock, by looks that lie so far apart.
        stood = {path: since for path, (file, since) in self._resting.items() if young.get(path) == file}
        self._resting = {path: (file, stood.get(path, at)) for path, file in young.items()}
        if is_first and settle <= MAX_FIRST_WAIT_S:
            # A batch read has no other look, and one with `availableNow` should take what was there.
            latest = max(file.modified for file in young.values())
            self._closed.wait(min(settle, (latest - now) / 1e9 + settle))
            infos = self._source.open()[0].get_file_info([*young])
            same = {info.path for info in infos if young[info.path] == listing.found(info)}
        else:
            same = {path for path, since in stood.items() if at - since >= settle}
        left = young.keys() - same
        if left and is_first and self.discovery_interval is None:
            named = _listed([*map(repr, sorted(left))])
            log.warning("%s is still written, and not taken at this start", named)
        return [file for file in new if file.path not in left]

    def _divide(self, file: FoundFile, start: int, most: int, splits: list[FileSplit], known: Known) -> Known:
        """Add splits of a file, from `start` on, while there is room."""
        name = self._source.relative(file.path)
        whole = FileSplit(name, 0, END, file.path, file.size, file.modified)
        for part in self._source.file_format.pieces(whole, self._source.split_bytes, start):
            if len(splits) >= most:
                return replace(known, begun=(name, file.size, file.modified, part.start))
            splits.append(part)
        return replace(known, begun=None)


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_NAMED
    return ", ".join(texts[:MAX_NAMED]) + (f" and {more:,} more files: each" if more > 0 else "")
