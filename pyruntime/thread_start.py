"""Starts threads in processes that may have no room for one more. Any thread."""

# A thread that has a stack, but no memory for its first Python objects, ends before it has said that it
# began, and `threading.Thread.start` waits for that word for ever. So where addresses are limited, as by
# `spark.executor.pyspark.memory`, it is looked first whether there is room for both.

from __future__ import annotations

import mmap
import sys
import threading

BEGIN_BYTES = 4 << 20
"""Bytes that a thread needs for its first objects, besides its stack: Python takes memory by the MiB."""
USUAL_STACK_BYTES = 8 << 20
"""Bytes of the stack of a thread where nothing says how many."""


def start_thread(thread: threading.Thread) -> None:
    """Start `thread`. Raises RuntimeError or MemoryError where the process has no room for it."""
    if _is_limited():
        # Not everywhere: a system without such limits has no module that knows of stacks.
        check_memory(BEGIN_BYTES + _stack_bytes())
    thread.start()


def check_memory(size: int) -> None:
    """Raise MemoryError if the process may not have so many bytes more, by its limit of addresses or data."""
    if not _is_limited():
        return
    try:
        mmap.mmap(-1, size).close()
    except (OSError, ValueError) as error:
        raise MemoryError(f"{size >> 20} MiB more are not to be had: {error}") from None


def _is_limited() -> bool:
    if sys.platform == "win32":
        return False
    import resource

    names = ("RLIMIT_AS", "RLIMIT_DATA")
    limits = [resource.getrlimit(getattr(resource, name))[0] for name in names if hasattr(resource, name)]
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def _stack_bytes() -> int:
    import resource

    asked, limit = threading.stack_size(), resource.getrlimit(resource.RLIMIT_STACK)[0]
    return asked or (USUAL_STACK_BYTES if limit == resource.RLIM_INFINITY else int(limit))
