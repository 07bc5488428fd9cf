"""Locks of files, and files whose locks must not outlive their process in a fork of it.

A lock of `flock` belongs to the open file, which a forked process shares: a worker of a `multiprocessing`
pool would go on holding what its parent, killed meanwhile, had locked. So each fork closes its copies at
once; the parent's locks stay. Any thread.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pillarbox.ledger.errors import LedgerError

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]

_kept: set[int] = set()


def kept_from_forks(file: int) -> int:
    """`file`, a descriptor, which processes that are forked from now on close. For `let_go` in the end."""
    _kept.add(file)
    return file


def let_go(file: int) -> None:
    """Close a descriptor that was kept from forks."""
    _kept.discard(file)
    os.close(file)


def check_locks() -> None:
    """Raise LedgerError where the operating system has no locks of files."""
    if fcntl is None:
        raise LedgerError(
            "a ledger in a local folder needs locks of files (fcntl), which this operating system has not: "
            "give it the URL of an object store, such as s3://bucket/folder"
        )


def lock_file(file: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed, or its process dies.

    Raises BlockingIOError if another holds it and `wait` is False, LedgerError where there are no locks.
    """
    check_locks()
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def _forget() -> None:
    for file in list(_kept):
        with suppress(OSError):
            os.close(file)
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
