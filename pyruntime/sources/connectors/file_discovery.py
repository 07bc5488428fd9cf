"""Discovery of files: what a stream has taken (`SeenFiles`), and `FileEnumerator`.

`discover` runs on the discovery thread, everything else on the enumerator's, as `SplitEnumerator` says.
"""

# A file is known by its name, relative to what is listed: `rsync -a`, `cp -p` and `tar` keep old times, so
# a time says nothing about what is new. Names are held as digests of 8 bytes: of a million files two share
# one with a probability of 3 in 10^8, and then the later one is told as a file that has changed.
#
# What is known at a moment is a prefix of the log, so a checkpoint is a count, and taking files costs what
# those cost, however many are known. A checkpoint is written with each offset of a stream, which Spark
# keeps by the hundred: up to 8,192 digests stand in the offset itself, more need a folder. One file there
# that is written over would not do: a query may go on from any offset that Spark keeps, and must find what
# was known then, not later. So each offset that has new files adds a segment, which is never changed nor
# deleted and is named after its content; the offset has the names of all its segments. A new segment takes
# the place of those before it, but larger ones, so that there are few: a binary counter. All segments
# together then take some twenty times what a million files need once, and nobody has to know which of them
# are still named. A segment whose offset was never written does no harm.

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.folders import Folder
from pillarbox.ledger.local_folder import LocalFolder
from pillarbox.providers import OBJECT_FOLDER, provided
from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.file_formats import FileFormat
from pillarbox.sources.connectors.file_listing import (
    END,
    READ_ERRORS,
    FilePlace,
    FileSplit,
    FoundFile,
    hiding,
    list_files,
    may_pass,
    open_file_system,
    retold,
)
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator

log = logging.getLogger("pillarbox")

# -- what was taken --------------------------------------------------------------------------------

DIGEST_BYTES = 8
MAX_OFFSET_DIGESTS = 64 * 1024 // DIGEST_BYTES
# Hidden names: nobody reads them as data, wherever the folder is.
SEGMENT_NAME = re.compile(r"_seen-([0-9a-f]{16})")


def digest_of(name: str) -> bytes:
    """The digest by which a file of this name is known. Any thread."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


class SeenFiles:
    """Log of the files that were taken, by their digests. `folder`: where it lasts; None: in offsets.

    The discovery thread adds and cuts; `written` may be called by any thread, with a count that was taken up.
    """

    def __init__(self, folder: StateFolder | None, written: Any = "") -> None:
        """Read what `written` gave. May block. Raises ValueError for what it has not given."""
        self._folder = folder
        self._segments: list[tuple[str, int]] = []
        if isinstance(written, str):
            digests = b64decode(written, validate=True)
        elif folder is None:
            raise ValueError(
                "state=None: the checkpoint names what was read in a folder: give state=, that folder"
            )
        else:
            contents = [(name, folder.load(name)) for name in written["segments"]]
            self._segments = [(name, len(content) // DIGEST_BYTES) for name, content in contents]
            digests = b"".join(content for _, content in contents)
        self._log = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        self._looks: dict[bytes, FoundFile | None] = dict.fromkeys(self._log)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._log)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._looks

    def add(self, digest: bytes, file: FoundFile) -> None:
        """Take a file."""
        self._log.append(digest)
        self._looks[digest] = file

    def look(self, digest: bytes, file: FoundFile) -> FoundFile | None:
        """Note what a file that was taken is like now; what it was like before, where this process knows."""
        before, self._looks[digest] = self._looks[digest], file
        return before

    def cut(self, count: int) -> None:
        """Forget all but the first `count`: what followed was not taken up."""
        for digest in self._log[count:]:
            del self._looks[digest]
        del self._log[count:]

    def written(self, count: int, total: int) -> Any:
        """The first `count` as an offset holds them, durable in the folder if there is one.

        total: the files that are known or waiting. May block; raises ValueError for too many, OSError.
        """
        if self._folder is None:
            if total > MAX_OFFSET_DIGESTS:
                raise ValueError(
                    f"state=None: {total:,} files were read or are to be, and a checkpoint alone remembers "
                    f"at most {MAX_OFFSET_DIGESTS:,}: give state=, a folder of this query's own, as "
                    "'s3://bucket/state' or a local path"
                )
            return b64encode(b"".join(self._log[:count])).decode()
        with self._lock:
            segments = self._segments
            # Not those with what was found, written and not taken up.
            while sum(size for _, size in segments) > count:
                segments.pop()
            own = count - sum(size for _, size in segments)
            while own and segments and segments[-1][1] <= own:
                own += segments.pop()[1]
            if own:
                # spec: SeenFiles!Save
                segments.append((self._folder.put(b"".join(self._log[count - own : count])), own))
            return {"segments": [name for name, _ in segments]}


class StateFolder:
    """A folder of one query, on any file system that Arrow knows. Thread-safe; every method blocks."""

    def __init__(self, uri: str) -> None:
        self._shown = shown_address(uri)
        filesystem, path = open_file_system(uri, None, "state")
        is_local = isinstance(filesystem, fs.LocalFileSystem)
        self._folder: Folder = (
            LocalFolder(path) if is_local else provided(OBJECT_FOLDER, "state")(filesystem, path)
        )

    def put(self, content: bytes) -> str:
        """Keep a segment; its name. Raises OSError where the file system fails."""
        name = f"_seen-{hashlib.sha256(content).hexdigest()[:16]}"
        try:
            self._folder.make()
            self._folder.put(name, content)
        except (LedgerError, OSError) as error:
            why = error.__cause__ or error
            raise OSError(f"state={self._shown!r}: {name!r} cannot be written: {why}") from None
        return name

    def load(self, name: str) -> bytes:
        """The segment of this name. Raises ValueError for one that is not there or not whole."""
        # The pattern first: a checkpoint may name no other file.
        if SEGMENT_NAME.fullmatch(name):
            with suppress(FileNotFoundError):
                content = self._folder.read(name, 0, self._folder.size(name))
                if name.endswith(hashlib.sha256(content).hexdigest()[:16]):
                    return content
        raise ValueError(
            f"state={self._shown!r}: {name!r}, which the checkpoint names, is not there as it was "
            "written: the folder must be that of this query, and nobody else may write or delete there"
        )


@dataclass(frozen=True)
class Known:
    """The files that were taken: the first `count` of `seen`. A plain value, but for that log."""

    seen: SeenFiles
    count: int = 0
    total: int = 0
    """Files that were taken or wait, by the latest look."""
    begun: tuple[str, int, int, int] | None = None
    """A file of which parts were taken: name, size, time in ns, where the next part begins."""


class KnownSerializer:
    """Writes `Known` down, by names relative to what the source lists. Thread-safe; may block on `state=`."""

    version = 3

    def __init__(self, place: FilePlace, state_folder: StateFolder | None) -> None:
        self._place = place
        self._state_folder = state_folder

    def to_json(self, value: Known) -> Any:
        """Return what JSON can hold. Raises ValueError for more files than an offset can hold, OSError."""
        seen = value.seen.written(value.count, value.total)
        return {"root": self._place.root, "seen": seen} | ({"begun": [*value.begun]} if value.begun else {})

    def from_json(self, version: int, written: Any) -> Known:
        """Read what `to_json` has written. Raises ValueError for another version or root, or bad values."""
        if version != self.version:
            raise ValueError(
                f"version={version!r}: this reads version {self.version}: begin a new checkpoint, with a "
                "path of the files that are not read yet"
            )
        try:
            root, begun = written["root"], written.get("begun")
            seen = SeenFiles(self._state_folder, written["seen"])
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"written={written!r}: must be what a source of files knows") from None
        self._place.check_root(root)
        return Known(seen, len(seen), len(seen), begun and tuple(begun))


# -- discovery -------------------------------------------------------------------------------------

SETTLE_S = 2.0
"""Seconds that a file rests before it is taken, without `settle`; objects of a store appear whole."""
OBJECT_STORES = ("s3", "gcs", "abfs")
MAX_FIRST_WAIT_S = 5.0
"""Seconds that the first look may wait for files to have rested."""
MAX_NAMED = 3
"""Files that a message names; of more it tells the number."""


class FileEnumerator(SplitEnumerator[FileSplit, Known]):
    """Finds files, those modified first in front, and divides them. Confined as `SplitEnumerator` is.

    checkpoint: what to go on from; None for a new run. The others: as `FileSource` has them.
    """

    def __init__(
        self,
        context: EnumeratorContext[FileSplit],
        checkpoint: Known | None,
        place: FilePlace,
        file_format: FileFormat,
        *,
        state_folder: StateFolder | None,
        recursive: bool,
        discovery_interval: float | None,
        split_bytes: int,
        settle: float | None,
    ) -> None:
        super().__init__(context, checkpoint or Known(SeenFiles(state_folder)))
        self.discovery_interval = discovery_interval
        self._place = place
        self._format = file_format
        self._recursive = recursive
        self._split_bytes = split_bytes
        stores = place.filesystem.type_name in OBJECT_STORES
        self._settle_s = settle if settle is not None else 0.0 if stores else SETTLE_S
        self._closed = threading.Event()
        # The discovery thread: the files of the latest look that are new and not taken. A folder of a million
        # files is listed once for all its splits.
        self._new: deque[FoundFile] | None = None
        self._has_looked = self._has_warned = False
        self._returned: Known | None = None
        self._resting: dict[str, tuple[FoundFile, float]] = {}

    def discover(self, checkpoint: Known, most: int) -> tuple[Sequence[FileSplit], Known]:
        """Splits of the files that are new. Raises FileNotFoundError where there is no such folder."""
        # spec: SeenFiles!Take
        place, known, splits = self._place, checkpoint, list[FileSplit]()
        seen = known.seen
        seen.cut(known.count)
        if known is not self._returned:
            # What was returned last was not taken up.
            self._new = None
        with hiding(place.address):
            if known.begun is not None:
                name, size, modified, start = known.begun
                known = self._divide(FoundFile(modified, name, size), start, most, splits, known)
            again = self.discovery_interval is not None and not splits
            if known.begun is None and not self._new and (self._new is None or again):
                known = self._look(known)
            while self._new and len(splits) < most and known.begun is None:
                file = self._new.popleft()
                name = place.relative(file.path)
                seen.add(digest_of(name), file)
                known = self._divide(file._replace(path=name), 0, most, splits, known)
        self._returned = replace(known, count=len(seen))
        return splits, self._returned

    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit | None:
        """The front of a split: so many bytes of text that can be cut, so many rows or bytes of Parquet.

        All of one that can never be read: its reader says what is wrong. Raises OSError for one that another
        attempt may read, as the limit must be the same then.
        """
        place, form = self._place, self._format
        if limit.rows is not None and form.position_name != "row" and not self._has_warned:
            # To count them the files would have to be read here, and once more in the tasks.
            self._has_warned = True
            log.warning(
                "max_rows: files of text do not say how many rows they have: use max_bytes or max_files"
            )
        if limit.rows is None and limit.nbytes is None:
            return split
        path = place.absolute(split.name)
        try:
            return form.advance(split, path, limit)
        except READ_ERRORS as error:
            if not may_pass(error, place.filesystem):
                return split
            raise retold(error, place.address, f"{path!r}, looking how far to read: ") from None

    def close(self) -> None:
        """End a wait of the first look."""
        self._closed.set()

    # -- the discovery thread -------------------------------------------------------------------------

    def _look(self, known: Known) -> Known:
        """List the files: which are new and have rested, and which have changed."""
        place, seen, is_first = self._place, known.seen, not self._has_looked
        self._has_looked = True
        new, changed = dict[bytes, FoundFile](), list[str]()
        for file in list_files(place.filesystem, place.path, recursive=self._recursive):
            digest = digest_of(place.relative(file.path))
            if digest in seen:
                before = seen.look(digest, file)
                if before is not None and (before.size, before.modified) != (file.size, file.modified):
                    changed.append(f"{file.path!r} (of {before.size} bytes then and {file.size} now)")
            elif file.size:
                # One that is empty has no row, and may be one that is being written.
                new.setdefault(digest, file)
        self._new = deque(self._rested([*new.values()], is_first))
        if changed:
            log.warning("%s changed after it was taken; what is new in it is not read", _listed(changed))
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
            infos = self._place.filesystem.get_file_info([*young])
            same = {info.path for info in infos if young[info.path] == FoundFile.of(info)}
        else:
            same = {path for path, since in stood.items() if at - since >= settle}
        left = young.keys() - same
        if left and is_first and self.discovery_interval is None:
            named = _listed([*map(repr, sorted(left))])
            log.warning("%s is still written, and not taken at this start", named)
        return [file for file in new if file.path not in left]

    def _divide(self, file: FoundFile, start: int, most: int, splits: list[FileSplit], known: Known) -> Known:
        """Add splits of a file, which is called by its name, from `start` on, while there is room."""
        whole = FileSplit(f"{file.path}+0", 0, END, file.size, file.modified)
        path = self._place.absolute(file.path)
        for part in self._format.pieces(whole, path, self._split_bytes, start):
            if len(splits) >= most:
                return replace(known, begun=(file.path, file.size, file.modified, part.start))
            splits.append(part)
        return replace(known, begun=None)


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_NAMED
    return ", ".join(texts[:MAX_NAMED]) + (f" and {more:,} more files: each" if more > 0 else "")
