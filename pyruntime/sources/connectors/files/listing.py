"""The files that a path stands for: a file, a folder, or a pattern, on any file system that Arrow knows.

Blocks; called on the discovery thread, and on the driver where columns are looked up.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.redaction import UNESCAPED, is_misread, reason_of, shown_address

if TYPE_CHECKING:
    from pyarrow import fs

HIDDEN = (".", "_")
WILD = re.compile(r"[*?\[]")
PATTERNS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class FoundFile(NamedTuple):
    """A file as it was found. They sort by when they were modified, then by path. A plain value."""

    modified: int
    """In nanoseconds since 1970; 0 where the file system does not say."""
    path: str
    size: int = 0


class UnfitFileError(ValueError):
    """A file that is not what was asked for; its text is ours, and quotes no address."""

    is_own = True


class LostDataError(UnfitFileError):
    """A file that ends before what was to be read of it."""


class ChangedFileError(LostDataError):
    """A file that is not what it was when it was found."""


def read_errors() -> tuple[type[Exception], ...]:
    """Return what reading a file may raise, for an `except`."""
    from pyarrow import lib

    return (OSError, ValueError, EOFError, lib.ArrowException)


def retold(error: Exception, address: str, place: str) -> Exception:
    """Return an error of that kind: `place` and the text, but nothing that may be secret in `address`."""
    reason = reason_of(error, address)
    kinds = (FileNotFoundError, PermissionError, OSError)
    told = next((kind for kind in kinds if isinstance(error, kind)), ValueError)(place + reason)
    # As `from` has it, also where it is None.
    told.__cause__ = error if reason == str(error) else None
    return told


@contextmanager
def hiding(address: str) -> Iterator[None]:
    """Raise the errors of what is done within, but none of what may be secret in `address`."""
    try:
        yield
    except read_errors() as error:
        if reason_of(error, address) == str(error):
            raise
        raise retold(error, address, f"{shown_address(address)!r}: ") from None


def may_pass(error: Exception, filesystem: fs.FileSystem) -> bool:
    """Return True if another attempt may read what this one could not: it is there, but not within reach."""
    from pyarrow import fs

    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return False
    # What Arrow says of the content has no number; nor have the errors of a network.
    return error.errno is not None or not isinstance(filesystem, fs.LocalFileSystem)


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
    from pyarrow import fs

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
    except read_errors() as error:
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
    from pyarrow import fs

    info = filesystem.get_file_info(path)
    if info.is_file:
        return [found(info)]
    root, wanted = path, None
    if info.type == fs.FileType.NotFound:
        wild = WILD.search(path)
        if wild is None:
            raise FileNotFoundError(f"path={path!r}: there is no such file or folder")
        root, wanted = root_of(path) or "/" * path.startswith("/"), pattern(path)
        recursive = "/" in path[wild.start() :] or "**" in path
    listed: Iterable[FoundFile] = ()
    if not isinstance(filesystem, fs.LocalFileSystem):
        start = len(root.rstrip("/")) + 1
        selector = fs.FileSelector(root, allow_not_found=wanted is not None, recursive=recursive)
        infos = [info for info in filesystem.get_file_info(selector) if info.is_file]
        listed = [found(each) for each in infos if not _is_hidden(each.path[start:])]
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


def found(info: fs.FileInfo) -> FoundFile:
    """The file as Arrow describes it."""
    return FoundFile(info.mtime_ns or 0, info.path, info.size or 0)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(HIDDEN) for part in name.split("/"))


def _walk(root: str, recursive: bool) -> Iterator[FoundFile]:
    """The files in a local folder. Arrow would follow links that go round."""
    left: list[tuple[str, tuple[str, ...]]] = [(root, (os.path.realpath(root),))]
    while left:
        folder, above = left.pop()
        try:
            with os.scandir(folder) as entries:
                found = [(each.path, each.stat) for each in entries if not each.name.startswith(HIDDEN)]
        except FileNotFoundError:
            if folder == root:
                raise
            continue
        for path, look in found:
            try:
                info = look()
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


def pattern(path: str) -> re.Pattern[str]:
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
