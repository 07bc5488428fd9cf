"""Equal rows of a task share one call, and later ones its result, which is kept in memory.

Confined to the mailbox thread.
"""

# What is compared is compared by its value, never by a hash alone: two rows of a billion that share a hash
# would silently get each other's results. How, and why results are copied, `equal_rows` says. Results are
# kept by number and by bytes, the one used longest ago goes first; failures are not kept, or one bad second
# of the service would last for the rest of the job.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.copies import copied
from pillarbox.aio.dedupe.equal_rows import exact
from pillarbox.aio.errors import Failed
from pillarbox.aio.in_flight import WAITING, CallsInFlight, Shared
from pillarbox.aio.options import Dedupe
from pillarbox.aio.sizes import SMALL_TYPES, size_of


class EqualCalls:
    """The calls that rows equal to theirs may join, and their results. `key` gives what is compared.

    At most `memo` results are kept, and with their keys at most `max_bytes`, by estimate; None for no limit.
    """

    __slots__ = ("_held", "_in_flight", "_key", "_keys", "_max_bytes", "_memo", "_results")

    def __init__(self, key: Callable[[Any], Any], memo: int, max_bytes: int | None = None) -> None:
        self._key = key
        self._memo = memo
        self._in_flight = CallsInFlight()
        # That of a row may change while it is called.
        self._keys: dict[Call, Hashable] = {}
        self._max_bytes = max_bytes
        self._held = 0
        self._results: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def look_up(self, calls: Sequence[Call]) -> list[tuple[Call, Any]]:
        """Look up rows that come; returns those that need not be called, with their outcomes.

        That is a `Shared`, `WAITING` for a row that has joined another's call, or an error for one that
        cannot be compared.
        """
        done: list[tuple[Call, Any]] = []
        for call in calls:
            try:
                key = exact(self._key(call.row))
            except BaseException as error:
                done.append((call, error))
                continue
            if self._memo and (kept := self._results.get(key)) is not None:
                self._results.move_to_end(key)
                done.append((call, Shared(copied(kept[0]))))
            elif (leader := self._in_flight.by_key.get(key)) is not None:
                self._in_flight.join(call, leader)
                done.append((call, WAITING))
            else:
                self._in_flight.by_key[key] = call
                self._keys[call] = key
        return done

    def joined(self, call: Call) -> Sequence[Call]:
        """The rows that wait for the outcome of `call`."""
        return self._in_flight.joined(call)

    def resolve(self, call: Call, result: Any) -> Sequence[Call]:
        """The rows that share the outcome of `call`, which no other joins any more.

        What stands for a failure is not kept: neither a `Failed` nor a value for a time-out.
        """
        if call not in self._keys:
            # Its key could not be had.
            return ()
        key = self._keys.pop(call)
        if self._memo and call.error is None and type(result) is not Failed:
            self._keep(key, result)
        return self._in_flight.end(call, key)

    def _keep(self, key: Hashable, result: Any) -> None:
        # The row that was called gets the result itself, and may change it.
        result = copied(result)
        size = 0
        if self._max_bytes is not None:
            size = size_of(key) + (0 if type(result) in SMALL_TYPES else size_of(result))
        before = self._results.pop(key, None)
        self._held += size - (0 if before is None else before[1])
        self._results[key] = result, size
        while len(self._results) > self._memo or (
            self._max_bytes is not None and self._held > self._max_bytes and self._results
        ):
            self._held -= self._results.popitem(last=False)[1][1]


def equal_calls(dedupe: Dedupe, max_bytes: int | None = None) -> EqualCalls:
    """Make what the options ask for, of rows of one task."""
    return EqualCalls(dedupe.key or _itself, dedupe.memo, max_bytes)


def _itself(row: Any) -> Any:
    # A row that is a view would keep its whole batch. All rows of a task have the same columns.
    return tuple(row) if getattr(type(row), "__is_view__", False) else row
