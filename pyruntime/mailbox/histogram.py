"""A histogram of durations on a logarithmic scale: constant memory, and no quantile off by more than 12.5 %.

One thread records; any thread looks. The scale is HdrHistogram's: equal steps within each power of two.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

STEPS_AS_BITS = 3
STEPS = 1 << STEPS_AS_BITS
LARGEST_AS_BITS = 44
"""Durations of 2 ** 44 ns, some five hours, and above share the last bucket."""
BUCKETS = (LARGEST_AS_BITS - STEPS_AS_BITS + 1) * STEPS


class LatencySnapshot(NamedTuple):
    """What a histogram held at one moment, in seconds. All durations are 0 while there is no measurement."""

    measurements: int
    """Measurements since the histogram was made."""
    p50: float
    """Half of the measurements were at most this."""
    p95: float
    """95 % of the measurements were at most this."""
    p99: float
    """99 % of the measurements were at most this."""
    max: float
    """The largest measurement, exact."""
    buckets: tuple[tuple[float, int], ...]
    """The buckets that hold something: the bound that its durations are below, and their number."""


class LatencyHistogram:
    """Counts durations in buckets each at most an eighth above the one before, from 1 ns to five hours."""

    __slots__ = ("_counts", "_max")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._max = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration; one below 0 counts as 0. One thread at a time."""
        # The largest goes first, so that no snapshot has a bucket beyond it.
        self._max = max(self._max, seconds)
        self._counts[bucket_of(seconds)] += 1

    def record_all(self, durations: list[float]) -> None:
        """Count many durations, which is several times as fast as one by one. One thread at a time."""
        if not durations:
            return
        # Sorted, since a list compares its numbers several times as fast as a search of the bounds for each.
        ascending = sorted(durations)
        self._max = max(self._max, ascending[-1])
        counts = self._counts
        bounds = _bounds()
        start = 0
        while start < len(ascending):
            bucket = bisect_right(bounds, ascending[start])
            is_last = bucket == len(bounds)
            end = len(ascending) if is_last else bisect_left(ascending, bounds[bucket], start)
            counts[bucket] += end - start
            start = end

    def snapshot(self) -> LatencySnapshot:
        """What has been recorded. Any thread."""
        return _snapshot(self._counts.copy(), self._max)

    def snapshot_with(self, other: LatencyHistogram) -> LatencySnapshot:
        """What both have recorded together. Any thread."""
        counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        return _snapshot(counts, max(self._max, other._max))


def bucket_of(seconds: float) -> int:
    """The bucket that counts a duration."""
    nanoseconds = int(min(max(seconds, 0.0) * 1e9, 2.0**LARGEST_AS_BITS))
    if nanoseconds < STEPS:
        return nanoseconds
    shift = nanoseconds.bit_length() - STEPS_AS_BITS - 1
    return min(shift * STEPS + (nanoseconds >> shift), BUCKETS - 1)


def bound_of(bucket: int) -> float:
    """The duration in seconds that all durations of a bucket are below, those of the last bucket excepted."""
    if bucket < STEPS:
        return (bucket + 1) * 1e-9
    shift = bucket // STEPS - 1
    return ((bucket % STEPS + STEPS + 1) << shift) * 1e-9


def _snapshot(counts: list[int], largest: float) -> LatencySnapshot:
    total = sum(counts)
    p50, p95, p99 = (_quantile(counts, total, percent, largest) for percent in (50, 95, 99))
    buckets = tuple((bound_of(bucket), count) for bucket, count in enumerate(counts) if count)
    return LatencySnapshot(total, p50, p95, p99, largest, buckets)


@cache
def _bounds() -> list[float]:
    # Without the last: what is above it stays in the last bucket.
    return [bound_of(bucket) for bucket in range(BUCKETS - 1)]


def _quantile(counts: list[int], total: int, percent: int, largest: float) -> float:
    if total == 0:
        return 0.0
    # The rank of the quantile, counted from 1 and rounded up.
    rank = -(-total * percent // 100)
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return largest if bucket == BUCKETS - 1 else min(bound_of(bucket), largest)
    raise AssertionError("the ranks end with the last count")


def snapshot_of(buckets: Iterable[tuple[float, int]], largest: float) -> LatencySnapshot:
    """The snapshot that has these buckets, bounds and counts in any order, and this largest measurement.

    Equal bounds add up, so that the buckets of several histograms may be given together. Any thread. Raises
    ValueError for a bound that no histogram has.
    """
    numbers = _numbers()
    counts = [0] * BUCKETS
    for bound, count in buckets:
        if bound not in numbers:
            raise ValueError(f"bound={bound!r}: is not a bound of this scale")
        counts[numbers[bound]] += count
    return _snapshot(counts, largest)


def merge_snapshots(snapshots: Iterable[LatencySnapshot]) -> LatencySnapshot:
    """What one histogram would hold that had recorded what all of these have: exact. Any thread."""
    some = list(snapshots)
    buckets = (bucket for snapshot in some for bucket in snapshot.buckets)
    return snapshot_of(buckets, max((snapshot.max for snapshot in some), default=0.0))


def seconds_of(snapshot: LatencySnapshot) -> float:
    """The sum of all measurements, each taken as the middle of its bucket: off by a sixteenth at most.

    Those above five hours count as five hours. It never falls while a histogram grows. Any thread.
    """
    numbers = _numbers()
    total = 0.0
    for bound, count in snapshot.buckets:
        number = numbers[bound]
        low = bound_of(number - 1) if number else 0.0
        total += count * (low + bound) / 2
    return total


@cache
def _numbers() -> dict[float, int]:
    return {bound_of(bucket): bucket for bucket in range(BUCKETS)}
