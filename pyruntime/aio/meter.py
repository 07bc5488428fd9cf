"""What an operator measures about itself. Recorded on the mailbox thread; read by any, as an estimate."""

from __future__ import annotations

import time
from collections import Counter

from pillarbox.aio.limits.limiter import LimiterStatistics
from pillarbox.aio.observe.totals import SPENT, Totals
from pillarbox.mailbox.metrics import LatencyHistogram, merge_snapshots

SAMPLE = 0.05
"""Seconds between two looks at what the slots are busy with."""

LATE_AFTER_S = 0.02
"""Seconds by which a look may come too late before the event loop counts as held up since the look before."""


class Meter:
    """Counts, latencies and what the time went on, of one operator.

    The counts are plain attributes, which the operator adds to. `ended` and `ended_again` take the
    seconds of attempts: of rows that needed one, and of those that needed more.
    """

    __slots__ = (
        "_began",
        "_first",
        "_more",
        "_rows",
        "_sampled",
        "attempts",
        "batches",
        "cost",
        "ended",
        "ended_again",
        "errors",
        "errors_by_type",
        "found",
        "not_called",
        "results",
        "retries",
        "retries_by_reason",
        "rows_ended_again",
        "rows_in",
        "shared",
        "spent",
        "timeouts",
        "tokens",
    )

    def __init__(self) -> None:
        self.rows_in = self.results = self.attempts = self.retries = self.batches = 0
        self.errors = self.timeouts = self.shared = self.not_called = self.found = 0
        self.tokens = self.cost = 0.0
        self.retries_by_reason: Counter[str] = Counter()
        self.errors_by_type: Counter[str] = Counter()
        self.spent = dict.fromkeys(SPENT, 0.0)
        self.ended: list[float] = []
        self.ended_again: list[float] = []
        self.rows_ended_again: list[float] = []
        self._first = LatencyHistogram()
        self._more = LatencyHistogram()
        self._rows = LatencyHistogram()
        self._began = self._sampled = time.monotonic()

    def fold(self) -> None:
        """Put the latencies that have come together into their histograms. On the mailbox thread."""
        for durations, histogram in (
            (self.ended, self._first),
            (self.ended_again, self._more),
            (self.rows_ended_again, self._rows),
        ):
            if durations:
                histogram.record_all(durations)
                durations.clear()

    def sample(self, busy: float, idle_reason: str, late: float = 0.0) -> None:
        """Since the last sample the share `busy` of the slots was, and the rest was idle for the reason.

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

    def statistics(
        self,
        *,
        in_flight: int,
        waiting: int,
        late: int,
        abandoned: int,
        finished_waiting: int,
        held_bytes: int,
        capacity: int,
        gate: LimiterStatistics | None,
    ) -> Totals:
        """All counts, with those that others keep. Any thread."""
        first, more, rows = (each.snapshot() for each in (self._first, self._more, self._rows))
        return Totals(
            rows_in=self.rows_in,
            results=self.results,
            in_flight=in_flight,
            waiting=waiting,
            calls=self.attempts,
            retries=self.retries,
            errors=self.errors,
            timeouts=self.timeouts,
            late=late,
            abandoned=abandoned,
            finished_waiting=finished_waiting,
            held_bytes=held_bytes,
            capacity=capacity,
            batches=self.batches,
            shared=self.shared,
            not_called=self.not_called,
            found=self.found,
            retries_by_reason=dict(self.retries_by_reason),
            errors_by_type=dict(self.errors_by_type),
            latency=merge_snapshots([first, more]),
            call_latency=merge_snapshots([first, rows]),
            tokens=self.tokens,
            cost=self.cost,
            rate_granted=0 if gate is None else gate.granted,
            cool_downs=0 if gate is None else gate.cool_downs,
            spent=dict(self.spent),
            elapsed=time.monotonic() - self._began,
        )
