"""The states of async operators and their outputs in the snapshot of a task: values, for any thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from pillarbox.aio.calls import Call, CallState
from pillarbox.aio.policies.errors import FailureCounts
from pillarbox.task.protocols import Idleness, Watermark


class SchedulerState(NamedTuple):
    """The part of a snapshot that is about all calls together."""

    failures: FailureCounts
    retries: Any
    calls: int
    cost: float
    policies: tuple[Any, ...] = ()
    """Those of the user's policies, in their order."""


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


class OutputState(NamedTuple):
    """The state of an output of results in a snapshot: references. Any thread, if the rows allow it."""

    taken: int
    """Results that the consumer had taken, which are not among `rows`."""
    rows: tuple[tuple[Call, Any], ...]
    """Results that were collected and not taken, in order."""
    has_ended: bool
    """`MAX_WATERMARK` has come, and does not come again."""
