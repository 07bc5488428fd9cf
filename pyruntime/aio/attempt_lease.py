"""Of several attempts of a task, with the same rows, one makes the calls; the others wait for its results.

Confined to the mailbox thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from pillarbox.aio.call_flow import CallFlow, CallHolds
from pillarbox.aio.intervals import Intervals
from pillarbox.aio.ledger_lookup import POLL_INTERVAL_S, LedgerLookup
from pillarbox.aio.ledger_rows import LedgerRows
from pillarbox.aio.shared_results import SharedResults
from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.lease import Lease

log = logging.getLogger("pillarbox")


class AttemptName:
    """The name by which the attempts of a task know each other, once they have a row. Made by any thread.

    attempt: what tells tasks with the same first row apart. has_claims: rows are claimed one by one.
    """

    __slots__ = ("_attempt", "_has_claims", "_ledger", "_rows", "leader")

    def __init__(self, ledger: Ledger, rows: LedgerRows, attempt: str, *, has_claims: bool) -> None:
        self._ledger = ledger
        self._rows = rows
        self._attempt = attempt
        self._has_claims = has_claims
        self.leader: LedgerRows | None = None
        """The rows of the first function of the task, where these are of one behind it."""

    def __call__(self) -> str | None:
        """The name; None for an attempt that needs no lease."""
        # A task that is tried again has the same rows in the same order, so the first one names it. Rows that
        # another function gave come in any order: those that it was given name them.
        rows = self.leader if self._rows.is_behind else self._rows
        if rows is None or rows.first is None or self._has_claims or self._ledger.local_path is None:
            # Where rows are claimed one by one, attempts of a task share its calls by that; and an object
            # store has no locks.
            return None
        # Other jobs that use a cache may begin with the same row, and have others behind it.
        job = "" if self._ledger.cache is None else f" {self._rows.execution.hex()}"
        return f"{rows.first.hex()} {self._attempt}{job}"


class AttemptLease:
    """The lease of the attempt, once a row is to be called.

    lookup, results: find what the other attempt has kept, and give it to rows that wait. name: as of
    `AttemptName`. open: makes the lease of that name. held: takes a lease to renew until the end. scope: for
    texts.
    """

    __slots__ = (
        *("_flow", "_held", "_hits_before", "_holds", "_intervals", "_is_closed", "_is_held", "_lease"),
        *("_lookup", "_name", "_open", "_results", "_scope", "_timer", "trusted_until"),
    )

    def __init__(
        self,
        flow: CallFlow,
        lookup: LedgerLookup,
        results: SharedResults,
        holds: CallHolds,
        *,
        name: Callable[[], str | None],
        open: Callable[[str], Lease | None],
        held: Callable[[Lease], None],
        intervals: Intervals,
        scope: Scope,
    ) -> None:
        self._flow = flow
        self._lookup = lookup
        self._results = results
        self._holds = holds
        self._name = name
        self._open = open
        self._held = held
        self._intervals = intervals
        self._scope = scope
        self._lease: Lease | None = None
        self._is_held = self._is_closed = False
        self.trusted_until = -math.inf
        """The time on the monotonic clock up to which calls may begin without a look at the lease."""
        self._hits_before = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits_for(self) -> str | None:
        """The reason to wait, in words; None for none."""
        if not self._holds.by_lease:
            return None
        most = f"for {self._intervals.hung_after:g} s at most without progress"
        return f"another run of {self._scope} makes these calls, and holds their lease, {most}"

    def may_call(self) -> bool:
        """Return True if calls may begin: no other attempt has taken over the lease of this one.

        Who was stopped for a while, or hung, learns it here before the next call, and waits for the other's
        results as any attempt that comes second.
        """
        if not self._is_held:
            return not self._holds.by_lease
        now = time.monotonic()
        if now < self.trusted_until:
            return True
        assert self._lease is not None
        # spec: Ledger!Call
        if self._lease.is_held():
            self.trusted_until = now + self._intervals.lease_check
            return True
        self._is_held = False
        self.trusted_until = -math.inf
        log.warning("another run of %s has taken over: waiting for its results", self._scope)
        self._holds.set_lease(True)
        self._timer = self._flow.loop.call_later(0.0, self._poll)
        return False

    def begin(self) -> bool:
        """Take the lease before the first call, or wait for it; False for an attempt that needs none."""
        if self._name() is None:
            return False
        self._acquire()
        return True

    def _acquire(self) -> None:
        """Take the lease, or wait for the results of the attempt that has it."""
        # spec: Ledger!Acquire
        has_waited = self._holds.by_lease
        if not self._is_to_call():
            if not has_waited:
                log.warning(
                    "another run of %s makes these calls now: waiting for its results, for %g s at most",
                    self._scope,
                    self._intervals.hung_after,
                )
                self._holds.set_lease(True)
            self._timer = self._flow.loop.call_later(POLL_INTERVAL_S, self._poll)
            return
        if self._lease is not None:
            self._held(self._lease)
        # What another attempt has done up to its end.
        self._lookup.reader.refresh()
        if has_waited:
            self._results.look_at_news()
            self._holds.set_lease(False)

    def _is_to_call(self) -> bool:
        try:
            if self._lease is None and (name := self._name()) is not None:
                self._lease = self._open(name)
            self._is_held = self._lease is not None and self._lease.acquire()
            if self._is_held:
                self.trusted_until = time.monotonic() + self._intervals.lease_check
            return self._is_held or self._lease is None
        except (OSError, LedgerError) as error:
            # It saves calls and no more; where the disk is full, who writes says so.
            log.warning("no lease for this task: %s: %s", type(error).__name__, error)
            return True

    def _poll(self) -> None:
        if self._is_closed:
            return
        try:
            self._lookup.reader.refresh()
            self._results.look_at_news()
            if self._is_closed:
                # A row that was given its result has ended the job.
                return
            if self._lookup.hits != self._hits_before:
                # The other one gets on: its time begins anew.
                self._hits_before = self._lookup.hits
                self._lease = None
            self._acquire()
        except BaseException as error:
            self._flow.stop(error)

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
