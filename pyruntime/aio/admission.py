"""The input side of an operator: lets rows into its window, and finds results of those that are not called.

Confined to the mailbox thread.
"""

# To yield until there is room, as Flink's operator does: a nested loop on an event loop blocks the coroutines
# that would make the room. The operator takes what it has room for, and the rest stays at the head of its
# link.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.aio.call_sharing import without
from pillarbox.aio.calls import HANDLE, Call, CallState
from pillarbox.aio.emission import ResultEmitter
from pillarbox.aio.errors import CallFailed, Failed
from pillarbox.aio.held_bytes import HeldBytes
from pillarbox.aio.in_flight import WAITING, Shared
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.sizes import size_of
from pillarbox.aio.states import FinishedRow
from pillarbox.kernel.alike import Copier
from pillarbox.task.protocols import LeftOut, RowBatch

_calls_of = Copier(Call, "row")


class RowAdmission:
    """Makes a call of each row that has room; it waits for its slot, or has its result at once.

    call_of: makes the call of a row that another function of a chain gave; None for the first function.
    weights: counts rows; None where no bytes are limited. beside: gives the bytes that the call of a row
    holds besides the row; None for none worth counting. `restored` are rows of a snapshot that wait for their
    admission, with their states. `is_stuck`: rows wait in front of the operator. `has_ended`: no row comes
    any more.
    """

    __slots__ = (
        *("has_ended", "is_stuck", "restored", "_emitter", "_call_of", "_meter", "_queue"),
        *("_beside", "_scheduler", "_waiting", "_weights"),
    )

    def __init__(
        self,
        scheduler: CallScheduler,
        emitter: ResultEmitter,
        weights: HeldBytes | None,
        *,
        call_of: Callable[[Any, int], Call] | None,
        beside: Callable[[Any], int] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._beside = None if weights is None else beside
        self._emitter = emitter
        self._weights = weights
        self._call_of = call_of
        self._queue = scheduler.queue
        self._meter = scheduler.meter
        self._waiting = scheduler.waiting
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
        size, weights = batch.row_bytes, self._weights
        is_alike = weights is None or size is not None
        if self._call_of is not None or self._beside is not None or not is_alike:
            self._admit_each(batch, room)
            return
        # The usual case, on the path of every row.
        put = self._queue.put
        calls: list[Call] = _calls_of(Call(None, size or 0), batch.take(room))
        HANDLE.put_each(calls, [*map(put, calls)])
        self._call(calls, len(calls))
        if weights is not None:
            weights.held += len(calls) * (size or 0)

    def _admit_each(self, batch: RowBatch, room: int) -> None:
        """Let rows in one by one: each is weighed, or comes from another function."""
        put, size = self._queue.put, batch.row_bytes
        weights, call_of, beside = self._weights, self._call_of, self._beside
        is_behind = call_of is not None
        # Rows that are alike are counted together, at the end.
        is_alike = size is not None and beside is None
        calls: list[Call] = []
        admitted = 0
        position = batch.position
        for row in batch.take(room):
            held = (
                size_of(row.row if is_behind else row) if size is None and weights is not None else size or 0
            )
            if beside is not None:
                held += beside(row.row if is_behind else row)
            call = Call(row, held) if call_of is None else call_of(row, held)
            call.handle = put(call)
            admitted += 1
            if isinstance(call.row, LeftOut):
                self._meter.rows_in -= 1
                self._emitter.pass_left_out(call)
            elif type(call.row) is Failed and is_behind:
                # It keeps its place, and is not called.
                self._emitter.complete(call, call.row)
            else:
                calls.append(call)
            if weights is not None and not is_alike:
                weights.held += held
                if weights.held >= weights.most:
                    batch.position = position + admitted
                    break
        self._call(calls, admitted)
        if weights is not None and size is not None and is_alike:
            weights.held += admitted * size

    def _call(self, calls: list[Call], admitted: int) -> None:
        """Have rows called that need it; so many were let in."""
        scheduler = self._scheduler
        done = scheduler.sharing.admit_all(calls)
        calls = without(calls, done)
        if scheduler.policies.by_key is not None:
            calls = [call for call in calls if scheduler.let_through(call)]
        self._waiting.extend(calls)
        self._count_in(admitted, done)

    def _take_left_out(self, batch: RowBatch, room: int) -> None:
        for row in batch.take(room):
            call = Call(row, batch.row_bytes or 0)
            call.handle = self._queue.put(call)
            if self._weights is not None:
                self._weights.held += call.held
            self._emitter.pass_left_out(call)

    def _count_in(self, admitted: int, done: Sequence[tuple[Call, Any]]) -> None:
        """So many rows were let in; some have a result by now, which was found, or cannot be called."""
        self._meter.rows_in += admitted
        for call, outcome in done:
            if self._scheduler.is_closed:
                return
            if isinstance(outcome, tuple):
                self._scheduler.route.take_found(call, outcome[0])
            elif outcome is WAITING:
                self._meter.shared += 1
            elif isinstance(outcome, Shared):
                self._meter.shared += 1
                self._scheduler.route.hand_on(call, outcome.result)
            else:
                self._scheduler.fail_call(call, CallFailed(0, outcome))

    # -- rows of a snapshot -------------------------------------------------------------------

    def admit_restored(self) -> None:
        """Admit what was restored, as far as there is room; what needs its call waits for it."""
        # spec: Chain!AdmitRestored, Operator!Readmit
        scheduler = self._scheduler
        while (admitted := self._queue.admit_restored()) is not None:
            handle, call = admitted
            call.handle = handle
            state = self.restored.pop(call)
            done = scheduler.sharing.readmit(call, isinstance(state, FinishedRow))
            if done:
                self._count_in(0, done)
            else:
                scheduler.restore_call(call, state)
        self._emitter.ask_if_completed()
        scheduler.runner.dispatch()
