"""Equal rows share one call: those of a task that are in flight, and on request those of all tasks of a job.

Confined to the mailbox thread. The idea is that of Go's `singleflight`, within a process (`SingleFlight`) and
over processes (`ClaimedCalls`).

`Dedupe(across_tasks=True)`: before a row is called its key is claimed in the ledger. Who gets the claim looks
there once more, as whoever had it before may have kept an answer, and only then calls. Who does not get it
waits without a slot, until the answer is in the ledger or the claim is free.
"""

# A row is claimed when it is about to be called, not when it comes: what waits for a slot could as well be
# called by a task that has one. Nobody holds a claim while waiting for another, so there is no deadlock: a
# claimed row goes on to its call, whatever the others of its task wait for.
#
# Who waits asks again every `POLL_INTERVAL_S`. A lock that is waited for in the kernel would hold up the
# event loop or need a thread for each row.

# What is compared is compared by its value, never by a hash alone: two rows of a billion that share a hash
# would silently get each other's results. How, and why results are copied, `equal_rows` says. Each row keeps
# an entry of its own in the result queue, so order, time-outs and snapshots need not know that a call is
# shared. Results are kept by number and by bytes, the one used longest ago goes first; failures are not kept,
# or one bad second of the service would last for the rest of the job.

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from pillarbox.aio import intervals
from pillarbox.aio.calls import Call
from pillarbox.aio.equal_rows import copied, exact
from pillarbox.aio.errors import Failed
from pillarbox.aio.options import Dedupe, Options
from pillarbox.aio.sizes import SMALL_TYPES, size_of
from pillarbox.ledger.format import Record
from pillarbox.ledger.lease import Claims
from pillarbox.ledger.reader import FoundVector, LedgerReader

log = logging.getLogger("pillarbox")

POLL_INTERVAL_S = 0.2
"""Seconds between two looks for what other tasks, or another attempt of this one, have called."""

MAX_CLAIMS_AHEAD = 16
CLAIMS_AHEAD_SHARE = 0.25
"""The part of the slots for which rows are claimed at a time, before they are called; for 16 rows at most."""


WAITING = object()
"""Answer of `SingleFlight.join` for a row that waits for the outcome of another row's call."""


class SingleFlight:
    """The calls that rows equal to theirs may join. `key` gives what is compared.

    At most `memo` results are kept, and with their keys at most `max_bytes`, by estimate; None for no limit.
    """

    __slots__ = ("_flights", "_flown", "_held", "_key", "_max_bytes", "_memo", "_results")

    def __init__(self, key: Callable[[Any], Any], memo: int, max_bytes: int | None = None) -> None:
        self._key = key
        self._memo = memo
        self._flights: dict[Hashable, list[Call]] = {}
        self._flown: dict[Call, tuple[Hashable, list[Call]]] = {}
        self._max_bytes = max_bytes
        self._held = 0
        self._results: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def join(self, call: Call) -> Any:
        """A kept result for the row of `call`; `WAITING` where it has joined another's call; None to call it.

        A result, which the row may change, comes first in a tuple. Raises TypeError for a row that cannot be
        compared, and what the user's function raises.
        """
        key = exact(self._key(call.row))
        if self._memo and (kept := self._results.get(key)) is not None:
            self._results.move_to_end(key)
            return copied(kept[0]), kept[1]
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

    @staticmethod
    def copied(result: Any) -> Any:
        """A result for a row that has joined a call, which it may change; of a failure the same."""
        return result if type(result) is Failed else copied(result)

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


def single_flight(dedupe: Dedupe | None, max_bytes: int | None = None) -> SingleFlight | None:
    """Make what the options ask for; None where rows are not compared, or where the ledger does it."""
    if dedupe is None or dedupe.across_tasks:
        return None
    return SingleFlight(dedupe.key or _itself, dedupe.memo, max_bytes)


def _itself(row: Any) -> Any:
    # A row that is a view would keep its whole batch. All rows of a task have the same columns.
    return tuple(row) if getattr(type(row), "__is_view__", False) else row


class CallFlow(NamedTuple):
    """Functions of a scheduler for a session with a ledger. On the mailbox thread.

    window: rows that are admitted and not emitted, at most. waiting: the calls that wait, in order. convert,
    rows_of: see `ResultConverter`; None for neither. ahead: how many calls may begin soon. complete: a row
    leaves. replay: a row that waits gets what was recorded. share: a row gets the result of another one's
    call. suspend, resume: calls may not begin, and may. hold: no call begins, or again. stop: the job ends.
    """

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    window: int
    waiting: deque[Call]
    convert: Callable[[Any], Any] | None
    rows_of: Callable[[Any], list[Any] | None] | None
    ahead: Callable[[], int]
    complete: Callable[[Call, Any], None]
    replay: Callable[[Call, Any], None]
    share: Callable[[Call, Any], None]
    suspend: Callable[[Call], None]
    resume: Callable[[Sequence[Call]], None]
    hold: Callable[[bool], None]
    stop: Callable[[BaseException], None]


class RecordedCalls(Protocol):
    """Records of the calls of other tasks, and the ways by which rows get them."""

    @property
    def reader(self) -> LedgerReader:
        """The records."""

    def lookup_again(self, call: Call, news: bool = False) -> bool:
        """Give a row that waits what has been recorded meanwhile; False for nothing."""

    def give(self, call: Call, result: Any) -> None:
        """Give a row that waits a result."""

    def result_of(self, record: Record | FoundVector) -> Any:
        """Make the result of a record, in the form in which it leaves."""


class ClaimedCalls:
    """Claims the rows that a task is about to call, and waits for the calls of other tasks.

    session: looks rows up in the ledger, and gives them what is there. Made by any thread.
    """

    _flow: CallFlow

    def __init__(self, session: RecordedCalls, claims: Claims, options: Options) -> None:
        self._claims = claims
        self._session = session
        self._reader = session.reader
        self._patience = patience_of(options)
        self._shares_failures = options.errors.mode != "fail"
        # Whether it is so, or the row was called without as it had waited too long.
        self._claimed: dict[bytes, bool] = {}
        # Since when rows wait for another task's call, by the loop's clock and by that of the ledger.
        self._waiting: dict[Call, tuple[float, datetime.datetime]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __bool__(self) -> bool:
        """Return True while rows wait for other tasks' calls."""
        return bool(self._waiting)

    def bind(self, flow: CallFlow) -> None:
        """Have the rows of an operator claimed before they are called."""
        self._flow = flow

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
            if waiting[place] in ready or self._is_mine(waiting[place]):
                place += 1
            else:
                ready |= self.claim([*islice(waiting, place, most)])
        return bool(waiting) or not rows

    def _is_mine(self, call: Call) -> bool:
        """Return True for a row that nobody else can have called since it was claimed and looked for."""
        return self._claimed.get(call.key, False) and not call.attempt

    def claim(self, calls: Sequence[Call]) -> set[Call]:
        """Claim rows that wait for their calls, and look for them; returns those that may be called.

        Most of the others wait no more: the ledger has their results, or they wait here. One whose record
        does not fit any more is known by another key from now on, and is to be claimed anew.
        """
        calls = [call for call in calls if not self._is_mine(call)]
        claimed = [call.key in self._claimed or self._claim(call.key) for call in calls]
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
            elif call.key in self._claimed:
                ready.add(call)
        return ready

    def ended(self, call: Call) -> None:
        """A row has its result, durably, or will have none: let others claim its key."""
        self._waiting.pop(call, None)
        self._free(call.key)

    def stop(self) -> None:
        """Look for nothing any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Let go of all claims, when no result is to be kept any more. Any thread."""
        self._claims.close()

    def _free(self, key: bytes) -> None:
        if self._claimed.pop(key, False):
            self._claims.free(key)

    def _claim(self, key: bytes) -> bool:
        is_mine = self._claims.claim(key)
        if is_mine:
            self._claimed[key] = True
        return is_mine

    def find(self, call: Call, since: datetime.datetime | None = None) -> bool:
        """Give a row what the ledger has for it; since: when it began to wait for another task's call.

        A failure of that call is the row's too, as of a call that it had joined in its own task.
        """
        key = call.key
        if self._session.lookup_again(call, news=True):
            return True
        if call.key is not key:
            self._free(key)
        if since is None or not self._shares_failures:
            return False
        record = self._reader.get(call.key, errors=True, input=call.input)
        if record is None or record.at < since:
            return False
        self._session.give(call, self._session.result_of(record))
        return True

    def _wait(self, call: Call) -> None:
        self._waiting[call] = self._flow.loop.time(), datetime.datetime.now(datetime.timezone.utc)
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
        waiting = [*self._waiting.items()]
        for call, _ in waiting:
            self._claim(call.key)
        self._reader.refresh_by_log()
        free: list[Call] = []
        overdue = 0
        for call, (since, at) in waiting:
            if self._is_closed:
                return
            if call not in self._waiting:
                # It has ended by what another row was given.
                self._free(call.key)
                continue
            if self.find(call, at):
                continue
            if call.key not in self._claimed:
                if self._flow.loop.time() - since < self._patience:
                    continue
                # spec: Ledger!Overdue
                overdue += 1
                self._claimed[call.key] = False
            del self._waiting[call]
            free.append(call)
        if overdue:
            log.warning(
                "%d rows have waited for the calls of other tasks for %g s, and are called here: is a worker "
                "stopped, or has a call no time-out?",
                overdue,
                self._patience,
            )
        if self._waiting and self._timer is None:
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
