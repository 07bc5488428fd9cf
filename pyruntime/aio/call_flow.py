"""The functions by which those that answer rows without a call act on the calls of a scheduler.

Confined to the mailbox thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pillarbox.aio.calls import Call


class CallFlow(NamedTuple):
    """Functions of a scheduler for a session with a ledger. On the mailbox thread.

    window: rows that are admitted and not emitted, at most. waiting: the calls that wait, in order. convert,
    rows_of: see `ResultConverter`; None for neither. ahead: how many calls may begin soon. complete: a row
    leaves. replay: a row that waits gets what was recorded. share: a row gets the result of another one's
    call. suspend, resume: calls may not begin, and may. hold: no call begins, or again. stop: the job ends.
    """

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    window: int
    waiting: deque[Call]
    convert: Callable[[Any], Any] | None
    rows_of: Callable[[Any], list[Any] | None] | None
    ahead: Callable[[], int]
    complete: Callable[[Call, Any], None]
    replay: Callable[[Call, Any], None]
    share: Callable[[Call, Any], None]
    suspend: Callable[[Call], None]
    resume: Callable[[Sequence[Call]], None]
    hold: Callable[[bool], None]
    stop: Callable[[BaseException], None]


class CallHolds:
    """The reasons of a session with a ledger for which no call may begin. hold: as of `CallFlow`."""

    __slots__ = ("_hold", "by_disk", "by_lease")

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._hold = hold
        self.by_disk = False
        """The disk is behind."""
        self.by_lease = False
        """Another attempt of the task makes the calls."""

    def set_disk(self, is_behind: bool) -> None:
        """Note whether the disk is behind."""
        self.by_disk = is_behind
        self._hold(is_behind or self.by_lease)

    def set_lease(self, is_lost: bool) -> None:
        """Note whether another attempt makes the calls."""
        self.by_lease = is_lost
        self._hold(is_lost or self.by_disk)
