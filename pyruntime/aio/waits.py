"""Says what an operator waits for, when nothing goes on for some seconds: in the log, and in its totals.

Confined to the mailbox thread; `WaitReporter.text` is for any thread.
"""

# Each wait has its reason, and each ends by itself or not at all; who looks at a bar that stands still cannot
# tell which. The operator is looked at anyway, for what its time goes on, so that to say it costs a row
# nothing. Three seconds are more than any usual pause, and less than a person takes to worry.

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.aio.calls import time_left
from pillarbox.aio.errors import shorten
from pillarbox.aio.totals import seconds
from pillarbox.redaction import redacted

if TYPE_CHECKING:
    from pillarbox.aio.ledger_session import LedgerSession
    from pillarbox.aio.scheduler import CallScheduler

log = logging.getLogger("pillarbox")

SAY_AFTER_S = 3.0
"""Seconds of waiting after which it is said."""
AGAIN_AFTER_S = (60.0, 300.0)
"""Seconds of waiting after which it is said again; then after each as many more."""


class Wait(NamedTuple):
    """A reason to wait. kind: the same for as long as it is one wait. text: says it as it is now.

    level: that of the log. counts: what changes when something goes on after all; None where nothing counts.
    """

    kind: str
    text: Callable[[], str]
    level: int
    counts: Any = None


class WaitReporter:
    """Logs a wait when it has lasted for `SAY_AFTER_S`, and its end. name: the function's."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.text: str | None = None
        """The wait of now, in words; None while it is not worth saying."""
        self._name = name
        self._clock = clock
        self._wait: Wait | None = None
        self._since = 0.0
        self._says_at = SAY_AFTER_S

    def look(self, wait: Wait | None) -> None:
        """The operator waits so now, or for nothing."""
        now = self._clock()
        before = self._wait
        if wait is None or before is None or (wait.kind, wait.counts) != (before.kind, before.counts):
            if self.text is not None and before is not None:
                log.log(before.level, "%s goes on, after %s", self._name, seconds(now - self._since))
            self._wait, self._since, self.text, self._says_at = wait, now, None, SAY_AFTER_S
            return
        waited = now - self._since
        if waited < SAY_AFTER_S:
            return
        # The holder of a lease, for one, may be called anything.
        self.text = redacted(wait.text())
        if waited >= self._says_at:
            log.log(wait.level, "%s has waited for %s: %s", self._name, seconds(waited), self.text)
            later = [each for each in AGAIN_AFTER_S if each > waited]
            self._says_at = later[0] if later else waited + AGAIN_AFTER_S[-1]


def clock_time(left: float) -> str:
    """The time of day in `left` seconds, and the seconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time.time() + left))} (in {seconds(left)})"


def reason_to_wait(
    scheduler: CallScheduler, session: LedgerSession | None, idle: str, first_row: Callable[[], Any]
) -> Wait | None:
    """Return why an operator waits whose slots are idle for `idle`, one of `SPENT`; None if it does not.

    first_row: gives the row that all others wait for, for their order.
    """
    breaker, throttle, runner = scheduler.breaker, scheduler.throttle, scheduler.runner
    if breaker is not None and breaker.is_outage:
        return Wait("service", breaker.explain_now, logging.WARNING)
    lacking = scheduler.room.waits_for
    if lacking is not None and not runner.in_flight:
        return Wait("process", lambda: f"{lacking}, of which this process has none left", logging.WARNING)
    counts = scheduler.meter.calls, scheduler.meter.results
    if idle == "ledger":
        if session is not None and (reason := session.waits_for) is not None:
            return Wait("ledger", lambda: reason, logging.WARNING, counts)
        return Wait("ledger", lambda: "the disk of the ledger, or room for results", logging.WARNING, counts)
    if throttle is not None and throttle.holds:
        held = throttle.explain_now()
        if held is not None:
            return Wait("rate", lambda: throttle.explain_now() or held, logging.WARNING, counts)
    if idle == "order":
        redact = scheduler.options.errors.redaction

        def slow() -> str:
            row = "one row" if redact.rows else f"row {shorten(first_row(), redact=redact)}"
            return f"{row}, and those behind it for their order; ordered=False has no order"

        return Wait("order", slow, logging.WARNING, counts)
    if runner.in_flight:
        return None
    if idle == "retry" and scheduler.pausing:
        return Wait("retry", lambda: _pauses(scheduler), logging.WARNING, counts)
    if idle == "output":
        return Wait("output", lambda: "what takes the results has no room", logging.INFO, counts)
    if idle == "input":
        free = f"no row comes, and {scheduler.limit:,} slots are free"
        return Wait("input", lambda: free, logging.INFO, counts)
    return None


def _pauses(scheduler: CallScheduler) -> str:
    left = min(
        time_left(call.pause if call.execution is None else call.execution.timer, scheduler.loop)
        for call in scheduler.pausing
    )
    return f"{len(scheduler.pausing):,} rows wait for their retry, the first until {clock_time(left)}"
