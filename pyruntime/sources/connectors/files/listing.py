"""Which files a path stands for: a file, a folder, or a pattern, on any file system that Arrow knows.

Blocks; called on the discovery thread, and on the driver where columns are looked up.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyarrow import fs

WILD = re.compile(r"[*?\[]")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class FoundFile(NamedTuple):
    """A file as it was found. They sort by when they were modified, then by path. A plain value."""

    modified: int
    """In nanoseconds since 1970; 0 where the file system does not say."""
    path: str
    size: int = 0


def shown(path: str) -> str:
    """`path` without what may be secret: the user and the query of a URI."""
    if not SCHEME.match(path):
        return path
    return re.sub(r"\?.*", "?...", re.sub(r"(?<=://)[^/@]*@", "", path))


def open_file_system(path: str, filesystem: fs.FileSystem | None) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it. Raises ValueError for a URI that is none."""
    from pyarrow import fs

    if filesystem is not None:
        return filesystem, path
    if not SCHEME.match(path):
        return fs.LocalFileSystem(), os.path.abspath(path)
    # A pattern is no URI: Arrow is asked for the folder in front of it. The query goes with that.
    path, mark, query = path.partition("?")
    wild = re.search(r"[*\[]", path)
    if wild is None:
        return _from_uri(path + mark + query)
    base = path[: path.rindex("/", 0, wild.start()) + 1]
    found, root = _from_uri(base + mark + query)
    return found, root.rstrip("/") + "/" + path[len(base) :]


def _from_uri(uri: str) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs, lib

    try:
        found, path = fs.FileSystem.from_uri(uri)
    except (lib.ArrowException, OSError, ValueError) as error:
        # Arrow's text has the whole URI, with its secrets.
        raise ValueError(
            f"path={shown(uri)!r}: must be a path or a URI that pyarrow.fs knows ({type(error).__name__})"
        ) from None
    return found, path


def list_files(filesystem: fs.FileSystem, path: str, *, recursive: bool) -> list[FoundFile]:
    """The files that `path` stands for, those modified first in front. Raises FileNotFoundError.

    In a folder, what begins with a dot or an underscore is passed over, with all below it: writers keep there
    what is not finished. A pattern knows `*`, `?`, `[...]`, and `**` for any folders.
    """
    from pyarrow import fs

    info = filesystem.get_file_info(path)
    if info.is_file:
        return [_found(info)]
    wild = WILD.search(path) if info.type == fs.FileType.NotFound else None
    if wild is not None:
        root = path[: path.rfind("/", 0, wild.start())] or "/"
        wanted = pattern(path)
        recursive = "/" in path[wild.start() :] or "**" in path
    elif info.type == fs.FileType.NotFound:
        raise FileNotFoundError(f"path={path!r}: there is no such file or folder")
    else:
        root, wanted = path, None
    selector = fs.FileSelector(root, allow_not_found=wild is not None, recursive=recursive)
    start = len(root.rstrip("/")) + 1
    return sorted(
        _found(info)
        for info in filesystem.get_file_info(selector)
        if info.is_file
        and (wanted is None or wanted.fullmatch(info.path))
        and not any(part.startswith((".", "_")) for part in info.path[start:].split("/"))
    )


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
