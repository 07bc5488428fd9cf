"""Schedules calls with a batch of rows each that are hedged: beside one that is slow another one begins.

Confined to the mailbox thread. For everything else the calls of one attempt are one call of its rows.
"""

# Module Hedge, with the rows of a batch as its row: the first call that gives results answers for all rows
# that still wait, and an error of one lets the others go on. What differs is that rows leave a batch one by
# one, for their time; the last one to leave ends all calls (`Hedge!RowLeaves`).
#
# Where the rows are. They are carried by one call at a time, the *leader*, so that whatever takes a row away
# finds it running. That is the call that began first of those that run. The others have a hedge for each row,
# by which policies tell them apart; when one of them answers, or the leader fails, the rows move to it.

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pillarbox.aio.batches.batch_execution import BatchExecution
from pillarbox.aio.batches.batch_scheduler import BatchQueue, BatchScheduler
from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed, CallTimeout
from pillarbox.aio.hedging import HedgingCall, RowsInFlight, hedges_now, rows_in_flight
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import Options
from pillarbox.aio.policy import CallSuperseded, HookFailed
from pillarbox.aio.usage import Result
from pillarbox.lacks import lack_in


class BatchesOfAttempt:
    """The calls of one attempt of some rows that run: the one that carries the rows, and those that hedge it.

    begun: calls that have begun, or are about to. `began` is when the first one did.
    """

    __slots__ = ("began", "begun", "hedges", "leader")

    def __init__(self, leader: BatchExecution, began: float) -> None:
        self.leader = leader
        self.began = began
        self.hedges: list[HedgingBatch] = []
        self.begun = 1


class HedgingBatch(BatchExecution):
    """A further call of the rows of an attempt. `calls` are hedges until it leads, then the rows' calls."""

    __slots__ = ("attempt",)

    def __init__(self, calls: Sequence[HedgingCall], attempt: BatchesOfAttempt) -> None:
        leader = attempt.leader
        super().__init__([*calls], leader.is_part, leader.is_suspect)
        self.attempt = attempt
        self.left = 0

    def rows(self) -> list[Call]:
        """The calls of its rows."""
        return [call.hedges or call for call in self.calls]


class HedgedBatches(BatchQueue):
    """The batches of an operator, and what is known of those that run for their hedges.

    rows: the attempts that are watched. attempts: those that run, by each of their calls. known_as: the
    hedges by which policies know the call that carries rows now. starting: hedges that were taken and have
    not begun.
    """

    __slots__ = ("attempts", "known_as", "rows", "starting")

    def __init__(self, name: str, size: int, rows: RowsInFlight[BatchesOfAttempt]) -> None:
        super().__init__(name, size)
        self.rows = rows
        self.attempts: dict[BatchExecution, BatchesOfAttempt] = {}
        self.known_as: dict[Call, HedgingCall] = {}
        self.starting = 0

    def forget(self) -> None:
        """Forget all attempts."""
        self.rows.close()
        self.attempts.clear()
        self.known_as.clear()


class HedgingBatchScheduler(BatchScheduler):
    """Follows the calls of one operator that are made in batches, and those that hedge them."""

    __slots__ = ()

    def __init__(
        self, options: Options, meter: Meter, loop: asyncio.AbstractEventLoop, **others: Any
    ) -> None:
        super().__init__(options, meter, loop, **others)
        assert options.batch is not None
        self._batches = HedgedBatches(others["name"], options.batch.size, rows_in_flight(self))

    @property
    def _hedged(self) -> HedgedBatches:
        batches = self._batches
        assert isinstance(batches, HedgedBatches)
        return batches

    def close(self) -> None:
        """Forget every call, and all hedges."""
        # spec: Hedge!Close
        super().close()
        self._hedged.forget()

    # -- which call is next -------------------------------------------------------------------

    def _hedges_now(self) -> int:
        return hedges_now(self._hedged.rows, self.gate, self.policies.load, self._hedged.starting)

    def may_start(self, starting: int, running: int) -> bool:
        """Return True if there may be a batch to call, or a hedge."""
        return super().may_start(starting, running) or self._hedges_now() > 0

    def next_batch(self, _: Any = None) -> BatchExecution | None:
        """Take a hedge that may begin now, or the next batch."""
        if self._hedged.rows.due and not self.is_closed and (hedge := self._next_hedge()) is not None:
            return hedge
        return super().next_batch()

    def _next_hedge(self) -> HedgingBatch | None:
        """Take a hedge of the batch that has waited longest for it; None if none may begin."""
        # spec: Hedge!Hedge
        session = self.sharing.session
        if self._hedges_now() <= 0 or (session is not None and not session.look_first(0)):
            return None
        while self._hedges_now() > 0:
            attempt = next(iter(self._hedged.rows.due))
            running = [attempt.leader, *attempt.hedges]
            known = [self._as_known(each.calls)[0] for each in running]
            avoided = tuple([call.endpoint for call in known if hasattr(call, "endpoint")])
            hedges = [HedgingCall(call, avoided) for call in attempt.leader.waited_for()]
            try:
                if self.gate is not None and not self.gate.admit(hedges):
                    return None
            except HookFailed as failed:
                for call in attempt.leader.waited_for():
                    self.revoke(call)
                    self.fail_call(call, CallFailed(call.attempt, failed.cause))
                continue
            del self._hedged.rows.due[attempt]
            attempt.begun += 1
            self._hedged.starting += 1
            batch = HedgingBatch(hedges, attempt)
            for hedge in hedges:
                hedge.execution = batch
            return batch
        return None

    def begin_batch(self, batch: BatchExecution) -> bool:
        """An attempt of the rows of `batch` begins now, or a further call of one; False if there is none."""
        if isinstance(batch, HedgingBatch):
            return self._begin_hedge(batch)
        if not super().begin_batch(batch):
            return False
        # spec: Hedge!Begin
        attempt = self._hedged.attempts[batch] = BatchesOfAttempt(batch, batch.calls[0].began)
        self._hedged.rows.watch(attempt)
        if self._hedged.rows.due and self._hedges_now() > 0:
            # This call has paid for it.
            self.runner.dispatch()
        return True

    def _begin_hedge(self, batch: HedgingBatch) -> bool:
        self._hedged.starting -= 1
        attempt, rows = batch.attempt, self._hedged.rows
        let_through = batch.calls
        waited_for = [call for call in let_through if call.hedges.execution is attempt.leader]  # type: ignore[union-attr]
        batch.calls = waited_for
        if not waited_for or self.is_closed or attempt.leader not in self._hedged.attempts:
            # The attempt is over: what the gate has let through is not called.
            self.policies.load.give_back(let_through)
            batch.calls = []
            return False
        now = self.clock()
        for call in waited_for:
            call.began = now
        if not self.begin_policies(waited_for):
            batch.calls = []
            return False
        self.meter.calls += len(waited_for)
        self.meter.batches += 1
        attempt.hedges.append(batch)
        self._hedged.attempts[batch] = attempt
        if attempt.begun < rows.policy.calls:
            rows.watch(attempt)
        return True

    # -- one call -----------------------------------------------------------------------------

    def batch_ended(
        self, batch: BatchExecution, results: list[Any] | Result, error: BaseException | None
    ) -> None:
        """Settle a call that ended, for the rows of its attempt."""
        attempt = self._hedged.attempts.pop(batch, None)
        try:
            if attempt is None or self.is_closed:
                # spec: Hedge!LateAnswer
                if isinstance(batch, HedgingBatch):
                    batch.calls = batch.rows()
                super().batch_ended(batch, results, error)
            elif error is not None and (batch is not attempt.leader or attempt.hedges):
                self._one_failed(attempt, batch, error)
            else:
                # spec: Hedge!Answer
                self._hedged.rows.policy.won += isinstance(batch, HedgingBatch) and error is None
                if batch is not attempt.leader:
                    assert isinstance(batch, HedgingBatch)
                    attempt.hedges.remove(batch)
                    slower = attempt.leader
                    calls = self._as_known(slower.waited_for())
                    self._move_rows(attempt, batch)
                    self._supersede(slower, calls)
                self._end_others(attempt)
                super().batch_ended(batch, results, error)
        finally:
            if isinstance(batch, HedgingBatch):
                for call in batch.calls:
                    self._hedged.known_as.pop(call, None)
        rows = self._hedged.rows
        if rows.is_learning and rows.policy.after is not None:
            rows.watch_all(self.clock())

    def _one_failed(self, attempt: BatchesOfAttempt, batch: BatchExecution, error: BaseException) -> None:
        """A call failed while others of its attempt run: they go on."""
        # spec: Hedge!Fail
        is_leader = batch is attempt.leader
        calls = batch.waited_for() if is_leader else batch.calls
        known = self._as_known(calls)
        self.bill_error(known, error)
        if lack_in(error) is not None:
            # It has not come to its end.
            self.policies.load.give_back(calls)
        else:
            super().observe(known, error, self.clock() - known[0].began)
        if not is_leader:
            attempt.hedges.remove(batch)  # type: ignore[arg-type]
            return
        self._disarm(batch)
        self._move_rows(attempt, attempt.hedges.pop(0))
        if self.times.attempt is not None:
            # The time of an attempt is that of all its calls.
            attempt.leader.deadline = self.times.attempt.arm_rest(
                attempt.leader, self.clock() - attempt.began
            )

    def _move_rows(self, attempt: BatchesOfAttempt, batch: HedgingBatch) -> None:
        """Have `batch` carry the rows of its attempt from now on."""
        before, attempt.leader = attempt.leader, batch
        inquiry = self._batches.search.inquiry
        if inquiry is not None and inquiry.leader is before:
            inquiry.leader = batch
        self._disarm(before)
        self._hedged.attempts.pop(before, None)
        for call in before.calls:
            self._hedged.known_as.pop(call, None)
        rows = batch.rows()
        for hedge, call in zip(batch.calls, rows, strict=True):
            assert isinstance(hedge, HedgingCall)
            if call.execution is before:
                call.execution = batch
                self._hedged.known_as[call] = hedge
                if hasattr(hedge, "endpoint"):
                    call.endpoint = hedge.endpoint
        before.left = 0
        batch.calls = rows
        batch.left = len(batch.waited_for())

    def _as_known(self, calls: Sequence[Call]) -> list[Call]:
        """The calls by which policies know the one that carries these rows."""
        known = self._hedged.known_as
        return [known.get(call, call) for call in calls] if known else [*calls]

    def _end_others(self, attempt: BatchesOfAttempt) -> None:
        """End an attempt: its calls that still run beside the leader are cancelled."""
        self._hedged.rows.end(attempt)
        self._hedged.attempts.pop(attempt.leader, None)
        for batch in attempt.hedges:
            self._hedged.attempts.pop(batch, None)
            self._supersede(batch, batch.calls)
        attempt.hedges.clear()

    def _supersede(self, batch: BatchExecution, calls: Sequence[Call]) -> None:
        """Cancel a call that its rows need no longer. calls: as policies know them."""
        batch.left = 1
        self.runner.revoke(batch, calls[0])
        super().observe(calls, CallSuperseded(), self.clock() - calls[0].began)

    def observe(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Report an attempt of `calls` to the policies, which know the call that ended by its hedges."""
        known = self._as_known(calls)
        if known[0] is not calls[0]:
            seconds = self.clock() - known[0].began
        super().observe(known, error, seconds)

    def revoke(self, call: Call) -> None:
        """Take `call` out of its attempt, whose calls are cancelled when no row is left."""
        # spec: Hedge!RowLeaves, Hedge!TimeOut
        batch = call.execution
        super().revoke(call)
        attempt = self._hedged.attempts.get(batch)
        if attempt is not None and not batch.left:
            self._end_others(attempt)

    def _attempt_timed_out(self, batch: Any) -> None:
        super()._attempt_timed_out(batch)
        for call in batch.calls:
            self._hedged.known_as.pop(call, None)

    def fail_call(self, call: Call, error: CallFailed | CallTimeout) -> None:
        """A row has failed for good, perhaps by a policy that raised when its hedge was to begin."""
        first = call.hedges
        if first is None:
            super().fail_call(call, error)
        elif first.execution is not None:
            self.revoke(first)
            self.fail_call(first, error)
