"""Counts of a job: `RunStatistics`, and the line that shows them while it runs. Values, for any thread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pillarbox.aio.totals import Totals, compact

RunState = Literal["starting", "running", "finished", "stopped", "cancelled", "failed"]


# Not frozen: a job counts in one of its own, each field on one thread, and gives copies of it.
@dataclass
class RunStatistics:
    """Counts of a job at one moment.

    state: "starting", "running", or how it has ended: "finished" at the end of its source, "stopped" at a
        checkpoint, "cancelled" or "failed".
    restored: the number of the checkpoint, or savepoint, from which this life of the job goes on; None for
    none. rows_written: rows that this life of the job has given to the sink. rows_committed: those of them
        that the sink has committed.
    last_requested: the number of the newest checkpoint whose barrier was put among the rows; None before.
    checkpoints: those that are complete. aborted: those that were begun and could not be written. declined:
        those that the task did not take. last_checkpoint: the number of the newest complete one; None before.
    checkpoint_seconds: from the request of the newest complete one to its commit.
    watermark: the event time that has come through the chain, in seconds since 1970; `-inf` before.
    functions: the counts of each function by its `uid`; None for one that was given alone.

        >>> from pillarbox.job import RunStatistics
        >>> RunStatistics(state="running", rows_written=3).rows_written
        3

    A value; any thread may use it.
    """

    state: RunState = "starting"
    restored: int | None = None
    rows_written: int = 0
    rows_committed: int = 0
    last_requested: int | None = None
    checkpoints: int = 0
    aborted: int = 0
    declined: int = 0
    last_checkpoint: int | None = None
    checkpoint_seconds: float = 0.0
    watermark: float = -math.inf
    functions: Mapping[str | None, Totals] = field(default_factory=dict)


def progress_line(now: RunStatistics, rate: float, since_checkpoint: float | None) -> str:
    """The line that shows a job: rows per second, and the seconds since the last complete checkpoint."""
    functions = list(now.functions.values())
    calls = sum(each.in_flight for each in functions)
    read = functions[0].rows_in if functions else 0
    parts = [
        f"{now.state}: {compact(read)} rows read, {compact(now.rows_written)} written, {compact(rate)}/s",
        f"{calls} calls in flight",
    ]
    if errors := sum(each.errors for each in functions):
        parts.append(f"{compact(errors)} failed")
    if now.last_checkpoint is None:
        parts.append("no checkpoint yet")
    else:
        parts.append(f"checkpoint {now.last_checkpoint} {since_checkpoint or 0.0:.0f} s ago")
    return ", ".join(parts)
