"""Finds the reason for which the slots of an operator are idle. Confined to the mailbox thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pillarbox.aio.deadlines import time_left
from pillarbox.aio.errors import shorten
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.totals import clock_time
from pillarbox.aio.waits import Wait, WaitReporter


class IdleReporter:
    """Says why an operator waits whose slots are idle for some seconds: in the log, and in its totals.

    name: the function's. first_row: gives the row that all others wait for, for their order.
    """

    def __init__(
        self,
        name: str,
        scheduler: CallScheduler,
        session: LedgerSession | None,
        first_row: Callable[[], Any],
    ) -> None:
        self._reporter = WaitReporter(name, scheduler.clock)
        self._scheduler = scheduler
        self._session = session
        self._first_row = first_row

    @property
    def text(self) -> str | None:
        """The wait of now, in words; None while it is not worth saying. Any thread."""
        return self._reporter.text

    def look(self, idle: str) -> None:
        """The slots are idle now for `idle`, one of `SPENT`."""
        self._reporter.look(reason_to_wait(self._scheduler, self._session, idle, self._first_row))


def reason_to_wait(
    scheduler: CallScheduler, session: LedgerSession | None, idle: str, first_row: Callable[[], Any]
) -> Wait | None:
    """Return why an operator waits whose slots are idle for `idle`, one of `SPENT`; None if it does not.

    first_row: gives the row that all others wait for, for their order.
    """
    breaker, gate, runner = scheduler.policies.load.breaker, scheduler.gate, scheduler.runner
    if breaker is not None and breaker.is_outage:
        return Wait("service", breaker.explain_now, logging.WARNING)
    lacking = scheduler.slots.room.waits_for
    if lacking is not None and not runner.in_flight:
        return Wait("process", lambda: f"{lacking}, of which this process has none left", logging.WARNING)
    counts = scheduler.meter.calls, scheduler.meter.results
    if idle == "ledger":
        if session is not None and (reason := session.waits_for) is not None:
            return Wait("ledger", lambda: reason, logging.WARNING, counts)
        return Wait("ledger", lambda: "the disk of the ledger, or room for results", logging.WARNING, counts)
    if gate is not None and gate.holds:
        held = gate.explain_now()
        if held is not None:
            return Wait("rate", lambda: gate.explain_now() or held, logging.WARNING, counts)
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
        free = f"no row comes, and {scheduler.slots.limit:,} slots are free"
        return Wait("input", lambda: free, logging.INFO, counts)
    return None


def _pauses(scheduler: CallScheduler) -> str:
    left = min(
        time_left(call.pause if call.execution is None else call.execution.timer, scheduler.loop)
        for call in scheduler.pausing
    )
    return f"{len(scheduler.pausing):,} rows wait for their retry, the first until {clock_time(left)}"
