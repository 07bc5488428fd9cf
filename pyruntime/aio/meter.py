"""Counts and latencies of one operator. Mailbox thread; any thread reads them as an estimate."""

# On the path of every row stands one `append` to a list, of the seconds of an attempt. To put each into its
# histogram at once would cost several times that; so they are folded together, some times a second, in one
# call of C. Counts are attributes that the scheduler adds to: a method for each would be a call a row.

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from pillarbox.aio.errors import CallTimeout, ResultRejected
from pillarbox.aio.gen_ai import GenAiMeter
from pillarbox.aio.limits.rate import LimiterStatistics
from pillarbox.aio.totals import SPENT, Totals
from pillarbox.mailbox.metrics import LatencyHistogram, merge_snapshots

SAMPLE_INTERVAL_S = 0.05
"""Seconds between two looks at what the slots are busy with."""


LATE_AFTER_S = 0.02
"""Seconds by which a look may come too late before the event loop counts as held up since the look before."""


_COUNTS = (
    *("rows_in", "results", "calls", "retries", "errors", "timeouts", "batches"),
    *("shared", "not_called", "found", "tokens", "cost"),
)
"""Fields of `Totals` that `Meter` keeps under the same names."""


class Meter:
    """Counts, latencies and what the time went on, of one operator.

    The counts are plain attributes, which the operator adds to. `ended` and `ended_again` take the
    seconds of attempts: of rows that needed one, and of those that needed more.
    """

    __slots__ = (
        *_COUNTS,
        "late",
        *("retries_by_reason", "errors_by_type", "spent", "ended", "ended_again", "rows_ended_again"),
        *("_first", "_more", "_rows", "_began", "_sampled", "gen_ai"),
    )

    def __init__(self) -> None:
        self.rows_in = self.results = self.calls = self.retries = self.batches = 0
        self.errors = self.timeouts = self.shared = self.not_called = self.found = self.late = 0
        self.tokens = self.cost = 0.0
        self.retries_by_reason: Counter[str] = Counter()
        self.errors_by_type: Counter[str] = Counter()
        self.spent = dict.fromkeys(SPENT, 0.0)
        self.ended: list[float] = []
        self.ended_again: list[float] = []
        self.rows_ended_again: list[float] = []
        self.gen_ai = GenAiMeter()
        self._first = LatencyHistogram()
        self._more = LatencyHistogram()
        self._rows = LatencyHistogram()
        self._began = self._sampled = time.monotonic()

    def count_retries(self, error: BaseException, rows: int) -> None:
        """So many rows are tried again because of `error`."""
        self.retries += rows
        names = {CallTimeout: "timeout.attempt", ResultRejected: "result"}
        self.retries_by_reason[names.get(type(error), type(error).__name__)] += rows

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

    def statistics(self, limiter: LimiterStatistics | None, **others: Any) -> Totals:
        """All counts, with `others`, the fields of `Totals` that are not kept here. Any thread."""
        first, more, rows = (each.snapshot() for each in (self._first, self._more, self._rows))
        return Totals(
            **{name: getattr(self, name) for name in _COUNTS},
            **others,
            retries_by_reason=dict(self.retries_by_reason),
            errors_by_type=dict(self.errors_by_type),
            latency=merge_snapshots([first, more]),
            call_latency=merge_snapshots([first, rows]),
            rate_granted=0 if limiter is None else limiter.granted,
            cool_downs=0 if limiter is None else limiter.cool_downs,
            spent=dict(self.spent),
            elapsed=time.monotonic() - self._began,
            **self.gen_ai.snapshot(),
        )
