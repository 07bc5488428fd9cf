"""The endpoints of one service: the facts that are known of each.

An `Endpoint` may be read by any thread; `pillarbox.aio.endpoint_pool` alone changes it, under its lock.
"""

# Why latency counts by comparison only. Two endpoints that are equally well differ by chance, and a choice
# that follows chance sends bursts. So the slower of two counts as slower from twice the latency on; below
# that the calls in flight decide, which know of a slow endpoint anyway. The estimate is forgotten after a
# while without an answer: else an endpoint that was slow once would never be measured again. The oldest call
# in flight counts with a part of its age: an endpoint that hangs has no latency, but has that.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pillarbox.aio.endpoint_health import Health
from pillarbox.aio.endpoint_limits import EndpointLimits
from pillarbox.aio.limits.rate import SlidingCounts
from pillarbox.aio.policies.pace import Pace

State: TypeAlias = Literal["closed", "open", "half open"]

LATENCY_SHARE = 0.125
"""The weight of one answer in the estimate of the latency, at least."""
ANSWERS_TO_KNOW = 3
"""Answers after which the latency is known; the first one is not counted, for the cost of its connection."""
FORGET_LATENCY_S = 10.0
"""Seconds without an answer after which nothing is known of the latency."""
AGE_SHARE = 0.25
"""The share of the age of the oldest call in flight that counts as latency: single calls may take long."""
FORGET_PACE_S = 8.0
"""Seconds of consecutive rests after which the pace of the endpoint is forgotten."""
FAILED_AT = "_pillarbox_failed_at"
"""The attribute of an error with the address at which a client of several addresses has failed."""
COUNTED_S = 1.0
"""Seconds over which calls, refusals and answers are counted."""
BEGUN, REFUSED, ANSWERED = range(3)
"""Places of the counts."""


def names_of(urls: Sequence[str]) -> list[str]:
    """The name of each address in statistics: host and port, where these tell it from the others."""
    hosts = [urlsplit(url).netloc.rpartition("@")[2] or url for url in urls]
    return [host if hosts.count(host) == 1 else url for host, url in zip(hosts, urls, strict=True)]


class Endpoint:
    """Endpoint of a service, as `current_call().endpoint` returns it: an address, and the facts about it.

        >>> from pillarbox import Endpoints, Options, async_map, current_call
        >>> async def call(row):
        ...     endpoint = current_call().endpoint
        ...     return endpoint.url, endpoint.state, endpoint.in_flight
        >>> list(async_map(["a"], call, options=Options(endpoints=Endpoints("http://one"))))
        [('http://one', 'closed', 1)]

    url: its address. host: host and port of the name that DNS has resolved, for the Host header; None where
    nothing was resolved. name: its name in statistics. weight: its share relative to the others. in_flight:
    the calls in flight of all tasks of this process. asked_delay: the seconds that it has last asked callers
    to wait; None for none. Facts are those of all tasks of this process.

    Any thread may read it, as an estimate.
    """

    __slots__ = (
        *("asked_delay", "health", "host", "in_flight", "limits", "name", "shown", "told_at", "turn", "url"),
        "weight",
        *("_answered_at", "_answers", "_began", "_changed_at", "_clock", "_counts", "_latency", "_pace"),
    )

    def __init__(self, url: str, name: str, weight: float, clock: Any, host: str | None = None) -> None:
        self.url = url
        self.name = name
        self.host = host
        self.shown = url.partition("?")[0].partition("#")[0] if host is None else name
        self.weight = weight
        self.health = Health()
        self.limits = EndpointLimits()
        self.in_flight = 0
        self.asked_delay: float | None = None
        self.told_at: float | None = None
        self.turn = 0.0
        self._clock = clock
        now = clock()
        self._changed_at = now
        self._answers = 0
        self._latency = 0.0
        self._answered_at = -math.inf
        # When the calls in flight began, by the number of each.
        self._began: dict[int, float] = {}
        self._counts = SlidingCounts(3, COUNTED_S, now)
        # Since the first rest.
        self._pace: Pace | None = None

    def __repr__(self) -> str:
        return f"<endpoint {self.shown}, {self.state}, {self.in_flight} in flight>"

    # -- facts ------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of its breaker: "closed", "open" while it rests, "half open" when one call may probe."""
        if not self.health.is_open:
            return "closed"
        return "open" if self._clock() < self.health.rests_until else "half open"

    @property
    def seconds_in_state(self) -> float:
        """Seconds since its breaker opened or closed; since it is known, if it never opened."""
        return float(max(0.0, self._clock() - self._changed_at))

    @property
    def latency(self) -> float | None:
        """Seconds of an answer, averaged over the last ones; None if it is not known."""
        return self.known_latency(self._clock()) or None

    @property
    def pace(self) -> float | None:
        """Calls per second that it gets since it refused calls; None for no limit."""
        return None if self._pace is None else self._pace.per_second

    @property
    def answers(self) -> int:
        """Calls that it has answered."""
        return self._answers

    # -- changes, under the lock of the pool --------------------------------------------------------

    def begin(self, now: float, number: int, units: float = 1.0) -> None:
        """Note a call of so many units that begins, and give it a number."""
        self.limits.begin(units, now)
        self.in_flight += 1
        self._began[number] = now
        self._counts.add(BEGUN, now)
        if self._pace is not None:
            self._pace.take(now)

    def end(self, number: int) -> None:
        """Note that a call has ended, in any way."""
        self.in_flight -= 1
        del self._began[number]

    def answered(self, now: float, seconds: float, is_return: bool) -> None:
        """Note an answer after so many seconds. is_return: it ends a rest."""
        self._counts.add(ANSWERED, now)
        self.limits.back_at = -math.inf
        self._answers += 1
        if now - self._answered_at >= FORGET_LATENCY_S and self._answers > ANSWERS_TO_KNOW:
            # Of the one call that was to find out.
            self._latency = seconds
        elif self._answers > 1:
            share = max(LATENCY_SHARE, 1.0 / (self._answers - 1))
            self._latency += share * (seconds - self._latency)
        self._answered_at = now
        if is_return:
            self.returns(now)

    def returns(self, now: float) -> None:
        """Note that a rest ends."""
        self._changed_at = now
        if self._pace is not None:
            self._pace.begin(now)

    def refused(self, now: float, asked: float | None) -> None:
        """Note a refusal, and the seconds that it asked callers to wait."""
        self._counts.add(REFUSED, now)
        self.asked_delay = asked
        if self._pace is not None and not self.health.is_open:
            begun, refused, answered = self._counts.totals(now)
            self._pace.slow_down(refused / max(1, begun), now, answered / COUNTED_S)

    def rests(self, now: float, was_open: bool) -> None:
        """Note that a rest begins, the first or another one in a row."""
        if not was_open:
            self._changed_at = now
        if self._pace is None:
            self._pace = Pace(now)
        if not was_open:
            self._pace.learn(self._counts.totals(now)[ANSWERED] / COUNTED_S)
        elif now - self._changed_at >= FORGET_PACE_S:
            self._pace.forget()
        self._pace.probe(now)

    # -- the choice -------------------------------------------------------------------------------

    def pace_wait(self, now: float) -> float:
        """Seconds until its pace has room for a call; 0.0 without a pace, and for a probe."""
        if self._pace is None or self.health.is_open:
            return 0.0
        return self._pace.ready_in(now, grows=True)

    def known_latency(self, now: float) -> float:
        """The latency, 0.0 for an unknown one; a forgotten one is unknown to one call, which finds out."""
        is_forgotten = now - self._answered_at >= FORGET_LATENCY_S and not self.in_flight
        return 0.0 if is_forgotten or self._answers < ANSWERS_TO_KNOW else self._latency

    def age_told(self, now: float) -> float:
        """The part of the age of the oldest call in flight that counts as latency."""
        return AGE_SHARE * (now - next(iter(self._began.values()))) if self._began else 0.0
