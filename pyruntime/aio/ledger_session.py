"""The session of an operator with its ledger: rows that are found there, results that wait to be durable.

A row that is found there is not called. What a call gives waits until it is durable, and only then goes to
the result queue, so that nothing is seen that a restart would not find again. Opened by any thread, since
that reads what is there; from `bind` on confined to the mailbox thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

from pillarbox.aio import intervals
from pillarbox.aio.attempt_lease import AttemptLease, AttemptName
from pillarbox.aio.call_flow import CallFlow, CallHolds
from pillarbox.aio.call_threads import call_soon
from pillarbox.aio.calls import ATTEMPT, LOOKED, Call, TakesResults
from pillarbox.aio.held_bytes import HeldBytes
from pillarbox.aio.in_flight import CallsInFlight
from pillarbox.aio.ledger_lookup import LedgerLookup
from pillarbox.aio.ledger_records import AS_THEY_ARE, KeptForms, LedgerRecords
from pillarbox.aio.ledger_rows import LedgerRows
from pillarbox.aio.ledger_scope import StaleAnswers, scope_of
from pillarbox.aio.options import Options
from pillarbox.aio.shared_results import SharedResults
from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox
from pillarbox.ledger import LedgerError
from pillarbox.ledger.keys import RowIdentity, identity_of_values
from pillarbox.ledger.ledger import shared_reader
from pillarbox.ledger.runs import RunJob
from pillarbox.providers import HELD_CLAIMS, provided
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

CLOSE_TIMEOUT_S = 3.0
"""Seconds for the last results to become durable when a job ends early."""


class Pin(Protocol):
    """The pin of a cache: says that this execution may ask for records. For the thread of the loop."""

    def keep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say it again from time to time."""

    def let_go(self) -> None:
        """Say it no more."""


class ClaimsCalls(Protocol):
    """Claims the rows that a task is about to call, and waits for the calls of other tasks."""

    def __bool__(self) -> bool:
        """Return True while rows wait for other tasks' calls."""

    def claim_first(self, rows: int = 1) -> bool:
        """Return True if the first `rows` rows that wait may be called; of none, if any may."""

    def find(self, call: Call) -> bool:
        """Give a row what the ledger has for it; False for nothing."""

    def stop(self) -> None:
        """Look for nothing any more."""


class HoldsClaims(Protocol):
    """The claims of a session: keys whose rows no other task calls. Made by any thread."""

    def calls(
        self, flow: CallFlow, lookup: LedgerLookup, results: SharedResults, options: Options
    ) -> ClaimsCalls:
        """Make what claims rows before they are called, on the mailbox thread."""

    def ended(self, call: Call) -> None:
        """A row has its result, durably, or will have none: let others claim its key."""

    def close(self) -> None:
        """Let go of all claims. Any thread; a second time does nothing."""


class LedgerSession:
    """The ledger of a task: looks its rows up there, and records what their calls give.

    Made by any thread; that reads what the ledger has, which may take seconds.

    run, batch: whose results they are. config: what of the configuration decides about results, besides the
    key. identify: key and input of a row, None for what the ledger's `key` and `inputs` say of it; a
    `RowIdentity` with a key has rows with equal ones share their call. execution: that of which this is a
    task. forms: those in which results are kept. attempt: what tells tasks with the same first row apart, as
    the number of a partition. tell: takes, at the end, what was called again for its input or version; None
    to log it. alone: the execution has no other tasks. cut, pin: of a cache the time before which records are
    too old, and what says that this execution may ask for later ones. job: that which holds the run; None
    for a run that needs no holder.

    Rows that a function in front gave (`ChainedIdentity`) may differ where their key is the same, as that
    function may have given another answer when the task ran before: then they are called. Waits until it is
    known whether another job holds the run. Raises LedgerError and OSError.
    """

    # From `bind` on.
    lease: AttemptLease
    _flow: CallFlow
    _holds: CallHolds
    _lookup: LedgerLookup
    _records: LedgerRecords
    _results: SharedResults

    def __init__(
        self,
        options: Options,
        run: str,
        *,
        batch: int | None = None,
        config: dict[str, Any] | None = None,
        identify: Callable[[Any], tuple[bytes, bytes]] | None = None,
        execution: bytes,
        forms: KeptForms = AS_THEY_ARE,
        attempt: str = "",
        tell: Callable[[StaleAnswers], None] | None = None,
        alone: bool = False,
        cut: int = 0,
        pin: Pin | None = None,
        job: RunJob | None = None,
    ) -> None:
        ledger = options.ledger
        assert ledger is not None
        if options.errors.mode == "fail":
            # A record of a failure is then no result.
            ledger = dataclasses.replace(ledger, retry_errors=True)
        scope = scope_of(ledger, run, batch=batch, config=config)
        if identify is None:
            identify = identity_of_values(ledger.key, ledger.inputs)
        dedupe = options.dedupe if options.dedupe is not None and options.dedupe.across_tasks else None
        if dedupe is not None and isinstance(identify, RowIdentity):
            identify = identify.sharing(dedupe.key)
        self._options = options
        self._intervals = intervals.INTERVALS
        self._ledger = ledger
        self._scope = scope
        redact = options.errors.redaction
        self.rows = LedgerRows(ledger, identify, execution=execution, alone=alone, redact=redact)
        self._forms = forms
        self._name = AttemptName(ledger, self.rows, attempt, has_claims=dedupe is not None)
        self._tell = tell
        self._pin = pin
        self._mailbox: TaskMailbox | None = None
        # First: who has held the run has kept its results by then.
        self._member = None if job is None else job.join(ledger, scope, self._lost, frees=alone)
        self.reader = shared_reader(ledger, scope, since=cut)
        self._claims: HoldsClaims | None = None
        if dedupe is not None:
            self._claims = provided(HELD_CLAIMS, "dedupe")(ledger, scope)
        self.claimed: ClaimsCalls | None = None
        """The rows that are called for other tasks too; None where a task calls for itself."""

    def bind(
        self, flow: CallFlow, mailbox: TaskMailbox, weights: HeldBytes | None, leave: TakesResults
    ) -> LedgerRecords:
        """Keep the results of the calls of an operator. weights: counts them; leave: completes them."""
        rows, claims, ledger, scope = self.rows, self._claims, self._ledger, self._scope
        self._flow = flow
        self._holds = holds = CallHolds(flow.hold)
        in_flight = CallsInFlight() if rows.shares else None
        self._lookup = lookup = LedgerLookup(
            self.reader,
            rows,
            in_flight,
            convert=flow.convert,
            rows_of=flow.rows_of,
            is_local=ledger.local_path is not None,
            at_first_miss=lambda: lease.begin(),
        )
        self._results = results = SharedResults(
            flow, lookup, in_flight, None if claims is None else claims.ended
        )
        writer = ledger.writer(
            scope,
            self.reader,
            execution=rows.execution,
            one_input=not rows.is_behind,
            on_commit=lambda commit: _mail(mailbox, records.committed, commit),
            on_failure=lambda error: _mail(mailbox, records.failed, error),
        )
        self._records = records = LedgerRecords(
            flow,
            writer,
            self._forms,
            holds,
            accepts_errors=not ledger.retry_errors,
            result_of=lookup.result_of,
            conflict=rows.conflict,
            weights=weights,
            leave=leave,
            # Of rows that are known by their content alone, in one task, none waits for another's call.
            ended=None if in_flight is None and claims is None else results.ended,
        )
        self.lease = lease = AttemptLease(
            flow,
            lookup,
            results,
            holds,
            name=self._name,
            open=lambda name: ledger.lease(scope, name, hung_after=self._intervals.hung_after),
            held=writer.hold,
            intervals=self._intervals,
            scope=scope,
        )
        if claims is not None:
            self.claimed = claims.calls(flow, lookup, results, self._options)
        if self._pin is not None:
            self._pin.keep(flow.loop)
        self._mailbox = mailbox
        return records

    def follow(self, leader: LedgerSession) -> None:
        """Be known to other attempts of the task by the first row of `leader`, that of the first function."""
        self._name.leader = leader.rows

    def unfinished(self, in_flight: int) -> int:
        """Of so many rows that may not leave yet, those that `stop_after` counts as not finished."""
        # Failures that are found are known a window ahead of the rows around them, so these count as well.
        return in_flight - len(self._records) if self._ledger.retry_errors else 0

    def unsaved_results(self) -> dict[Call, tuple[Any, float]]:
        """The results that are not durable yet, and the seconds they took, by the calls that gave them."""
        return self._records.unsaved()

    def kept_back(self) -> tuple[bool, int]:
        """True if results wait for the disk, and about the bytes of their kept forms not yet written."""
        return bool(self._records), self._records.writer.waiting_bytes

    # -- rows come ----------------------------------------------------------------------------

    def look_up(self, calls: Sequence[Call], *, are_known: bool = False) -> list[tuple[Call, Any]]:
        """Look up rows that come, as `LedgerLookup` does; returns those that need not be called."""
        return self._lookup.look_up(calls, are_known=are_known)

    # -- calls begin --------------------------------------------------------------------------

    def look_first(self, rows: int = 1) -> bool:
        """Return True if the first `rows` rows that wait may be called; of none, if any may.

        Those whose call another attempt has made are finished, and wait no more.
        """
        if self.claimed is not None:
            return self.claimed.claim_first(rows)
        if self._member is not None and not self._holds_run():
            return False
        # On the path of every call: most may begin by what was seen a moment ago.
        if time.monotonic() >= self.lease.trusted_until and not self.lease.may_call():
            return False
        waiting, reader, place, scans = self._flow.waiting, self.reader, 0, self.reader.scans
        # And most have waited for their slot only. Of a row alone a loop costs less.
        first = [*islice(waiting, rows)] if rows > 1 else ()
        if first and LOOKED.holds(first, scans) and ATTEMPT.holds(first, 0):
            return True
        while place < min(rows, len(waiting)):
            call = waiting[place]
            is_known = call.looked == reader.scans and not call.attempt
            place += is_known or not self._results.look_again(call)
        return bool(waiting) or not rows

    def look_again(self, call: Call) -> bool:
        """Give a row that is to be called again what the ledger has for it by now; False for nothing."""
        return self._results.look_again(call) if self.claimed is None else self.claimed.find(call)

    def _holds_run(self) -> bool:
        """Return True if no other job has taken over the run; otherwise this one ends."""
        try:
            assert self._member is not None
            self._member.check()
        except (OSError, LedgerError) as error:
            self._flow.stop(error)
            return False
        return True

    @property
    def waits_for(self) -> str | None:
        """The reason that holds calls back, in words; None for nothing."""
        if self._holds.by_lease or self._holds.by_disk:
            return self.lease.waits_for or "the ledger's disk, which is behind"
        most = f"for {self._intervals.hung_after:g} s at most without progress"
        return f"the calls that other tasks make for equal rows, {most}" if self.claimed else None

    def _lost(self, error: BaseException) -> None:
        if self._mailbox is not None:
            _mail(self._mailbox, self._records.failed, error)

    # -- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing is completed any more."""
        if self._mailbox is not None:
            self._records.stop()
            self._results.stop()
            self.lease.stop()
        if self.claimed is not None:
            self.claimed.stop()
        if self._pin is not None:
            self._pin.let_go()

    async def close(self, is_whole: bool = False) -> BaseException | None:
        """Make durable what has come in, for `CLOSE_TIMEOUT_S` seconds at most, and end the writer's thread.

        is_whole: all rows have their results. Returns what the job fails with all the same: two of its rows
        have one key and different inputs, or whether they have cannot be found out.
        """
        stale = self.rows.stale
        if stale:
            if self._tell is None:
                stale.log(self._ledger, self._scope.run)
            else:
                self._tell(stale)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        failure: BaseException | None = None

        def close() -> None:
            nonlocal failure
            try:
                failure = self._end(is_whole)
            except BaseException as error:
                failure = error
            finally:
                call_soon(loop, done.set)

        thread = threading.Thread(target=close, name="pillarbox-ledger-close", daemon=True)
        start_thread(thread)
        await done.wait()
        thread.join()
        return failure

    def _end(self, is_whole: bool) -> BaseException | None:
        """Write what is left, and let go of the ledger. Blocks. Returns as `close` does."""
        try:
            if self._mailbox is not None:
                try:
                    self._records.writer.close(CLOSE_TIMEOUT_S)
                except Exception as error:
                    # Where that matters, `stop` has been told of it.
                    log.warning("the last results were not kept: %s: %s", type(error).__name__, error)
            if self._claims is not None:
                self._claims.close()
            return self.rows.find_conflict(self.reader, self._scope) if is_whole else None
        finally:
            self.release()

    def release(self) -> None:
        """Let others have the claims and the run of a session that makes no more calls, or was never bound.

        Blocks; any thread. A second time it does nothing.
        """
        try:
            if self._claims is not None:
                self._claims.close()
        finally:
            if self._member is not None:
                self._member.leave()


def _mail(mailbox: TaskMailbox, fn: Callable[[Any], None], said: Any) -> None:
    try:
        mailbox.put(Mail(fn, said, description="news of the ledger's writer"))
    except MailboxClosedError:
        # The operator has ended, and waits for nothing.
        return
