"""Results for rows without a call of their own: they wait for another row, another attempt or another task.

Confined to the mailbox thread.
"""

from __future__ import annotations

import datetime
from typing import Any

from pillarbox.aio.call_flow import CallFlow
from pillarbox.aio.calls import Call
from pillarbox.aio.function import value_of
from pillarbox.aio.in_flight import CallsInFlight, shared_result
from pillarbox.aio.ledger_lookup import LedgerLookup
from pillarbox.ledger.lease import Claims


class HeldClaims:
    """The keys that a task has claimed in a ledger, and its rows that wait for the calls of other tasks.

    Made by any thread.
    """

    __slots__ = ("_claimed", "_claims", "waiting")

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        # Whether it is so, or the row was called without as it had waited too long.
        self._claimed: dict[bytes, bool] = {}
        self.waiting: dict[Call, tuple[float, datetime.datetime]] = {}
        """Since when rows wait, by the loop's clock and by that of the ledger."""

    def __contains__(self, key: bytes) -> bool:
        """Return True for a key whose row may be called here."""
        return key in self._claimed

    def is_mine(self, call: Call) -> bool:
        """Return True for a row that no other task can have called since it was claimed and looked for."""
        return self._claimed.get(call.key, False) and not call.attempt

    def claim(self, key: bytes) -> bool:
        """Claim a key; False if another task has it."""
        is_mine = self._claims.claim(key)
        if is_mine:
            self._claimed[key] = True
        return is_mine

    def go_without(self, key: bytes) -> None:
        """Have the row of a key called here although another task has claimed it."""
        self._claimed[key] = False

    def free(self, key: bytes) -> None:
        """Let others claim a key."""
        if self._claimed.pop(key, False):
            self._claims.free(key)

    def ended(self, call: Call) -> None:
        """A row has its result, durably, or will have none: let others claim its key."""
        self.waiting.pop(call, None)
        self.free(call.key)

    def close(self) -> None:
        """Let go of all claims, when no result is to be kept any more. Any thread."""
        self._claims.close()


class SharedResults:
    """Gives rows what others have kept, and those that have joined a call the result of that.

    lookup: finds what is kept. in_flight: the calls that rows of the task join, by their keys in the ledger;
    claims: those that the task holds. None for neither.
    """

    __slots__ = ("_claims", "_flow", "_in_flight", "_is_closed", "_lookup")

    def __init__(
        self,
        flow: CallFlow,
        lookup: LedgerLookup,
        in_flight: CallsInFlight | None,
        claims: HeldClaims | None,
    ) -> None:
        self._flow = flow
        self._lookup = lookup
        self._in_flight = in_flight
        self._claims = claims
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
        self.ended(call, value_of(result))

    def ended(self, call: Call, result: Any) -> None:
        """Free the claim of a row that has left, and give its result to those that have joined its call."""
        if self._claims is not None:
            self._claims.ended(call)
        if self._in_flight is not None:
            for joined in self._in_flight.end(call, call.key):
                if self._is_closed:
                    return
                self._flow.share(joined, shared_result(result))

    def stop(self) -> None:
        """Give nothing any more."""
        self._is_closed = True
