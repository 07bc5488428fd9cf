"""Files and folders that hold rows or answers: their owner's alone, and no link that somebody has put there.

Pillarbox makes files with the mode 0600 and folders with 0700, whatever the process's umask, or as `mode=`
says for users who share them. What is there keeps the mode that it has. For any thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

FILE_MODE = 0o600
"""Mode of a file that is its owner's alone."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""A named pipe is opened at once, and refused then, whoever is at its other end."""
_LINK = {errno.ELOOP, errno.EMLINK}
MAX_OPEN_TRIES = 100


def expand_home(name: str, path: str) -> str:
    """Return `path` with `~` or `~user` in front of it replaced by that user's home folder, as shells do.

    name: of the argument, for the ValueError that names a user who has none.
    """
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        user = path.partition("/")[0]
        raise ValueError(
            f"{name}={path!r}: there is no home folder of a user {user[1:]!r}; a folder that is called "
            f"{user!r} is written './{user}'"
        )
    return expanded


def check_mode(value: object) -> int | None:
    """`value` if it is a mode of files or None; otherwise TypeError or ValueError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"mode={value!r}: must be an int such as 0o660, or None, not {type(value).__name__}")
    if value & ~0o666 or value & FILE_MODE != FILE_MODE:
        raise ValueError(
            f"mode={value:#o}: must be the mode of files that their owner reads and writes, such as 0o600, "
            "0o640 or 0o660; folders get the right to enter where it has the right to read"
        )
    return value


def folder_mode(mode: int) -> int:
    """The mode of folders whose files have `mode`: entered by whoever may read, 0770 for 0660."""
    return mode | (mode & 0o444) >> 2


def open_own(path: str, flags: int, mode: int = FILE_MODE) -> int:
    """Open a file that only Pillarbox writes; returns its descriptor. Raises OSError, which says why.

    mode: of a file that is made here, whatever the umask.

    Refused is what another may have put in its place: a link to a file of somebody else, which would be
    overwritten, and what is not a file.
    """
    if not flags & os.O_CREAT or flags & os.O_EXCL:
        return _open_one(path, flags, mode)
    for _ in range(MAX_OPEN_TRIES):
        # One that is there keeps its mode; two may come at a time, and an expiry deletes.
        with suppress(FileNotFoundError):
            return _open_one(path, flags & ~os.O_CREAT, mode)
        with suppress(FileExistsError):
            return _open_one(path, flags | os.O_EXCL, mode)
    raise FileExistsError(errno.EEXIST, "something makes and deletes it all the time", path)


def _open_one(path: str, flags: int, mode: int) -> int:
    try:
        file = os.open(path, flags | NO_FOLLOW | NO_WAIT, mode)
    except OSError as error:
        if error.errno in _LINK:
            raise OSError(errno.ELOOP, _refusal("a symbolic link"), path) from None
        raise
    found = os.fstat(file).st_mode
    # A hard link is none of it: so backups are made, and the system lets nobody make one of others' files.
    if not stat.S_ISREG(found):
        os.close(file)
        raise OSError(errno.EINVAL, _refusal("not a regular file"), path)
    if flags & os.O_CREAT and stat.S_IMODE(found) != mode:
        os.fchmod(file, mode)
    return file


def _refusal(what: str) -> str:
    return (
        f"is {what}, which Pillarbox does not make and does not write into: look who put it there; delete it"
    )


def make_folder(path: str, mode: int) -> None:
    """Make one folder whose files have `mode`, whatever the umask; one that is there keeps its mode.

    Raises OSError; FileNotFoundError if the one above it is missing.
    """
    try:
        os.mkdir(path, folder_mode(mode))
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    share_folder(path, mode)


def share_folder(path: str, mode: int) -> None:
    """Give a folder that was just made the mode that goes with files of `mode`. Raises OSError."""
    found, wanted = os.stat(path).st_mode, folder_mode(mode)
    if found & 0o777 != wanted:
        # The bit that hands the group on to what is made below stays.
        os.chmod(path, stat.S_IMODE(found) & ~0o777 | wanted)


def make_folders(path: str, mode: int) -> list[str]:
    """Make a folder and what is missing above it, by `make_folder`; returns what was, the lowest first."""
    missing = []
    parent = path
    while not os.path.isdir(parent) and os.path.dirname(parent) != parent:
        missing.append(parent)
        parent = os.path.dirname(parent)
    for folder in reversed(missing):
        make_folder(folder, mode)
    return missing


@contextmanager
def replacing(path: str, mode: int | None = None) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block has ended well; else nothing has changed.

    mode: of the file; None for that of the file that is there, or else 0600. Raises OSError.
    """
    if mode is None:
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except FileNotFoundError:
            mode = FILE_MODE
    part = f"{path}.{secrets.token_hex(8)}.part"
    # Nobody can guess this name; a file that is there is not opened.
    with os.fdopen(open_own(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        try:
            yield file
            file.close()
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise


def locked_out(path: str, remedy: str) -> str:
    """An explanation why this process may not use `path`: the folder's owner, its mode, and this user.

    remedy: the call that would have shared it.
    """
    entry = path
    found = None
    while found is None:
        try:
            found = os.stat(entry)
        except OSError:
            # Of what is in a folder that may not be entered, nothing is told.
            above = os.path.dirname(entry)
            if above == entry:
                return f"{path} may not be used by user {_user(_effective_user())}"
            entry = above
    kind = "folder" if stat.S_ISDIR(found.st_mode) else "file"
    return (
        f"{path} cannot be used: the {kind} {entry} belongs to user {_user(found.st_uid)}, its mode is "
        f"{stat.S_IMODE(found.st_mode):04o}, and this process runs as user {_user(_effective_user())}. To "
        f"share it, say {remedy} and let both users be in the group of the folder, before it is made; chmod "
        "and chgrp what is there already. Or run both as one user"
    )


def _effective_user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


def _user(number: int | None) -> str:
    if number is None:
        return "unknown"
    try:
        import pwd

        return f"{pwd.getpwuid(number).pw_name!r} ({number})"
    except (ImportError, KeyError):
        # Containers run as users whom no list names.
        return str(number)
