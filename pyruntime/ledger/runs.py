"""The job that holds a run, as sessions with a ledger see it: where there are no locks, one job has a run.

Who holds it, and how that is known, is in the ring `objects`. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.keys import Scope
from pillarbox.ledger.ledger import Ledger
from pillarbox.providers import OWN_JOB, PLANNED_JOB, provided


class RunMember(Protocol):
    """The part of a session in a job. Any thread."""

    def check(self) -> None:
        """Raise LedgerError if the job is not known to hold its run, before a call is made."""

    def leave(self) -> None:
        """End the part of the session. Idempotent."""


class RunJob(Protocol):
    """A job that holds a run, or is to. Picklable."""

    def of_stage(self, action: str, stage: int) -> RunJob:
        """The job as a task of Spark's knows it: one action of an application, in one of its stages."""

    def join(
        self, ledger: Ledger, scope: Scope, on_lost: Callable[[LedgerError], None], *, frees: bool
    ) -> RunMember:
        """Have a session take part from now on.

        on_lost: a method of the session, which is not kept alive by it; called on another thread when another
        job has the run. frees: the run is free when the last session of this process has left. Waits until it
        is known whether another job lives. Raises LedgerHeldError for a run that another job holds,
        LedgerError, OSError.
        """


def own_job(ledger: Ledger, plan: str) -> RunJob | None:
    """The job of a plan of this process; None where a run needs no holder. plan: a name by chance."""
    if not ledger.holds_runs:
        return None
    job: RunJob = provided(OWN_JOB, "ledger")(plan)
    return job


def planned_job(
    ledger: Ledger,
    scope: Scope,
    plan: str,
    program: str,
    *,
    is_over: Callable[[int | None], bool | None],
    is_active: Callable[[], bool],
) -> RunJob | None:
    """Hold a run from now on for the tasks of a plan, which may come later; None where a run needs no holder.

    For the driver. program: the application, in words. is_over: says of a stage of another job of this
    application whether its calls have ended; None if not known. is_active: whether the application does
    anything that may end in tasks of the plan. Waits and raises as `RunJob.join` does.
    """
    if not ledger.holds_runs:
        return None
    hold = provided(PLANNED_JOB, "ledger")
    job: RunJob = hold(ledger, scope, plan, program, is_over=is_over, is_active=is_active)
    return job
