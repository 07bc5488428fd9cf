"""The input side of an operator: lets rows into its window, and finds results of those that are not called.

Confined to the mailbox thread.
"""

# To yield until there is room, as Flink's operator does: a nested loop on an event loop blocks the coroutines
# that would make the room. The operator takes what it has room for, and the rest stays at the head of its
# link.

from __future__ import annotations

from itertools import repeat
from typing import Any

from pillarbox.aio.calls import Call, CallState
from pillarbox.aio.chained import chained_call
from pillarbox.aio.emission import ResultEmitter
from pillarbox.aio.errors import CallFailed, Failed
from pillarbox.aio.held_bytes import HeldBytes
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.shared_calls import WAITING
from pillarbox.aio.sizes import size_of
from pillarbox.aio.states import FinishedRow
from pillarbox.task.protocols import LeftOut, RowBatch


class RowAdmission:
    """Makes a call of each row that has room; it waits for its slot, or has its result at once.

    is_behind: rows come from another function of the chain. weights: counts rows; None where no bytes are
    limited. `restored` are rows of a snapshot that wait for their admission, with their states. `is_stuck`:
    rows wait in front of the operator. `has_ended`: no row comes any more.
    """

    __slots__ = (
        *("has_ended", "is_stuck", "restored", "_emitter", "_flights", "_is_behind", "_meter", "_queue"),
        *("_scheduler", "_session", "_waiting", "_weights"),
    )

    def __init__(
        self,
        scheduler: CallScheduler,
        emitter: ResultEmitter,
        session: LedgerSession | None,
        weights: HeldBytes | None,
        *,
        is_behind: bool,
    ) -> None:
        self._scheduler = scheduler
        self._emitter = emitter
        self._session = session
        self._weights = weights
        self._is_behind = is_behind
        self._queue = scheduler.queue
        self._meter = scheduler.meter
        self._waiting = scheduler.waiting
        self._flights = scheduler.flights
        self.restored: dict[Call, CallState | FinishedRow] = {}
        self.is_stuck = self.has_ended = False

    @property
    def has_room(self) -> bool:
        """True if a row may come in, by its number and by the bytes of those that are held.

        What is to be restored comes first.
        """
        queue, weights = self._queue, self._weights
        held = len(queue)
        if held >= queue.capacity or queue.restoring or self._scheduler.is_closed:
            return False
        return weights is None or held == 0 or weights.left() > 0

    def may_get_rows(self) -> bool:
        """True if rows may come before a result has left; otherwise a batch of calls is not waited for."""
        return not self.has_ended and not self.is_stuck and self.has_room

    def take(self, batch: RowBatch) -> bool:
        """Let in as many rows of `batch` as there is room for; True once all of them were."""
        room = self._room(batch.row_bytes)
        if room > 0:
            if batch.is_left_out:
                self._take_left_out(batch, room)
            else:
                self._admit(batch, room)
        took_all = not len(batch)
        self.is_stuck = not took_all
        return took_all

    def _room(self, row_bytes: int | None) -> int:
        """Rows of `row_bytes` each that may come in now."""
        queue, weights = self._queue, self._weights
        held = len(queue)
        room = queue.capacity - held
        if weights is None:
            return room
        if held:
            # Where nothing is held, one row is let in whatever it weighs, or nothing would ever come out.
            left = weights.left()
            return min(room, max(0, left // row_bytes if row_bytes else left))
        return min(room, max(1, weights.most // row_bytes)) if row_bytes else room

    def _admit(self, batch: RowBatch, room: int) -> None:
        """Let rows of `batch` in, at most `room`, and no more than the limit of bytes allows."""
        size, weights, session = batch.row_bytes, self._weights, self._session
        if (
            self._flights is not None
            or (weights is not None and size is None)
            or self._is_behind
            or self._scheduler.policies.stack.admit
        ):
            self._admit_each(batch, room)
            return
        # The usual case, on the path of every row.
        put = self._queue.put
        calls = list(map(Call, batch.take(room), repeat(size or 0)))
        for call in calls:
            call.handle = put(call)
        done = [] if session is None else session.lookup_all(calls)
        known = {call for call, _ in done}
        self._waiting.extend([call for call in calls if call not in known] if known else calls)
        self._count_in(len(calls), done)
        if weights is not None:
            weights.held += len(calls) * (size or 0)

    def _admit_each(self, batch: RowBatch, room: int) -> None:
        """Let rows in one by one: each is weighed, joins an equal one, or is answered by a policy."""
        put, append, size = self._queue.put, self._waiting.append, batch.row_bytes
        flights, weights, session, is_behind = self._flights, self._weights, self._session, self._is_behind
        stack = self._scheduler.policies.stack
        done: list[tuple[Call, Any]] = []
        admitted = 0
        position = batch.position
        for row in batch.take(room):
            held = (
                size_of(row.row if is_behind else row) if size is None and weights is not None else size or 0
            )
            call = chained_call(Call, row, held) if is_behind else Call(row, held)
            call.handle = put(call)
            admitted += 1
            if isinstance(call.row, LeftOut):
                self._meter.rows_in -= 1
                self._emitter.pass_left_out(call)
            elif type(call.row) is Failed and is_behind:
                # It keeps its place, and is not called.
                self._emitter.complete(call, call.row)
            elif stack.admit and (answer := stack.find(call)) is not None:
                done.append((call, answer))
            elif session is not None and (found := session.lookup(call)) is not None:
                done.append((call, found))
            elif flights is None:
                append(call)
            else:
                try:
                    self._join(flights.join(call), call)
                except BaseException as error:
                    done.append((call, error))
            if weights is not None and size is None:
                weights.held += held
                if weights.held >= weights.most:
                    batch.position = position + admitted
                    break
        self._count_in(admitted, done)
        if weights is not None and size is not None:
            weights.held += admitted * size

    def _take_left_out(self, batch: RowBatch, room: int) -> None:
        for row in batch.take(room):
            call = Call(row, batch.row_bytes or 0)
            call.handle = self._queue.put(call)
            if self._weights is not None:
                self._weights.held += call.held
            self._emitter.pass_left_out(call)

    def _count_in(self, admitted: int, done: list[tuple[Call, Any]]) -> None:
        """So many rows were let in; some have a result by now, which was found, or cannot be called."""
        self._meter.rows_in += admitted
        for call, outcome in done:
            if self._scheduler.is_closed:
                return
            if isinstance(outcome, tuple):
                self._scheduler.take_found(call, outcome[0])
            elif outcome is WAITING:
                self._meter.shared += 1
            else:
                self._scheduler.fail_call(call, CallFailed(0, outcome))

    def _join(self, found: Any, call: Call) -> None:
        if found is None:
            self._waiting.append(call)
            return
        self._meter.shared += 1
        if found is not WAITING:
            self._scheduler.hand_on(call, found[0])

    # -- rows of a snapshot -------------------------------------------------------------------

    def admit_restored(self) -> None:
        """Admit what was restored, as far as there is room; what needs its call waits for it."""
        # spec: Chain!AdmitRestored, Operator!Readmit
        scheduler, session, flights = self._scheduler, self._session, self._flights
        while (admitted := self._queue.admit_restored()) is not None:
            handle, call = admitted
            call.handle = handle
            state = self.restored.pop(call)
            found = None if session is None else session.lookup(call, is_known=True)
            if found is not None:
                self._count_in(0, [(call, found)])
                continue
            if isinstance(state, FinishedRow):
                scheduler.restore_call(call, state)
                continue
            if (answer := scheduler.policies.stack.find(call)) is not None:
                self._count_in(0, [(call, answer)])
                continue
            try:
                joined = None if flights is None else flights.join(call)
            except BaseException as error:
                self._count_in(0, [(call, error)])
                continue
            if joined is None:
                scheduler.restore_call(call, state)
            else:
                self._join(joined, call)
        self._emitter.ask_if_completed()
        scheduler.runner.dispatch()
