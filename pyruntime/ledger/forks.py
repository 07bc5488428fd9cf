"""Files whose locks must not outlive their process in a fork of it.

A lock of `flock` belongs to the open file, which a forked process shares: a worker of a `multiprocessing`
pool would go on holding what its parent, killed meanwhile, had locked. So each fork closes its copies at
once; the parent's locks stay. Any thread.
"""

from __future__ import annotations

import os
from contextlib import suppress

_kept: set[int] = set()


def kept_from_forks(file: int) -> int:
    """`file`, a descriptor, which processes that are forked from now on close. For `let_go` in the end."""
    _kept.add(file)
    return file


def let_go(file: int) -> None:
    """Close a descriptor that was kept from forks."""
    _kept.discard(file)
    os.close(file)


def _forget() -> None:
    for file in list(_kept):
        with suppress(OSError):
            os.close(file)
    _kept.clear()


os.register_at_fork(after_in_child=_forget)
