"""The order of rows by key: the policy of a `Limit` holds rows back behind others of their key.

Confined to the mailbox thread.
"""

# Why rows queue here and not among those that wait for a slot. What may begin next would be looked for among
# all of them, past those whose key is busy; and a batch could have two rows of one key. So what waits for a
# slot is let through already, and a key costs two lookups a row.
#
# Why what is let through goes on in the next turn of the loop: where rows end at once, as those do that a
# budget does not pay for, each would let the next one through in the middle of its own end.
#
# Why a row keeps its place through its pauses: between two attempts of an update of one user's record another
# one of the same user must not go. What begins after a row with the same key has a result behind it, or the
# failure for good; only a durable record of it may still be on its way.

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.options import Limit
from pillarbox.aio.policy import PolicyServices
from pillarbox.aio.policy_parts import OptionPolicy, PolicyParts


class _Key:
    """The rows of one key that are let through and those that queue, in their order."""

    __slots__ = ("queue", "through")

    def __init__(self) -> None:
        self.through: dict[Call, None] = {}
        self.queue: deque[Call] = deque()


class KeyPolicy(OptionPolicy):
    """Lets rows through by key, in their order.

    hold: takes a row that may not be called yet. resume: has rows called that were held, those that have not
    ended meanwhile, before all that wait or, with True, behind them.
    """

    def __init__(
        self, limit: Limit, hold: Callable[[Call], object], resume: Callable[[Sequence[Call], bool], None]
    ) -> None:
        self._limit = limit
        self._hold = hold
        self._resume = resume
        self._keys: dict[Hashable, _Key] = {}
        # Of what is let through and of what queues: its key, which may change in the row while it is called.
        self._through: dict[Call, Hashable] = {}
        self._queued: dict[Call, Hashable] = {}
        # Let through in this turn of the loop, each with True where rows of its key wait in front of it.
        self._due: list[tuple[Call, bool]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def of(cls, parts: PolicyParts) -> KeyPolicy:
        """See `OptionPolicy.of`."""
        limit = parts.options.per_key
        assert limit is not None
        return cls(limit, parts.hold, parts.resume)

    def open(self, services: PolicyServices) -> None:
        """Take the event loop."""
        self._loop = services.loop

    def let_through(self, call: Call) -> bool:
        """Return True if a row that comes may be called; otherwise it is held. Raises what its key raises."""
        # spec: KeyOrder!Come
        key = self._limit.key(call.row)
        if key is None:
            return True
        try:
            found = self._keys.get(key)
        except TypeError as error:
            raise TypeError(
                f"per_key: key returned a value of type {type(key).__name__}, which has no hash ({error}): "
                "return a str, an int or a tuple of them"
            ) from None
        if found is None:
            found = self._keys[key] = _Key()
        if len(found.through) < self._limit.at_once:
            found.through[call] = None
            self._through[call] = key
            return True
        found.queue.append(call)
        self._queued[call] = key
        self._hold(call)
        return False

    def finish(self, call: Call, result: Any) -> None:
        """Let the next row of its key through, as `call` has its result."""
        self.leave(call)

    def leave(self, call: Call) -> None:
        """Take out a row that has its result, called or not; nothing is done the second time."""
        key = self._through.pop(call, None)
        if key is None:
            self._withdraw(call)
            return
        # spec: KeyOrder!End
        found = self._keys[key]
        through = found.through
        del through[call]
        if found.queue:
            following = found.queue.popleft()
            del self._queued[following]
            self._through[following] = key
            if not self._due:
                assert self._loop is not None
                self._loop.call_soon(self._go_on)
            # One that waits for a slot itself must not be overtaken.
            self._due.append((following, not all(each.attempt for each in through)))
            through[following] = None
        elif not through:
            del self._keys[key]

    def _go_on(self) -> None:
        due, self._due = self._due, []
        for is_behind in (True, False):
            if calls := [call for call, waits_behind in due if waits_behind is is_behind]:
                self._resume(calls, is_behind)

    def _withdraw(self, call: Call) -> None:
        # spec: KeyOrder!Withdraw
        if (key := self._queued.pop(call, None)) is not None:
            self._keys[key].queue.remove(call)

    def completing(self, complete: Callable[[Call, Any], None]) -> Callable[[Call, Any], None]:
        """`complete`, behind which the row is taken out: a ledger has results of rows that are not called."""
        return partial(self._complete, complete)

    def _complete(self, complete: Callable[[Call, Any], None], call: Call, result: Any) -> None:
        complete(call, result)
        self.leave(call)

    def statistics(self) -> dict[str, float]:
        """Return how many rows queue behind others of their key. Any thread."""
        return {"queued_by_key": float(len(self._queued))} if self._queued else {}
