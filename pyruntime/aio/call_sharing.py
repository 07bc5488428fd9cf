"""The rows of an operator that need no call of their own, and where their results are from.

A row that comes is answered by a policy of the user, by the ledger, or by the call of an equal row, which
runs or whose result is kept in memory; what none of them answers is called. Confined to the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from pillarbox.aio.calls import Call
from pillarbox.aio.ledger_records import LedgerRecords
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.options import Options
from pillarbox.aio.policy import PolicyStack
from pillarbox.providers import EQUAL_CALLS, provided

LookUp: TypeAlias = Callable[[Sequence[Call]], Sequence[tuple[Call, Any]]]
"""Returns those of some calls that need not be made, with their outcomes."""


class SharesCalls(Protocol):
    """The calls that rows equal to theirs may join, and their results. Confined to the mailbox thread."""

    def look_up(self, calls: Sequence[Call]) -> list[tuple[Call, Any]]:
        """Look up rows that come; returns those that need not be called, with their outcomes."""

    def joined(self, call: Call) -> Sequence[Call]:
        """The rows that wait for the outcome of `call`."""

    def resolve(self, call: Call, result: Any) -> Sequence[Call]:
        """The rows that share the outcome of `call`, which no other joins any more."""


class CallSharing:
    """Asks, for rows that come, who else has made or makes their calls.

    An outcome is a result in a tuple, `WAITING`, a `Shared`, or an error of a row that cannot be called.
    """

    __slots__ = ("_identify", "_look_ups", "_stack", "equals", "records", "session")

    def __init__(self, options: Options, stack: PolicyStack, session: LedgerSession | None) -> None:
        self._stack = stack
        self.session = session
        self.equals: SharesCalls | None = None
        if options.dedupe is not None and not options.dedupe.across_tasks:
            self.equals = provided(EQUAL_CALLS, "dedupe")(options.dedupe, options.buffer.max_bytes)
        """The calls that equal rows share; None where rows are not compared, or where the ledger does it."""
        self.records: LedgerRecords | None = None
        """Takes results until they are durable; None without a ledger."""
        # Each row has its key, also one that a policy answers: functions behind and a restart go by it.
        self._identify: Callable[[Sequence[Call]], object] | None = None
        self._look_ups: list[LookUp] = [stack.look_up] if stack.admit else []
        if session is not None and stack.admit:
            self._identify = session.rows.identify_all
            self._look_ups.append(partial(session.look_up, are_known=True))
        elif session is not None:
            self._look_ups.append(session.look_up)
        if self.equals is not None:
            self._look_ups.append(self.equals.look_up)

    def admit_all(self, calls: list[Call]) -> list[tuple[Call, Any]]:
        """Look up rows that come; returns those that need not be called, with their outcomes.

        Raises what ends the job: LedgerError, LedgerValueError, KeyError, OSError.
        """
        if self._identify is not None and calls:
            self._identify(calls)
        done: list[tuple[Call, Any]] = []
        for look_up in self._look_ups:
            if found := look_up(calls):
                done += found
                calls = without(calls, found)
        return done

    def readmit(self, call: Call, has_result: bool) -> Sequence[tuple[Call, Any]]:
        """As `admit_all` for one row of a snapshot, which has its key; has_result: the snapshot has that."""
        if self.session is not None and (done := self.session.look_up([call], are_known=True)):
            return done
        if has_result:
            return []
        if found := self._stack.look_up([call]):
            return found
        return [] if self.equals is None else self.equals.look_up([call])

    @property
    def is_empty(self) -> bool:
        """True if results leave as they come: nothing shares or records them."""
        return self.equals is None and self.records is None

    def joined(self, call: Call) -> Sequence[Call]:
        """The rows that wait for the call of an equal row."""
        return () if self.equals is None else self.equals.joined(call)


def without(calls: list[Call], done: Sequence[tuple[Call, Any]]) -> list[Call]:
    """The calls that are not among those that are done."""
    if not done:
        return calls
    known = {call for call, _ in done}
    return [call for call in calls if call not in known]
