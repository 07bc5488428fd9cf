"""Discovery of files: listing, what a stream has taken (`SeenFiles`), and `FileEnumerator`.

`discover` runs on the discovery thread, everything else on the enumerator's, as `SplitEnumerator` says.
Listing blocks; it is done on the driver too, where columns are looked up.
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

import errno
import hashlib
import logging
import os
import re
import stat
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyarrow import ArrowException, fs

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.local_folder import LocalFolder
from pillarbox.ledger.object_folder import ObjectFolder
from pillarbox.redaction import UNESCAPED, is_misread, reason_of, shown_address
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.split import Split

if TYPE_CHECKING:
    from pillarbox.sources.connectors.files import FileSource

log = logging.getLogger("pillarbox")

HIDDEN = (".", "_")
WILD = re.compile(r"[*?\[]")
PATTERNS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
READ_ERRORS = (OSError, ValueError, EOFError, ArrowException)
"""The errors that reading a file may raise."""

END = 2**63 - 1
"""A `stop` behind the end of every file: for what is read to its end, wherever that is."""


@dataclass(frozen=True)
class FileSplit(Split):
    """A part of a file, from position `start` up to `stop`. Its file is named relative to what is listed.

    Positions are bytes in text, after decompression, and rows in Parquet. In text `start` and `stop` need not
    be at a line's edge: the lines are read that *begin* between them. So any cuts read each line once.
    """

    size: int = 0
    """Bytes of the file when it was found."""
    modified: int = 0
    """The time of its last modification then, in nanoseconds since 1970."""
    weight: float = 1.0
    """Bytes of the file for a position, about."""
    counts_rows: bool = False
    """Positions are rows of a file whose end is known, so that `stop - start` is their number."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.split_id.rpartition("+")[0]

    @property
    def rows(self) -> int | None:
        """Its rows, where positions are rows."""
        return self.stop - self.start if self.counts_rows else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the file that it takes, about."""
        return self.size if self.stop == END else round((self.stop - self.start) * self.weight)

    @property
    def files(self) -> int:
        """1 for the front of a file, so that a file counts once."""
        return int(self.start == 0)

    def part(self, start: int, stop: int, weight: float | None = None) -> FileSplit:
        """The part from `start` to `stop` of this file. weight: bytes of each of its rows; None for bytes."""
        part = replace(self, split_id=f"{self.name}+{start}", start=start, stop=stop)
        return part if weight is None else replace(part, weight=weight, counts_rows=True)


# -- listing ---------------------------------------------------------------------------------------


class FoundFile(NamedTuple):
    """A file as it was found. They sort by when they were modified, then by path. A plain value."""

    modified: int
    """In nanoseconds since 1970; 0 where the file system does not say."""
    path: str
    size: int = 0

    @classmethod
    def of(cls, info: fs.FileInfo) -> FoundFile:
        """The file as Arrow describes it."""
        return cls(info.mtime_ns or 0, info.path, info.size or 0)


class UnfitFileError(ValueError):
    """A file that is not what was asked for; its text is ours, and quotes no address."""

    is_own = True


class LostDataError(UnfitFileError):
    """A file that is another one by now, or that ends before what was to be read of it."""


def retold(error: Exception, address: str, place: str) -> Exception:
    """Return an error of that kind: `place` and the text, but nothing that may be secret in `address`."""
    reason = reason_of(error, address)
    kinds = (FileNotFoundError, PermissionError, OSError)
    told = next((kind for kind in kinds if isinstance(error, kind)), ValueError)(place + reason)
    # As `from` has it, also where it is None.
    told.__cause__ = error if reason == str(error) else None
    return told


def may_pass(error: Exception, filesystem: fs.FileSystem) -> bool:
    """Return True if another attempt may read what this one could not: it is there, but not within reach."""
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return False
    # What Arrow says of the content has no number; nor have the errors of a network.
    return error.errno is not None or not isinstance(filesystem, fs.LocalFileSystem)


@contextmanager
def hiding(address: str) -> Iterator[None]:
    """Raise the errors of what is done within, but none of what may be secret in `address`."""
    try:
        yield
    except READ_ERRORS as error:
        if reason_of(error, address) == str(error):
            raise
        raise retold(error, address, f"{shown_address(address)!r}: ") from None


def root_of(path: str) -> str:
    """The part of a path in front of its pattern, if it has one: names of files are relative to it."""
    wild = WILD.search(path)
    return path.rstrip("/") if wild is None else path[: max(0, path.rfind("/", 0, wild.start()))]


def open_file_system(
    path: str, filesystem: fs.FileSystem | None, option: str = "path"
) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it. Raises ValueError for a URI that is none.

    option: as what an error names it.
    """
    if filesystem is not None:
        return filesystem, path
    if path.startswith("file:/") and not path.startswith("file://"):
        # So Hadoop and Spark write it, with nothing escaped.
        path = path.removeprefix("file:")
    # Hadoop's names for what Arrow calls s3://.
    path = re.sub(r"^s3[an]://", "s3://", path)
    if not SCHEME.match(path):
        return fs.LocalFileSystem(), os.path.abspath(path)
    # A pattern is not an URI: Arrow is asked for the folder in front of it. The query goes with that.
    place, mark, query = path.partition("?")
    wild = re.search(r"[*\[]", place)
    base = place if wild is None else place[: place.rindex("/", 0, wild.start()) + 1]
    uri = base + mark + query
    refused = UNESCAPED if is_misread(uri) else ""
    try:
        opened, root = fs.FileSystem.from_uri(uri)
    except READ_ERRORS as error:
        # Arrow's text has the whole URI, with its secrets.
        why = "; ".join(filter(None, [type(error).__name__, refused]))
        refused = f"must be a path or a URI that pyarrow.fs knows ({why})"
    if refused:
        raise ValueError(f"{option}={shown_address(uri)!r}: {refused}")
    return opened, root if wild is None else root.rstrip("/") + "/" + place[len(base) :]


def list_files(filesystem: fs.FileSystem, path: str, *, recursive: bool) -> list[FoundFile]:
    """The files that `path` stands for, those modified first in front. Raises FileNotFoundError.

    In a folder, what begins with a dot or an underscore is passed over, with all below it: writers keep there
    what is not finished. A pattern knows `*`, `?`, `[...]`, and `**` for any folders. A link to a folder
    above is not followed. Raises ValueError for a name that is not UTF-8.
    """
    info = filesystem.get_file_info(path)
    if info.is_file:
        return [FoundFile.of(info)]
    root, wanted = path, None
    if info.type == fs.FileType.NotFound:
        wild = WILD.search(path)
        if wild is None:
            raise FileNotFoundError(f"path={path!r}: there is no such file or folder")
        root, wanted = root_of(path) or "/" * path.startswith("/"), _pattern(path)
        recursive = "/" in path[wild.start() :] or "**" in path
    listed: Iterable[FoundFile] = ()
    if not isinstance(filesystem, fs.LocalFileSystem):
        start = len(root.rstrip("/")) + 1
        selector = fs.FileSelector(root, allow_not_found=wanted is not None, recursive=recursive)
        infos = [info for info in filesystem.get_file_info(selector) if info.is_file]
        listed = [FoundFile.of(each) for each in infos if not _is_hidden(each.path[start:])]
    elif wanted is None or os.path.isdir(root):
        listed = _walk(root, recursive)
    files = sorted(file for file in listed if wanted is None or wanted.fullmatch(file.path))
    for file in files:
        try:
            file.path.encode()
        except UnicodeEncodeError:
            text = f"{file.path!r}: the name is not UTF-8, so it cannot be read: rename it"
            raise ValueError(text) from None
    return files


def _is_hidden(name: str) -> bool:
    return any(part.startswith(HIDDEN) for part in name.split("/"))


def _walk(root: str, recursive: bool) -> Iterator[FoundFile]:
    """The files in a local folder. Arrow, and `os.walk`, would follow links that go round."""
    left: list[tuple[str, tuple[str, ...]]] = [(root, (os.path.realpath(root),))]
    while left:
        folder, above = left.pop()
        try:
            names = [name for name in os.listdir(folder) if not name.startswith(HIDDEN)]
        except FileNotFoundError:
            if folder == root:
                raise
            continue
        for path in [os.path.join(folder, name) for name in names]:
            try:
                info = os.stat(path)
            except OSError as error:
                # Gone meanwhile, or a link to nothing, or to itself.
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    continue
                raise
            if stat.S_ISREG(info.st_mode):
                yield FoundFile(info.st_mtime_ns, path, info.st_size)
            elif recursive and stat.S_ISDIR(info.st_mode):
                real = os.path.realpath(path)
                # Also of a folder above the root: it holds the root again.
                if not any((each + "/").startswith(real.rstrip("/") + "/") for each in above):
                    left.append((path, (*above, real)))


def _pattern(path: str) -> re.Pattern[str]:
    """The paths that a pattern stands for. Raises ValueError for one that cannot be read."""
    text = ""
    for part in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]*\]|.", path, re.DOTALL):
        if part in PATTERNS:
            text += PATTERNS[part]
        elif part.startswith("[") and len(part) > 1:
            text += "[" + part[1:-1].replace("\\", "\\\\").replace("!", "^", part[1] == "!") + "]"
        else:
            text += re.escape(part)
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise ValueError(f"path={path!r}: is not a pattern: {error}") from None


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
        self._folder = LocalFolder(path) if is_local else ObjectFolder(filesystem, path)

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
                f"version={version!r}: this reads version {self.version}: begin a new checkpoint, with a "
                "path of the files that are not read yet"
            )
        try:
            root, begun = written["root"], written.get("begun")
            seen = SeenFiles(self._source.state_folder, written["seen"])
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"written={written!r}: must be what a source of files knows") from None
        self._source.check_root(root)
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

    checkpoint: what to go on from; None for a new run.
    """

    def __init__(
        self, context: EnumeratorContext[FileSplit], checkpoint: Known | None, source: FileSource
    ) -> None:
        super().__init__(context, checkpoint or Known(SeenFiles(source.state_folder)))
        self.discovery_interval = source.discovery_interval
        self._source = source
        stores = source.opened[0].type_name in OBJECT_STORES
        self._settle_s = source.settle if source.settle is not None else 0.0 if stores else SETTLE_S
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
        source, known, splits = self._source, checkpoint, list[FileSplit]()
        seen = known.seen
        seen.cut(known.count)
        if known is not self._returned:
            # What was returned last was not taken up.
            self._new = None
        with hiding(source.path):
            if known.begun is not None:
                name, size, modified, start = known.begun
                known = self._divide(FoundFile(modified, name, size), start, most, splits, known)
            again = self.discovery_interval is not None and not splits
            if known.begun is None and not self._new and (self._new is None or again):
                known = self._look(known)
            while self._new and len(splits) < most and known.begun is None:
                file = self._new.popleft()
                name = source.relative(file.path)
                seen.add(digest_of(name), file)
                known = self._divide(file._replace(path=name), 0, most, splits, known)
        self._returned = replace(known, count=len(seen))
        return splits, self._returned

    def advance(self, split: FileSplit, limit: ReadLimit) -> FileSplit | None:
        """The front of a split: so many bytes of text that can be cut, so many rows or bytes of Parquet.

        All of one that can never be read: its reader says what is wrong. Raises OSError for one that another
        attempt may read, as the limit must be the same then.
        """
        source = self._source
        form = source.file_format
        if limit.rows is not None and form.position_name != "row" and not self._has_warned:
            # To count them the files would have to be read here, and once more in the tasks.
            self._has_warned = True
            log.warning(
                "max_rows: files of text do not say how many rows they have: use max_bytes or max_files"
            )
        if limit.rows is None and limit.nbytes is None:
            return split
        path = source.absolute(split.name)
        try:
            return form.advance(split, path, limit)
        except READ_ERRORS as error:
            if not may_pass(error, source.opened[0]):
                return split
            raise retold(error, source.path, f"{path!r}, looking how far to read: ") from None

    def close(self) -> None:
        """End a wait of the first look."""
        self._closed.set()

    # -- the discovery thread -------------------------------------------------------------------------

    def _look(self, known: Known) -> Known:
        """List the files: which are new and have rested, and which have changed."""
        source, seen, is_first = self._source, known.seen, not self._has_looked
        self._has_looked = True
        new, changed = dict[bytes, FoundFile](), list[str]()
        for file in list_files(*source.opened, recursive=source.recursive):
            digest = digest_of(source.relative(file.path))
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
            infos = self._source.opened[0].get_file_info([*young])
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
        path = self._source.absolute(file.path)
        for part in self._source.file_format.pieces(whole, path, self._source.split_bytes, start):
            if len(splits) >= most:
                return replace(known, begun=(file.path, file.size, file.modified, part.start))
            splits.append(part)
        return replace(known, begun=None)


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_NAMED
    return ", ".join(texts[:MAX_NAMED]) + (f" and {more:,} more files: each" if more > 0 else "")
