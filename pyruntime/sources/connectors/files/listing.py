"""Which files a path stands for: a file, a folder, or a pattern, on any file system that Arrow knows.

Blocks; called on the discovery thread, and on the driver where columns are looked up.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.redaction import UNESCAPED, is_misread, reason_of, shown_address

if TYPE_CHECKING:
    from pyarrow import fs

HIDDEN = (".", "_")
WILD = re.compile(r"[*?\[]")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class FoundFile(NamedTuple):
    """A file as it was found. They sort by when they were modified, then by path. A plain value."""

    modified: int
    """In nanoseconds since 1970; 0 where the file system does not say."""
    path: str
    size: int = 0


class UnfitFileError(ValueError):
    """A file that is not what it was, or not what was asked for; its text is ours, and quotes no address."""

    is_own = True


class CutFileError(UnfitFileError, EOFError):
    """A file that ends before what was to be read of it."""


def same_kind(error: Exception, text: str) -> Exception:
    """An error of the kind that a reader of files raises for `error`, with this text."""
    for kind in (FileNotFoundError, PermissionError, OSError):
        if isinstance(error, kind):
            return kind(text)
    return ValueError(text)


def may_pass(error: Exception, filesystem: fs.FileSystem) -> bool:
    """Whether another attempt may read what this one could not: the file is there, but not within reach."""
    from pyarrow import fs

    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return False
    # What Arrow says of the content has no number; nor have the errors of a network.
    return error.errno is not None or not isinstance(filesystem, fs.LocalFileSystem)


@contextmanager
def hiding(path: str) -> Iterator[None]:
    """Raise the errors of what is done within, but none of what may be secret in `path`, a URI."""
    from pyarrow import lib

    try:
        yield
    except (OSError, ValueError, EOFError, lib.ArrowException) as error:
        text = reason_of(error, path)
        if text == str(error):
            raise
        raise same_kind(error, f"{shown_address(path)!r}: {text}") from None


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
    # A pattern is no URI: Arrow is asked for the folder in front of it. The query goes with that.
    path, mark, query = path.partition("?")
    wild = re.search(r"[*\[]", path)
    if wild is None:
        return _from_uri(path + mark + query, option)
    base = path[: path.rindex("/", 0, wild.start()) + 1]
    found, root = _from_uri(base + mark + query, option)
    return found, root.rstrip("/") + "/" + path[len(base) :]


def _from_uri(uri: str, option: str) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs, lib

    try:
        found, path = fs.FileSystem.from_uri(uri)
    except (lib.ArrowException, OSError, ValueError) as error:
        # Arrow's text has the whole URI, with its secrets.
        raise ValueError(
            f"{option}={shown_address(uri)!r}: must be a path or a URI that pyarrow.fs knows "
            f"({type(error).__name__}{f'; {UNESCAPED}' if is_misread(uri) else ''})"
        ) from None
    if is_misread(uri):
        raise ValueError(f"{option}={shown_address(uri)!r}: {UNESCAPED}")
    return found, path


def list_files(filesystem: fs.FileSystem, path: str, *, recursive: bool) -> list[FoundFile]:
    """The files that `path` stands for, those modified first in front. Raises FileNotFoundError.

    In a folder, what begins with a dot or an underscore is passed over, with all below it: writers keep there
    what is not finished. A pattern knows `*`, `?`, `[...]`, and `**` for any folders. A link to a folder
    above is not followed. Raises ValueError for a name that is not UTF-8.
    """
    from pyarrow import fs

    info = filesystem.get_file_info(path)
    if info.is_file:
        return [_found(info)]
    wild = WILD.search(path) if info.type == fs.FileType.NotFound else None
    if wild is not None:
        root = root_of(path) or ("/" if path.startswith("/") else "")
        wanted = pattern(path)
        recursive = "/" in path[wild.start() :] or "**" in path
    elif info.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"path={path!r}: there is no such file or folder")
    else:
        root, wanted = path, None
    if isinstance(filesystem, fs.LocalFileSystem):
        if wild is not None and not os.path.isdir(root):
            return []
        return sorted(
            _checked(file) for file in _walk(root, recursive) if wanted is None or wanted.fullmatch(file.path)
        )
    selector = fs.FileSelector(root, allow_not_found=wild is not None, recursive=recursive)
    start = len(root.rstrip("/")) + 1
    return sorted(
        _found(info)
        for info in filesystem.get_file_info(selector)
        if info.is_file
        and (wanted is None or wanted.fullmatch(info.path))
        and not any(part.startswith(HIDDEN) for part in info.path[start:].split("/"))
    )


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


def _checked(file: FoundFile) -> FoundFile:
    """`file`, if Arrow can open one of that name. Raises ValueError."""
    try:
        file.path.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{file.path!r}: the name is not UTF-8, so it cannot be read: rename it") from None
    return file


def pattern(path: str) -> re.Pattern[str]:
    """The paths that a pattern stands for. Raises ValueError for one that cannot be read."""
    text = ""
    for part in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]*\]|.", path, re.DOTALL):
        if part == "**/":
            text += "(?:.*/)?"
        elif part == "**":
            text += ".*"
        elif part in "*?":
            text += "[^/]" + part.replace("?", "")
        elif part.startswith("[") and len(part) > 1:
            text += "[" + part[1:-1].replace("\\", "\\\\").replace("!", "^", part[1] == "!") + "]"
        else:
            text += re.escape(part)
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise ValueError(f"path={path!r}: is no pattern: {error}") from None


def _found(info: fs.FileInfo) -> FoundFile:
    return FoundFile(info.mtime_ns or 0, info.path, info.size or 0)
