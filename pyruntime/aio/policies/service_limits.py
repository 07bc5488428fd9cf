"""Limits that a service names: the limiter gets them, and no row is called where none is taken for long.

Confined to the mailbox thread.
"""

# A service that says "come back tomorrow" is neither overloaded nor away: to wait for it as for an outage
# costs ten minutes and then fails each row, to go on calling costs a refused request for each. So no row is
# called any more, as where a budget is used up: rows that were not called are done by a later run, and a
# ledger has the others.
#
# One bad header must not end a job. A code such as `insufficient_quota` says what it means, and so does a
# refusal beside a limit of which nothing is left; of a status 402 or a long `Retry-After` alone several in a
# row are needed, and no row that finishes between them.

from __future__ import annotations

import time
from collections.abc import Sequence

from pillarbox.aio.calls import Call
from pillarbox.aio.endpoints import FAILED_AT
from pillarbox.aio.errors import QuotaUsedUp
from pillarbox.aio.limits.headers import LimitReading, headers_of, read_limits
from pillarbox.aio.options import Options
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policy import Again, CallPolicy, PolicyServices
from pillarbox.aio.retry import MAX_OUTAGE_S
from pillarbox.aio.totals import clock_time
from pillarbox.aio.usage import Usage
from pillarbox.wire import Kind, Reading, read_error

IN_A_ROW = 3
"""Refusals that have to agree where one alone may be a mistake."""
REFUSED_STATUS = 429


class ServiceLimitsPolicy(CallPolicy):
    """Reads the limits that answers name, and finds out that the service takes no call for long.

    load: has the limiter, and has no row called any more.
    """

    needs_answers = False

    def __init__(self, options: Options, load: LoadPolicy) -> None:
        rate, retry = options.rate, options.retry
        self._learns = rate is None or bool(rate.learn)
        self.longest = MAX_OUTAGE_S if retry is None or not retry.max_outage else retry.max_outage
        """Seconds for which an outage is waited for, at most: a quota that is gone for longer is gone."""
        self._mode = options.errors.mode
        self._redact = options.errors.redaction
        self._load = load
        self._in_a_row = 0
        self._finished = -1
        self._is_gone = False

    def open(self, services: PolicyServices) -> None:
        """Take what the operator gives."""
        self._services = services

    def ended(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Look at a refusal; end the calls where it says that there will be none for long."""
        if self._is_gone or error is None:
            return
        reading = read_error(error)
        if not _is_refusal(reading):
            return
        limits = read_limits(headers_of(error), time.time())
        # Of a client with several addresses each has limits of its own.
        if limits and self._learns and not hasattr(error, FAILED_AT):
            self._load.learn(calls, limits)
        why = self._reason(reading, limits)
        if why is None:
            return
        if self._mode == "fail" and reading.kind is Kind.OUT_OF_QUOTA:
            # The row fails for good, and the job with it.
            return
        self._is_gone = True
        if self._mode == "column":
            self._load.exhaust(why)
        else:
            # Nothing would show that rows are missing.
            self._services.stop(QuotaUsedUp(why, self._redact.sealed(error)))

    def again(self, calls: Sequence[Call], error: BaseException) -> Again | None:
        """Have a refused row wait, so that it counts as not called again, and not as one that failed."""
        if not self._is_gone or not _is_refusal(read_error(error)):
            return None
        return Again(0.0, "refusal")

    def report_limits(self, calls: Sequence[Call], headers: object) -> None:
        """Take what an answer to `calls` says of limits in its headers."""
        if self._learns and (limits := read_limits(headers, time.time())):
            self._load.learn(calls, limits)

    def use(self, calls: Sequence[Call], usage: Usage) -> None:
        """Count the tokens that a call has used against what was reserved for it."""
        limiter = self._load.limiter
        if self._learns and limiter is not None:
            used = usage.input_tokens, usage.output_tokens, usage.tokens
            age = max(0.0, self._services.clock() - calls[0].began)
            limiter.use(self._load.units_in(calls), used, age)

    def _reason(self, reading: Reading, limits: Sequence[LimitReading]) -> str | None:
        """Return what is used up, in words; None where that is not certain."""
        if reading.kind is Kind.OUT_OF_QUOTA:
            is_certain = reading.code is not None
            return "the credit of the account" if is_certain or self._count() else None
        asked, longest = reading.retry_after, self.longest
        # Of a quota whose calls come back one by one a refusal names the time of the next one.
        gone_for = max([limit.reset or 0.0 for limit in limits if limit.remaining < 1.0], default=0.0)
        if asked is not None and asked <= longest:
            self._in_a_row = 0
            return None
        if gone_for <= longest:
            if asked is None or not self._count():
                return None
            gone_for = asked
        elif asked is not None:
            gone_for = asked
        elif not self._count():
            return None
        return f"the quota of the service, which is there again at {clock_time(gone_for)},"

    def _count(self) -> bool:
        """Count a refusal; True if it is one of several, without a row that finished between them."""
        finished = self._services.finished()
        self._in_a_row = self._in_a_row + 1 if finished == self._finished else 1
        self._finished = finished
        return self._in_a_row >= IN_A_ROW


def _is_refusal(reading: Reading) -> bool:
    return reading.kind is Kind.OUT_OF_QUOTA or (
        reading.kind is Kind.OVERLOADED and reading.status == REFUSED_STATUS
    )
