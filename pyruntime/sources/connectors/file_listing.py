"""Listing of files: their paths and parts, the place in which they are found, and errors about them.

Listing blocks; it is done on the discovery thread, and on the driver, where columns are looked up.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import unquote

from pyarrow import ArrowException, fs

from pillarbox.redaction import UNESCAPED, is_misread, reason_of, shown_address
from pillarbox.sources.split import Split

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
    """Positions are rows, and `weight` is of all rows of the file, so that it says their number."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.split_id.rpartition("+")[0]

    @property
    def rows(self) -> int | None:
        """Its rows, where positions are rows."""
        if not self.counts_rows:
            return None
        stop: int = round(self.size / self.weight) if self.stop == END else self.stop
        rows: int = stop - self.start
        return max(0, rows)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the file that it takes, about."""
        if self.stop == END:
            before: int = round(self.start * self.weight)
            return max(0, self.size - before)
        nbytes: int = round((self.stop - self.start) * self.weight)
        return nbytes

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


# -- names of files --------------------------------------------------------------------------------

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder, `name=value`, as Hive and Spark write null."""


@dataclass(frozen=True)
class FilePlace:
    """A place of files: a file, a folder or a pattern in an open file system. A plain value.

    address: the path or URI as it was given, for errors. path: the path in `filesystem`. moved_from: the
    place of these files when a checkpoint was written, if it was another.
    """

    address: str
    filesystem: fs.FileSystem
    path: str
    moved_from: str | None = None

    @property
    def root(self) -> str:
        """The place that names of files are relative to, as a checkpoint has it: without secrets."""
        # Without host and user: the same bucket through another endpoint, or with other keys, is the same
        # place.
        kind = self.filesystem.type_name
        return root_of(self.path) or "/" if kind == "local" else f"{kind}://{root_of(self.path)}"

    def relative(self, path: str) -> str:
        """The name of a file, by which it is known, of its path in the file system."""
        return path[len(root_of(self.path)) :].lstrip("/")

    def absolute(self, name: str) -> str:
        """The path in the file system of a file of this name."""
        root = root_of(self.path)
        return root + "/" * bool(name and (root or self.path.startswith("/"))) + name

    def check_root(self, root: str) -> None:
        """Raise ValueError unless a checkpoint that was written for the files of `root` is one for these."""
        if root != self.root and root != (self.moved_from or "").rstrip("/"):
            before = self.moved_from and shown_address(self.moved_from)
            raise ValueError(
                f"path={shown_address(self.address)!r}: its files lie in {self.root!r}, and the checkpoint "
                f"is of {root!r}. If these are the same files by the same names, say moved_from={root!r}, "
                f"and they are not read again; else begin a new checkpoint (now moved_from={before!r})"
            )

    def columns_in(self, path: str) -> dict[str, str | None]:
        """The values by name in the folders of a file, of those below the path or in front of the pattern."""
        above = self.path if path.startswith(self.path) else root_of(self.path)
        found: dict[str, str | None] = {}
        for folder in path[len(above) :].split("/")[:-1]:
            name, equals, value = folder.partition("=")
            if name and equals:
                found[unquote(name)] = None if value == NULL else unquote(value)
        return found
