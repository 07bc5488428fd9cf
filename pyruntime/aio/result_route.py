"""The way of results from the ends of calls to the result queue. Confined to the mailbox thread."""

# As straight as the options allow: without equal rows and a ledger the queue's own function is the whole way,
# with a ledger alone its records' is.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox.aio.call_sharing import CallSharing
from pillarbox.aio.calls import Call
from pillarbox.aio.errors import Failed
from pillarbox.aio.function import value_of
from pillarbox.aio.in_flight import shared_result
from pillarbox.aio.meter import Meter


class ResultRoute:
    """Gives rows their results: those of their calls, of equal rows' calls, and those that a ledger has.

    complete: takes a row and its result. count_shared: counts further rows that share a failure.
    """

    __slots__ = ("_complete", "_count_shared", "_meter", "_sharing")

    def __init__(
        self,
        sharing: CallSharing,
        meter: Meter,
        complete: Callable[[Call, Any], None],
        count_shared: Callable[[Failed, int], None],
    ) -> None:
        self._sharing = sharing
        self._meter = meter
        self._complete = complete
        self._count_shared = count_shared

    def of_calls(self) -> Callable[[Call, Any], None]:
        """The function that takes the results of calls, with the records that there are now."""
        if self._sharing.equals is not None:
            return self._finish_shared
        records = self._sharing.records
        return self._complete if records is None else records.record

    def _finish_shared(self, call: Call, result: Any) -> None:
        self._share(call, result)
        self.hand_on(call, result)

    def _share(self, call: Call, result: Any) -> None:
        shared = () if self._sharing.equals is None else self._sharing.equals.resolve(call, result)
        if shared and type(result) is Failed:
            self._count_shared(result, len(shared))
        for sharing in shared:
            # Each may change its own.
            self.hand_on(sharing, shared_result(result), call)

    def hand_on(self, call: Call, result: Any, called: Call | None = None) -> None:
        """`call` has a result, perhaps of another row's call: by way of the ledger, where there is one."""
        if self._sharing.records is None:
            self._complete(call, result)
        else:
            self._sharing.records.record(call, result, called)

    def replay(self, call: Call, result: Any) -> None:
        """A row that waited no longer has what another attempt of the task, or another task, has kept."""
        self._share(call, result)
        self.take_found(call, value_of(result))

    def share_found(self, call: Call, result: Any) -> None:
        """A row gets a result that counts as that of another row: found, or of a call that it had joined."""
        if type(result) is Failed:
            self._count_shared(result, 1)
        self._complete(call, result)

    def take_found(self, call: Call, result: Any) -> None:
        """A row gets the result that the ledger has for it."""
        self._meter.found += type(result) is not Failed or not result.not_called
        self.share_found(call, result)
