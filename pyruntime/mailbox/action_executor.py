"""What the actions of a task run in: nothing, or a lock that the task shares with another thread.

A processor runs each mail and each default action through its action executor, on the mailbox thread.
The other thread, such as that of a legacy source, runs its own actions through the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class TaskActionExecutor(Protocol):
    """Runs the actions of a task so that no two of them overlap, whichever threads they are of.

    It is entered again by the thread that is inside: an action that yields runs a mail. The idea is
    Flink's `StreamTaskActionExecutor`.
    """

    def run(self, fn: Callable[..., object], /, *args: Any) -> None:
        """Call `fn(*args)`. Any thread; raises what it raises."""

    def call(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Call `fn(*args)` and return its result. Any thread; raises what it raises."""


class ImmediateActionExecutor:
    """Calls at once: for a task all of whose actions are of one thread."""

    __slots__ = ()

    def run(self, fn: Callable[..., object], /, *args: Any) -> None:
        """Call `fn(*args)`. Any thread; raises what it raises."""
        fn(*args)

    def call(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Call `fn(*args)` and return its result. Any thread; raises what it raises."""
        return fn(*args)

    def __repr__(self) -> str:
        return "IMMEDIATE"


IMMEDIATE = ImmediateActionExecutor()
"""The one immediate executor; a processor that has it calls its actions itself."""


class Lock(Protocol):
    """A lock that the thread which holds it can take again, such as `threading.RLock()`."""

    def __enter__(self) -> Any:
        """Take the lock, waiting for it."""

    def __exit__(self, *error: Any) -> Any:
        """Give it back."""


class SynchronizedActionExecutor:
    """Calls under a lock that a thread outside the mailbox takes for what it does to the task's state.

    1. The lock is held for one mail, or for one default action, and never while the loop waits for mail.
    2. A `yield_` does wait with the lock held, as it stands within an action; so what it waits for must not
       need the lock.
    3. The lock is taken again by the thread that holds it, so a plain `threading.Lock` is refused.

    A fair lock keeps a busy loop from holding the other thread up. Raises TypeError if `lock` is no
    context manager, ValueError if it is a plain lock.
    """

    __slots__ = ("_lock",)

    def __init__(self, lock: Lock) -> None:
        if not (hasattr(lock, "__enter__") and hasattr(lock, "__exit__")):
            raise TypeError(f"lock must be a reentrant lock, to be entered by `with`, not {lock!r}")
        if isinstance(lock, type(threading.Lock())):
            raise ValueError(f"lock must be reentrant, such as threading.RLock(), not {lock!r}")
        self._lock = lock

    @property
    def lock(self) -> Lock:
        """The lock. Any thread."""
        return self._lock

    def run(self, fn: Callable[..., object], /, *args: Any) -> None:
        """Call `fn(*args)` under the lock, waiting for it. Any thread; raises what it raises."""
        with self._lock:
            fn(*args)

    def call(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Call `fn(*args)` under the lock and return its result. Any thread; raises what it raises."""
        with self._lock:
            return fn(*args)
