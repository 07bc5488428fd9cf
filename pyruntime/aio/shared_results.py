"""Results for rows without a call of their own: they wait for another row, another attempt or another task.

Confined to the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.call_flow import CallFlow
from pillarbox.aio.calls import Call
from pillarbox.aio.function import value_of
from pillarbox.aio.in_flight import CallsInFlight, shared_result
from pillarbox.aio.ledger_lookup import LedgerLookup


class SharedResults:
    """Gives rows what others have kept, and those that have joined a call the result of that.

    lookup: finds what is kept. in_flight: the calls that rows of the task join, by their keys in the ledger.
    ended: takes each row that has its result, or will have none. None for neither.
    """

    __slots__ = ("_flow", "_in_flight", "_is_closed", "_lookup", "_tell_ended")

    def __init__(
        self,
        flow: CallFlow,
        lookup: LedgerLookup,
        in_flight: CallsInFlight | None,
        ended: Callable[[Call], None] | None,
    ) -> None:
        self._flow = flow
        self._lookup = lookup
        self._in_flight = in_flight
        self._tell_ended = ended
        self._is_closed = False

    def look_again(self, call: Call) -> bool:
        """Give a row that waits what another attempt, or another task, has kept; False for nothing."""
        found = self._lookup.look_again(call)
        if found is None:
            return False
        self.give(call, found[0])
        return True

    def look_at_news(self) -> None:
        """Look again for all rows that wait, if there are records that were not there the last time."""
        if self._lookup.has_news():
            for call in [*self._flow.waiting]:
                self.look_again(call)

    def give(self, call: Call, result: Any) -> None:
        """Give a row that waits what another attempt, or another task, has kept."""
        self._flow.replay(call, result)
        self.ended((call,), (value_of(result),))

    def ended(self, calls: Sequence[Call], results: Sequence[Any]) -> None:
        """Free the claims of rows that have left, and give their results to those that joined their calls."""
        if self._tell_ended is not None:
            for call in calls:
                self._tell_ended(call)
        if self._in_flight is None or self._in_flight.end_alone(calls):
            return
        for call, result in zip(calls, results, strict=True):
            for joined in self._in_flight.end(call, call.key):
                if self._is_closed:
                    return
                self._flow.share(joined, shared_result(result))

    def stop(self) -> None:
        """Give nothing any more."""
        self._is_closed = True
