"""The outcomes of calls, from the tasks to the coordinator that finds their number of calls in flight.

`TaskOutcomes` is confined to a task's mailbox thread, `JobCapacity` to the thread of the server's loop;
messages are values.
"""

# One controller for the job, and not one a task: several of them see each other's queue as latency, and their
# sum is shared as chance has it (docs/decisions/adaptive.md). It is the same controller, and it needs of a
# call how long it took, and when it ended. It measures calls a second: so it must see the calls of all tasks
# in the order of their ends, and takes none before every task had the time to report it. What it changes
# holds from the real time on; answers to calls that ended before count for nothing then.
#
# Reports have a bound, whatever the number of calls. Beyond it calls that ended one after the other are said
# as one group, by their number and the sums that a mean and its error are made of. What is lost is when
# within the group each ended, and which of them began behind the last change of the limit: for a group that
# is decided by its mean.

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pillarbox.aio.adaptive import Adaptive
from pillarbox.aio.concurrency import AdaptiveController, Ended
from pillarbox.validate import Amount, Count

REPORT_S = 0.05
"""Seconds in which a task gathers outcomes for a report."""
REFUSED_S = 0.005
"""The same where one was refused: slots above those of the service are free at once, and refused again."""
LAG_S = REPORT_S + 0.02
"""Seconds after which all tasks have reported a call that has ended."""
MAX_GROUPS = 16
"""Groups of calls in a report that ended in one way, at most."""
MAX_AGE_S = 5.0
"""Seconds after which an outcome that was not reported says nothing any more."""
TRIP_SHARE = 0.1
"""The weight of one answer in the estimate of the seconds of a call."""


class Group(NamedTuple):
    """Calls of a task that ended one after the other, in one way; age: seconds since the last of them ended.

    seconds, squares: sums of their seconds, and of the squares.
    """

    calls: Count
    age: Amount
    seconds: Amount
    squares: Amount


class Outcomes(NamedTuple):
    """The calls that have ended since the last report: answered, refused by a full service, or failed."""

    answered: tuple[Group, ...]
    refused: tuple[Group, ...]
    failed: tuple[Group, ...]


class TaskOutcomes:
    """Gathers the outcomes of one task: a `CapacityFinder` whose limit is found elsewhere.

    `round_trip` is that of this task's calls, and is set to that of all tasks where they are told another.
    limit: gives the slots of the task. clock: seconds, which never go back. report: called with the seconds
    after which outcomes are to be taken, with the first one and with the first refusal.
    """

    def __init__(
        self, limit: Callable[[], int], clock: Callable[[], float], report: Callable[[float], None]
    ) -> None:
        self.round_trip = math.inf
        self._limit = limit
        self._clock = clock
        self._report = report
        self._answered: list[Ended] = []
        self._refused: list[Ended] = []
        self._failed: list[Ended] = []

    @property
    def limit(self) -> int:
        """See `CapacityFinder`."""
        return self._limit()

    def succeeded(self, seconds: float) -> None:
        """See `CapacityFinder`."""
        trip = self.round_trip
        self.round_trip = seconds if trip == math.inf else trip + TRIP_SHARE * (seconds - trip)
        self._add(self._answered, seconds)

    def failed(self, overloaded: bool, seconds: float | None = None) -> None:
        """See `CapacityFinder`."""
        if seconds is None:
            seconds = 0.0 if self.round_trip == math.inf else self.round_trip
        self._add(self._refused if overloaded else self._failed, seconds)

    def take(self) -> Outcomes:
        """Return what has ended since the last time."""
        now = self._clock()
        kinds = self._answered, self._refused, self._failed
        found = [tuple([Group(each.calls, now - each.at, *each[2:]) for each in kind]) for kind in kinds]
        for kind in kinds:
            kind.clear()
        return Outcomes(*found)

    def _add(self, kind: list[Ended], seconds: float) -> None:
        if len(kind) >= MAX_GROUPS:
            # Two by two: groups are of about as many calls, whatever their number.
            kind[:] = [_joined(*pair) for pair in zip(kind[::2], kind[1::2], strict=True)]
        is_first = not (self._answered or self._refused or self._failed)
        is_first_refusal = kind is self._refused and not kind
        kind.append(Ended(1, self._clock(), seconds, seconds * seconds))
        if is_first_refusal:
            self._report(REFUSED_S)
        elif is_first:
            self._report(REPORT_S)


def _joined(one: Ended, two: Ended) -> Ended:
    return Ended(one.calls + two.calls, two.at, one.seconds + two.seconds, one.squares + two.squares)


class JobCapacity:
    """The calls in flight of a job, found by the outcomes of all its tasks.

    options: how. clock: seconds, which never go back.
    """

    def __init__(self, options: Adaptive, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._controller = AdaptiveController(options, clock)
        # By the time at which it ended; the number keeps the order of a task.
        self._coming: list[tuple[float, int, str, Ended]] = []
        self._numbers = itertools.count()

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""
        return self._controller.limit

    @property
    def round_trip(self) -> float:
        """Seconds of a call, as far as known; infinite where it is not."""
        return self._controller.round_trip

    def beside(self, stuck: int) -> int:
        """Slots beside `limit` for so many calls of all tasks that seem never to end."""
        return self._controller.slots(stuck) - self._controller.limit

    def resume(self, calls: int) -> None:
        """Go on from so many calls, which the tasks of a coordinator that has died still have in flight."""
        start = min(self._options.most, calls)
        if start > self.limit:
            options = replace(self._options, start=start)
            self._controller = AdaptiveController(options, self._clock)

    def report(self, outcomes: Outcomes) -> None:
        """Take the outcomes of one task."""
        now = self._clock()
        for kind, groups in zip(Outcomes._fields, outcomes, strict=True):
            for group in groups:
                if not group.calls or group.age > MAX_AGE_S:
                    continue
                ended = Ended(group.calls, now - group.age, group.seconds, group.squares)
                if kind == "refused":
                    # They are counted, and measure no time: their order is no matter.
                    self._controller.unanswered(True, ended)
                else:
                    heapq.heappush(self._coming, (ended.at, next(self._numbers), kind, ended))

    def judge(self) -> float:
        """Count the outcomes that all tasks have reported; returns the seconds until there are others."""
        controller, coming, until = self._controller, self._coming, self._clock() - LAG_S
        while coming and coming[0][0] <= until:
            _, _, kind, ended = heapq.heappop(coming)
            if kind == "answered":
                controller.answered(ended)
            else:
                controller.unanswered(False, ended)
        return coming[0][0] - until if coming else math.inf
