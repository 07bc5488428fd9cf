"""The time of an operator: what the slots of its calls go on, and what it waits for.

Confined to the mailbox thread; `text`, `spent` and `elapsed` are for any thread, as estimates.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pillarbox.aio.admission import RowAdmission
from pillarbox.aio.emission import ResultEmitter
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.totals import SPENT
from pillarbox.providers import IDLE_REPORTER, provided_if_there

SAMPLE_INTERVAL_S = 0.05
"""Seconds between two looks at what the slots are busy with."""

LATE_AFTER_S = 0.02
"""Seconds by which a look may come too late before the event loop counts as held up since the look before."""


class TimeAccount:
    """Looks at an operator some times a second, and adds the time since the last look to what it went on.

    name: the function's. watcher: a `LoopWatcher` or None; notes each look, and is closed with the last
    one. `spent` are seconds by the uses in `SPENT`.
    """

    __slots__ = (
        *("spent", "_admission", "_began", "_emitter", "_sampled", "_sampler", "_scheduler", "_session"),
        *("_waits", "_watcher"),
    )

    def __init__(
        self,
        name: str,
        scheduler: CallScheduler,
        emitter: ResultEmitter,
        admission: RowAdmission,
        session: LedgerSession | None,
        watcher: Any,
    ) -> None:
        self._watcher = watcher
        self.spent = dict.fromkeys(SPENT, 0.0)
        self._scheduler = scheduler
        self._emitter = emitter
        self._admission = admission
        self._session = session
        report = provided_if_there(IDLE_REPORTER)
        self._waits: Any = None if report is None else report(name, scheduler, session, self._first_row)
        self._sampler: asyncio.TimerHandle | None = None
        self._began = self._sampled = time.monotonic()

    @property
    def text(self) -> str | None:
        """The wait of now, in words; None while it is not worth saying, and where none is said."""
        text: str | None = None if self._waits is None else self._waits.text
        return text

    @property
    def elapsed(self) -> float:
        """Seconds since the operator was made."""
        return time.monotonic() - self._began

    def start(self) -> None:
        """Begin to look."""
        self._sample()

    def stop(self) -> None:
        """Look once more, at the state before the end, and no more."""
        if self._sampler is not None:
            # Calls that held the loop up until the end would leave no trace otherwise.
            self._account()
            self._sampler.cancel()
        if self._watcher is not None:
            self._watcher.close()

    def _sample(self) -> None:
        self._account()
        if self._watcher is not None:
            self._watcher.beat()
        self._sampler = self._scheduler.loop.call_later(SAMPLE_INTERVAL_S, self._sample)

    def _account(self) -> None:
        scheduler = self._scheduler
        late = 0.0 if self._sampler is None else scheduler.loop.time() - self._sampler.when()
        scheduler.meter.fold()
        idle = self._why_idle()
        self._spend(min(1.0, scheduler.runner.in_flight / scheduler.slots.limit), idle, late)
        if self._waits is not None:
            self._waits.look(idle)

    def _spend(self, busy: float, idle_reason: str, late: float) -> None:
        """Since the last look the share `busy` of the slots was, and the rest was idle for the reason.

        late: seconds by which this look came after its time. A loop that was held up had no turn to begin a
        call or to end one, so what the slots look like says nothing about the time that has passed.
        """
        now = time.monotonic()
        passed = now - self._sampled
        self._sampled = now
        if late > LATE_AFTER_S:
            self.spent["loop"] += passed
            return
        self.spent["calls"] += passed * busy
        self.spent[idle_reason] += passed * (1.0 - busy)

    def _first_row(self) -> Any:
        entries = self._scheduler.queue.snapshot()
        return next((call.row for call, is_finished, _ in entries if not is_finished), None)

    def _why_idle(self) -> str:
        scheduler, session = self._scheduler, self._session
        if self._emitter.is_full:
            return "output"
        if scheduler.slots.room.holds is not None:
            return "retry"
        if not scheduler.runner.limit or (session and session.claimed and not scheduler.waiting):
            return "ledger"
        if scheduler.gate is not None and scheduler.gate.holds:
            breaker = scheduler.policies.load.breaker
            is_cooling = breaker is not None and breaker.is_cooling
            return "retry" if is_cooling else "rate"
        if self._admission.has_ended:
            return "end" if scheduler.runner.in_flight or not scheduler.pausing else "retry"
        if not self._admission.has_room:
            return "order" if scheduler.options.ordered else "retry"
        return "retry" if scheduler.pausing and not scheduler.waiting else "input"
