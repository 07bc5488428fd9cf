"""Action executors: the actions of a task run at once, or under a lock that it shares with another thread.

A processor runs each mail and each default action through its executor, on the mailbox thread. Another thread
runs its own actions through the same one. The idea is Flink's `StreamTaskActionExecutor`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class TaskActionExecutor:
    """Runs actions so that no two overlap: here at once, for a task all of whose actions are of one thread.

    The thread inside enters again: an action may yield to mail.
    """

    def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Call `fn(*args)` and return its result. Any thread; raises what it raises."""
        return fn(*args)


IMMEDIATE = TaskActionExecutor()
"""The one that calls at once; a processor that has it calls its actions itself."""


class SynchronizedActionExecutor(TaskActionExecutor):
    """Calls under a reentrant `lock`, which another thread takes for what it does to the task's state.

    It is held for one mail, or for one default action, and never while the loop waits for mail; but within
    an action a `yield_` waits with the lock held, so what it waits for must not need it. A fair lock keeps a
    busy loop from holding the other thread up. Raises TypeError if `lock` is not a context manager,
    ValueError if it is a plain `threading.Lock`, which a yield would hang in.
    """

    def __init__(self, lock: Any) -> None:
        if not (hasattr(lock, "__enter__") and hasattr(lock, "__exit__")):
            raise TypeError(f"lock must be a reentrant lock, to be entered by `with`, not {lock!r}")
        if isinstance(lock, type(threading.Lock())):
            raise ValueError(f"lock must be reentrant, such as threading.RLock(), not {lock!r}")
        self.lock = lock

    def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Call `fn(*args)` under the lock, waiting for it, and return its result. Any thread."""
        with self.lock:
            return fn(*args)
