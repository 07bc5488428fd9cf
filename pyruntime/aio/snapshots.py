"""The state of an async operator in the snapshot of its task: values, for any thread.

A snapshot is references and numbers, taken on the mailbox thread; nobody changes a row or a result
afterwards. It pickles where rows and results do, in any thread, while the task goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pillarbox.aio.calls import CallState
from pillarbox.aio.scheduler import SchedulerState
from pillarbox.task.protocols import Idleness, Watermark


class FinishedRow(NamedTuple):
    """A row that has its result, and is not called again.

    is_durable: whether the ledger has the result; without a ledger nothing waits for one. For one that it has
    not: attempts, those begun; latency, the seconds of the last one.
    """

    row: Any
    result: Any
    cost: float
    is_durable: bool
    attempts: int = 0
    latency: float = 0.0


Entry = CallState | FinishedRow | list[Watermark | Idleness]
"""A list of watermarks and statuses stands for those between rows."""


class AsyncWaitState(NamedTuple):
    """An async operator in a snapshot.

    entries: in the order of admission. finished: rows that had left, for what counts them.
    """

    ordered: bool
    entries: tuple[Entry, ...]
    scheduler: SchedulerState
    finished: int
