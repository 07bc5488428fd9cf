"""Interfaces by which a job is observed: `JobProgress` on the driver, `TotalsReporter` in a task.

The operator's side knows these alone. `pillarbox.spark.progress` has what implements them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pillarbox.aio.totals import Totals


class TotalsReporter(Protocol):
    """Sends the totals of one task to the driver. Belongs to the task's thread."""

    def close(self) -> None:
        """Send the last totals."""


class TotalsChannel(Protocol):
    """The way of totals from the tasks of one operator to the driver. A value that pickles."""

    def reporter(self, totals: Callable[[], Totals | None]) -> TotalsReporter:
        """Start sending what `totals` returns. Called in a task, on its thread."""


@runtime_checkable
class JobProgress(Protocol):
    """Receiver of the totals of a job, as `progress=` takes it: a `Progress`. For the driver's thread."""

    def new_operator(self) -> TotalsChannel:
        """Return the channel for the tasks of one operator. Raises RuntimeError while it does not run."""


def check_progress(progress: object) -> JobProgress | None:
    """Accept a `JobProgress` or None. Raises TypeError for anything else."""
    if progress is None or (not isinstance(progress, type) and isinstance(progress, JobProgress)):
        return progress
    also = "; True is for a table without Spark" if progress is True else ""
    raise TypeError(f"progress={progress!r}: must be a pillarbox.spark.Progress or None{also}")
