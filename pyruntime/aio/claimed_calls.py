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
from pillarbox.aio.ledger_lookup import POLL_INTERVAL_S, LedgerLookup
from pillarbox.aio.options import Options
from pillarbox.aio.shared_results import HeldClaims, SharedResults

log = logging.getLogger("pillarbox")

MAX_CLAIMS_AHEAD = 16
CLAIMS_AHEAD_SHARE = 0.25
"""The part of the slots for which rows are claimed at a time, before they are called; for 16 rows at most."""


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
