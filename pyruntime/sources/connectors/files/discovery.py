"""Discovery of files: `FileEnumerator` takes those that are new and have rested; `Known` is its checkpoint.

`SeenFiles` is a log of the files that were taken, `StateFolder` the place where it lasts. `discover` runs
on the discovery thread, everything else on the enumerator's, as `SplitEnumerator` says.
"""

# A file is known by its name, relative to what is listed: `rsync -a`, `cp -p` and `tar` keep old times, so
# a time says nothing about what is new. Names are held as digests of 8 bytes: of a million files two share
# one with a probability of 3 in 10^8, and then the later one is told as a file that has changed.
#
# What is known at a moment is a prefix of the log, so a checkpoint is a count, and taking files costs what
# those cost, however many are known. A checkpoint is written with each offset of a stream, which Spark
# keeps by the hundred: up to 8,192 digests stand in the offset itself, more need a folder. One file there
# that is written over would not do: a query may go on from any offset that Spark keeps, and must find what
# was known then, not later. So each offset that has new files adds a segment, which is never changed, is
# named after its content and names the one before it; the offset has the last name. After some segments the
# next one holds all files, and begins a generation; generations too old for any offset are deleted. A
# segment whose offset was never written is never named again, and does no harm. The idea is that of Git's
# commits.

from __future__ import annotations

import hashlib
import itertools
import logging
import re
import struct
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.files import listing
from pillarbox.sources.connectors.files.listing import FoundFile, open_file_system
from pillarbox.sources.connectors.files.split import END, FileSplit
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files.source import FileSource


log = logging.getLogger("pillarbox")

DIGEST_BYTES = 8
MAX_OFFSET_DIGESTS = 64 * 1024 // DIGEST_BYTES
SEGMENTS_PER_GENERATION = 64
GENERATIONS_KEPT = 17
"""So the last 16 * 64 offsets with new files at least find their segments; Spark keeps 100 offsets."""
RECORD = struct.Struct(f"<{DIGEST_BYTES}sQq")
# Hidden names: nobody reads them as data, wherever the folder is.
SEGMENT_NAME = re.compile(r"_seen-(\d{8})-(\d{3})-([0-9a-f]{16})")
SPLITS_NAME = re.compile(r"_splits-\d{20}-([0-9a-f]{16})")

UNKNOWN = (0, 0)
"""Size and time of a file of which an offset has held the digest alone."""


def digest_of(name: str) -> bytes:
    """The digest by which a file of this name is known. Any thread."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


class SeenFiles:
    """Log of the files that were taken: digest, size, time of modification in ns since 1970.

    The discovery thread adds and cuts; `written` may be called by any thread, with a count that was taken up.
    """

    def __init__(
        self, folder: StateFolder | None, records: Iterable[tuple[bytes, int, int]] = (), segment: str = ""
    ) -> None:
        self._folder = folder
        self._log = [*records]
        self._latest = {digest: (size, modified) for digest, size, modified in self._log}
        self._lock = threading.Lock()
        # The segment that was written last, and the records up to it.
        self._segment, self._saved = segment, len(self._log) if segment else 0

    @staticmethod
    def read(folder: StateFolder | None, written: Any) -> SeenFiles:
        """Return what `written` gave. May block. Raises ValueError for what it has not given."""
        if isinstance(written, str):
            digests = b64decode(written, validate=True)
            starts = range(0, len(digests), DIGEST_BYTES)
            return SeenFiles(folder, ((digests[at : at + DIGEST_BYTES], *UNKNOWN) for at in starts))
        if folder is None:
            raise ValueError(
                "state=None: the checkpoint names what was read in a folder: give state=, that folder"
            )
        return SeenFiles(folder, folder.load(written["segment"]), written["segment"])

    def __len__(self) -> int:
        return len(self._log)

    def get(self, digest: bytes) -> tuple[int, int] | None:
        """Size and time of a file when it was taken or has changed last; None for one that is new."""
        return self._latest.get(digest)

    def add(self, digest: bytes, size: int, modified: int) -> None:
        """Take a file."""
        self._log.append((digest, size, modified))
        self._latest[digest] = (size, modified)

    def change(self, digest: bytes, size: int, modified: int) -> None:
        """Note what a file is like now. Without a folder this process alone knows it."""
        if self._folder is not None:
            self._log.append((digest, size, modified))
        self._latest[digest] = (size, modified)

    def cut(self, count: int) -> None:
        """Forget all records but the first `count`: what followed was not taken up."""
        if count < len(self._log):
            del self._log[count:]
            self._latest = {digest: (size, modified) for digest, size, modified in self._log}

    def written(self, count: int, total: int) -> Any:
        """The first `count` records as an offset holds them, durable in the folder if there is one.

        total: the files that are known or waiting. May block; raises ValueError for too many, OSError.
        """
        if self._folder is None:
            if total > MAX_OFFSET_DIGESTS:
                raise ValueError(
                    f"state=None: {total:,} files were read or are to be, and a checkpoint alone remembers "
                    f"at most {MAX_OFFSET_DIGESTS:,}: give state=, a folder of this query's own, as "
                    "'s3://bucket/state' or a local path"
                )
            return b64encode(b"".join(dict.fromkeys(digest for digest, _, _ in self._log[:count]))).decode()
        with self._lock:
            # spec: SeenFiles!Save
            if not self._segment or count != self._saved:
                before = self._segment if self._saved <= count else ""
                self._segment = self._folder.append(before, self._log[:count], self._saved)
                self._saved = count
            return {"segment": self._segment}


class StateFolder:
    """A folder of one query, on any file system that Arrow knows. Thread-safe; every method blocks.

    Raises ValueError for what is not there or not whole, OSError where the file system fails.
    """

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        from pillarbox.ledger.local_folder import LocalFolder
        from pillarbox.ledger.object_folder import ObjectFolder

        self._shown = shown_address(uri)
        filesystem, path = open_file_system(uri, None, "state")
        is_local = isinstance(filesystem, fs.LocalFileSystem)
        self._folder = LocalFolder(path) if is_local else ObjectFolder(filesystem, path)

    def append(self, before: str, records: Sequence[tuple[bytes, int, int]], saved: int) -> str:
        """Add a segment with those of `records` from `saved` on, behind `before`; its name."""
        generation, number = map(int, before.split("-")[1:3]) if before else (0, 0)
        own = records[saved:]
        if not before or number == SEGMENTS_PER_GENERATION:
            before, generation, number = "", generation + 1, 0
            # The latest record of each file.
            own = [*{record[0]: record for record in records}.values()]
        content = before.encode() + b"\n" + b"".join(itertools.starmap(RECORD.pack, own))
        name = self._put(f"_seen-{generation:08}-{number + 1:03}", content)
        if number == 0:
            self._collect(generation)
        return name

    def load(self, name: str) -> list[tuple[bytes, int, int]]:
        """The records of a segment and of those before it."""
        parts = []
        while name:
            head, _, content = self._get(name, SEGMENT_NAME).partition(b"\n")
            parts.append(content)
            name = head.decode()
        return [record for content in reversed(parts) for record in RECORD.iter_unpack(content)]

    def put_list(self, content: bytes) -> str:
        """Keep a list of splits; its name."""
        return self._put(f"_splits-{time.time_ns():020}", content)

    def get_list(self, name: str) -> bytes:
        """The list of this name."""
        return self._get(name, SPLITS_NAME)

    def _put(self, name: str, content: bytes) -> str:
        from pillarbox.ledger.errors import LedgerError

        name += f"-{hashlib.sha256(content).hexdigest()[:16]}"
        try:
            self._folder.make()
            self._folder.put(name, content)
        except (LedgerError, OSError) as error:
            why = error.__cause__ or error
            raise OSError(f"state={self._shown!r}: {name!r} cannot be written: {why}") from None
        return name

    def _get(self, name: str, kind: re.Pattern[str]) -> bytes:
        # The pattern first: a checkpoint may name no other file.
        if kind.fullmatch(name):
            with suppress(FileNotFoundError):
                content = self._folder.read(name, 0, self._folder.size(name))
                if name.endswith(hashlib.sha256(content).hexdigest()[:16]):
                    return content
        raise ValueError(
            f"state={self._shown!r}: {name!r}, which the checkpoint names, is not there as it was "
            "written: the folder must be that of this query, and nobody else may write or delete there"
        )

    def _collect(self, generation: int) -> None:
        """Delete what no offset that Spark keeps can name."""
        try:
            names = sorted(self._folder.names())
            segments = [(name, match) for name in names if (match := SEGMENT_NAME.fullmatch(name))]
            old = [name for name, match in segments if int(match[1]) + GENERATIONS_KEPT <= generation]
            lists = [name for name in names if SPLITS_NAME.fullmatch(name)]
            for name in [*old, *lists[: -2 * SEGMENTS_PER_GENERATION * GENERATIONS_KEPT]]:
                self._folder.remove(name)
        except OSError:
            log.warning("state=%r: old files cannot be deleted", self._shown, exc_info=True)


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
