"""Decides what a row that failed for good gives: the end of the job, or a result that stands for it.

Confined to the mailbox thread.
"""

# A fraction of failed rows (`stop_after=0.01`) says little of the first few rows, and a job that ends with
# its first row because one of one has failed helps nobody: so a fraction counts from `FRACTION_FROM` rows
# on, and at the end of the input. A number counts at once.

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from pillarbox.aio.calls import Call
from pillarbox.aio.causes import Cause, cause_of
from pillarbox.aio.errors import (
    CallFailed,
    CallTimeout,
    ErrorInfo,
    Failed,
    KeptError,
    NotCalled,
    NothingSucceeded,
    TooManyFailures,
    describe,
    said,
    shorten,
)
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import UNSET, Options

log = logging.getLogger("pillarbox")

FRACTION_FROM = 100
"""Rows that must have finished before a fraction of failed ones ends a job; at the end it always counts."""

LEAST_ROWS = 10
"""Rows that a job must have before it counts that all of them, or most, have failed."""


class FailureCounts(NamedTuple):
    """The failures so far, in a snapshot. Any thread."""

    errors: int
    by_type: dict[str, int]
    last: ErrorInfo | None


class FirstFailure(NamedTuple):
    """The error of the first row that failed for good. Any thread."""

    error: CallFailed | CallTimeout
    cause: Cause | None
    """The cause of which all failed rows failed; None where there are several, or no floor."""


class ErrorPolicy:
    """Decides by the options what a failure gives: a result, or an error that ends the job."""

    __slots__ = (
        *("_cause", "_clock", "_fallback", "_first", "_floor", "_last", "_logged", "_meter", "_policy"),
        *("_redact", "_stop_after"),
    )

    def __init__(self, options: Options, meter: Meter, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._policy = options.errors.mode
        self._stop_after = options.errors.stop_after
        self._fallback = options.timeout.fallback
        self._redact = options.errors.redaction
        self._meter = meter
        self._logged: set[str] = set()
        self._first: CallFailed | CallTimeout | None = None
        self._last: CallFailed | CallTimeout | None = None
        # None once a row has not failed.
        self._floor = options.errors.floor
        # What all rows so far have failed with; None before the first, and where that is several things.
        self._cause: Cause | None = None

    def of_failure(self, call: Call, error: CallFailed | CallTimeout, finished: int) -> Any:
        """The result that stands for `call`; raises the error that ends the job.

        finished: rows that have finished, this one included.
        """
        if isinstance(error, CallTimeout) and self._fallback is not UNSET:
            try:
                return self._fallback(call.row) if callable(self._fallback) else self._fallback
            except BaseException as raised:
                error = CallFailed(call.attempt, raised)
        meter = self._meter
        meter.errors += 1
        cause = error.cause if isinstance(error, CallFailed) else error
        kind = type(cause).__name__
        meter.errors_by_type[kind] += 1
        redact = self._redact
        error.row = None if redact.rows else shorten(call.row, redact=redact)
        if isinstance(error, CallFailed):
            error.redact = redact
        if self._policy == "fail":
            raise error.redacted() if isinstance(error, CallFailed) else error
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("a row failed, the first one for %s: %s", kind, error)
        self._last = error
        self._first = self._first or error
        if self._floor is not None:
            self._check_floor(cause_of(cause), 1, finished)
        self._check_early(finished)
        latency = call.elapsed(self._clock()) if call.attempt else 0.0
        return Failed(describe(error, latency))

    def count_shared(self, failed: Failed, rows: int, finished: int) -> None:
        """So many rows more have the outcome `failed`; raises the error that ends the job.

        finished: rows that have finished, these included.
        """
        if failed.not_called:
            self._meter.not_called += rows
            return
        self._meter.errors += rows
        self._meter.errors_by_type[failed.info.type] += rows
        if self._last is None:
            # Found in the ledger, which keeps what was said of the error.
            self._last = _kept(failed.info)
        if self._floor is not None:
            self._check_floor(cause_of(_kept(failed.info)), rows, finished)
        self._check_early(finished)

    def _check_early(self, finished: int) -> None:
        if isinstance(self._stop_after, int) or finished >= FRACTION_FROM:
            self.check(finished)

    def _check_floor(self, cause: Cause, rows: int, finished: int) -> None:
        """So many rows more have failed with `cause`; raise NothingSucceeded if all have, and are enough."""
        errors, floor = self._meter.errors, self._floor
        if errors < finished or floor is None:
            self._floor = None
        elif errors == rows:
            self._cause = cause
        elif cause != self._cause:
            self._cause = None
        if self._floor is not None and self._cause is not None and errors >= self._floor:
            self._end(finished, self._floor)

    def _end(self, finished: int, floor: int) -> None:
        last = self._last
        assert last is not None
        raise NothingSucceeded(
            self._meter.errors, finished, floor, last.redacted() if isinstance(last, CallFailed) else last
        )

    def check_end(self, finished: int) -> None:
        """All rows have finished: raise if more failed than are allowed, or all in silence; warn if most did.

        With `errors="column"` nothing is silent: whoever reads a result has its error beside it.
        """
        errors, first = self._meter.errors, self.first
        if (
            self._floor is not None
            and self._policy != "column"
            and errors == finished >= min(self._floor, LEAST_ROWS)
        ):
            self._end(finished, self._floor)
        self.check(finished)
        if first is not None and 2 * errors > finished >= LEAST_ROWS:
            nothing = "nothing succeeded: " if errors == finished else ""
            log.warning("%s%d of %d rows failed, the first with: %s", nothing, errors, finished, first.error)

    def check(self, finished: int) -> None:
        """Raise `TooManyFailures` if more rows failed than are allowed of `finished`."""
        limit = self._stop_after
        if limit is not None and self._last is not None:
            errors = self._meter.errors
            if errors > (limit if isinstance(limit, int) else limit * finished):
                last = self._last
                if isinstance(last, CallFailed):
                    last.redacted()
                raise TooManyFailures(errors, finished, limit, last)

    @property
    def first(self) -> FirstFailure | None:
        """The first failure; None before."""
        error = self._first or self._last
        return None if error is None else FirstFailure(error, None if self._floor is None else self._cause)

    def snapshot(self) -> FailureCounts:
        """The failures so far, of which `Errors.stop_after` decides."""
        last = self._last
        info = None if last is None else describe(last, 0.0)
        return FailureCounts(self._meter.errors, dict(self._meter.errors_by_type), info)

    def restore(self, counts: FailureCounts) -> None:
        """Count on from a snapshot."""
        self._meter.errors += counts.errors
        self._meter.errors_by_type.update(counts.by_type)
        if counts.last is not None:
            self._last = _kept(counts.last)

    def told(self, call: Call, error: BaseException) -> str:
        """The class of an error of `call`, and what it says."""
        return f"{type(error).__name__}: {said(error, self._redact)}"

    def of_no_call(self, call: Call, limit: str) -> Failed:
        """The result that stands for a row that is not called, or not again, since `limit` is used up."""
        self._meter.not_called += 1
        if call.error is None:
            return Failed(describe(NotCalled(f"not called, {limit} is used up"), 0.0), not_called=True)
        before = f"the attempt before ended with {self.told(call, call.error)}"
        reason = f"not called again, {limit} is used up; {before}"
        return Failed(
            describe(NotCalled(reason, attempts=call.attempt), call.elapsed(self._clock())), not_called=True
        )


def _kept(info: ErrorInfo) -> CallFailed:
    return CallFailed(info.attempts, KeptError(f"{info.type}: {info.message}"))
