"""Equal rows of all tasks of a job share one call: rows are claimed in the ledger before they are called.

Confined to the mailbox thread. `Dedupe(across_tasks=True)`: the task that gets the claim of a row looks in
the ledger once more, as the holder before it may have kept an answer, and only then calls. A row whose claim
another task has waits without a slot, until the answer is in the ledger or the claim is free. The idea is
that of Go's `singleflight`, over processes.
"""

# A row is claimed when it is about to be called, not when it comes: what waits for a slot could as well be
# called by a task that has one. Nobody holds a claim while waiting for another, so there is no deadlock: a
# claimed row goes on to its call, whatever the others of its task wait for.
#
# Who waits asks again every `POLL_INTERVAL_S`. A lock that is waited for in the kernel would hold up the
# event loop or need a thread for each row.

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Sequence
from itertools import islice

from pillarbox.aio import intervals
from pillarbox.aio.call_flow import CallFlow
from pillarbox.aio.calls import Call
from pillarbox.aio.dedupe.claims import claims_of
from pillarbox.aio.ledger_lookup import POLL_INTERVAL_S, LedgerLookup
from pillarbox.aio.options import Options
from pillarbox.aio.shared_results import SharedResults
from pillarbox.ledger import Ledger, Scope

log = logging.getLogger("pillarbox")

MAX_CLAIMS_AHEAD = 16
CLAIMS_AHEAD_SHARE = 0.25
"""The part of the slots for which rows are claimed at a time, before they are called; for 16 rows at most."""


class HeldClaims:
    """The keys that a task has claimed in a ledger, and its rows that wait for the calls of other tasks.

    Made by any thread. Raises LedgerError where there are no locks.
    """

    __slots__ = ("_claimed", "_claims", "waiting")

    def __init__(self, ledger: Ledger, scope: Scope) -> None:
        self._claims = claims_of(ledger, scope)
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

    def calls(
        self, flow: CallFlow, lookup: LedgerLookup, results: SharedResults, options: Options
    ) -> ClaimedCalls:
        """Make what claims rows before they are called, on the mailbox thread."""
        return ClaimedCalls(flow, lookup, self, results, options)


class ClaimedCalls:
    """Claims the rows that a task is about to call, and waits for the calls of other tasks.

    lookup: finds what is recorded. results: gives it to the rows.
    """

    __slots__ = (
        *("_claims", "_flow", "_is_closed", "_lookup", "_patience", "_reader", "_results"),
        *("_shares_failures", "_timer"),
    )

    def __init__(
        self,
        flow: CallFlow,
        lookup: LedgerLookup,
        claims: HeldClaims,
        results: SharedResults,
        options: Options,
    ) -> None:
        self._flow = flow
        self._lookup = lookup
        self._reader = lookup.reader
        self._claims = claims
        self._results = results
        self._patience = patience_of(options)
        self._shares_failures = options.errors.mode != "fail"
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __bool__(self) -> bool:
        """Return True while rows wait for other tasks' calls."""
        return bool(self._claims.waiting)

    def claim_first(self, rows: int = 1) -> bool:
        """Return True if the first `rows` rows that wait may be called; of none, if any may."""
        waiting = self._flow.waiting
        most = rows
        if rows == 1:
            # One look for several that follow each other.
            most = max(1, min(MAX_CLAIMS_AHEAD, int(self._flow.ahead() * CLAIMS_AHEAD_SHARE)))
        ready: set[Call] = set()
        place = 0
        while place < min(rows, len(waiting)):
            if waiting[place] in ready or self._claims.is_mine(waiting[place]):
                place += 1
            else:
                ready |= self.claim([*islice(waiting, place, most)])
        return bool(waiting) or not rows

    def claim(self, calls: Sequence[Call]) -> set[Call]:
        """Claim rows that wait for their calls, and look for them; returns those that may be called.

        Most of the others wait no more: the ledger has their results, or they wait here. One whose record
        does not fit any more is known by another key from now on, and is to be claimed anew.
        """
        calls = [call for call in calls if not self._claims.is_mine(call)]
        claimed = [call.key in self._claims or self._claims.claim(call.key) for call in calls]
        # After the claims: whoever had one before has kept an answer by then, if there is one.
        self._reader.refresh_by_log()
        ready = set()
        for call, is_mine in zip(calls, claimed, strict=True):
            if self._is_closed:
                break
            if self.find(call):
                continue
            if not is_mine:
                self._wait(call)
            elif call.key in self._claims:
                ready.add(call)
        return ready

    def stop(self) -> None:
        """Look for nothing any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def find(self, call: Call, since: datetime.datetime | None = None) -> bool:
        """Give a row what the ledger has for it; since: when it began to wait for another task's call.

        A failure of that call is the row's too, as of a call that it had joined in its own task.
        """
        key = call.key
        if self._results.look_again(call):
            return True
        if call.key is not key:
            self._claims.free(key)
        if since is None or not self._shares_failures:
            return False
        record = self._reader.get(call.key, errors=True, input=call.input)
        if record is None or record.at < since:
            return False
        self._results.give(call, self._lookup.result_of(record))
        return True

    def _wait(self, call: Call) -> None:
        self._claims.waiting[call] = self._flow.loop.time(), datetime.datetime.now(datetime.timezone.utc)
        self._flow.suspend(call)
        if self._timer is None:
            self._timer = self._flow.loop.call_later(POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        try:
            self._look()
        except BaseException as error:
            self._flow.stop(error)

    def _look(self) -> None:
        """Give rows that wait the results of others' calls; those whose claim is free may begin."""
        claims = self._claims
        waiting = [*claims.waiting.items()]
        for call, _ in waiting:
            claims.claim(call.key)
        self._reader.refresh_by_log()
        free: list[Call] = []
        overdue = 0
        for call, (since, at) in waiting:
            if self._is_closed:
                return
            if call not in claims.waiting:
                # It has ended by what another row was given.
                claims.free(call.key)
                continue
            if self.find(call, at):
                continue
            if call.key not in claims:
                if self._flow.loop.time() - since < self._patience:
                    continue
                # spec: Ledger!Overdue
                overdue += 1
                claims.go_without(call.key)
            del claims.waiting[call]
            free.append(call)
        if overdue:
            log.warning(
                "%d rows have waited for the calls of other tasks for %g s, and are called here: is a worker "
                "stopped, or has a call no time-out?",
                overdue,
                self._patience,
            )
        if self._is_closed:
            # The last row that was given a result has ended the job.
            return
        if claims.waiting and self._timer is None:
            self._timer = self._flow.loop.call_later(POLL_INTERVAL_S, self._poll)
        if free:
            self._flow.resume(free)


def patience_of(options: Options) -> float:
    """Seconds that a row waits for another task's call: as for a lease, or as long as its calls may take."""
    timeout, retry = options.timeout, options.retry
    if timeout.total is not None:
        return max(intervals.INTERVALS.hung_after, timeout.total)
    attempts = 1 if retry is None else retry.attempts
    return max(intervals.INTERVALS.hung_after, 0.0 if timeout.attempt is None else timeout.attempt * attempts)
