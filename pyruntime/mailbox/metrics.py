"""The metrics of one task's loop: mails, queue length, mail latency, and how its time divides.

The processor feeds them on the mailbox thread; `snapshot` is for any thread.

Latency is measured by a mail that the processor puts now and then, as Flink does: a time stamp on each
mail would cost every put a look at the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pillarbox.kernel import MIN_PRIORITY, Mail, TaskMailbox
from pillarbox.mailbox.histogram import LatencyHistogram, LatencySnapshot
from pillarbox.mailbox.times import TaskTimes

MOST_ROUNDS = 4096
"""Rounds of the loop between two looks at the clock, at most."""


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
