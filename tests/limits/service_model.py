"""A service with a knee, as a model that takes no time: so many calls at once, the others queue."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pillarbox import Adaptive
from pillarbox.testing import FakeClock


@dataclass
class Service:
    """A modelled service. `serves` calls at a time; a call takes `mean` seconds, log-normal with `sigma`."""

    serves: int
    mean: float = 0.02
    sigma: float = 0.0
    refuses_above: float = float("inf")
    """Calls in the service above which it answers "overloaded" at once."""
    refuses: float = 0.0
    """Share of the calls that are answered "overloaded" at once, however few there are."""
    fails: float = 0.0
    """Share of the calls that end with another error."""
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def refused(self) -> bool:
        return bool(self.refuses) and self.random.random() < self.refuses

    def seconds(self) -> float:
        if not self.sigma:
            return self.mean
        return self.mean * self.random.lognormvariate(-(self.sigma**2) / 2, self.sigma)


class Caller:
    """Keeps as many calls in the service as the controller allows, or as there are (`offered`)."""

    def __init__(self, adaptive: Adaptive, service: Service, offered: int = 10**9) -> None:
        self.clock = FakeClock(1000.0)
        self.controller = adaptive.open(self.clock)
        self.service = service
        self.offered = offered
        self.limits: list[tuple[float, int]] = []
        self.answers: list[tuple[float, float]] = []
        """Pairs of the time at which a call was served and its seconds."""
        self.served = 0
        self.refused = 0
        self.in_flight = 0
        self._running = 0
        self._queue: deque[float] = deque()
        self._ends: list[tuple[float, int, float, bool | None]] = []
        self._count = 0

    def run(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        """Let so much time pass; `each` is called after each call that has ended."""
        until = self.clock() + seconds
        self._send()
        while self._ends and self._ends[0][0] <= until:
            at, _, began, overloaded = heapq.heappop(self._ends)
            self.clock.set(max(at, self.clock()))
            self.in_flight -= 1
            if overloaded is None:
                self._running -= 1
                self.served += 1
                self.answers.append((at, at - began))
                self.controller.succeeded(at - began)
            else:
                self._running -= not overloaded
                self.refused += overloaded
                self.controller.failed(overloaded)
            while self._queue and self._running < self.service.serves:
                self._serve(self._queue.popleft())
            self.limits.append((self.clock(), self.controller.limit))
            each()
            self._send()
        self.clock.set(until)

    def _send(self) -> None:
        while self.in_flight < min(self.controller.limit, self.offered):
            self.in_flight += 1
            if self.in_flight > self.service.refuses_above or self.service.refused():
                self._end(self.clock(), self.service.mean / 10, True)
            elif self._running < self.service.serves:
                self._serve(self.clock())
            else:
                self._queue.append(self.clock())

    def _serve(self, began: float) -> None:
        self._running += 1
        failed = self.service.random.random() < self.service.fails
        self._end(began, self.clock() - began + self.service.seconds(), False if failed else None)

    def _end(self, began: float, seconds: float, overloaded: bool | None) -> None:
        self._count += 1
        heapq.heappush(self._ends, (began + seconds, self._count, began, overloaded))

    def longest_above(self, limit: float) -> float:
        """Round trips, of the calls meanwhile, for which more than `limit` calls were allowed."""
        longest, since = 0.0, None
        for at, allowed in [*self.limits, (self.clock(), 0)]:
            if allowed > limit:
                since = at if since is None else since
            elif since is not None:
                trips = [seconds for end, seconds in self.answers if since <= end <= at]
                longest, since = max(longest, (at - since) * len(trips) / sum(trips)), None
        return longest

    def last(self, seconds: float) -> list[int]:
        """The limits of the last so many seconds."""
        return [limit for at, limit in self.limits if at >= self.clock() - seconds]
