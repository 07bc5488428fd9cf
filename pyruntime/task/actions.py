"""What every action of a task runs in: the executor that the user gave, and then the chain's turn.

Thread-safe, as action executors are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pillarbox.kernel import TaskMailbox
from pillarbox.mailbox import IMMEDIATE, TaskActionExecutor

T = TypeVar("T")
Act = Callable[[Callable[..., Any], tuple[Any, ...]], Any]


class ChainActions:
    """Runs an action, then has the chain move what the action emitted. Thread-safe if `inner` is.

    `act` is the chain's method that does so; set before the first action. `check` raises
    `WrongThreadError` on a thread that must not touch the chain: any but the mailbox thread and, where there
    is a lock that says whether a thread holds it, who holds it.
    """

    __slots__ = ("_inner", "_is_held", "_mailbox", "act", "check")

    def __init__(self, inner: TaskActionExecutor, mailbox: TaskMailbox) -> None:
        self._inner = None if inner is IMMEDIATE else inner
        self.act: Act = _act
        self._mailbox = mailbox
        self._is_held = holder_of(getattr(inner, "lock", None))
        self.check: Callable[[], None] = (
            mailbox.check_is_mailbox_thread if inner is IMMEDIATE else self._check_lock
        )

    def run(self, fn: Callable[..., object], /, *args: Any) -> None:
        """Call `fn(*args)`, then move elements. Any thread that `inner` allows; raises what they raise."""
        if self._inner is None:
            self.act(fn, args)
        else:
            self._inner.run(self.act, fn, args)

    def call(self, fn: Callable[..., T], /, *args: Any) -> T:
        """As `run`; returns the result of `fn`."""
        result: T = self.act(fn, args) if self._inner is None else self._inner.call(self.act, fn, args)
        return result

    def _check_lock(self) -> None:
        if not self._is_held():
            self._mailbox.check_is_mailbox_thread()


def holder_of(lock: Any) -> Callable[[], bool]:
    """What says whether the calling thread holds `lock`: its `is_held`, or `_is_owned()` as `RLock` has it.

    False always for a lock that has neither, and for None. Any thread.
    """
    if hasattr(lock, "is_held"):
        return partial(getattr, lock, "is_held")
    owned: Callable[[], bool] = getattr(lock, "_is_owned", _never)
    return owned


def _never() -> bool:
    return False


def _act(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return fn(*args)
