"""Equal rows share one call: those in flight at a time, and on request those whose result is still kept.

Confined to the mailbox thread. The name is that of Go's `singleflight`. What is compared is compared by its
value, never by a hash alone, and each row keeps an entry of its own in the result queue, so none gets the
result of a row that is not equal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from pillarbox.aio.call import Call
from pillarbox.aio.failure import Failed

JOINED = object()


class SingleFlight:
    """The calls that rows equal to theirs may join. `key` gives what is compared; `memo` results are kept."""

    __slots__ = ("_flights", "_flown", "_key", "_memo", "_results")

    def __init__(self, key: Callable[[Any], Hashable], memo: int) -> None:
        self._key = key
        self._memo = memo
        self._flights: dict[Hashable, list[Call]] = {}
        self._flown: dict[Call, tuple[Hashable, list[Call]]] = {}
        self._results: OrderedDict[Hashable, Any] = OrderedDict()

    def board(self, call: Call) -> Any:
        """A kept result for the row of `call`; `JOINED` where it has joined another's call; None to call it.

        A result comes wrapped in a tuple. Raises TypeError for a row that cannot be compared, and what the
        user's function raises.
        """
        key = self._key(call.row)
        if self._memo and (kept := self._results.get(key)) is not None:
            self._results.move_to_end(key)
            return kept
        joined = self._flights.get(key)
        if joined is not None:
            joined.append(call)
            return JOINED
        joined = self._flights[key] = []
        self._flown[call] = key, joined
        return None

    def land(self, call: Call, result: Any) -> list[Call]:
        """The rows that share the outcome of `call`; nobody joins it any more.

        What stands for a failure is not kept: neither a `Failed` nor a value for a time-out.
        """
        if call not in self._flown:
            # Its key could not be had.
            return []
        key, joined = self._flown.pop(call)
        if self._memo and call.error is None and type(result) is not Failed:
            self._results[key] = (result,)
            if len(self._results) > self._memo:
                self._results.popitem(last=False)
        # Not there where a user's function has changed what is compared.
        self._flights.pop(key, None)
        return joined


def single_flight(dedupe: bool | Callable[[Any], Hashable], memo: int) -> SingleFlight | None:
    """What the options ask for; None where every row is called for itself."""
    if dedupe is False and not memo:
        return None
    return SingleFlight(_itself if isinstance(dedupe, bool) else dedupe, memo)


def _itself(row: Any) -> Hashable:
    # 1, True and 1.0 are equal, but not to a service.
    return type(row), row
