"""The metrics of a task: durations in a histogram, and the division of its loop's time.

The processor feeds them on the mailbox thread; snapshots are for any thread. Time divides into busy, idle and
back-pressured, in seconds: the idea is Flink's `TimerGauge`.
"""

# A histogram of fixed buckets, and not a sketch such as t-digest or DDSketch: the histograms of thousands of
# tasks add up exactly, in any order, and a bucket is one integer of a list. The scale is HdrHistogram's:
# equal steps within each power of two, so that no quantile is off by more than an eighth, in constant memory.
# Its own package would cost a dependency in every worker for what is thirty lines here.
#
# The latency of mail is measured by a mail that the processor puts now and then, as Flink does: a time stamp
# on each mail would cost every put a look at the clock.

from __future__ import annotations

import enum
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import NamedTuple

from pillarbox.kernel import MIN_PRIORITY, Mail, TaskMailbox

STEPS_PER_OCTAVE = 8
LARGEST_OCTAVE = 44
"""Durations of 2 ** 44 ns, some five hours, and above share the last bucket."""
BOUNDS_S = tuple(
    (step << octave) * 1e-9
    for octave in range(LARGEST_OCTAVE - 3)
    for step in range(1 if octave == 0 else STEPS_PER_OCTAVE + 1, 2 * STEPS_PER_OCTAVE + 1)
)
"""The bounds of the buckets: a bucket counts the durations below its bound, and not below the one before."""

MAX_ROUNDS_PER_LOOK = 4096
"""Rounds of the loop between two looks at the clock, at most."""


class LatencySnapshot(NamedTuple):
    """A histogram at one moment, in seconds. All durations are 0 while there is no measurement."""

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

    @property
    def total(self) -> float:
        """The sum of all measurements, each taken as the middle of its bucket: off by a sixteenth at most.

        Those above five hours count as five hours. It never falls while a histogram grows.
        """
        return sum(count * (lower_bound(bound) + bound) / 2 for bound, count in self.buckets)


NO_LATENCIES = LatencySnapshot(0, 0.0, 0.0, 0.0, 0.0, ())
"""The snapshot of a histogram that has no measurement."""


class LatencyHistogram:
    """Counts durations in buckets each at most an eighth above the one before, from 1 ns to five hours.

    One thread records; any thread takes snapshots.
    """

    __slots__ = ("_counts", "_max")

    def __init__(self) -> None:
        self._counts = [0] * len(BOUNDS_S)
        self._max = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration; one below 0 counts as 0."""
        self.record_all([seconds])

    def record_all(self, durations: list[float]) -> None:
        """Count many durations, which is several times as fast as one by one."""
        if not durations:
            return
        # Sorted, since a list compares its numbers several times as fast as a search of the bounds for each.
        ascending = sorted(durations)
        # The largest goes first, so that no snapshot has a bucket beyond it.
        self._max = max(self._max, ascending[-1])
        last = len(BOUNDS_S) - 1
        start = 0
        while start < len(ascending):
            bucket = bisect_right(BOUNDS_S, ascending[start], 0, last)
            end = len(ascending) if bucket == last else bisect_left(ascending, BOUNDS_S[bucket], start)
            self._counts[bucket] += end - start
            start = end

    def snapshot(self) -> LatencySnapshot:
        """The durations recorded so far. Any thread."""
        return _snapshot(self._counts.copy(), self._max)


def lower_bound(bound: float) -> float:
    """The bound of the bucket before the one with this bound; 0 for the first."""
    bucket = bisect_left(BOUNDS_S, bound)
    return BOUNDS_S[bucket - 1] if bucket else 0.0


def snapshot_of(buckets: Iterable[tuple[float, int]], largest: float) -> LatencySnapshot:
    """The snapshot that has these buckets, bounds and counts in any order, and this largest measurement.

    Equal bounds add up, so that the buckets of several histograms may be given together. Any thread. Raises
    ValueError for a bound that no histogram has.
    """
    counts = [0] * len(BOUNDS_S)
    for bound, count in buckets:
        bucket = bisect_left(BOUNDS_S, bound)
        if bucket == len(BOUNDS_S) or BOUNDS_S[bucket] != bound:
            raise ValueError(f"bound={bound!r}: is not a bound of this scale")
        counts[bucket] += count
    return _snapshot(counts, largest)


def merge_snapshots(snapshots: Iterable[LatencySnapshot]) -> LatencySnapshot:
    """The snapshot of one histogram that has recorded what all of these have: exact. Any thread."""
    some = [snapshot for snapshot in snapshots if snapshot.measurements]
    if not some:
        return NO_LATENCIES
    buckets = (bucket for snapshot in some for bucket in snapshot.buckets)
    return snapshot_of(buckets, max(snapshot.max for snapshot in some))


def _snapshot(counts: list[int], largest: float) -> LatencySnapshot:
    total = sum(counts)
    if not total:
        return NO_LATENCIES
    up_to = list(accumulate(counts))
    p50, p95, p99 = (_quantile(up_to, total, percent, largest) for percent in (50, 95, 99))
    buckets = tuple((bound, count) for bound, count in zip(BOUNDS_S, counts, strict=True) if count)
    return LatencySnapshot(total, p50, p95, p99, largest, buckets)


def _quantile(up_to: list[int], total: int, percent: int, largest: float) -> float:
    # The rank of the quantile, counted from 1 and rounded up.
    rank = -(-total * percent // 100)
    bucket = bisect_left(up_to, rank)
    return largest if bucket == len(up_to) - 1 else min(BOUNDS_S[bucket], largest)


class Doing(enum.IntEnum):
    """The states that a task's time divides into."""

    BUSY = 0
    """A mail or the default action runs."""
    IDLE = 1
    """The loop waits for mail, and no input is there."""
    BACK_PRESSURED = 2
    """The loop waits for mail, and there is no room for output."""


# Totals, and no average that decays or slides: whoever looks takes the difference of two snapshots, over as
# long as he likes, and the totals of many tasks add up. Time is added where it changes its kind and where
# somebody looks.


class TimeSpent(NamedTuple):
    """Seconds since the processor was made. They add up to less than that where the loop did not run."""

    busy: float
    idle: float
    back_pressured: float


class TaskTimes:
    """Adds up the time that a task spends in each of its states. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self._sums = [0.0] * len(Doing)
        self.doing: Doing | None = None
        """The state that the present time goes into; None while the loop does not run."""

    def switch(self, doing: Doing | None) -> float:
        """Let time go into `doing` from now on. Returns the time now, in seconds of the clock."""
        # Outside of the lock, for the clock may be anything.
        now = self._clock()
        with self._lock:
            self._account(now)
            self.doing = doing
        return now

    def spent(self) -> TimeSpent:
        """The seconds up to now."""
        now = self._clock()
        with self._lock:
            self._account(now)
            return TimeSpent(*self._sums)

    def _account(self, now: float) -> None:
        # Another thread may have read the clock later and come first.
        if now > self._since:
            if self.doing is not None:
                self._sums[self.doing] += now - self._since
            self._since = now


class MetricsSnapshot(NamedTuple):
    """The metrics of one processor at one moment."""

    mails: int
    """Mails run since the processor was made."""
    queue_length: int
    """Mails that wait."""
    latency: LatencySnapshot
    """Seconds from the put of a mail to its run, as measured now and then."""
    busy: float
    """Seconds in which a mail or the default action ran, since the processor was made."""
    idle: float
    """Seconds spent waiting, the default action being suspended as idle."""
    back_pressured: float
    """The same for a default action suspended as back-pressured; if it is both, it counts here."""


class MailboxMetrics:
    """The measurements of one processor. Built by the processor only.

    `interval`: seconds between two measurements of latency; None for none.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        count: Callable[[], int],
        clock: Callable[[], float],
        interval: float | None,
    ) -> None:
        if interval is not None and not interval > 0:
            raise ValueError(f"latency_interval must be None or more than 0 seconds, not {interval!r}")
        self._mailbox = mailbox
        self._count = count
        self._clock = clock
        self._interval = interval
        self._latency = LatencyHistogram()
        self._due = self._looked = clock()
        self._put_at: float | None = None
        self.times = TaskTimes(clock)
        self.rounds = 64
        self.measured = 0

    @property
    def interval(self) -> float | None:
        """Seconds between two measurements of latency; None if there are none. Any thread."""
        return self._interval

    def snapshot(self) -> MetricsSnapshot:
        """The metrics now. Any thread."""
        length = max(0, len(self._mailbox) - self.measuring)
        return MetricsSnapshot(self._count(), length, self._latency.snapshot(), *self.times.spent())

    @property
    def measuring(self) -> bool:
        """True while a mail that measures waits in the mailbox. Any thread, as an estimate elsewhere."""
        return self._put_at is not None

    def look(self) -> None:
        """Look at the clock, measure if it is time, and say how many rounds may pass until the next look.

        Mailbox thread; called by the loop once in `rounds` rounds.
        """
        if self._interval is None:
            self.rounds = MAX_ROUNDS_PER_LOOK
            return
        now = self._clock()
        passed = now - self._looked
        self._looked = now
        if passed < self._interval / 8:
            self.rounds = min(self.rounds * 2, MAX_ROUNDS_PER_LOOK)
        elif passed > self._interval / 2:
            self.rounds = max(self.rounds // 2, 1)
        self.measure(now)

    def measure(self, now: float) -> None:
        """Put a mail that measures if the last one is long enough ago. Mailbox thread."""
        if self._interval is None or now < self._due or self._put_at is not None:
            return
        # Of the least priority, so that no operator that yields takes it for work of its own.
        mail = Mail(self._arrived, priority=MIN_PRIORITY, description="measure the latency of mail")
        self._put_at = now
        self._due = now + self._interval
        if not self._mailbox.try_put(mail):
            self._put_at = None

    def measure_now(self) -> None:
        """Do what `measure` does, at the time that the clock says. Mailbox thread; for a guest's timer."""
        self.measure(self._clock())

    def _arrived(self) -> None:
        self.measured += 1
        put_at, self._put_at = self._put_at, None
        if put_at is not None:
            self._latency.record(self._clock() - put_at)
