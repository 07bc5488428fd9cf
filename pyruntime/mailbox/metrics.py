"""The metrics of one task's loop: mails, queue length, mail latency, and how its time divides.

The processor feeds them on the mailbox thread; `snapshot` is for any thread. Time divides into busy, idle and
back-pressured, in seconds of each second over a sliding minute: the idea is Flink's `TimerGauge`.

Latency is measured by a mail that the processor puts now and then, as Flink does: a time stamp on each
mail would cost every put a look at the clock.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from pillarbox.kernel import MIN_PRIORITY, Mail, TaskMailbox
from pillarbox.mailbox.histogram import LatencyHistogram, LatencySnapshot

MOST_ROUNDS = 4096
"""Rounds of the loop between two looks at the clock, at most."""
WINDOW = 60
"""Seconds that the shares are of, the present one included."""


class Doing(enum.IntEnum):
    """What a task's time goes into."""

    BUSY = 0
    """A mail or the default action runs."""
    IDLE = 1
    """The loop waits for mail, and no input is there."""
    BACK_PRESSURED = 2
    """The loop waits for mail, and there is no room for output."""


class TimeShares(NamedTuple):
    """Seconds of each second, 0 to 1. They add up to less than 1 where the loop did not run."""

    busy: float
    idle: float
    back_pressured: float


class TaskTimes:
    """Adds up times by the second that they fell into, for the last minute. Thread-safe."""

    __slots__ = ("_begun", "_clock", "_lock", "_present", "_seconds", "_since", "_sums", "_until", "doing")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = self._since = clock()
        self._seconds = [-math.inf] * WINDOW
        self._sums = [[0.0] * len(Doing) for _ in range(WINDOW)]
        # The sums of the second in which time was added last, and the end of that second.
        self._present = self._sums[0]
        self._until = -math.inf
        self.doing: Doing | None = None
        """What the present time goes into; None while the loop does not run."""

    def switch(self, doing: Doing | None) -> float:
        """From now on, time goes into `doing`. Returns the time now, in seconds of the clock."""
        # Outside of the lock, for the clock may be anything.
        now = self._clock()
        with self._lock:
            self._account(now)
            self.doing = doing
        return now

    def shares(self) -> TimeShares:
        """The shares of the last minute, or of the time since this was made if that is less."""
        now = self._clock()
        with self._lock:
            self._account(now)
            now = self._since
            first = math.floor(now) - WINDOW + 1
            length = now - max(first, self._begun)
            if length <= 0:
                return TimeShares(0.0, 0.0, 0.0)
            recent = [sums for second, sums in zip(self._seconds, self._sums, strict=True) if second >= first]
            return TimeShares(
                *(sum(column) / length for column in zip(*recent, strict=True)) if recent else (0.0,) * 3
            )

    def _account(self, now: float) -> None:
        # Another thread may have read the clock later and come first.
        if now <= self._since:
            return
        if self.doing is not None:
            # Twice for each sleep of a loop, so what is usual comes first.
            if now < self._until:
                self._present[self.doing] += now - self._since
                self._since = now
                return
            begin = max(self._since, math.floor(now) - WINDOW + 1)
            for second in range(math.floor(begin), math.floor(now) + 1):
                slot = second % WINDOW
                if self._seconds[slot] != second:
                    self._seconds[slot] = second
                    self._sums[slot] = [0.0] * len(Doing)
                self._present, self._until = self._sums[slot], second + 1
                self._present[self.doing] += min(now, self._until) - max(begin, second)
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
    """Seconds of each second of the last minute in which a mail or the default action ran."""
    idle: float
    """Seconds of each second of the last minute spent waiting, the default action being suspended as idle."""
    back_pressured: float
    """The same for a default action suspended as back-pressured; if it is both, it counts here."""


class MailboxMetrics:
    """What one processor has measured. Built by the processor only.

    `interval`: seconds between two measurements of latency; None for none.
    """

    __slots__ = (
        "_clock", "_count", "_due", "_interval", "_latency", "_looked", "_mailbox", "_put_at", "measured",
        "rounds", "times",
    )  # fmt: skip

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
        shares = self.times.shares()
        length = max(0, len(self._mailbox) - self.measuring)
        return MetricsSnapshot(
            self._count(), length, self._latency.snapshot(), shares.busy, shares.idle, shares.back_pressured
        )

    @property
    def measuring(self) -> bool:
        """Whether a mail that measures waits in the mailbox. Any thread, as an estimate elsewhere."""
        return self._put_at is not None

    def look(self) -> None:
        """Look at the clock, measure if it is time, and say how many rounds may pass until the next look.

        Mailbox thread; called by the loop once in `rounds` rounds.
        """
        if self._interval is None:
            self.rounds = MOST_ROUNDS
            return
        now = self._clock()
        passed = now - self._looked
        self._looked = now
        if passed < self._interval / 8:
            self.rounds = min(self.rounds * 2, MOST_ROUNDS)
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
        """As `measure`, at the time that the clock says. Mailbox thread; for a guest's timer."""
        self.measure(self._clock())

    def _arrived(self) -> None:
        self.measured += 1
        put_at, self._put_at = self._put_at, None
        if put_at is not None:
            self._latency.record(self._clock() - put_at)
