"""The part of an operator in a checkpoint: taken of its window, and put back before a task begins.

Confined to the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from pillarbox.aio.admission import RowAdmission
from pillarbox.aio.calls import Call, CallState, RestoredCall
from pillarbox.aio.chained import chained_call, chained_row
from pillarbox.aio.emission import ResultEmitter
from pillarbox.aio.errors import Failed
from pillarbox.aio.held_bytes import NOT_WEIGHED, HeldBytes
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.sizes import size_of
from pillarbox.aio.states import AsyncWaitState, Entry, FinishedRow
from pillarbox.kernel import WATERMARK


class OperatorSnapshots:
    """Takes and restores the state of one operator.

    is_behind: rows come from another function of the chain. weights: counts rows and results; None where no
    bytes are limited.
    """

    __slots__ = ("_admission", "_emitter", "_is_behind", "_scheduler", "_session", "_weights")

    def __init__(
        self,
        scheduler: CallScheduler,
        emitter: ResultEmitter,
        admission: RowAdmission,
        session: LedgerSession | None,
        weights: HeldBytes | None,
        *,
        is_behind: bool,
    ) -> None:
        self._scheduler = scheduler
        self._emitter = emitter
        self._admission = admission
        self._session = session
        self._weights = weights
        self._is_behind = is_behind

    def take(self) -> AsyncWaitState:
        """Return the rows that were admitted and have not left, with their states for a restart."""
        # spec: Chain!Snapshot, Operator!Snapshot
        kept = {} if self._session is None else self._session.unsaved_results()
        scheduler, restored = self._scheduler, self._admission.restored
        snapshot_call, now = scheduler.snapshot_call, scheduler.clock()
        row_of: Callable[[Call], Any] = chained_row if self._is_behind else attrgetter("row")
        entries: list[Entry] = []
        for element, finished, result in scheduler.queue.snapshot():
            if element is WATERMARK:
                entries.append(list(result))
            elif finished:
                entries.append(FinishedRow(row_of(element), result, element.cost, True))
            elif restored and element in restored:
                entries.append(restored[element])
            elif kept and element in kept:
                not_durable, latency = kept[element]
                entries.append(
                    FinishedRow(row_of(element), not_durable, element.cost, False, element.attempt, latency)
                )
            else:
                state = snapshot_call(element, now)
                entries.append(state._replace(row=row_of(element)) if self._is_behind else state)
        left = scheduler.meter.rows_in - sum(type(each) is not list for each in entries)
        return AsyncWaitState(scheduler.options.ordered, tuple(entries), scheduler.snapshot(), left)

    def restore(self, state: Any, uid: str) -> None:
        """Take over what `take` gave, of the operator `uid` with the same order.

        Raises ValueError for the state of one with another order, and for another state.
        """
        # spec: Chain!Restore, Operator!Restore
        scheduler, meter, weights = self._scheduler, self._scheduler.meter, self._weights
        ordered = scheduler.options.ordered
        if not isinstance(state, AsyncWaitState):
            raise ValueError(
                f"operator {uid!r}: {type(state).__name__} is not the state of an async operator"
            )
        if state.ordered is not ordered:
            raise ValueError(
                f"ordered={ordered}: the snapshot of operator {uid!r} was taken "
                f"with ordered={state.ordered}; restore it so, or begin without it"
            )
        entries: list[tuple[Any, bool, Any]] = []
        for each in state.entries:
            self._emitter.last_mark = None
            if isinstance(each, list):
                entries.append((WATERMARK, True, self._emitter.restore_mark(each)))
                continue
            row = each.row.row if self._is_behind else each.row
            held = 0 if weights is None else size_of(row)
            finished = each if isinstance(each, FinishedRow) and each.is_durable else None
            if finished is not None and weights is not None and type(finished.result) not in NOT_WEIGHED:
                held += size_of(finished.result)
            # The time of one that was not called begins with its first attempt, as that of any other row.
            is_begun = isinstance(each, CallState) and (each.attempts or each.spent)
            kind: type[Call] = RestoredCall if is_begun else Call
            call = chained_call(kind, each.row, held) if self._is_behind else kind(each.row, held)
            call.cost = each.cost
            if self._session is not None and not (self._is_behind and type(row) is Failed):
                # In the order of their admission, in which equal rows are counted; a function behind asks for
                # the keys of those that are finished, too.
                self._session.rows.identify(call)
            if finished is not None:
                entries.append((call, True, finished.result))
            else:
                self._admission.restored[call] = each
                entries.append((call, False, None))
            if weights is not None:
                weights.held += held
            meter.rows_in += 1
        meter.rows_in += state.finished
        scheduler.restore(state.scheduler)
        scheduler.queue.restore(entries)
