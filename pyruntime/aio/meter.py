"""What an operator measures about itself. Recorded on the mailbox thread; read by any, as an estimate."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from pillarbox.aio.limits.limiter import LimiterStatistics
from pillarbox.mailbox.histogram import LatencyHistogram, LatencySnapshot

SAMPLE = 0.05
"""Seconds between two looks at what the slots are busy with."""

LATE_AFTER_S = 0.02
"""Seconds by which a look may come too late before the event loop counts as held up since the look before."""


class OperatorStatistics(NamedTuple):
    """What one operator has done so far; a snapshot that does not change."""

    rows_in: int
    """Rows admitted."""
    results: int
    """Rows whose results were emitted."""
    in_flight: int
    """Calls that hold a slot now."""
    waiting: int
    """Rows that wait for a slot, for the rate or for their retry now."""
    calls: int
    """Attempts begun; with batches, rows in them."""
    retries: int
    """Attempts that failed and after which another was due; a row may time out before that."""
    errors: int
    """Rows that failed for good, time-outs included."""
    timeouts: int
    """Attempts and rows that met a limit of time."""
    late: int
    """Outcomes that came after their call's time-out and were ignored."""
    abandoned: int
    """Calls that did not end when they were cancelled."""
    finished_waiting: int
    """Rows that have finished and are not emitted now: in order, most of them wait for a row before them."""
    held_bytes: int
    """Bytes of the rows admitted and not emitted now, by estimate; 0 where `max_bytes` is None."""
    capacity: int
    """Calls that may be in flight now."""
    batches: int
    """Calls of batches begun."""
    shared: int
    """Rows that got the result of another row's call."""
    not_called: int
    """Rows that were not called, since what was allowed is used up."""
    found: int
    """Rows whose results were found in the ledger, so that they were not called."""
    retries_by_reason: dict[str, int]
    """`retries` by the type of the error; "attempt_timeout" and "result" stand for what is none."""
    errors_by_type: dict[str, int]
    """`errors` by the type of the error."""
    latency: LatencySnapshot
    """Seconds of the attempts that ended."""
    call_latency: LatencySnapshot
    """Seconds from the start of a row's first attempt to the end of its last."""
    tokens: float
    """Tokens used, as `usage` says."""
    cost: float
    """Cost, as `usage` says."""
    rate_granted: int
    """Calls that the rate or the budget let through; 0 where there is neither."""
    cool_downs: int
    """Times that all calls were held back since the service asked for it."""
    spent: dict[str, float]
    """Seconds by what the time of the slots went on; see `SPENT`."""
    elapsed: float
    """Seconds since the operator was started."""


SPENT = {
    "calls": "slots that were busy",
    "loop": "the event loop was held up, by code that blocks or computes",
    "input": "no row was there",
    "order": "the window was full of rows that wait for one before them",
    "output": "what takes the results had no room",
    "rate": "the rate or a cool-down held calls back",
    "retry": "rows waited for their retry",
    "ledger": "the ledger's disk, or another attempt of the same task, was waited for",
    "end": "the last calls were waited for",
}
"""What the time of the slots goes on. Half of them busy for a second are half a second of "calls"."""


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
    ) -> OperatorStatistics:
        """All counts, with those that others keep. Any thread."""
        first = self._first
        return OperatorStatistics(
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
            latency=first.snapshot_with(self._more),
            call_latency=first.snapshot_with(self._rows),
            tokens=self.tokens,
            cost=self.cost,
            rate_granted=0 if gate is None else gate.granted,
            cool_downs=0 if gate is None else gate.cool_downs,
            spent=dict(self.spent),
            elapsed=time.monotonic() - self._began,
        )
