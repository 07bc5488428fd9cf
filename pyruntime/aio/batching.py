"""Puts rows together into one call: the option `Batch`, and what fills batches by it.

`Batch` is a value without state: safe in any thread. `BatchFiller` is confined to the mailbox thread.
"""

# A batch is not an object while it fills: it is the front of `waiting`. So it goes on filling while it
# waits for a slot or for the rate, a row that times out leaves it like any other that waits, and nothing
# has to be undone when a restart or a time-out comes between. The price is that the weights of rows, where
# they have some, are added up anew at each look.

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed
from pillarbox.validate import (
    check_bool,
    check_duration,
    check_function_or_none,
    check_positive_int,
    check_positive_number,
    naming_arguments,
)

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import CallScheduler

TIMER_SLACK_S = 0.0005
"""Seconds by which a timer may be early: some event loops count milliseconds."""


@naming_arguments
@dataclass(frozen=True)
class Batch:
    """Call the function with a list of rows; it returns a list of as many results, by position.

    size: rows of a batch, at most.
    linger: seconds that a row waits for other rows, at most, while a slot is free; 0 for no wait. A batch
        does not wait if no more rows can arrive.
    weight: a function of the row that returns its weight, 0 or more, such as bytes or tokens. It is called
        once for each row, on the operator's thread; if it raises, its row fails.
    max_weight: total weight of a batch, at most. A heavier row is called alone.
    arrow: for a DataFrame: the function takes a `pyarrow.RecordBatch` (for `async_udf` a `pyarrow.Array` for
        each argument) and may return one, or a NumPy array with one result in each row. Values of rows do not
        become Python objects.

        >>> from pillarbox import Batch, async_map
        >>> async def call(rows):
        ...     return [f"{row} of {len(rows)}" for row in rows]
        >>> list(async_map(["a", "b", "c"], call, batch=Batch(2)))
        ['a of 2', 'b of 2', 'c of 1']

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    size: int = 64
    linger: float = 0.01
    weight: Callable[[Any], float] | None = None
    max_weight: float | None = None
    arrow: bool = False

    def __post_init__(self) -> None:
        check_positive_int("size", self.size)
        check_bool("arrow", self.arrow)
        check_duration("linger", self.linger)
        if (self.weight is None) != (self.max_weight is None):
            raise ValueError(
                f"weight={self.weight!r}, max_weight={self.max_weight!r}: give both or neither: "
                "weight says what a row weighs, max_weight what a batch may"
            )
        if self.weight is not None:
            check_function_or_none("weight", self.weight, "the row")
            check_positive_number("max_weight", self.max_weight)

    def weight_of(self, row: Any) -> float:
        """Weight of `row`; 0 where nothing weighs rows.

        Raises what `weight` raises, and TypeError or ValueError where it gives no finite number of 0 or more.
        """
        if self.weight is None:
            return 0.0
        weight = self.weight(row)
        if isinstance(weight, bool) or not hasattr(weight, "__float__"):
            raise TypeError(f"weight gave {weight!r}: must give a number, 0 or more")
        number = float(weight)
        if not 0.0 <= number < math.inf:
            raise ValueError(f"weight gave {weight!r}: must give a finite number, 0 or more")
        return number


class BatchFiller:
    """Fills batches from the front of `waiting`.

    A batch is ready when it is full, when its oldest row has waited for `linger`, and when no row can come
    before a result leaves. Each row knows since when it waits, so a timer decides nothing: it only has the
    rows looked at again. more_rows: returns True if rows may come before any result has left. most: gives the
    rows of the next batch, at most.
    """

    def __init__(
        self,
        scheduler: CallScheduler,
        batch: Batch,
        more_rows: Callable[[], bool],
        most: Callable[[], int],
    ) -> None:
        self._scheduler = scheduler
        self._more_rows = more_rows
        self._most = most
        self._waiting = scheduler.waiting
        self._batch = batch
        self._loop = scheduler.loop
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
        """Number of rows, the first ones that wait, that make a batch that is ready; 0 for none.

        more: whether rows may come that pause now.
        """
        rows, full = self._fill()
        if full or (rows and self._is_due(more)):
            return rows
        return 0

    def _fill(self) -> tuple[int, bool]:
        """Rows that the next batch takes of those that wait, and True if it is full then."""
        size = self._most()
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
        """Return True if a batch that is not full waits no longer; otherwise have a timer ask again."""
        scheduler = self._scheduler
        linger = self._batch.linger
        if not linger or not (more or self._more_rows()):
            return True
        if self._timer is not None:
            # It was set for rows that came no later than any that waits now.
            return False
        due = min([call.waits_since for call in self._waiting]) + linger
        if self._loop.time() + TIMER_SLACK_S >= due:
            return True
        self._timer = self._loop.call_at(due, scheduler.guarded, self._look_again)
        return False

    def _look_again(self) -> None:
        # The rows that the timer was set for may be gone: those that wait now have times of their own.
        self._timer = None
        self._scheduler.runner.dispatch()
