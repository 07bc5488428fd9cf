"""The session of an operator with its ledger: rows that are found there, results that wait to be durable.

A row that is found there is not called. What a call gives waits here until it is durable, and only then goes
to the result queue, so that nothing is seen that a restart would not find again. Opened by any thread, since
that reads what is there; from `bind` on confined to the mailbox thread. The idea is that of write-ahead
logging (ARIES, 1992), with results for pages.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any
from weakref import WeakKeyDictionary

from pillarbox.aio.call_threads import call_soon
from pillarbox.aio.calls import Call, TakesResult
from pillarbox.aio.equal_rows import copied
from pillarbox.aio.errors import ErrorInfo, Failed, shorten
from pillarbox.aio.function import Parsed, value_of
from pillarbox.aio.ledger_scope import CachePin, StaleAnswers, scope_of
from pillarbox.aio.options import Options
from pillarbox.aio.shared_calls import POLL_INTERVAL_S, WAITING, CallFlow, ClaimedCalls
from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox
from pillarbox.ledger import LedgerError
from pillarbox.ledger.conflicts import ConflictFinder
from pillarbox.ledger.errors import LedgerConflictError
from pillarbox.ledger.format import Origin, Record, Rows
from pillarbox.ledger.holder import Holder
from pillarbox.ledger.holding import join_run
from pillarbox.ledger.keys import (
    ChainedIdentity,
    ContentIdentity,
    RowIdentity,
    fingerprint,
    identity_of_values,
)
from pillarbox.ledger.lease import Lease
from pillarbox.ledger.ledger import shared_reader
from pillarbox.ledger.reader import FoundVector
from pillarbox.ledger.writer import Commit, LedgerWriter
from pillarbox.redaction import redacted
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

COMMITS_PER_WINDOW = 4
"""A commit waits for no more results than this part of the window, so that rows go on coming meanwhile."""

CLOSE_TIMEOUT_S = 3.0
"""Seconds for the last results to become durable when a job ends early."""


class _Misfit(Exception):
    """A kept result that does not fit what it is made into by now."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept


class LedgerSession:
    """Looks the rows of a task up in a ledger, and records what their calls give.

    Made by any thread; that reads what the ledger has, which may take seconds.

    run, batch: whose results they are. config: what of the configuration decides about results, besides the
    key. identify: key and input of a row, None for what the ledger's `key` and `inputs` say of it; a
    `RowIdentity` with a key has rows with equal ones share their call. execution: that of which this is a
    task. prepare: makes of a result what a ledger keeps. vectors_of: makes of results that are vectors of
    one block a matrix, and says whether each is in a tuple; gives None for any others. attempt: what tells
    tasks with the same first row apart, as the number of a partition. tell: takes, at the end, what was
    called again for its input or version; None to log it. alone: the execution has no other tasks. cut,
    pin: of a cache the time before which records are too old, and what says that this execution may ask for
    later ones. holder: the job, for a run that is held.

    Rows that a function in front gave (`ChainedIdentity`) may differ where their key is the same, as that
    function may have given another answer when the task ran before: then they are called. Waits until it is
    known whether another job holds the run. Raises LedgerError and OSError.
    """

    _writer: LedgerWriter

    def __init__(
        self,
        options: Options,
        run: str,
        *,
        batch: int | None = None,
        config: dict[str, Any] | None = None,
        identify: Callable[[Any], tuple[bytes, bytes]] | None = None,
        execution: bytes,
        prepare: Callable[[Any], Any] | None = None,
        vectors_of: Callable[[list[Any]], tuple[Any, bool] | None] | None = None,
        attempt: str = "",
        tell: Callable[[StaleAnswers], None] | None = None,
        alone: bool = False,
        cut: int = 0,
        pin: CachePin | None = None,
        holder: Holder | None = None,
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
        self._ledger = ledger
        self._redact = options.errors.redaction
        self._scope = scope
        self._identify = identify
        self.is_behind = isinstance(identify, ChainedIdentity)
        self._by_columns = isinstance(identify, RowIdentity) and identify.has_columns
        self._leader: LedgerSession | None = None
        self._execution = execution
        self._intervals = options.intervals
        self._tell = tell
        self.stale = StaleAnswers()
        # Rows with a key whose calls are in flight; rows that are known by their content have no equals.
        self._in_flight: dict[bytes, Call] | None = None
        self._conflicts: ConflictFinder | None = None
        if isinstance(identify, RowIdentity) and identify.shares:
            self._in_flight = {}
            # Where the key says all, no two rows differ that have one.
            says_all = self.is_behind or isinstance(identify, ContentIdentity) or not identify.has_key
            self._conflicts = None if says_all else ConflictFinder(execution, alone)
        self._joined: dict[bytes, list[Call]] = {}
        self._prepare = prepare
        self._vectors_of = vectors_of
        self._attempt = attempt
        self._is_local = ledger.local_path is not None
        self._is_bound = False
        # First: who has held the run has kept its results by then.
        self._member = join_run(ledger, scope, holder, self._lost, options.intervals.holding, frees=alone)
        self.reader = shared_reader(ledger, scope, since=cut)
        self._pin = pin
        self._accept_errors = not ledger.retry_errors
        self.claimed: ClaimedCalls | None = None
        """The rows that are called for other tasks too; None where a task calls for itself."""
        if dedupe is not None:
            self.claimed = ClaimedCalls(self, ledger.claims(scope), options)
        self._lease: Lease | None = None
        self._first: bytes | None = None
        self._asked = self._waits = self._behind = self._closed = self._leased = False
        self._lease_checked = self._refreshed_at = 0.0
        self._most, self._since = 1, 0
        self._hits = self._hits_before = 0
        # What is not durable yet, in order: the last one's number, calls, their results, seconds of each.
        self._kept: deque[tuple[int, list[Call], list[Any], float]] = deque()
        # The results of frames of vectors, as long as the reader has these at hand.
        self._blocks: WeakKeyDictionary[Rows, list[Any] | None] = WeakKeyDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self._seen = len(self.reader)

    def bind(self, flow: CallFlow, mailbox: TaskMailbox, weigh: TakesResult, leave: TakesResult) -> None:
        """Keep the results of the calls of an operator. weigh: counts each; leave: completes one."""
        self._flow = flow
        self._weigh, self._leave = weigh, leave or flow.complete
        self._mailbox = mailbox
        self._loop = flow.loop
        self._waiting = flow.waiting
        self._most = max(1, flow.window // COMMITS_PER_WINDOW)
        self._convert = flow.convert
        self._rows_of = flow.rows_of
        self._writer = self._ledger.writer(
            self._scope,
            self.reader,
            execution=self._execution,
            one_input=not self.is_behind,
            on_commit=lambda commit: self._mail(self._committed, commit),
            on_failure=lambda error: self._mail(self._failed, error),
        )
        self._is_bound = True
        if self.claimed is not None:
            self.claimed.bind(flow)
        if self._pin is not None:
            self._pin.keep(flow.loop)

    def follow(self, leader: LedgerSession) -> None:
        """Be known to other attempts of the task by the first row of `leader`, that of the first function."""
        self._leader = leader

    def unfinished(self, in_flight: int) -> int:
        """Of so many rows that may not leave yet, those that `stop_after` counts as not finished."""
        # Failures that are found are known a window ahead of the rows around them, so these count as well.
        return 0 if self._accept_errors else in_flight - sum(len(calls) for _, calls, _, _ in self._kept)

    def unsaved_results(self) -> dict[Call, tuple[Any, float]]:
        """The results that are not durable yet, and the seconds they took, by the calls that gave them."""
        # What is to be parsed has no form in a snapshot: such a row is called again.
        return {
            call: (result, latency)
            for _, calls, results, latency in self._kept
            for call, result in zip(calls, results, strict=True)
            if type(result) is not Parsed
        }

    # -- rows come ----------------------------------------------------------------------------

    def lookup_all(self, calls: list[Call]) -> list[tuple[Call, tuple[Any] | object]]:
        """`lookup` for rows that come together; returns those that need not be called, with what they get.

        Raises as `lookup` does.
        """
        if not calls or not self._by_columns:
            looked = [(call, self.lookup(call)) for call in calls]
            return [(call, found) for call, found in looked if found is not None]
        assert isinstance(self._identify, RowIdentity)
        keys, inputs = self._identify.of_rows([call.row for call in calls])
        scans = self.reader.scans
        for call, key, input in zip(calls, keys, inputs, strict=True):
            call.key, call.input, call.looked = key, input, scans
        if self._are_new(keys):
            if self._in_flight is not None:
                self._in_flight.update(zip(keys, calls, strict=True))
            if self._conflicts is not None:
                self._conflicts.add_all(keys, inputs)
            return []
        done: list[tuple[Call, tuple[Any] | object]] = []
        is_in_order = self._rows_of is not None
        each: list[tuple[Any] | None] = []
        first = place = 0
        while place < len(calls):
            run = self._replay_run(keys[place:], inputs[place:]) if is_in_order else None
            if run is not None:
                some = calls[place : place + len(run)]
                done += zip(some, [(result,) for result in run], strict=True)
                place += len(run)
                continue
            # Rows in another order are not looked for as runs again and again.
            is_in_order = False
            if not each:
                first, each = place, self._replay_each(keys[place:], inputs[place:])
            found = each[place - first] or self.lookup(calls[place], is_known=True)
            if found is not None:
                done.append((calls[place], found))
            place += 1
        return done

    def _replay_each(self, keys: list[bytes], inputs: list[bytes]) -> list[tuple[Any] | None]:
        """The results of those rows of which one look says all; None for others, which are for `lookup`."""
        # spec: Ledger!Look
        results: list[tuple[Any] | None] = []
        convert, in_flight, conflicts = self._convert, self._in_flight or (), self._conflicts
        found_each = self.reader.search_each(keys, inputs, self._execution)
        for key, input, found in zip(keys, inputs, found_each, strict=True):
            if found is None or key in in_flight:
                results.append(None)
                continue
            rows, row = found
            value = rows.value(row)
            if convert is not None:
                try:
                    value = value_of(convert(value))
                except Exception:
                    results.append(None)
                    continue
            results.append((value,))
            self._hits += 1
            if conflicts is not None:
                conflicts.add(key, input, is_old=True)
        if self._first is None:
            self._first = keys[0]
        return results

    def _replay_run(self, keys: list[bytes], inputs: list[bytes]) -> list[Any] | None:
        """The results of the first rows of these that follow one another in a frame of vectors."""
        # spec: Ledger!Look
        run = self.reader.search_run(keys, inputs, self._execution)
        if run is None:
            return None
        rows, begin, end = run
        count = end - begin
        block = self._block_of(rows)
        if block is None or not (self._in_flight is None or self._in_flight.keys().isdisjoint(keys[:count])):
            return None
        if self._first is None:
            self._first = keys[0]
        self._hits += count
        if self._conflicts is not None:
            self._conflicts.add_all(keys[:count], inputs[:count], is_old=True)
        return block[begin:end]

    def _are_new(self, keys: list[bytes]) -> bool:
        """Return True if no key has a record or a call in flight, as in most of a first run."""
        if not self._asked or len(set(keys)) < len(keys):
            return False
        if self._in_flight is not None and not self._in_flight.keys().isdisjoint(keys):
            return False
        # spec: Ledger!Look
        return not self.reader.may_have_any(keys)

    def identify(self, call: Call) -> None:
        """Give a row its key and input. Raises what `lookup` says of rows without."""
        call.key, call.input = self._identify(call if self.is_behind else call.row)

    def lookup(self, call: Call, *, is_known: bool = False) -> tuple[Any] | object | None:
        """The result of a row that need not be called, in a tuple; None where it is to be called.

        is_known: `identify` was called for the row.

        `WAITING` where a call of a row with this key and input is in flight, whose result it will get.
        Raises LedgerConflictError for a row whose key another one of this execution has, with another input;
        LedgerValueError for a row that has no fingerprint, KeyError for one without a column, OSError.
        """
        if not is_known:
            self.identify(call)
        key = call.key
        if self._first is None:
            self._first = key
        if self._joins(call):
            return WAITING
        result: tuple[Any] | Origin | None = self._replay(call)
        if type(result) is not tuple and not self._asked:
            self._asked = True
            if self._lease_name() is not None:
                self._try_lease()
                call.key = key
                result = self._replay(call)
        call.looked = self.reader.scans
        if type(result) is tuple:
            return (value_of(result[0]),)
        if call.key is not key:
            self.stale.misfits += 1
            if self._joins(call):
                return WAITING
        if isinstance(result, Origin) and result.execution != self._execution:
            self._count_stale(call, result)
        if self._in_flight is not None:
            self._in_flight.setdefault(call.key, call)
        if self._conflicts is not None:
            self._conflicts.add(call.key, call.input)
        return None

    def _joins(self, call: Call) -> bool:
        """Return True if the row waits from now on for the call of another one with its key and input."""
        if self._in_flight is None or (before := self._in_flight.get(call.key)) is None:
            return False
        if before.input != call.input:
            if not self.is_behind:
                raise self._conflict(call, before.input)
            return False
        self._joined.setdefault(call.key, []).append(call)
        return True

    def kept_back(self) -> tuple[bool, int]:
        """True if results wait for the disk, and about the bytes of their kept forms not yet written."""
        return bool(self._kept), self._writer.waiting_bytes

    @property
    def waits_for(self) -> str | None:
        """The reason that holds calls back, in words; None for nothing."""
        most = f"for {self._intervals.hung_after:g} s at most without progress"
        if self._waits:
            return f"another run of {self._scope} makes these calls, and holds their lease, {most}"
        if self._behind:
            return "the ledger's disk, which is behind"
        return f"the calls that other tasks make for equal rows, {most}" if self.claimed else None

    def may_call(self) -> bool:
        """Return True if calls may begin: no other attempt has taken over the lease of this one.

        Who was stopped for a while, or hung, learns it here before the next call, and waits for the other's
        results as any attempt that comes second.
        """
        if self._member is not None:
            try:
                self._member.check()
            except (OSError, LedgerError) as error:
                self._flow.stop(error)
                return False
        if not self._leased:
            return not self._waits
        now = time.monotonic()
        if now - self._lease_checked < self._intervals.lease_check:
            return True
        assert self._lease is not None
        # spec: Ledger!Call
        if self._lease.is_held():
            self._lease_checked = now
            return True
        self._leased, self._waits = False, True
        log.warning("another run of %s has taken over: waiting for its results", self._scope)
        self._flow.hold(True)
        self._timer = self._loop.call_later(0.0, self._poll)
        return False

    def look_first(self, rows: int = 1) -> bool:
        """Return True if the first `rows` rows that wait may be called; of none, if any may.

        Those whose call another attempt has made are finished, and wait no more.
        """
        if self.claimed is not None:
            return self.claimed.claim_first(rows)
        waiting, place = self._waiting, 0
        if not self.may_call():
            return False
        while place < min(rows, len(waiting)):
            place += not self.lookup_again(waiting[place])
        return bool(waiting) or not rows

    def look_again(self, call: Call) -> bool:
        """Give a row that is to be called again what the ledger has for it by now; False for nothing."""
        return self.lookup_again(call) if self.claimed is None else self.claimed.find(call)

    def lookup_again(self, call: Call, news: bool = False) -> bool:
        """Give a row that waits the result that another attempt has kept meanwhile; False if there is none.

        news: look even if nothing of other processes has been seen since the last look, as before a retry.
        """
        if call.attempt and self._is_local and time.monotonic() - self._refreshed_at >= POLL_INTERVAL_S:
            # Dear, and worth it before a call that is paid for again.
            self._refreshed_at = time.monotonic()
            self.reader.refresh()
        # On the path of every call: most have waited for their slot only.
        if call.looked == self.reader.scans and not call.attempt and not news:
            return False
        call.looked = self.reader.scans
        key = call.key
        result = self._replay(call)
        if self._in_flight is not None and call.key is not key and self._in_flight.get(key) is call:
            # What another process has kept does not fit.
            self._in_flight[call.key] = self._in_flight.pop(key)
            if key in self._joined:
                self._joined[call.key] = self._joined.pop(key)
        if type(result) is not tuple:
            return False
        self.give(call, result[0])
        return True

    def give(self, call: Call, result: Any) -> None:
        """A row that waits gets what another attempt, or another task, has kept."""
        self._flow.replay(call, result)
        self._end(call, value_of(result))

    def _replay(self, call: Call) -> tuple[Any] | Origin | None:
        """A result in a tuple; what else there is under the row's key; None for nothing."""
        # spec: Ledger!Look
        in_blocks = self._rows_of is not None
        record = self.reader.search(call.key, call.input, self._execution, in_blocks=in_blocks)
        while type(record) is Record or type(record) is FoundVector:
            try:
                result = self.result_of(record)
            except _Misfit as misfit:
                # What was given in its place stands under a key of its own, which whoever meets the misfit
                # makes of it.
                call.key = fingerprint([call.key, misfit.kept], "misfit")
                record = self.reader.search(call.key, call.input, self._execution, in_blocks=in_blocks)
                continue
            self._hits += 1
            if self._conflicts is not None:
                is_old = record.execution != self._execution
                self._conflicts.add(call.key, call.input, is_old=is_old)
            return (result,)
        if type(record) is Origin:
            if record.execution == self._execution and not self.is_behind:
                # spec: Ledger!Refuse
                raise self._conflict(call, record.input)
            return record
        return None

    def result_of(self, record: Record | FoundVector) -> Any:
        """Make the result of a record, in the form in which it leaves."""
        if isinstance(record, FoundVector):
            block = self._block_of(record.rows)
            if block is not None:
                return block[record.row]
            record = record.rows.record(record.row)
        if record.is_error:
            info = ErrorInfo(**{name: record.value.get(name) for name in ErrorInfo._fields})
            # An earlier version may have written it.
            return Failed(info._replace(message=redacted(info.message or "")))
        if self._convert is None:
            return record.value
        try:
            return self._convert(record.value)
        except Exception as error:
            raise _Misfit(record.value) from error

    def _block_of(self, rows: Rows) -> list[Any] | None:
        """The results of a frame of vectors, in the form in which they leave; None where these have none."""
        if rows not in self._blocks:
            assert self._rows_of is not None
            # Once for all of them, without a copy.
            self._blocks[rows] = self._rows_of(rows.vectors)
        return self._blocks[rows]

    def _count_stale(self, call: Call, origin: Origin) -> None:
        if origin.version != self._ledger.kept_version:
            self.stale.versions += 1
            return
        self.stale.inputs += 1
        self.stale.columns.update(self._differing(origin.input, call.input, self._ledger.inputs is not None))

    def _differing(self, kept: bytes, input: bytes, some: bool = False) -> list[str]:
        return self._identify.differing(kept, input, some) if isinstance(self._identify, RowIdentity) else []

    def _conflict(self, call: Call, other: bytes) -> LedgerConflictError:
        redact = self._redact
        one = "" if redact.rows else f"; one is {shorten(call.row, redact=redact)}"
        conflict = LedgerConflictError(call.key, call.input, other)
        return conflict.with_columns(self._differing(other, call.input), one)

    # -- results come -------------------------------------------------------------------------

    def record(self, call: Call, result: Any, *, is_substitute: bool = False) -> None:
        """A row has its result, which goes on when it is durable.

        is_substitute: it stands for a time-out and is nobody's answer, so that it is not kept.
        """
        # A row whose retry was cut off has been paid for; a replay calls it again like one that failed.
        was_paid = call.attempt > 0 and not self._accept_errors
        if is_substitute or (type(result) is Failed and result.not_called and not was_paid):
            self._finish(call, result)
            return
        latency = self._latency(call)
        if self._weigh is not None:
            self._weigh(call, value_of(result))
        self._kept.append((self._append(call, result, latency, call.cost), [call], [result], latency))
        self._has_kept(1)

    def record_all(self, calls: list[Call], results: list[Any]) -> bool:
        """As `record` for rows called together whose results are one block; returns False for any others."""
        vectors = None if self._vectors_of is None else self._vectors_of(results)
        if vectors is None:
            return False
        # spec: Ledger!Answer
        writer = self._writer
        if writer.failure is not None:
            raise writer.failure
        matrix, in_tuple = vectors
        latency = self._latency(calls[0])
        last = writer.append_vectors(
            [call.key for call in calls],
            matrix,
            in_tuple=in_tuple,
            inputs=[call.input for call in calls],
            attempts=[call.attempt for call in calls],
            latency=latency,
            costs=[call.cost for call in calls],
        )
        if self._weigh is not None:
            for call, result in zip(calls, results, strict=True):
                self._weigh(call, result)
        self._kept.append((last, calls, results, latency))
        self._has_kept(len(calls))
        return True

    def _has_kept(self, rows: int) -> None:
        self._since += rows
        if self._since >= self._most or not self._waiting:
            # Slots are idle, or will be: what fills the window is that results are not durable.
            self._since = 0
            self._writer.hurry()
        if not self._behind and self._writer.is_behind:
            # A slow disk costs time, not more calls after a kill.
            self._behind = True
            self._flow.hold(True)

    def _finish(self, call: Call, result: Any) -> None:
        """The result of a row may leave, and that of those that have joined its call."""
        self._flow.complete(call, result)
        self._end(call, result)

    def _end(self, call: Call, result: Any) -> None:
        """`call` has ended; those that have joined it get its result."""
        if self.claimed is not None:
            self.claimed.ended(call)
        if self._in_flight is not None and self._in_flight.get(call.key) is call:
            del self._in_flight[call.key]
            for joined in self._joined.pop(call.key, ()):
                if self._closed:
                    return
                self._flow.share(joined, result if type(result) is Failed else copied(result))

    def record_late(self, call: Call, result: Any, cost: float) -> None:
        """An answer came after its time-out: the row may have it when it is called again, or on a replay."""
        try:
            self._append(call, result, self._latency(call), cost)
        except Exception as error:
            log.warning("a late answer was not kept: %s: %s", type(error).__name__, error)

    def _latency(self, call: Call) -> float:
        return self._flow.clock() - call.began if call.attempt else 0.0

    def _append(self, call: Call, result: Any, latency: float, cost: float) -> int:
        # spec: Ledger!Answer
        writer = self._writer
        if writer.failure is not None:
            raise writer.failure
        is_error = type(result) is Failed
        if is_error:
            result = dict(result.info.told())
        elif type(result) is Parsed:
            result = result.kept
        elif self._prepare is not None:
            result = self._prepare(result)
        return writer.append(
            call.key,
            result,
            is_error=is_error,
            input=call.input,
            attempts=call.attempt,
            latency=latency,
            cost=cost,
        )

    def _committed(self, commit: Commit) -> None:
        # spec: Ledger!Emit
        kept, adopted = self._kept, commit.adopted
        calls: list[Call] = []
        results: list[Any] = []
        while kept and kept[0][0] <= commit.through and not self._closed:
            last, some, given, _ = kept.popleft()
            calls += some
            results += given
            if adopted:
                for place in range(-len(some), 0):
                    if (number := last + 1 + place) in adopted:
                        # That of a process which parses otherwise may not fit: then this row has its own.
                        with suppress(_Misfit):
                            results[place] = self.result_of(adopted[number])
        complete = self._leave
        # Of rows that are known by their content alone, in one task, nobody waits for the call of another.
        may_be_shared = self._in_flight is not None or self.claimed is not None
        for call, kept_result in zip(calls, results, strict=True):
            if self._closed:
                return
            result = kept_result.value if type(kept_result) is Parsed else kept_result
            complete(call, result)
            if may_be_shared:
                self._end(call, result)
        if self._behind and not self._closed:
            self._behind = self._writer.is_behind
            if not self._behind:
                self._flow.hold(self._waits)

    def _failed(self, error: BaseException) -> None:
        if self._closed:
            return
        if isinstance(error, LedgerConflictError):
            mine = [call for _, calls, _, _ in self._kept for call in calls if call.key == error.key]
            if mine:
                error = self._conflict(mine[0], error.other)
        self._flow.stop(error)

    def _lost(self, error: BaseException) -> None:
        if self._is_bound:
            self._mail(self._failed, error)

    def _mail(self, fn: Callable[[Any], None], said: Any) -> None:
        try:
            self._mailbox.put(Mail(fn, said, description="what the ledger says"))
        except MailboxClosedError:
            # The operator has ended: nobody waits for it.
            return

    # -- other attempts of the task -----------------------------------------------------------

    def _lease_name(self) -> str | None:
        # A task that is tried again has the same rows in the same order, so the first one names it. Rows that
        # another function gave come in any order: those that it was given name them.
        first = self._first if not self.is_behind else None if self._leader is None else self._leader._first
        if first is None or self.claimed is not None or not self._is_local:
            # Where rows are claimed one by one, attempts of a task share its calls by that; and an object
            # store has no locks.
            return None
        # Other jobs that use a cache may begin with the same row, and have others behind it.
        job = "" if self._ledger.cache is None else f" {self._execution.hex()}"
        return f"{first.hex()} {self._attempt}{job}"

    def _is_to_call(self) -> bool:
        try:
            if self._lease is None and (name := self._lease_name()) is not None:
                self._lease = self._ledger.lease(self._scope, name, hung_after=self._intervals.hung_after)
            self._leased = self._lease is not None and self._lease.acquire()
            self._lease_checked = time.monotonic()
            return self._leased or self._lease is None
        except (OSError, LedgerError) as error:
            # It saves calls and no more; where the disk is full, who writes says so.
            log.warning("no lease for this task: %s: %s", type(error).__name__, error)
            return True

    def _try_lease(self) -> None:
        # spec: Ledger!Acquire
        waited, self._waits = self._waits, not self._is_to_call()
        if self._waits:
            if not waited:
                log.warning(
                    "another run of %s makes these calls now: waiting for its results, for %g s at most",
                    self._scope,
                    self._intervals.hung_after,
                )
                self._flow.hold(True)
            self._timer = self._loop.call_later(POLL_INTERVAL_S, self._poll)
            return
        if self._lease is not None:
            self._writer.hold(self._lease)
        # What another attempt has done up to its end.
        self.reader.refresh()
        if waited:
            self._take_replayed()
            self._flow.hold(self._behind)

    def _poll(self) -> None:
        if self._closed:
            return
        try:
            self.reader.refresh()
            self._take_replayed()
            if self._hits != self._hits_before:
                # The other one gets on: its time begins anew.
                self._hits_before = self._hits
                self._lease = None
            self._try_lease()
        except BaseException as error:
            self._flow.stop(error)

    def _take_replayed(self) -> None:
        """Give rows that wait the results that the other attempt has kept."""
        if len(self.reader) == self._seen:
            return
        self._seen = len(self.reader)
        for call in [*self._waiting]:
            self.lookup_again(call, news=True)

    # -- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing is completed any more."""
        self._closed = True
        if self.claimed is not None:
            self.claimed.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._pin is not None:
            self._pin.let_go()

    async def close(self, is_whole: bool = False) -> BaseException | None:
        """Make durable what has come in, for `CLOSE_TIMEOUT_S` seconds at most, and end the writer's thread.

        is_whole: all rows have their results. Returns what the job fails with all the same: two of its rows
        have one key and different inputs, or whether they have cannot be found out.
        """
        if self.stale:
            if self._tell is None:
                self.stale.log(self._ledger, self._scope.run)
            else:
                self._tell(self.stale)
        if not self._is_bound:
            return None
        done = asyncio.Event()
        failure: BaseException | None = None

        def close() -> None:
            nonlocal failure
            try:
                self._writer.close(CLOSE_TIMEOUT_S)
            except Exception as error:
                # Where that matters, `stop` has been told of it.
                log.warning("the last results were not kept: %s: %s", type(error).__name__, error)
            if self.claimed is not None:
                self.claimed.close()
            if is_whole:
                failure = self._find_conflict()
            if self._member is not None:
                self._member.leave()
            call_soon(self._loop, done.set)

        thread = threading.Thread(target=close, name="pillarbox-ledger-close", daemon=True)
        start_thread(thread)
        await done.wait()
        thread.join()
        return failure

    def _find_conflict(self) -> BaseException | None:
        if self._conflicts is None:
            return None
        with closing(self._ledger.folder(self._scope)) as folder:
            try:
                self._conflicts.check(self.reader, folder)
            except LedgerConflictError as error:
                return error.with_columns(self._differing(error.other, error.input))
            except (OSError, LedgerError) as error:
                return error
        return None
