"""Tells the driver of tasks whose rows failed: counts and the first error, by an accumulator of Spark's.

`outcomes_of` and `FailedRows.addInPlace` are for the driver, `report_outcomes` for the end of a task.
"""

# A task ends with an error when nothing in it succeeds, but one of a few rows cannot know whether that is the
# job, and a job that fails by half ends well with Spark, which knows no such thing. The log of an executor is
# read by nobody. A `Progress` would tell, but most jobs have none. An accumulator reaches the driver with the
# end of each task, whoever runs the job, streams too. Spark Connect has none: its driver is another process.

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from pillarbox.aio.causes import Cause
from pillarbox.aio.errors import (
    MESSAGE_CHARACTERS,
    CallFailed,
    CallTimeout,
    NothingSucceeded,
    TooManyFailures,
    cut,
)
from pillarbox.aio.policies.errors import LEAST_ROWS, FirstFailure
from pillarbox.spark.ledger_plan import is_connect

if TYPE_CHECKING:
    from pillarbox.aio.totals import Totals

log = logging.getLogger("pillarbox")

MAX_FUNCTIONS = 100
"""Functions whose failed rows a worker counts over its tasks."""


class Outcomes(NamedTuple):
    """Rows of tasks that have ended, those that failed, and what the first of them failed with."""

    finished: int = 0
    failed: int = 0
    first: str | None = None
    warned_at: int = 0
    """Failed rows when it was said last; on the driver."""


class FailedRows(AccumulatorParam[Outcomes]):
    """Adds outcomes up; warns on the driver when more than half of the rows failed. name: the function's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def zero(self, value: Outcomes) -> Outcomes:
        """See `AccumulatorParam`."""
        return Outcomes()

    def addInPlace(self, value1: Outcomes, value2: Outcomes) -> Outcomes:
        """See `AccumulatorParam`. On the driver, Spark's thread for accumulators calls it for each task."""
        some = Outcomes(
            value1.finished + value2.finished,
            value1.failed + value2.failed,
            value1.first or value2.first,
            max(value1.warned_at, value2.warned_at),
        )
        if TaskContext.get() is not None or 2 * some.failed <= some.finished or some.finished < LEAST_ROWS:
            return some
        # Once, and again when they have doubled.
        if some.failed < 2 * some.warned_at:
            return some
        log.warning(
            "%s: %s%d of %d rows failed in the tasks that have ended, the first with: %s",
            self._name,
            "nothing succeeded: " if some.failed == some.finished else "",
            some.failed,
            some.finished,
            some.first,
        )
        return some._replace(warned_at=some.failed)


def outcomes_of(session: SparkSession | None, name: str) -> Accumulator[Outcomes] | None:
    """The accumulator for one use of the function called `name`; None for a session that has none."""
    if session is None or is_connect(session):
        return None
    made: Accumulator[Outcomes] = session.sparkContext.accumulator(Outcomes(), FailedRows(name))
    return made


_all_failed: dict[str, tuple[Cause, int]] = {}
"""The one cause and number of the rows that failed in the last tasks of this worker, by the function's token.

No row of these tasks did well."""


def report_outcomes(
    token: str,
    floor: int | None,
    outcomes: Accumulator[Outcomes] | None,
    totals: Totals,
    first: FirstFailure | None,
) -> None:
    """Add the rows of a task that ends to `outcomes`. At the end of a task, on its thread.

    token: the identity of the function. floor: as `Errors.floor`. first: the first failure of the task.
    Raises `NothingSucceeded` where all rows of this task, and of those before it in this worker, have failed
    for one cause, and are as many as `floor` says.
    """
    if not totals.results:
        return
    cause = None if first is None else first.cause
    if first is None or cause is None or floor is None or totals.errors < totals.results:
        _all_failed.pop(token, None)
    else:
        before, failed = _all_failed.pop(token, (cause, 0))
        failed = totals.errors + (failed if before == cause else 0)
        if failed >= floor:
            raise with_trace(NothingSucceeded(failed, failed, floor, first.error))
        _all_failed[token] = cause, failed
        while len(_all_failed) > MAX_FUNCTIONS:
            del _all_failed[next(iter(_all_failed))]
    if outcomes is not None:
        text = None if first is None else cut(str(first.error), MESSAGE_CHARACTERS)
        outcomes.add(Outcomes(totals.results, totals.errors, text))


def with_trace(error: CallFailed | CallTimeout | TooManyFailures) -> Exception:
    """The same error with the trace of its cause as text. Any thread."""
    if isinstance(error, TooManyFailures):
        return type(error)(error.failed, error.finished, error.limit, error.cause.with_trace())
    return error.with_trace()
