"""Rows that share a call within a task: calls in flight by what is compared, and rows that have joined them.

Confined to the mailbox thread. The idea is that of Go's `singleflight`.
"""

# Each row keeps an entry of its own in the result queue, so order, time-outs and snapshots need not know that
# a call is shared.

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.copies import copied
from pillarbox.aio.errors import Failed

WAITING = object()
"""Outcome of a row that waits for the call of another row, whose result it will get."""


class Shared:
    """Outcome of a row that gets the result of an equal one, which it may change."""

    __slots__ = ("result",)

    def __init__(self, result: Any) -> None:
        self.result = result


class CallsInFlight:
    """The calls that others may join, by their keys. `by_key` may be read by anyone, and extended."""

    __slots__ = ("_joined", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Call] = {}
        self._joined: dict[Call, list[Call]] = {}

    def join(self, call: Call, leader: Call) -> None:
        """Have `call` wait for the call of `leader`."""
        self._joined.setdefault(leader, []).append(call)

    def joined(self, call: Call) -> Sequence[Call]:
        """The rows that wait for `call`."""
        return self._joined.get(call, ())

    def move(self, call: Call, key: Hashable, to: Hashable) -> None:
        """Have a call joined by another key from now on, if it was by this one."""
        if self.by_key.get(key) is call:
            del self.by_key[key]
            self.by_key[to] = call

    def end_alone(self, calls: Sequence[Call]) -> bool:
        """Let no row join these calls, by their ledger keys, any more; False where rows wait for some."""
        if self._joined:
            return False
        by_key = self.by_key
        for call in calls:
            if by_key.get(call.key) is call:
                del by_key[call.key]
        return True

    def end(self, call: Call, key: Hashable) -> Sequence[Call]:
        """Let no row join `call` any more; returns those that have."""
        if self.by_key.get(key) is call:
            del self.by_key[key]
        return self._joined.pop(call, ())


def shared_result(result: Any) -> Any:
    """A result for a row that has joined a call, which it may change; of a failure the same."""
    return result if type(result) is Failed else copied(result)
