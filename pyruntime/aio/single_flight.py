"""Equal rows share one call: those in flight at a time, and on request those whose result is still kept.

Confined to the mailbox thread. The name is that of Go's `singleflight`.
"""

# What is compared is compared by its value, never by a hash alone: two rows of a billion that share a hash
# would silently get each other's results. Each row keeps an entry of its own in the result queue, so order,
# time-outs and snapshots need not know that a call is shared. Results are kept by number and by bytes, the
# one used longest ago goes first; failures are not kept, or one bad second of the service would last for
# the rest of the job.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.aio.errors import Failed
from pillarbox.aio.sizes import SMALL_TYPES, size_of

if TYPE_CHECKING:
    from pillarbox.aio.calls import Call
    from pillarbox.aio.options import Dedupe

WAITING = object()
"""Answer of `SingleFlight.join` for a row that waits for the outcome of another row's call."""


class SingleFlight:
    """The calls that rows equal to theirs may join. `key` gives what is compared.

    At most `memo` results are kept, and with their keys at most `max_bytes`, by estimate; None for no limit.
    """

    __slots__ = ("_flights", "_flown", "_held", "_key", "_max_bytes", "_memo", "_results")

    def __init__(self, key: Callable[[Any], Hashable], memo: int, max_bytes: int | None = None) -> None:
        self._key = key
        self._memo = memo
        self._flights: dict[Hashable, list[Call]] = {}
        self._flown: dict[Call, tuple[Hashable, list[Call]]] = {}
        self._max_bytes = max_bytes
        self._held = 0
        self._results: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def join(self, call: Call) -> Any:
        """A kept result for the row of `call`; `JOINED` where it has joined another's call; None to call it.

        A result comes first in a tuple. Raises TypeError for a row that cannot be compared, and what the
        user's function raises.
        """
        key = self._key(call.row)
        if self._memo and (kept := self._results.get(key)) is not None:
            self._results.move_to_end(key)
            return kept
        joined = self._flights.get(key)
        if joined is not None:
            joined.append(call)
            return WAITING
        joined = self._flights[key] = []
        self._flown[call] = key, joined
        return None

    def joined(self, call: Call) -> Sequence[Call]:
        """The rows that wait for the outcome of `call`."""
        return self._flown[call][1] if call in self._flown else ()

    def resolve(self, call: Call, result: Any) -> list[Call]:
        """The rows that share the outcome of `call`; nobody joins it any more.

        What stands for a failure is not kept: neither a `Failed` nor a value for a time-out.
        """
        if call not in self._flown:
            # Its key could not be had.
            return []
        key, joined = self._flown.pop(call)
        if self._memo and call.error is None and type(result) is not Failed:
            self._keep(key, result)
        # Not there where a user's function has changed what is compared.
        self._flights.pop(key, None)
        return joined

    def _keep(self, key: Hashable, result: Any) -> None:
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


def single_flight(dedupe: Dedupe | None, max_bytes: int | None = None) -> SingleFlight | None:
    """Make what the options ask for; None where rows are not compared, or where the ledger does it."""
    if dedupe is None or dedupe.across_tasks:
        return None
    return SingleFlight(dedupe.key or _itself, dedupe.memo, max_bytes)


def _itself(row: Any) -> Hashable:
    # 1, True and 1.0 are equal, but not to a service. A row that is a view would keep its whole batch.
    return type(row), (tuple(row) if getattr(type(row), "is_view", False) else row)
