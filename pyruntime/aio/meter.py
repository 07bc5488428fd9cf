"""Counts and latencies of one operator. Mailbox thread; any thread reads them as an estimate."""

# On the path of every row stands one `append` to a list, of the seconds of an attempt. To put each into its
# histogram at once would cost several times that; so they are folded together, some times a second, in one
# call of C. Counts are attributes that the scheduler adds to: a method for each would be a call a row.

from __future__ import annotations

from collections import Counter
from typing import Any

from pillarbox.aio.ai_calls import AiCalls
from pillarbox.aio.errors import CallTimeout, ResultRejected
from pillarbox.aio.limits.rate import LimiterStatistics
from pillarbox.aio.totals import Totals
from pillarbox.mailbox.metrics import LatencyHistogram, LatencySnapshot, merge_snapshots

_COUNTS = (
    *("rows_in", "results", "calls", "retries", "errors", "timeouts", "batches"),
    *("shared", "not_called", "found", "tokens", "cost"),
)
"""Fields of `Totals` that `Meter` keeps under the same names."""


class Latencies:
    """Seconds of attempts of rows that needed one, of rows that needed more, and of these rows as a whole."""

    __slots__ = ("_histograms",)

    def __init__(self) -> None:
        self._histograms = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()

    def fold(self, *lists: list[float]) -> None:
        """Put what has come together into the histograms, and empty the lists. On the mailbox thread."""
        for durations, histogram in zip(lists, self._histograms, strict=True):
            if durations:
                histogram.record_all(durations)
                durations.clear()

    def snapshot(self) -> tuple[LatencySnapshot, LatencySnapshot]:
        """The latencies of attempts and those of rows. Any thread."""
        first, more, rows = (each.snapshot() for each in self._histograms)
        if not (more.measurements or rows.measurements):
            return first, first
        return merge_snapshots([first, more]), merge_snapshots([first, rows])


class Meter:
    """Counts and latencies of one operator.

    The counts are plain attributes, which the operator adds to. `ended` and `ended_again` take the seconds of
    attempts: of rows that needed one, and of those that needed more; `rows_ended_again` those of these rows.
    """

    __slots__ = (
        *_COUNTS,
        *("late", "retries_by_reason", "errors_by_type", "ended", "ended_again", "rows_ended_again"),
        *("_latencies", "gen_ai"),
    )

    def __init__(self) -> None:
        self.rows_in = self.results = self.calls = self.retries = self.batches = 0
        self.errors = self.timeouts = self.shared = self.not_called = self.found = self.late = 0
        self.tokens = self.cost = 0.0
        self.retries_by_reason: Counter[str] = Counter()
        self.errors_by_type: Counter[str] = Counter()
        self.ended: list[float] = []
        self.ended_again: list[float] = []
        self.rows_ended_again: list[float] = []
        self._latencies = Latencies()
        self.gen_ai = AiCalls()

    def fold(self) -> None:
        """Put the latencies that have come together into their histograms. On the mailbox thread."""
        self._latencies.fold(self.ended, self.ended_again, self.rows_ended_again)
        self.gen_ai.fold()

    def count_retries(self, error: BaseException, rows: int) -> None:
        """So many rows are tried again because of `error`."""
        self.retries += rows
        names = {CallTimeout: "timeout.attempt", ResultRejected: "result"}
        self.retries_by_reason[names.get(type(error), type(error).__name__)] += rows

    def statistics(self, limiter: LimiterStatistics | None, **others: Any) -> Totals:
        """All counts, with `others`, the fields of `Totals` that are not kept here. Any thread."""
        attempts, rows = self._latencies.snapshot()
        return Totals(
            **{name: getattr(self, name) for name in _COUNTS},
            **others,
            retries_by_reason=dict(self.retries_by_reason),
            errors_by_type=dict(self.errors_by_type),
            latency=attempts,
            call_latency=rows,
            rate_granted=0 if limiter is None else limiter.granted,
            cool_downs=0 if limiter is None else limiter.cool_downs,
            **self.gen_ai.snapshot(),
        )
