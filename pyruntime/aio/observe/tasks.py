"""What one task of a job has done. A value without state: safe in any thread."""

from __future__ import annotations

from typing import NamedTuple

from pillarbox.aio.observe.totals import Totals


class TaskTotals(NamedTuple):
    """The totals of one operator in one task, over the task's attempts."""

    operator: int
    """The operator's number within the `Progress`, from 0."""
    stage: int
    """Spark's number of the stage."""
    partition: int
    """The partition."""
    attempts: int
    """Attempts of the task that have been seen."""
    running: bool
    """Whether an attempt runs."""
    totals: Totals
    """What they have done; rows are those of the latest attempt."""
