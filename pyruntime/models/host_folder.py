"""The folder in which processes of one user on one host keep locks and notes for each other. Any thread."""

# In the folder for temporary files, as that is the host's own: a home folder may be shared by all hosts of a
# cluster, and locks of files are not told from host to host everywhere. It is this user's alone, as it says
# which program is started and where it listens.

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Iterator

from pillarbox.ledger.local_folder import close_file, closed_in_forks, lock_file
from pillarbox.ledger.private_files import FILE_MODE, make_folder, open_own

POLL_S = 0.02
"""Seconds between two tries to get a lock: one that is waited for in the kernel has no limit of time."""


def host_folder(*names: str) -> str:
    """The path of a folder of this user on this host, made if it is missing. Raises OSError.

    names: of folders in it, each in the one before.
    """
    user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    path = os.path.join(tempfile.gettempdir(), f"pillarbox-{user}")
    own_folder(path)
    for name in names:
        path = os.path.join(path, name)
        own_folder(path)
    return path


def own_folder(path: str) -> None:
    """Make a folder that is this user's alone; raise PermissionError for one that is not."""
    make_folder(path, FILE_MODE)
    found = os.lstat(path)
    if hasattr(os, "getuid") and (
        found.st_uid != os.getuid() or found.st_mode & 0o022 or os.path.islink(path)
    ):
        raise PermissionError(
            errno.EPERM,
            "belongs to another user, or others may write into it; delete it, or set TMPDIR",
            path,
        )


def open_lock(path: str) -> int:
    """The descriptor of a file for locks, which forks of this process close. For `close_file`."""
    return closed_in_forks(open_own(path, os.O_CREAT | os.O_RDWR))


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Lock an open file if that can be done now."""
    try:
        lock_file(file, shared=shared)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: int, until: float, *, shared: bool = False) -> bool:
    """Lock an open file; False if that could not be done until this moment of `time.monotonic`. Blocks."""
    while not try_lock(file, shared=shared):
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a file within the block, however long others have it. Blocks."""
    file = open_lock(path)
    try:
        lock_file(file, wait=True)
        yield
    finally:
        close_file(file)
