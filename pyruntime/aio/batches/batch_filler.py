"""Fills batches from the front of the rows that wait. Confined to the mailbox thread."""

# A batch is not an object while it fills: it is the front of `waiting`. So it goes on filling while it
# waits for a slot or for the rate, a row that times out leaves it like any other that waits, and nothing
# has to be undone when a restart or a time-out comes between. The price is that the weights of rows, where
# they have some, are added up anew at each look.

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from operator import is_not

from pillarbox.aio.batching import Batch
from pillarbox.aio.calls import ATTEMPT, WAITS_SINCE, Call

TIMER_SLACK_S = 0.0005
"""Seconds by which a timer may be early: some event loops count milliseconds."""


class BatchFiller:
    """Fills batches from the front of `waiting`.

    A batch is ready when it is full, when its oldest row has waited for `linger`, and when no row can come
    before a result leaves. Each row knows since when it waits, so a timer decides nothing: it only has the
    rows looked at again. weigh: gives a row its weights, and raises what a user's function raises; None where
    rows have none. more_rows: returns True if rows may come before any result has left. look_again: called
    when a batch may be due.
    """

    def __init__(
        self,
        batch: Batch,
        loop: asyncio.AbstractEventLoop,
        weigh: Callable[[Call], None] | None,
        more_rows: Callable[[], bool],
        look_again: Callable[[], None],
    ) -> None:
        self._more_rows = more_rows
        self._look_again = look_again
        self._batch = batch
        self._loop = loop
        self._newest: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._weigh = weigh

    def close(self) -> None:
        """Nothing is looked at again."""
        if self._timer is not None:
            self._timer.cancel()

    def note_arrivals(self, waiting: deque[Call]) -> list[tuple[Call, BaseException]]:
        """Note when the rows came that have come since the last time; returns those that cannot be weighed.

        These wait no longer.
        """
        newest = self._newest
        if not waiting or waiting[-1] is newest:
            return []
        now = self._loop.time()
        failed: list[tuple[Call, BaseException]] = []
        if self._weigh is not None:
            failed = self._weigh_arrivals(waiting, self._weigh, now)
        else:
            come = [*takewhile(partial(is_not, newest), reversed(waiting))]
            if not ATTEMPT.holds(come, 0):
                # Those that have been tried are before all others.
                come = [*takewhile(lambda call: not call.attempt, come)]
            WAITS_SINCE.put(come, now)
        self._newest = waiting[-1] if waiting else None
        return failed

    def _weigh_arrivals(
        self, waiting: deque[Call], weigh: Callable[[Call], None], now: float
    ) -> list[tuple[Call, BaseException]]:
        come = []
        while waiting and waiting[-1] is not self._newest and not waiting[-1].attempt:
            come.append(waiting.pop())
        failed: list[tuple[Call, BaseException]] = []
        for call in reversed(come):
            call.waits_since = now
            try:
                weigh(call)
            except BaseException as raised:
                failed.append((call, raised))
            else:
                waiting.append(call)
        return failed

    def rows_now(self, waiting: deque[Call], most: int, more: bool) -> int:
        """Number of rows, the first ones that wait, that make a batch that is ready; 0 for none.

        most: rows of the batch, at most. more: whether rows may come that pause now.
        """
        rows, full = self._fill(waiting, most)
        if full or (rows and self._is_due(waiting, more)):
            return rows
        return 0

    def _fill(self, waiting: deque[Call], size: int) -> tuple[int, bool]:
        """Rows that the next batch takes of those that wait, and True if it is full then."""
        most = self._batch.max_weight
        if most is None:
            rows = len(waiting)
            return (rows, False) if rows < size else (size, True)
        weight = 0.0
        rows = 0
        for call in waiting:
            weight += call.weight
            if rows and weight > most:
                return rows, True
            rows += 1
            if rows == size or weight >= most:
                return rows, True
        return rows, False

    def _is_due(self, waiting: deque[Call], more: bool) -> bool:
        """Return True if a batch that is not full waits no longer; otherwise have a timer ask again."""
        linger = self._batch.linger
        if not linger or not (more or self._more_rows()):
            return True
        if self._timer is not None:
            # It was set for rows that came no later than any that waits now.
            return False
        due = min([call.waits_since for call in waiting]) + linger
        if self._loop.time() + TIMER_SLACK_S >= due:
            return True
        self._timer = self._loop.call_at(due, self._over)
        return False

    def _over(self) -> None:
        # The rows that the timer was set for may be gone: those that wait now have times of their own.
        self._timer = None
        self._look_again()
