"""Which of the rows that wait are called together, and when. Confined to the mailbox thread.

Rows stay in `waiting` until their batch is called, so a batch goes on filling while it waits for a slot or
for the rate.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pillarbox.aio.errors import CallFailed

if TYPE_CHECKING:
    from pillarbox.aio.batch import Batch
    from pillarbox.aio.scheduler import Call, CallScheduler

TICK = 0.0005
"""Seconds by which a timer may be early: some event loops count milliseconds."""


class BatchFiller:
    """Fills batches from the front of `waiting`.

    A batch is ready when it is full, when its oldest row has waited for `linger`, and when no row can come
    before a result leaves. Each row knows since when it waits, so a timer decides nothing: it only has the
    rows looked at again.
    """

    def __init__(self, scheduler: CallScheduler, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduler = scheduler
        self._waiting = scheduler.waiting
        self._batch = batch
        self._loop = loop
        self._newest: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        throttle = scheduler.throttle
        self._weighs = batch.weight is not None or (throttle is not None and throttle.weighs)

    def close(self) -> None:
        """Nothing is looked at again."""
        if self._timer is not None:
            self._timer.cancel()

    def note_arrivals(self) -> None:
        """Note when the rows came that have come since the last time, and what they weigh."""
        waiting = self._waiting
        newest = self._newest
        if not waiting or waiting[-1] is newest:
            return
        now = self._loop.time()
        if self._weighs:
            self._weigh_arrivals(now)
        else:
            for call in reversed(waiting):
                # Those that have been tried are before all others.
                if call is newest or call.attempt:
                    break
                call.waits_since = now
        self._newest = waiting[-1] if waiting else None

    def _weigh_arrivals(self, now: float) -> None:
        waiting = self._waiting
        come = []
        while waiting and waiting[-1] is not self._newest and not waiting[-1].attempt:
            come.append(waiting.pop())
        failed = []
        throttle = self._scheduler.throttle
        for call in reversed(come):
            call.waits_since = now
            try:
                call.weight = self._batch.weight_of(call.row)
                if throttle is not None:
                    throttle.weigh(call)
            except BaseException as raised:
                failed.append((call, raised))
            else:
                waiting.append(call)
        for call, error in failed:
            if self._scheduler.is_closed:
                return
            self._scheduler.fail_call(call, CallFailed(call.attempt, error))

    def rows_now(self, more: bool) -> int:
        """How many rows, the first ones that wait, make a batch that is ready; 0 for none.

        more: whether rows may come that pause now.
        """
        rows, full = self._fill()
        if full or (rows and self._is_due(more)):
            return rows
        return 0

    def _fill(self) -> tuple[int, bool]:
        """How many rows the next batch takes of those that wait, and whether it is full then."""
        size = self._batch.size
        most = self._batch.max_weight
        if most is None:
            rows = len(self._waiting)
            return (rows, False) if rows < size else (size, True)
        weight = 0.0
        rows = 0
        for call in self._waiting:
            weight += call.weight
            if rows and weight > most:
                return rows, True
            rows += 1
            if rows == size or weight >= most:
                return rows, True
        return rows, False

    def _is_due(self, more: bool) -> bool:
        """Whether a batch that is not full waits no longer; otherwise there is a timer that asks again."""
        scheduler = self._scheduler
        linger = self._batch.linger
        if not linger or not (more or scheduler.more_rows()):
            return True
        if self._timer is not None:
            # It was set for rows that came no later than any that waits now.
            return False
        due = min([call.waits_since for call in self._waiting]) + linger
        if self._loop.time() + TICK >= due:
            return True
        self._timer = self._loop.call_at(due, scheduler.guarded, self._look_again)
        return False

    def _look_again(self) -> None:
        # The rows that the timer was set for may be gone: those that wait now have times of their own.
        self._timer = None
        self._scheduler.runner.dispatch()
